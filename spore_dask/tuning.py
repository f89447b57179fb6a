"""`tune`: one graph, many configurations, and the one to keep.

Reads a source, or an earlier graph; writes a run's folder as `fit` does, and in it `tuning-ID`: the
receipts of the trials, the labels that each gave a sample of rows, and what was chosen. A trial is
one task (see `trials`). Memory of this process: that of a fit of the best configuration; before it,
12 bytes for each trial and row of the sample.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from dask.utils import format_bytes
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from spore_dask import memory
from spore_dask.choosing import Votes, choose, decide
from spore_dask.clusters import NOISE
from spore_dask.comparing import (
    N_COMPARED,
    Chosen,
    Comparison,
    chosen_of,
    compare,
    longest_rows,
    usable,
)
from spore_dask.engine import Engine
from spore_dask.errors import LimitError, ParameterError
from spore_dask.excerpts import (
    DENSE,
    Asked,
    Excerpt,
    ExcerptSpec,
    best_excerpt,
    best_finalist,
    finalists,
    read_sample_of,
    try_on_excerpts,
)
from spore_dask.fitting import Fit
from spore_dask.graph import FORMAT, Graph, scan_folder, scan_source
from spore_dask.inputs import Input, check_unchanged, labels_of_rows
from spore_dask.jobs import Job, find_job, place_of_run
from spore_dask.memory import Shape
from spore_dask.opening import find_done, opened
from spore_dask.params import count, one_of
from spore_dask.plan import FitPlan, as_memory_limit, working_itemsize
from spore_dask.reference import N_CLOUDS, N_TRIALS, reference_score
from spore_dask.runs import (
    CHOICE,
    RESULT,
    SUMMARY,
    Run,
    keep_at_most,
    kept_stages,
    point_to,
    read_published_rows,
    remove_stages,
    warn_of,
)
from spore_dask.runs import POINTER as RUN_POINTER
from spore_dask.spaces import Trial, is_open
from spore_dask.stages.scan import Scan
from spore_dask.store import Folder, Limits, hash_of, remove_stage
from spore_dask.tasks import Receipt, Work, run_work
from spore_dask.trials import TrialSpec, read_labels, read_places, run_trials
from spore_dask.tunings import POINTER, Tuning
from spore_dask.voters import PollSpec, poll, read_sample, read_samples

TRIALS, SAMPLE = count(optional=False), count(at_least=2, optional=False)
DETAIL = one_of("auto", "coarse", "fine")
FINALISTS = "finalists.json"
"""Names the results of trials that were run on all points."""
LEAST_TRIALS = 3
"""Trials without labels: each is compared with the others, and two agree with each other alike."""


def tune(
    source: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    y: Any = None,
    n_trials: int = N_TRIALS,
    detail: str = "auto",
    space: Mapping[str, Any] | None = None,
    sample: int = N_COMPARED,
    graph: Graph | Run | str | os.PathLike[str] | None = None,
    resume: bool = True,
    component: str | None = None,
    knn: str = "auto",
    knn_index: str | None = None,
    recall_target: float = 0.97,
    n_partitions: int | None = None,
    metric: str = "euclidean",
    scale: str | None = None,
    memory_limit: int | str | None = None,
    cache_limit: int | str | None = None,
    client: Any = None,
    n_workers: int | None = None,
    seed: int = 42,
    progress: Any = None,
    keep: str = "predict",
    **params: Any,
) -> Tuning:
    """Choose parameters: cluster with many configurations, and keep the best.

    Up to 131,072 points they share one graph of all points. Beyond, trials run on two excerpts of
    the data; the ARI of a trial is then the mean over both.

    With labels `y` the best is the one with the highest adjusted Rand index (ARI). Without, it is
    the one whose result the others agree with most, among those with at least two clusters and at
    most half noise.

    Parameters
    ----------
    source, out
        As in `fit`.
    y : array (N,) or path, optional
        True labels of the rows of the source, numbers or strings: an array, or the path of a Zarr
        array, an .npy file, or a .csv or .parquet table with one column.
    n_trials : int
        Configurations to draw, the paper's default among them; at least 3 without `y`. Beside them
        a few fixed ones are tried that find small clusters, unless a `space` is given.
    detail : {"auto", "coarse", "fine"}
        Which of the stable levels to take, from few large clusters to many small ones. Default:
        the one with the highest score, unless one giant cluster has most of its points.
    space : dict, optional
        What to draw parameters from: for each name a list of values, or a distribution of
        scipy.stats. Default: the paper's space, but with minimum sizes of 388 points at most. The
        draws are those of scikit-learn's `ParameterSampler`.
    sample : int
        Rows on which results are compared; all rows where there are fewer.
    graph : Graph, Run or path, optional
        An earlier graph of the same source. Configurations that need more neighbours than it has
        are left out. Default: one is built, once.
    seed : int
        Seed of the draws, of the sample of rows, and of all that `fit` draws.
    resume, component, knn, knn_index, recall_target, n_partitions, metric, scale, memory_limit, \
cache_limit, client, n_workers, progress, keep
        As in `fit`.
    **params
        Fields of `Params`, which stay the same in all trials.

    Returns
    -------
    Tuning
    """
    TRIALS.check("n_trials", n_trials)
    SAMPLE.check("sample", sample)
    DETAIL.check("detail", detail)
    with place_of_run(source, out) as (place, keep_place):
        job = find_job(
            source,
            place,
            graph=graph,
            component=component,
            knn=knn,
            knn_index=knn_index,
            recall_target=recall_target,
            n_partitions=n_partitions,
            metric=metric,
            scale=scale,
            seed=seed,
            keep=keep,
            cache_limit=cache_limit,
            **params,
        )
        fixed = {name: value for name, value in params.items() if value is not None}
        search = find_search(
            job,
            fixed,
            space,
            int(n_trials),
            int(sample),
            y,
            as_memory_limit(memory_limit, n_workers),
            detail,
        )
        name = search.folder.name
        found = find_done(job.folder, name, job.data, search.finished) if resume else None
        if found is None:
            with opened(
                job.folder,
                name,
                search.job.plan,
                memory_limit=memory_limit,
                client=client,
                n_workers=n_workers,
                progress=progress,
                reads=job.reads,
            ) as opening:
                found = search.run(*opening, resume)
        keep_place(found.run)
    warn_of(found.run, stacklevel=2)
    return found


@dataclasses.dataclass(frozen=True)
class TuneJob(Job):
    """What a tune is asked for: a fit for each trial, all of one graph with whole rows."""

    trials: tuple[Trial, ...] = ()

    @functools.cached_property
    def longest_k(self) -> int:
        """Neighbours that the trial that needs most of them needs."""
        return longest_rows(self.trials, self.data.source.shape[0])

    @property
    def head_k(self) -> int:
        """Neighbours of every point: where trials share the graph, any may be a fragment in one."""
        if self.excerpt_points is None:
            return self.longest_k
        n_points = self.data.source.shape[0]
        resolved = [trial.params.resolve(n_points) for trial in self.trials]
        return max(max(one.density_neighbors, one.expansion_neighbors) for one in resolved)

    @functools.cached_property
    def trial_shape(self) -> Shape:
        """The sizes of the graph that is clustered by each trial, or taken excerpts of."""
        source = self.data.source
        itemsize, n_partitions = working_itemsize(source.dtype), self.options.n_partitions
        return memory.shape_of(*source.shape, itemsize, self.longest_k, n_partitions)

    @property
    def excerpt_points(self) -> int | None:
        """Points of the excerpts that trials cluster; None where they cluster all points."""
        return memory.excerpt_points(self.trial_shape)

    @property
    def trial_nbytes(self) -> int:
        """Projected peak of a process that runs trials."""
        if self.excerpt_points is not None:
            return memory.excerpt_nbytes(self.trial_shape)
        return memory.trial_nbytes(self.trial_shape if self.graph is None else self.graph.shape)

    def plan(self, memory_limit: Any, n_workers: int | None) -> FitPlan:
        """Plan graph and fit; raise a sentence where they, or a trial, cannot work."""
        plan = super().plan(memory_limit, n_workers)
        needed = self.trial_nbytes + plan.store_nbytes
        if plan.memory_limit < needed:
            raise LimitError(
                f"memory_limit is {format_bytes(plan.memory_limit)} a process, but choosing "
                f"parameters needs {format_bytes(needed)}: raise it, or give "
                'params="paper" and the parameters that you want.'
            )
        return plan


def find_search(
    job: Job,
    fixed: dict[str, Any],
    space: Mapping[str, Any] | None,
    n_trials: int,
    sample: int,
    y: Any,
    memory_limit: int,
    detail: str,
) -> Search:
    """Return what the arguments of `tune` ask for, or raise a sentence."""
    n_points = job.data.source.shape[0]
    if y is None and n_trials < LEAST_TRIALS:
        raise ParameterError(
            f"n_trials is {n_trials}, but without labels y a trial is compared with the others: "
            f"ask for at least {LEAST_TRIALS}, or give y."
        )
    compared = compare(
        job.data.source.shape,
        fixed,
        job.params.seed,
        space=space,
        n_trials=n_trials,
        n_compared=sample,
    )
    n_found = len(compared.trials)
    if y is None and n_found < LEAST_TRIALS:
        raise ParameterError(
            f"The space has {n_found - 1} configurations, but without labels y at least "
            f"{LEAST_TRIALS - 1} are needed beside the default one: give a larger space, or y."
        )
    if job.graph is not None:
        trials = _fitting(compared.trials, job.graph, n_points, LEAST_TRIALS if y is None else 1)
        compared = dataclasses.replace(compared, trials=trials)
    read_truth = None
    if y is not None:
        read_truth = functools.partial(labels_of_rows, y, n_points, memory_limit=memory_limit)
    truth = None if read_truth is None else read_truth(compared.rows)
    tune_job = TuneJob(**_shallow(job), trials=compared.trials)
    return Search(tune_job, compared, truth, read_truth, space, detail)


def _labels_at(run: Run, rows: NDArray[np.int64]) -> NDArray[np.integer]:
    """Return the labels of some ascending rows."""
    return read_published_rows(run.labels, rows, Limits(NOISE, len(run.clusters)))


def _fitting(
    trials: Sequence[Trial], graph: Graph, n_points: int, at_least: int
) -> tuple[Trial, ...]:
    """Return the trials that a graph has enough neighbours for."""
    found = tuple(trial for trial in trials if trial.params.resolve(n_points).k <= graph.k)
    if len(found) < at_least:
        raise ParameterError(
            f"The graph at {graph.path!r} has {graph.k} neighbours per row, but only {len(found)} "
            f"of {len(trials)} configurations can be compared with so few: build one with "
            f'k >= {longest_rows(trials, n_points)}, or give the parameters and params="paper".'
        )
    return found


def _shallow(job: Job) -> dict[str, Any]:
    """Return the fields of a job."""
    return {field.name: getattr(job, field.name) for field in dataclasses.fields(Job)}


def _refer(spec: PollSpec, seed: int, fixed: dict[str, Any], number: int) -> Receipt:
    """Score the first sample, or one of its clouds."""
    return {"score": reference_score(read_sample(spec, 0), number, seed, fixed)}


def _refer_to_excerpt(folder: Folder, seed: int, fixed: dict[str, Any], number: int) -> Receipt:
    """Score the sample of an excerpt, or one of its clouds."""
    return {"score": reference_score(read_sample_of(folder), number, seed, fixed)}


def _aris(truth: NDArray[np.int64], labels: NDArray[np.int32]) -> list[float]:
    """Return the ARI of each trial."""
    return [float(adjusted_rand_score(truth, row)) for row in labels]


@dataclasses.dataclass(frozen=True)
class Search:
    """A tune that is to be made, or has been."""

    job: TuneJob
    compared: Comparison
    truth: NDArray[np.int64] | None
    """Labels of the rows that are compared, if they are known."""
    read_truth: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None
    """Returns the labels of any rows, if they are known."""
    space: Mapping[str, Any] | None
    detail: str

    @property
    def folder(self) -> Folder:
        """Where the trials are; those with and without labels are the same."""
        job = self.job
        graph = job.graph and (job.graph.path, job.graph.name)
        asked = dataclasses.asdict(job.data.source), dataclasses.asdict(job.options), graph
        voters = [trial for some in self.compared.voters for trial in some]
        params = [dataclasses.asdict(trial.params) for trial in (*job.trials, *voters)]
        sizes = len(job.trials), len(self.compared.rows), job.excerpt_points
        return job.folder.child("tuning-" + hash_of(FORMAT, *asked, params, *sizes))

    @property
    def document(self) -> str:
        """Name of what says which trial was chosen."""
        if self.truth is None or self.read_truth is None:
            return f"chosen-{self.detail}.json"
        known = [self.truth.tolist()]
        if self.job.excerpt_points is not None:
            known.append(self.read_truth(self._asked().thin_rows()).tolist())
        return f"chosen-{hash_of(*known)}.json"

    def finished(self) -> Tuning | None:
        """Return the result if it is complete; refuse it if the source has changed since."""
        check_unchanged(self.job.folder, self.job.data.source)
        known = self.folder.read_json(self.document)
        if known is None or not self.job.folder.exists(f"{RESULT}{known['run']}/{SUMMARY}"):
            return None
        found = self._tuning()
        point_to(self.job.folder, RUN_POINTER, found.run.id)
        keep_at_most(found.run, self.job.keep)
        return found

    def _forget(self) -> None:
        """Remove what the same call has left."""
        known = self.folder.read_json(self.document)
        runs = [] if known is None else [known["run"]]
        for run in [*runs, *(self.folder.read_json(FINALISTS) or {"runs": []})["runs"]]:
            result = self.job.folder.child(RESULT + run)
            result.remove(SUMMARY)
            remove_stage(result)
        for name in ("places", "excerpts", "trials", "reference"):
            self.folder.remove(f"receipts-{name}")
        remove_stages(self.folder)

    def _tuning(self) -> Tuning:
        self.job.data.source.confirm()
        pointer = {"name": self.folder.name, "document": self.document}
        found = Tuning(self.job.folder.url, **pointer)
        told = {"tuning": self.folder.name, **found.summary["choice"]}
        if found.run.choice != told:
            found.run.result.write_json(CHOICE, told)
        self.job.folder.write_json(POINTER, pointer)
        return found

    def run(self, engine: Engine, plan: FitPlan, resume: bool) -> Tuning:
        """Build the graph, run the trials, choose, and fit with what was chosen."""
        builder = Fit(engine, self.job, plan, resume)
        job = dataclasses.replace(self.job, data=builder.job.data)
        search = dataclasses.replace(self, job=job)
        return search._run(builder, resume)

    def _run(self, builder: Fit, resume: bool) -> Tuning:
        """Do the same, with the identity of the data known."""
        with self.job.data.removed_when_done():
            finished = self.finished() if resume else None
            if finished is not None:
                return finished
            if not resume:
                self._forget()
            if self.job.excerpt_points is not None:
                self._run_on_excerpts(builder, resume)
                return self._tuning()
            graph = builder.graph()
        data = Input(self.job.data.source)
        spec = TrialSpec(self.folder, graph, tuple(trial.params for trial in self.job.trials))
        facts = run_trials(builder.engine, spec, self.compared.rows)
        n_pieces = facts[0].pop("n_pieces", 0)
        labels = read_labels(self.folder, len(facts), len(self.compared.rows))
        chosen, aris = self._choose(builder.engine, spec, labels, facts)
        job = self._job_of(chosen.best, data, graph)
        self._write(job, chosen, aris)
        plan = dataclasses.replace(builder.plan, data=data, known=graph.shape)
        self._fit(builder, job, plan, chosen, resume, n_pieces)
        return self._tuning()

    def _job_of(self, trial: int, data: Input, graph: Graph | None) -> Job:
        """Return the fit with the parameters of a trial."""
        params = self.job.trials[trial].params
        return Job(**_shallow(self.job) | {"data": data, "graph": graph, "params": params})

    def _fit(
        self,
        builder: Fit,
        job: Job,
        plan: FitPlan,
        chosen: Chosen,
        resume: bool,
        n_pieces: int = 0,
        is_latest: bool = True,
    ) -> Run:
        """Fit with what was chosen."""
        final = Fit(builder.engine, job, plan, resume, is_latest)
        final.stages |= builder.stages
        final.facts = {"n_pieces": n_pieces}
        final.warnings = list(chosen.warnings)
        return final.run()

    def _run_on_excerpts(self, builder: Fit, resume: bool) -> None:
        """Choose on excerpts of the data, and fit all of it with what was chosen.

        The data stays where it was written until the last fit.
        """
        engine, folder = builder.engine, self.job.folder
        self.folder.sweep()
        plan = dataclasses.replace(builder.plan, known=None)  # a graph has no scan of its own here
        if self.job.graph is not None:
            builder.check_graph(self.job.graph)
        self.job.data.write(engine, plan.memory()["scan"])
        if not resume:
            builder.start_afresh(scan_folder(folder, plan))
        scanned = scan_source(engine, folder, plan)
        asked = self._asked()
        excerpt, chosen, aris = self._choose_on_excerpts(builder, plan, asked, scanned)
        numbers = [chosen.best] if self.truth is not None else finalists(asked, excerpt, chosen)
        data = Input(self.job.data.source)
        keep = "all" if self.job.keep == "all" else "predict"
        jobs = [self._job_of(number, data, self.job.graph) for number in numbers]
        if len(jobs) > 1:
            self.folder.write_json(FINALISTS, {"runs": [job.id for job in jobs]})
            runs = []
            for job in jobs:
                job = dataclasses.replace(job, keep=keep)
                plan = self._plan_of(builder, job)
                runs.append(self._fit(builder, job, plan, chosen, resume, is_latest=False))
                resume = True  # what this call has built
            labels = [_labels_at(run, excerpt.rows) for run in runs]
            best = best_finalist(asked, excerpt, numbers, labels)
            chosen = dataclasses.replace(chosen, best=best)
        job = self._job_of(chosen.best, data, self.job.graph)
        self._write(job, chosen, aris)
        n_pieces = excerpt.n_pieces
        self._fit(builder, job, self._plan_of(builder, job), chosen, resume, n_pieces)
        if len(jobs) > 1:
            for run in runs:
                keep_at_most(run, self.job.keep)
        if scanned.folder.name not in kept_stages(folder):
            remove_stage(scanned.folder)

    def _plan_of(self, builder: Fit, job: Job) -> FitPlan:
        """Return the plan of a fit with what was chosen."""
        return job.plan(builder.plan.memory_limit, builder.engine.n_workers)

    def _asked(self) -> Asked:
        """Return what is tried on excerpts."""
        compared = self.compared
        return Asked(
            n_points=self.job.data.source.shape[0],
            size=self.job.excerpt_points or 0,
            trials=self.job.trials,
            space=self.space,
            fixed=compared.fixed,
            n_compared=len(compared.rows),
            seed=compared.seed,
        )

    def _choose_on_excerpts(
        self, builder: Fit, plan: FitPlan, asked: Asked, scanned: Scan
    ) -> tuple[Excerpt, Chosen, list[float | None]]:
        """Choose one of the trials by what they make of excerpts, and return the ARI of each.

        The ARI, if true labels are known, is the mean over both excerpts.
        """
        job, compared, engine = self.job, self.compared, builder.engine
        spec = ExcerptSpec(
            asked,
            self.folder,
            job.data.source,
            scanned.transform,
            len(scanned.ranges),
            reading_nbytes=plan.memory()["exchange"],
            choosing_nbytes=job.trial_nbytes,
        )
        excerpts = try_on_excerpts(engine, spec, scanned)
        used = best_excerpt(excerpts)
        used = dataclasses.replace(used, n_pieces=excerpts[DENSE].n_pieces)
        chosen = used.chosen(self.detail)
        if self.read_truth is not None:
            found = [_aris(self.read_truth(one.rows), one.labels) for one in excerpts.values()]
            aris = np.mean(found, axis=0).tolist()
            return used, dataclasses.replace(chosen, best=int(np.argmax(aris))), aris
        if self._is_doubtful(chosen):
            folder, seed = self.folder.child(used.name), compared.seed
            refer = functools.partial(_refer_to_excerpt, folder, seed, compared.fixed)
            work = Work("reference", refer, range(1 + 2 * N_CLOUDS), job.trial_nbytes)
            scores = [receipt["score"] for receipt in run_work(engine, folder, work)]
            chosen = chosen.beside(scores)
        return used, chosen, [None] * len(used.facts)

    def _is_doubtful(self, chosen: Chosen) -> bool:
        """Tell whether to compare a choice with that for data without clusters."""
        return chosen.is_unsure and not chosen.is_degenerate and is_open(self.compared.fixed)

    def _choose(
        self,
        engine: Engine,
        spec: TrialSpec,
        labels: NDArray[np.int32],
        facts: list[dict[str, Any]],
    ) -> tuple[Chosen, list[float | None]]:
        """Choose one of the trials, and return the ARI of each if true labels are known."""
        weights, factors = self.compared.weights, self.compared.factors
        if self.truth is not None:
            choice = choose(labels, weights, usable=usable(facts), factors=factors)
            aris = _aris(self.truth, labels)
            return Chosen(int(np.argmax(aris)), choice, facts, self.detail), [*aris]
        ask = functools.partial(self._ask_voters, engine, spec)
        choice = decide(labels, weights, usable(facts), spec.graph.n_points, ask, factors)
        chosen = chosen_of(choice, facts, self.detail)
        if self._is_doubtful(chosen):
            chosen = chosen.beside(self._refer(engine, spec))
        return chosen, [None] * len(facts)

    def _refer(self, engine: Engine, spec: TrialSpec) -> list[float]:
        """Return the highest score on a sample of the rows, and on data without clusters."""
        asked = self._samples(spec)
        read_samples(engine, asked)
        refer = functools.partial(_refer, asked, self.compared.seed, self.compared.fixed)
        work = Work("reference", refer, range(1 + 2 * N_CLOUDS), spec.needs_nbytes)
        return [receipt["score"] for receipt in run_work(engine, asked.folder, work)]

    def _ask_voters(self, engine: Engine, spec: TrialSpec) -> list[Votes]:
        """Return what further configurations make of samples of the rows."""
        return self.compared.votes(poll(engine, self._samples(spec)))

    def _samples(self, spec: TrialSpec) -> PollSpec:
        """Return the samples of the rows, and what clusters them."""
        graph, compared = spec.graph, self.compared
        places = read_places(self.folder, graph.n_points, len(compared.rows))
        return PollSpec(
            self.folder.child("voters"),
            graph.points,
            graph.graph_rows,
            tuple(places[columns] for columns in compared.samples),
            tuple(tuple(trial.params for trial in voters) for voters in compared.voters),
            spec.needs_nbytes,
        )

    def _write(self, job: Job, chosen: Chosen, aris: list[float | None]) -> None:
        """Write what was chosen, before the fit with it: that may remove the graph."""
        scores = [float(score) if np.isfinite(score) else None for score in chosen.choice.scores]
        told = zip(chosen.facts, scores, aris, strict=True)
        summary = {
            "n_points": job.resolved.n_points,
            "n_sampled": len(self.compared.rows),
            "y": self.truth is not None,
            "best": chosen.best,
            "degenerate": chosen.is_degenerate and self.truth is None,
            "params": [
                {name: getattr(trial.params, name) for name in self.compared.names}
                for trial in self.compared.trials
            ],
            "trials": [fact | {"score": score, "ari": ari} for fact, score, ari in told],
            "choice": chosen.document(self.compared),
            "run": job.id,
        }
        self.job.data.source.confirm()
        self.folder.write_json(self.document, summary)
