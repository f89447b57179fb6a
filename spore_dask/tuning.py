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
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dask.utils import format_bytes
from numpy.typing import NDArray

from spore_dask import memory
from spore_dask.engine import Engine
from spore_dask.errors import LimitError, ParameterError
from spore_dask.fitting import Fit
from spore_dask.graph import FORMAT, Graph
from spore_dask.inputs import Input, check_unchanged, labels_of_rows
from spore_dask.jobs import Job, find_job, place_of_run
from spore_dask.judging import Judgement, Votes, judge
from spore_dask.opening import find_done, opened
from spore_dask.params import Params, count
from spore_dask.plan import FitPlan, as_memory_limit
from spore_dask.runs import POINTER as RUN_POINTER
from spore_dask.runs import RESULT, SUMMARY, Run, keep_at_most, point_to, remove_stages
from spore_dask.spaces import draw_trials, find_space
from spore_dask.store import Folder, hash_of, remove_stage
from spore_dask.trials import TrialSpec, read_labels, read_places, run_trials
from spore_dask.tunings import POINTER, Tuning
from spore_dask.voters import MOST_NBYTES, MOST_ROWS, N_VOTERS, PollSpec, poll

N_TRIALS, SAMPLE = count(optional=False), count(at_least=2, optional=False)
LEAST_TRIALS = 3
"""Trials without labels: each is compared with the others, and two agree with each other alike."""


def tune(
    source: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    y: Any = None,
    n_trials: int = 30,
    space: Mapping[str, Any] | None = None,
    sample: int = 20_000,
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
    """Choose parameters: cluster one graph with many configurations, and keep the best.

    With labels `y` the best is the one with the highest adjusted Rand index (ARI). Without, it is
    the one that the others agree with most, and with them 50 more configurations on a sample of
    5,000 rows; it has at least two clusters and at most half noise, if there is one like that, and
    else the least noise.

    Parameters
    ----------
    source, out
        As in `fit`.
    y : array (N,) or path, optional
        True labels of the rows of the source, numbers or texts: an array, or the path of a Zarr
        array, an .npy file, or a .csv or .parquet table with one column.
    n_trials : int
        Configurations, the default one first; at least 3 without `y`.
    space : dict, optional
        What to draw parameters from: for each name a list of values, or a distribution of
        scipy.stats. Default: the paper's space. The draws are those of scikit-learn's
        `ParameterSampler`.
    sample : int
        Rows on which results are compared; all rows where there are fewer.
    graph : Graph, Run or path, optional
        An earlier graph of the same source with enough neighbours in every row for all trials.
        Default: one is built, once.
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
    N_TRIALS.check("n_trials", n_trials)
    SAMPLE.check("sample", sample)
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
    if found.summary["degenerate"]:
        warnings.warn(
            f"None of the {len(found.trials)} trials has two clusters and at most half noise: the "
            "one with the least noise was kept; give another space, or check the data's scale.",
            stacklevel=2,
        )
    return found


@dataclasses.dataclass(frozen=True)
class TuneJob(Job):
    """What a tune is asked for: a fit for each trial, all of one graph with whole rows."""

    trials: tuple[Params, ...] = ()

    @functools.cached_property
    def longest_k(self) -> int:
        """Neighbours that the trial that needs most of them needs."""
        return max(params.resolve(self.data.source.shape[0]).k for params in self.trials)

    @property
    def head_k(self) -> int:
        """Neighbours of every point: any may be a fragment in some trial."""
        return self.longest_k

    def plan(self, memory_limit: Any, n_workers: int | None) -> FitPlan:
        """Plan graph and fit; raise a sentence where they, or a trial, cannot work."""
        plan = super().plan(memory_limit, n_workers)
        needed = memory.INTERPRETER_NBYTES + memory.COMPILING_NBYTES
        if plan.memory_limit < needed:
            raise LimitError(
                f"memory_limit is {format_bytes(plan.memory_limit)} a process, but a worker needs "
                f"{format_bytes(needed)} to compile what a trial runs: raise it."
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
) -> Search:
    """Return what the arguments of `tune` ask for, or raise a sentence."""
    n_points = job.data.source.shape[0]
    if y is None and n_trials < LEAST_TRIALS:
        raise ParameterError(
            f"n_trials is {n_trials}, but without labels y a trial is compared with the others: "
            f"ask for at least {LEAST_TRIALS}, or give y."
        )
    found = find_space(space, n_points, fixed)
    trials = draw_trials(found, n_trials, job.params.seed, fixed)
    if y is None and len(trials) < LEAST_TRIALS:
        raise ParameterError(
            f"The space has {len(trials) - 1} configurations, but without labels y at least "
            f"{LEAST_TRIALS - 1} are needed beside the default one: give a larger space, or y."
        )
    rows = _draw_rows(n_points, sample, job.params.seed)
    truth = None if y is None else labels_of_rows(y, n_points, rows, memory_limit)
    tune_job = TuneJob(**_shallow(job), trials=tuple(trials))
    voters: list[Params] = []
    if y is None:
        n_asked = len(_asked_columns(len(rows), job.data.source.shape[1]))
        sampled = find_space(space, n_asked, fixed)
        voters = draw_trials(sampled, N_VOTERS + 1, job.params.seed + 1, fixed)[1:]
    return Search(tune_job, tuple(sorted({*found, *fixed})), rows, truth, tuple(voters))


def _draw_rows(n_points: int, sample: int, seed: int) -> NDArray[np.int64]:
    """Return rows to compare, ascending; all of them where there are no more than the sample."""
    if n_points <= sample:
        return np.arange(n_points)
    return np.sort(np.array(random.Random(seed).sample(range(n_points), sample)))


def _asked_columns(n_rows: int, n_columns: int) -> NDArray[np.int64]:
    """Return which of the rows that are compared voters are asked about."""
    most = max(2, min(MOST_ROWS, MOST_NBYTES // (8 * n_columns)))
    return np.arange(0, n_rows, -(-n_rows // most))


def _retention(trials: Sequence[Params]) -> NDArray[np.float64]:
    """Return the retention rate of each configuration, 0 where it has none."""
    return np.array([params.retention_rate or 0.0 for params in trials])


def _shallow(job: Job) -> dict[str, Any]:
    """Return the fields of a job."""
    return {field.name: getattr(job, field.name) for field in dataclasses.fields(Job)}


@dataclasses.dataclass(frozen=True)
class Search:
    """A tune that is to be made, or has been."""

    job: TuneJob
    names: tuple[str, ...]
    """Parameters of the space, and those that are fixed."""
    rows: NDArray[np.int64]
    """Input rows on which results are compared."""
    truth: NDArray[np.int64] | None
    """Their labels, if they are known."""
    voters: tuple[Params, ...]
    """Configurations that are asked for their vote; none where labels are known."""

    @property
    def folder(self) -> Folder:
        """Where the trials are; those with and without labels are the same."""
        job = self.job
        graph = job.graph and (job.graph.path, job.graph.name)
        asked = dataclasses.asdict(job.data.source), dataclasses.asdict(job.options), graph
        trials = [dataclasses.asdict(params) for params in job.trials]
        return job.folder.child("tuning-" + hash_of(FORMAT, *asked, trials, len(self.rows)))

    @property
    def document(self) -> str:
        """Name of what says which trial was chosen."""
        return (
            "chosen.json" if self.truth is None else f"chosen-{hash_of(self.truth.tolist())}.json"
        )

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
        if known is not None:
            result = self.job.folder.child(RESULT + known["run"])
            result.remove(SUMMARY)
            remove_stage(result)
        self.folder.remove("receipts-trials")
        remove_stages(self.folder)

    def _tuning(self) -> Tuning:
        self.job.data.source.confirm()
        pointer = {"name": self.folder.name, "document": self.document}
        self.job.folder.write_json(POINTER, pointer)
        return Tuning(self.job.folder.url, **pointer)

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
            graph = builder.graph()
        data = Input(self.job.data.source)
        plan = dataclasses.replace(builder.plan, data=data, known=graph.shape)
        job = Job(**_shallow(self.job) | {"data": data, "graph": graph})
        spec = TrialSpec(self.folder, job, graph, self.job.trials, plan)
        facts = run_trials(builder.engine, spec, self.rows)
        votes = self._ask_voters(builder.engine, spec) if self.voters else None
        labels = read_labels(self.folder, len(facts), len(self.rows))
        retention = _retention(self.job.trials)
        judgement = judge(labels, retention, facts, self.truth, votes)
        job = dataclasses.replace(job, params=self.job.trials[judgement.best])
        self._write(job, judgement, facts)
        final = Fit(builder.engine, job, plan, resume)
        final.stages |= builder.stages
        final.run()
        return self._tuning()

    def _ask_voters(self, engine: Engine, spec: TrialSpec) -> Votes:
        """Return what further configurations make of a sample of the rows."""
        columns = _asked_columns(len(self.rows), self.job.data.source.shape[1])
        graph = spec.graph
        places = read_places(self.folder, graph.n_points, len(self.rows))[columns]
        folder, needs = self.folder.child("voters"), spec.needs_nbytes
        asked = PollSpec(folder, graph.points, graph.graph_rows, places, self.voters, needs)
        return Votes(columns, poll(engine, asked), _retention(self.voters))

    def _write(self, job: Job, judgement: Judgement, facts: list[dict[str, Any]]) -> None:
        """Write what was chosen, before the fit with it: that may remove the graph."""
        trials = [
            fact | {"agreement": agreement, "ari": ari}
            for fact, agreement, ari in zip(facts, judgement.agreement, judgement.ari, strict=True)
        ]
        summary = {
            "n_points": job.resolved.n_points,
            "n_sampled": len(self.rows),
            "y": self.truth is not None,
            "best": judgement.best,
            "degenerate": judgement.degenerate,
            "params": [
                {name: getattr(params, name) for name in self.names} for params in self.job.trials
            ],
            "trials": trials,
            "curve": judgement.curve,
            "run": job.id,
        }
        self.job.data.source.confirm()
        self.folder.write_json(self.document, summary)
