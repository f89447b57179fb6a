"""Trials: the same graph clustered with many configurations, each by one task in one process.

A process reads the whole graph once and keeps it for its next trials. Reads the points and the
graph; writes for each trial the labels of the rows that are compared.
Memory: rows of K + 1 entries, the points, and 100 bytes per point.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask import memory
from spore_dask.clustering import GraphInMemory, cluster_rows, grouped
from spore_dask.clusters import NOISE
from spore_dask.engine import Engine
from spore_dask.graph import Graph
from spore_dask.params import Params
from spore_dask.points import CACHE
from spore_dask.shards import Entries, GraphRows
from spore_dask.store import Folder, Limits
from spore_dask.tasks import Receipt, Work, run_work

PLACES, ROWS = "places", "rows"
LABELS = "labels"
BLOCK_NBYTES = 1 << 20

_held: dict[tuple[str, str], GraphInMemory] = {}
"""The graph that this process has in memory between trials."""


@dataclasses.dataclass(frozen=True)
class TrialSpec:
    """What trials are asked for."""

    folder: Folder
    """Gets `rows` and `places`, the input rows and points whose labels are compared, and `labels/`,
    one array per trial."""
    graph: Graph
    """Has enough neighbours in every row for each trial."""
    trials: tuple[Params, ...]

    @property
    def needs_nbytes(self) -> int:
        """Projected peak of a process that runs one of the trials."""
        return memory.trial_nbytes(self.graph.shape)


def run_trials(engine: Engine, spec: TrialSpec, rows: NDArray[np.int64]) -> list[Receipt]:
    """Run the trials that were not run before; return what is to be known of each.

    `rows` are the input rows whose labels are compared, ascending.
    """
    spec.folder.sweep()
    if not spec.folder.exists(f"{PLACES}.npy"):
        spec.folder.write_array(ROWS, rows)
        spec.folder.write_array(PLACES, find_points(spec.graph.graph_rows, rows))
    groups = grouped([params.resolve(spec.graph.n_points) for params in spec.trials])
    work = Work("trials", functools.partial(_try_all, spec), groups, spec.needs_nbytes)
    try:
        receipts = run_work(engine, spec.folder, work)
    finally:
        engine.everywhere(let_go)
    found = zip(groups, (receipt["trials"] for receipt in receipts), strict=True)
    facts = {
        number: fact for group, told in found for number, fact in zip(group, told, strict=True)
    }
    return [facts[number] for number in range(len(spec.trials))]


def read_labels(folder: Folder, n_trials: int, n_rows: int) -> NDArray[np.int32]:
    """Return the labels that each trial gave the rows that are compared: (n_trials, n_rows)."""
    labels, size = folder.child(LABELS), (n_rows,)
    found = (labels.read_array(str(i), shape=size, dtype=np.int32) for i in range(n_trials))
    return np.stack(list(found))


def read_places(folder: Folder, n_points: int, n_rows: int | None = None) -> NDArray[np.int64]:
    """Return the points whose labels are compared."""
    limits = Limits(0, n_points)
    return folder.read_array(PLACES, shape=(n_rows,), dtype=np.int64, limits=limits)


def find_points(graph: GraphRows, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the point that each of some ascending input rows has become."""
    found = np.full(len(rows), -1)
    row_of_point = graph.array("rows")
    for shard in range(graph.n_shards):
        first, last = graph.span(shard)
        here = row_of_point.read(first, last)
        places = np.minimum(np.searchsorted(rows, here), len(rows) - 1)
        wanted = np.flatnonzero(rows[places] == here)
        found[places[wanted]] = first + wanted
    if len(found) and found.min() < 0:
        why = f"row {rows[np.argmin(found)]} is not in it"
        raise graph.folder.damaged("array", "rows", why)
    return found


def _try_all(spec: TrialSpec, numbers: list[int]) -> Receipt:
    """Run the trials of one group."""
    return {"trials": [_try(spec, number) for number in numbers]}


def _try(spec: TrialSpec, number: int) -> Receipt:
    """Run one trial, and write the labels that are compared."""
    started = time.perf_counter()
    places = read_places(spec.folder, spec.graph.n_points)
    params = spec.trials[number].resolve(spec.graph.n_points)
    found = _read_graph(spec.graph).cluster(params)
    spec.folder.child(LABELS).write_array(str(number), found.labels[places])
    noise = float((found.labels == NOISE).mean())
    facts = {"n_clusters": len(found.clusters), "noise": noise}
    if number == 0:
        facts["n_pieces"] = _read_graph(spec.graph).n_pieces(params.expansion_neighbors)
    return facts | {"seconds": time.perf_counter() - started}


def _read_graph(graph: Graph) -> GraphInMemory:
    """Return the graph in memory, which this process keeps for the next trial."""
    key = graph.path, graph.name
    if key not in _held:
        let_go()
        CACHE.budget_nbytes = 0
        rows = graph.graph_rows
        _load_kernels(*(rows.array(name).dtype for name in Entries._fields))
        points = graph.points.coordinates(0, graph.n_points)
        row_of_point = rows.array("rows").read(0, graph.n_points)
        _held[key] = GraphInMemory(*_read_entries(rows), points, row_of_point)
    return _held[key]


@functools.cache
def _load_kernels(number_dtype: np.dtype[Any], dtype: np.dtype[Any]) -> None:
    """Load what clustering needs, by doing it: compiling takes memory, which is still free now."""
    neighbors = np.array([[0, 1, 2], [1, 0, 2], [2, 1, 3], [3, 2, 1]], number_dtype)
    points = np.arange(4, dtype=dtype)[:, None]
    params = Params(expansion_neighbors=1, min_cluster_size=2).resolve(4)
    cluster_rows(neighbors, np.abs(points[neighbors, 0] - points), points, params)


def _read_entries(graph: GraphRows) -> Entries:
    """Read all rows, in blocks."""
    arrays = []
    for name in Entries._fields:
        array = graph.array(name)
        array = array.without_limits() if name == "distances" else array
        target = np.empty((graph.n_points, *array.row_shape), array.dtype)
        page = memory.PAGE_ROWS
        step = page * max(1, BLOCK_NBYTES // (page * array.row_nbytes))
        for first in range(0, graph.n_points, step):
            last = min(first + step, graph.n_points)
            array.read_ranges(np.array([first]), np.array([last]), target[first:last])
        if name == "distances":
            graph.refuse_falling(name, range(graph.n_points), target)
        arrays.append(target)
    return Entries(*arrays)


def let_go() -> None:
    """Give back what this process has in memory between trials."""
    _held.clear()
    CACHE.clear()
