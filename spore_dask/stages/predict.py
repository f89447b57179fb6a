"""Predict: let the nearest fitted points of new points vote on their labels.

Every task takes one partition of new points, meets fitted ones a partition at a time, and writes
the labels and their shares of the votes; then they are brought into the order of the rows, in this
process. Reads both sets of points and the fitted labels; writes `<partition>.labels` and `.shares`,
at last `labels` (int32) and `confidence` (float32), Zarr in row order.
Memory: a partition of new points twice, one fitted partition and the cache of others, the buffers
of one block or pass, and 40 bytes a cluster; at last 12 bytes a new point.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from spore_dask.clusters import CLUSTER_TABLE, NOISE, label_dtype
from spore_dask.engine import Engine
from spore_dask.exact import Others, blocks
from spore_dask.kernels.cells import points_of
from spore_dask.kernels.probes import Part
from spore_dask.kernels.reassign import Gates, gates_of, poll, take_labels
from spore_dask.meeting import (
    Aim,
    choose_aim,
    in_blocks,
    meet_by_cells,
    meet_by_probes,
    meet_by_products,
    passes,
)
from spore_dask.partitions import find_copies
from spore_dask.pilot import CELLS, EXACT
from spore_dask.points import CACHE, Points
from spore_dask.probing import full_partitions
from spore_dask.recall import CERTIFIED, Recall
from spore_dask.shards import Entries
from spore_dask.store import FINITE, Folder, Limits
from spore_dask.tasks import Receipt, Work, run_stage, run_work
from spore_dask.truths import read_truth

UNKNOWN = int(np.iinfo(np.int32).min)
CHUNK_ROWS = 1 << 20
Votes = tuple[NDArray[np.int32], NDArray[np.float32]]


@dataclasses.dataclass(frozen=True)
class Electorate:
    """Fitted points on disk that vote on new ones. Small enough to travel with every task."""

    points: Points
    graph: Folder
    """Has `sample` and `truth`, where the search is approximate."""
    search: str
    """How the fitted points were searched."""
    labels: Folder | None
    """Has `labels`, the cluster of each point; None where all are in one."""
    result: Folder
    """Has `clusters`, a record for each."""
    max_z: float
    k: int
    """Neighbours that vote."""
    recall: float
    """Share of the true neighbours that the fit found."""

    def gates(self) -> Gates:
        """Return who may vote."""
        return gates_of(self._clusters(), self.max_z, self.k)

    def _clusters(self) -> NDArray[Any]:
        """Read the records of the clusters."""
        return self.result.read_array("clusters", shape=(None,), dtype=CLUSTER_TABLE)

    def labels_in(self, p: int) -> NDArray[Any]:
        """Return the labels of the points of a partition."""
        first, last = self.points.firsts[p : p + 2].tolist()
        labels = self.labels
        if labels is None:
            return np.zeros(last - first, np.int32)

        def read() -> tuple[NDArray[Any]]:
            n_points, limits = self.points.n_points, Limits(NOISE, len(self._clusters()))
            array = labels.open_rows("labels", (n_points,), label_dtype(n_points), limits)
            return (array.read(first, last),)

        found: tuple[NDArray[Any]] = CACHE.get((labels.url, p), read)
        return found[0]

    def labels_of(self, numbers: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the labels of entries of rows; of what stands for the new point, any."""
        found = np.full(numbers.shape, -1)
        places = np.searchsorted(self.points.firsts, numbers[:, 1:].ravel(), side="right") - 1
        for p in np.flatnonzero(np.bincount(places)).tolist():
            take_labels(numbers, int(self.points.firsts[p]), self.labels_in(p), found)
        return found


@dataclasses.dataclass(frozen=True)
class PredictSpec:
    """What is to be predicted."""

    voters: Electorate
    new: Points
    cache_nbytes: int
    needs_nbytes: int


def predict_points(engine: Engine, folder: Folder, spec: PredictSpec) -> Recall:
    """Write the labels of all new points by partition; return how well they were searched."""
    summary = run_stage(engine, folder, functools.partial(_build, engine, spec))
    return Recall(**summary["recall"])


def _build(engine: Engine, spec: PredictSpec, folder: Folder) -> Receipt:
    recall = dataclasses.asdict(CERTIFIED)
    if spec.voters.search not in EXACT:
        choose = functools.partial(_choose_aim, spec, folder)
        recall = run_work(engine, folder, Work("aim", choose, [0], spec.needs_nbytes))[0]
    full = np.flatnonzero(spec.new.sizes()).tolist()
    vote = functools.partial(_vote, spec, folder)
    run_work(engine, folder, Work("vote", vote, full, spec.needs_nbytes))
    return {"recall": recall}


def _choose_aim(spec: PredictSpec, folder: Folder, _: int) -> Receipt:
    """Write which cells new points are to probe; return the recall on the fit's own sample."""
    CACHE.budget_nbytes = spec.cache_nbytes
    voters = spec.voters
    points = voters.points
    truth = read_truth(voters.graph, int(points.firsts[-1])).neighbors
    sample = voters.graph.read_array(
        "sample", shape=(len(truth), points.n_columns), dtype=points.dtype, limits=FINITE
    )
    aim, recall = choose_aim(points, sample, truth[:, : voters.k], voters.recall)
    folder.write_array("centres", aim.centres)
    folder.write_json("aim.json", {"n_near": aim.n_near, "n_probes": aim.n_probes})
    return dataclasses.asdict(recall)


def _vote(spec: PredictSpec, folder: Folder, p: int) -> Receipt:
    """Write the labels of the new points of a partition."""
    CACHE.budget_nbytes = spec.cache_nbytes
    first, last = spec.new.firsts[p : p + 2].tolist()
    labels, shares = np.empty(last - first, np.int32), np.empty(last - first, np.float32)
    with threadpool_limits(limits=1, user_api="blas"):  # products are too small for threads
        for which, votes in _votes(spec, folder, p):
            labels[which], shares[which] = votes
    folder.write_array(f"{p}.labels", labels)
    folder.write_array(f"{p}.shares", shares)
    return {"n_rows": last - first, "n_left": int((labels < 0).sum())}


def _votes(spec: PredictSpec, folder: Folder, p: int) -> Iterator[tuple[slice, Votes]]:
    """Yield labels and shares of the new points of a partition, some at a time."""
    voters, gates = spec.voters, spec.voters.gates()
    if voters.search in EXACT:
        for which, entries in _exact_rows(spec, p):
            yield which, poll(voters.labels_of(entries.neighbors), entries.distances, gates)
        return
    aim = _read_aim(voters.points, folder)
    queries, tree = spec.new.part(p).points, voters.points.tree()
    width = max(voters.k, aim.n_probes)
    for which in passes(len(queries), width, queries.itemsize):
        entries = meet_by_probes(queries[which], voters.points, voters.k, aim)
        votes = poll(voters.labels_of(entries.neighbors), entries.distances, gates)
        _copy_labels(voters, queries[which], tree.assign(queries[which]), votes)
        yield which, votes


def _read_aim(points: Points, folder: Folder) -> Aim:
    """Read which cells new points are to probe."""
    full = full_partitions(points)
    with folder.understood("aim.json"):
        aim = Aim(
            **folder.read_json("aim.json"),
            centres=folder.read_array(
                "centres", shape=(len(full), points.n_columns), dtype=points.dtype, limits=FINITE
            ),
        )
        n_cells = sum(len(points.starts(p)) - 1 for p in full)
        if not (1 <= aim.n_near <= len(full) and 1 <= aim.n_probes <= n_cells):
            raise ValueError(f"n_near is {aim.n_near} and n_probes {aim.n_probes}")
    return aim


def _exact_rows(spec: PredictSpec, p: int) -> Iterator[tuple[slice, Entries]]:
    """Yield the rows of the new points of a partition, some at a time."""
    voters, own = spec.voters, spec.new.cells(p)
    points, k = voters.points, voters.k
    if voters.search == CELLS:
        low, high = points.boxes()
        full = np.flatnonzero(points.sizes() > 0)
        fitted = Others(low[full], high[full], full, points.cells)
        for block in blocks(own, k):
            which = slice(block.first, block.last)
            yield which, meet_by_cells(own, block, fitted, points.n_points, k)
        return
    queries = points_of(own)
    for which in passes(len(queries), k, queries.itemsize):
        yield which, meet_by_products(queries[which], _parts(points), points.n_points, k)


def _parts(points: Points) -> Iterator[tuple[Part, NDArray[Any]]]:
    """Yield all fitted points, a partition at a time, with their input rows."""
    for p in np.flatnonzero(points.sizes() > 0).tolist():
        cells = points.cells(p)
        yield in_blocks(cells.first, points_of(cells)), cells.rows


def _copy_labels(
    voters: Electorate, queries: NDArray[np.floating], homes: NDArray[np.int64], votes: Votes
) -> None:
    """Give copies of fitted points the labels of these, whichever cells they have probed.

    A copy is in the partition that the tree assigns it to, its home.
    """
    labels, shares = votes
    for p in np.flatnonzero(np.bincount(homes)).tolist():
        if voters.points.sizes()[p]:
            here = np.flatnonzero(homes == p)
            known, rows = voters.points.part(p).points, voters.points.rows(p)
            copies = find_copies(queries[here], known, rows)
            same = copies >= 0
            labels[here[same]] = voters.labels_in(p)[copies[same]]
            shares[here[same]] = 1


def publish(engine: Engine, votes: Folder, new: Points, target: Folder) -> Receipt:
    """Write what users read: labels and confidence in the order of the rows."""
    labels = np.full(new.n_points, UNKNOWN, np.int32)
    confidence = np.empty(new.n_points, np.float32)
    full = np.flatnonzero(new.sizes()).tolist()
    with engine.here("publish", len(full)) as done:
        for p in full:
            rows = new.rows(p)
            found = [
                votes.read_array(f"{p}.labels", shape=rows.shape, dtype=labels.dtype),
                votes.read_array(f"{p}.shares", shape=rows.shape, dtype=confidence.dtype),
            ]
            labels[rows], confidence[rows] = found
            for leader, copies in new.copies_in(int(new.firsts[-1]), new.n_points):
                place = leader - int(new.firsts[p])
                if 0 <= place < len(rows):
                    others = new.copy_rows(*copies)
                    labels[others], confidence[others] = found[0][place], found[1][place]
            done()
    if len(labels) and int(labels.min()) == UNKNOWN:
        raise new.folder.damaged("array", "rows", f"row {np.argmin(labels)} is not in it")
    target.write_zarr("labels", labels, CHUNK_ROWS, fill_value=UNKNOWN)
    target.write_zarr("confidence", confidence, CHUNK_ROWS, fill_value=float("nan"))
    firsts = range(0, new.n_points, CHUNK_ROWS)
    return {
        "n_left": int((labels < 0).sum()),
        "mean_confidence": float(confidence.mean(dtype=np.float64)),
        "checksums": {
            name: [zlib.crc32(values[first : first + CHUNK_ROWS].data) for first in firsts]
            for name, values in (("labels", labels), ("confidence", confidence))
        },
    }
