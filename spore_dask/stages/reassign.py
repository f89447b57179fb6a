"""Reassign: let the neighbours of fragments vote them into the large clusters, in this process.

Goes through the rows of the fragments in density order, once a round; those that its cache does not
take are read each time. Reads the skeletons and the fragments' rows; writes `labels` (final, one a
point), `rounds` (how each point got its label) and `clusters` (a record for each final cluster).
Memory: 7 bytes a point (11 beyond 2**31 points), 40 for each large cluster (56 while they vote),
the cache and one piece of fragments; where fragments are kept, 5 for each cluster of Expansion.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.checkpoints import Checkpoints
from spore_dask.clusters import LARGE, NOISE, Thresholds
from spore_dask.engine import Engine
from spore_dask.fragments import Fragments, Rows, open_skeletons
from spore_dask.kernels import reassign as kernel
from spore_dask.kernels.expand import CLUSTER
from spore_dask.params import ResolvedParams
from spore_dask.store import Folder, Limits, RowFiles
from spore_dask.tasks import Receipt, run_stage


@dataclasses.dataclass(frozen=True)
class ReassignSpec:
    """What reassignment is asked for."""

    skeletons: Folder
    """What Expansion has left."""
    fragments: Fragments
    large: NDArray[Any]
    """LARGE records of the clusters that may be joined, by number."""
    params: ResolvedParams
    thresholds: Thresholds
    cache_nbytes: int


def reassign(engine: Engine, folder: Folder, spec: ReassignSpec) -> Receipt:
    """Settle every point, or take up what was done before."""
    summary = run_stage(engine, folder, functools.partial(_build, engine, spec))
    Checkpoints(folder).remove()
    return summary


def count_clusters(skeletons: Folder, n_pieces: int, smallest: int) -> int:
    """Return how many clusters have at least a size."""
    return sum(int((part["size"] >= smallest).sum()) for part in _clusters(skeletons, n_pieces))


def large_clusters(skeletons: Folder, n_pieces: int, smallest: int, n_large: int) -> NDArray[Any]:
    """Return LARGE records of the clusters that have at least a size, `n_large` of them."""
    found, place = np.empty(n_large, LARGE), 0
    for part in _clusters(skeletons, n_pieces):
        part = part[part["size"] >= smallest]
        found[place : place + len(part)] = part
        place += len(part)
    return found


def _clusters(skeletons: Folder, n_pieces: int) -> Iterator[NDArray[Any]]:
    """Yield the clusters of Expansion in pieces, with their numbers."""
    first = 0
    for piece in range(n_pieces):
        closed = skeletons.child("clusters").read_array(str(piece), shape=(None,), dtype=CLUSTER)
        numbered = np.empty(len(closed), LARGE)
        numbered["number"] = np.arange(first, first + len(closed))
        for name in CLUSTER.names or ():
            numbered[name] = closed[name]
        first += len(closed)
        yield numbered


def _build(engine: Engine, spec: ReassignSpec, folder: Folder) -> Receipt:
    vote = Vote(folder, spec)
    with engine.here("reassign", spec.params.max_scr_rounds) as done:
        vote.run(done)
    large, labels, rounds = spec.large, vote.labels, vote.rounds
    n_left = int((labels == kernel.FRAGMENT).sum())
    if spec.params.post_reassignment_policy == "noise":
        rounds[labels == kernel.FRAGMENT] = NOISE
    elif n_left:
        large = _keep_fragments(spec, labels)
    folder.write_all_rows("labels", labels)
    folder.write_all_rows("rounds", rounds)
    folder.write_array("clusters", large)
    return {"n_rounds": int(rounds.max()), "n_left": n_left, "read_nbytes": vote.read_nbytes}


def cluster_of_points(
    spec: ReassignSpec, all_skeletons: RowFiles, first: int, last: int
) -> NDArray[Any]:
    """Return where in `large` the clusters of the points [first, last) are, or FRAGMENT."""
    skeletons = all_skeletons.read(first, last)
    numbers = np.ascontiguousarray(spec.large["number"])
    if not len(numbers):
        return np.full(len(skeletons), kernel.FRAGMENT, skeletons.dtype)
    places = np.searchsorted(numbers, skeletons)
    places[places == len(numbers)] = 0
    places[numbers[places] != skeletons] = kernel.FRAGMENT
    return places.astype(skeletons.dtype)


class Vote:
    """A reassignment under way."""

    def __init__(self, folder: Folder, spec: ReassignSpec) -> None:
        self.spec = spec
        n_points = spec.fragments.n_points
        skeletons = open_skeletons(spec.skeletons, n_points)
        self.labels = np.empty(n_points, skeletons.dtype)
        self.rounds = np.zeros(n_points, np.int16)
        self.gates = kernel.Gates(
            means=np.ascontiguousarray(spec.large["mean"]),
            tolerances=spec.thresholds.max_z * spec.large["std"],
            reach=spec.params.reassignment_neighbors,
        )
        self.rows = Rows(spec.fragments, spec.cache_nbytes)
        self.checkpoints = Checkpoints(folder)
        self._read_before = 0
        known = self.checkpoints.last()
        if known is None:
            self._round, self._piece, self._n_changed = 1, 0, 0
            for first, last in zip(skeletons.starts, skeletons.starts[1:], strict=False):
                self.labels[first:last] = cluster_of_points(spec, skeletons, int(first), int(last))
            return
        facts, read = known
        with self.checkpoints.understood():
            self._round, self._piece, self._n_changed = map(int, facts["at"])
            self._read_before = int(facts["read_nbytes"])
            if min(self._round - 1, self._piece, self._n_changed) < 0:
                raise ValueError(f"at {facts['at']}")
        limits = Limits(kernel.FRAGMENT, len(spec.large)), Limits(0, self._round + 1)
        for name, into, within in zip(
            ("labels", "rounds"), (self.labels, self.rounds), limits, strict=True
        ):
            into[:] = read(name, shape=into.shape, dtype=into.dtype, limits=within)

    @property
    def read_nbytes(self) -> int:
        """Bytes read so far."""
        return self._read_before + self.rows.read_nbytes

    def run(self, done: Callable[[], None]) -> None:
        """Vote, round after round, until nothing changes."""
        n_left = int((self.labels == kernel.FRAGMENT).sum())
        while n_left and self._round <= self.spec.params.max_scr_rounds:
            self._vote_once()
            done()
            if not self._n_changed:
                break
            n_left = int((self.labels == kernel.FRAGMENT).sum())
            self._round, self._piece, self._n_changed = self._round + 1, 0, 0
        self.rows.check()

    def _vote_once(self) -> None:
        """Go through all fragments once, in density order."""
        for i in range(self._piece, len(self.spec.fragments.counts)):
            self._n_changed += self._vote(i)
            if self.checkpoints.due():
                self.rows.check()
                facts = {
                    "at": [self._round, i + 1, self._n_changed],
                    "read_nbytes": self.read_nbytes,
                }
                self.checkpoints.save({"labels": self.labels, "rounds": self.rounds}, facts)

    def _vote(self, i: int) -> int:
        """Let the fragments of a piece vote; return how many took a label."""
        piece = self.rows.piece(i)
        n_changed = int(kernel.vote(piece, self.gates, self.labels, self.rounds, self._round))
        self.rows.keep(i, self.labels[piece.points] == kernel.FRAGMENT)
        return n_changed


def _keep_fragments(spec: ReassignSpec, labels: NDArray[Any]) -> NDArray[Any]:
    """Give fragments their own clusters back; number all clusters in seed order.

    Changes `labels`; returns LARGE records of all clusters that are left.
    """
    names = spec.skeletons.child("clusters").names()
    n_clusters = sum(len(part) for part in _clusters(spec.skeletons, len(names)))
    skeletons = open_skeletons(spec.skeletons, len(labels), n_clusters)
    kept = np.zeros(n_clusters, bool)
    kept[spec.large["number"]] = True
    spans = list(zip(skeletons.starts.tolist(), skeletons.starts[1:].tolist(), strict=False))
    for first, last in spans:
        free = labels[first:last] == kernel.FRAGMENT
        kept[skeletons.read(first, last)[free]] = True
    number_of = np.cumsum(kept, dtype=labels.dtype) - 1
    for first, last in spans:
        part = labels[first:last]
        free = part == kernel.FRAGMENT
        part[~free] = number_of[spec.large["number"][part[~free]]]
        part[free] = number_of[skeletons.read(first, last)[free]]
    left, place = np.empty(int(kept.sum()), LARGE), 0
    for table in _clusters(spec.skeletons, len(names)):
        table = table[kept[table["number"]]]
        left[place : place + len(table)] = table
        place += len(table)
    return left
