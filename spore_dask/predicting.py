"""`predict`: labels for new points, from the vote of a run's points.

Reads a finished run and a source; writes a folder with a prediction for each pair of these: labels,
confidence and, last, a summary. New points go through the scan and the partitioning of a fit, with
the transform that the run has learned, so that those that are near each other meet the run's
partitions together. Memory of this process: 12 bytes a new point and the sample; of each worker:
see `memory`.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from spore_dask import memory
from spore_dask.coordinates import Learned
from spore_dask.engine import Engine
from spore_dask.errors import InputError
from spore_dask.graph import FORMAT, Graph
from spore_dask.inputs import Input, find_input
from spore_dask.jobs import place_of_run
from spore_dask.memory import Shape
from spore_dask.opening import find_done, opened
from spore_dask.pilot import EXACT
from spore_dask.plan import as_memory_limit, disk_free, input_shape_of
from spore_dask.points import BOXES, MEANS, Points
from spore_dask.prediction_plan import PredictPlan
from spore_dask.predictions import POINTER, RESULT, SUMMARY, Prediction
from spore_dask.runs import Run, as_run, point_to
from spore_dask.stages.partition import PartitionSpec, partition
from spore_dask.stages.predict import Electorate, PredictSpec, predict_points, publish
from spore_dask.stages.scan import ScanSpec, scan, transform_of
from spore_dask.store import Folder, address, hash_of
from spore_dask.tasks import MARKER, is_done

SUFFIX = ".predicted"
WORK = "work"


def predict(
    run: Run | str | os.PathLike[str],
    source: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    component: str | None = None,
    memory_limit: int | str | None = None,
    client: Any = None,
    n_workers: int | None = None,
    progress: Any = None,
) -> Prediction:
    """Give new points the labels that the points of a run vote for.

    The vote is that of Small-Cluster Reassignment: the nearest of the run's points, as many as its
    `reassignment_neighbors`, each for its own cluster if the distance is within the cluster's mean
    and `max_z` deviations. A copy of a fitted point gets that point's label (the smallest row's
    where they differ), so that fitted points get their own, and noise stays noise.

    Parameters
    ----------
    run : Run, path or URL
        A finished fit that was kept for predictions.
    source : path, URL, zarr.Array, dask array or DataFrame, xarray.DataArray or array (n, D)
        New points, as the fitted ones were given: the run's scale and metric are applied to them.
    out : path or URL, optional
        Folder of the prediction. Default: beside the source (`x.zarr` to `x.predicted`); for data
        in memory a temporary folder that goes with the `Prediction`. Those of other runs or sources
        are kept beside each other. The same call again continues what was begun, or finds it done.
    component, memory_limit, client, n_workers, progress
        As in `fit`.

    Returns
    -------
    Prediction
        Label and confidence of each row. The confidence is the label's share of the votes, and 1
        for copies of fitted points; where nobody votes the label is -1 and the confidence 0.
    """
    fitted = Fitted.of(as_run(run))
    with place_of_run(source, out, SUFFIX) as (place, keep_place):
        folder = Folder(address(place))
        data = find_input(source, component, folder, least_rows=1)
        fitted.check(data)
        task = Task(fitted, folder, data)
        found = find_done(folder, task.result.name, data, task.finished)
        if found is None:
            with opened(
                folder,
                task.result.name,
                task.plan,
                memory_limit=memory_limit,
                client=client,
                n_workers=n_workers,
                progress=progress,
                reads=[fitted.run.path],
            ) as (engine, plan):
                found = _run(engine, task, plan)
        keep_place(found)
        return found


@dataclasses.dataclass(frozen=True)
class Fitted:
    """What of a run predictions start from."""

    run: Run
    voters: Electorate
    shape: Shape
    learned: Learned
    identity: str
    """Names the points and their labels."""

    @classmethod
    def of(cls, run: Run) -> Fitted:
        """Open what a run has kept, or say that it has not."""
        path, name = run.graph
        stage = run.summary["stages"].get("reassign")
        labels = None if stage is None else run.folder.child(stage["name"])
        graph = Graph(path, name) if Folder(path).child(name).exists("graph.json") else None
        scanned = graph and Folder(path).child(graph.summary["scan"]).read_json(MARKER)
        points = graph and Folder(path).child(graph.summary["points"])
        if not (graph and scanned and points and is_done(points) and _kept(labels)):
            raise InputError(
                f"The run at {run.path!r} has only its labels left, but a prediction starts from "
                "its points: fit again with keep='predict' and resume=False."
            )
        if graph.points.kind == MEANS and not points.exists("tree"):
            raise InputError(
                f"The run at {run.path!r} was made before predictions were possible with it: fit "
                "again with resume=False."
            )
        low, high = graph.points.range()
        transform = transform_of(
            Folder(path).child(graph.summary["scan"]), scanned, graph.points.n_columns
        )
        learned = Learned(transform, low, high)
        identity = hash_of(FORMAT, run.path, run.id, scanned, graph.name)
        return cls(run, _voters(run, graph, labels), graph.shape, learned, identity)

    def check(self, data: Input) -> None:
        """Refuse data with other columns."""
        n_columns, known = data.source.shape[1], self.shape.n_columns
        if n_columns != known:
            raise InputError(
                f"The data has {n_columns} columns, but the run at {self.run.path!r} was fitted on "
                f"{known}: give the same columns."
            )


def _kept(labels: Folder | None) -> bool:
    """Tell whether the labels of points are there; where all are in one cluster, none are."""
    return labels is None or is_done(labels)


def _voters(run: Run, graph: Graph, labels: Folder | None) -> Electorate:
    """Return the points of a run as those who vote."""
    with run.result.understood(SUMMARY):
        k = int(run.summary["params"]["reassignment_neighbors"])
        if not 1 <= k < graph.n_points:
            raise ValueError(f"reassignment_neighbors is {k} of {graph.n_points} points")
    return Electorate(
        points=graph.points,
        graph=Folder(graph.path).child(graph.name),
        search=graph.summary["search"],
        labels=labels,
        result=run.result,
        max_z=run.thresholds.max_z,
        k=k,
        recall=graph.recall.sampled,
    )


@dataclasses.dataclass(frozen=True)
class Task:
    """What `predict` is asked for."""

    fitted: Fitted
    folder: Folder
    data: Input

    @property
    def id(self) -> str:
        """A name for the result: a hash of all that it depends on."""
        return hash_of(self.fitted.identity, dataclasses.asdict(self.data.source))

    @property
    def result(self) -> Folder:
        """Where the result goes."""
        return self.folder.child(RESULT + self.id)

    def finished(self) -> Prediction | None:
        """Return the prediction if it is complete."""
        if not self.result.exists(SUMMARY):
            return None
        self.data.source.confirm()
        self.result.remove(WORK)
        point_to(self.folder, POINTER, self.id)
        return Prediction(self.folder.url, self.id)

    def plan(self, memory_limit: Any, n_workers: int | None) -> PredictPlan:
        """Plan the prediction; raise a sentence where it cannot work."""
        source, fitted = self.data.source, self.fitted.shape
        n_points, n_columns = source.shape
        new = memory.shape_of(n_points, n_columns, fitted.itemsize, self.fitted.voters.k)
        plan = PredictPlan(
            data=self.data,
            fitted=fitted,
            shape=new,
            input_shape=input_shape_of(source, new.sample_size),
            n_clusters=self.fitted.run.n_clusters,
            memory_limit=as_memory_limit(memory_limit, n_workers),
            disk_free=disk_free(self.folder),
            disk_used=self.result.nbytes(),
        )
        plan.check()
        return plan


def _run(engine: Engine, task: Task, plan: PredictPlan) -> Prediction:
    """Do the task; bad data leaves nothing behind."""
    task = dataclasses.replace(task, data=task.data.known(engine, plan.memory()["scan"]))
    try:
        with task.data.removed_when_done():
            return task.finished() or _predict(engine, task, plan)
    except InputError:
        task.result.remove()
        raise


def _predict(engine: Engine, task: Task, plan: PredictPlan) -> Prediction:
    """Run the stages, and write the summary, which makes the prediction complete."""
    task.result.sweep()
    work, fitted = task.result.child(WORK), task.fitted
    new = _place(engine, work, task, plan)
    needs = plan.memory()["predict"]
    spec = PredictSpec(fitted.voters, new, plan.cache_nbytes, needs)
    recall = predict_points(engine, work.child("votes"), spec)
    facts = publish(engine, work.child("votes"), new, task.result)
    summary = {
        "n_points": plan.shape.n_points,
        "n_columns": plan.shape.n_columns,
        **facts,
        "run": [fitted.run.path, fitted.run.id],
        "source": task.data.source.url,
        "identity": task.data.source.identity,
        "recall": dataclasses.asdict(recall),
        "memory_limit": plan.memory_limit,
        "needs_nbytes": plan.memory(),
        "cache_nbytes": plan.cache_nbytes,
        "peak_nbytes": engine.peaks(),
    }
    task.data.source.confirm()
    task.result.write_json(SUMMARY, summary)
    found = task.finished()
    assert found is not None
    return found


def _place(engine: Engine, work: Folder, task: Task, plan: PredictPlan) -> Points:
    """Scan the new points, and share them out among partitions of their own."""
    fitted, needs, source = task.fitted, plan.memory(), task.data.source
    asked = fitted.run.summary["asked"]
    if not is_done(work.child("points")):
        task.data.write(engine, needs["scan"])
    scanned = scan(
        engine,
        work.child("scan"),
        ScanSpec(
            source=source,
            rows_per_task=plan.input_shape.rows_per_task,
            sample_size=plan.input_shape.sample_size,
            scale=asked["scale"],
            metric=asked["metric"],
            seed=asked["seed"],
            needs_nbytes=needs["scan"],
            learned=fitted.learned,
        ),
    )
    spec = PartitionSpec(
        source=source,
        rows_per_task=plan.input_shape.rows_per_task,
        transform=fitted.learned.transform,
        shape=plan.shape,
        kind=BOXES if fitted.voters.search in EXACT else MEANS,
        seed=asked["seed"],
        exchange_nbytes=needs["exchange"],
        gather_nbytes=needs["partition"],
    )
    return partition(engine, work.child("points"), spec, scanned.sample(), scanned.checksums)
