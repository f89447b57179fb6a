"""Approximate nearest neighbours of points in memory: the steps of `probing`, in threads.

Reads working coordinates, writes rows of the neighbour graph. Memory beside the graph: the points
once more, the lists (9 bytes an entry, twice in a round), and what each thread's step needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from spore_dask import probing
from spore_dask.exact import number_dtype
from spore_dask.kernels import joins, means
from spore_dask.kernels.probes import Lists, Part
from spore_dask.partitions import build_means_tree
from spore_dask.probing import Effort
from spore_dask.recall import Recall, sampled_recall
from spore_dask.threads import in_threads

PILOT_POINTS = 300
"""Points that are searched exactly, to count recall."""
RECALL_TARGET = 0.97
SAMPLED = 1 << 16
"""Points that the tree is built from, at most."""


@dataclasses.dataclass(frozen=True)
class Partitions:
    """An `Index` in memory; no partition is empty."""

    firsts: NDArray[np.int64]
    parts: list[Part]
    input_rows: list[NDArray[np.int64]]

    def part(self, partition: int) -> Part:
        """Return the points of a partition."""
        return self.parts[partition]

    def centers(self, partition: int) -> NDArray[np.floating]:
        """Return the centres of its cells."""
        return self.parts[partition].centers

    def starts(self, partition: int) -> NDArray[np.int64]:
        """Return where its cells start, and the end."""
        return self.parts[partition].starts

    def rows(self, partition: int) -> NDArray[np.int64]:
        """Return the input rows of its points."""
        return self.input_rows[partition]


@dataclasses.dataclass(frozen=True)
class Truth:
    """What an exact search of some points says."""

    numbers: NDArray[np.int64]
    """Points that were searched, ascending."""
    sample: NDArray[np.floating]
    """Their coordinates."""
    lists: Lists
    """Their k nearest, with direct distances in place of squares."""


def approximate_rows(
    points: NDArray[np.floating],
    k: int,
    n_partitions: int,
    *,
    n_probes: int | None = None,
    recall_target: float = RECALL_TARGET,
    max_rounds: int = probing.MAX_ROUNDS,
    seed: int = 42,
) -> tuple[NDArray[Any], NDArray[Any], Recall]:
    """Find most of the k nearest others of each point.

    Parameters
    ----------
    points : float32 or float64 array (N, D), C-contiguous
        Working coordinates.
    k : int, 1 to N - 1
    n_partitions : int
    n_probes : int, optional
        Cells that each point probes; by default as many as the pilot asks for.
    recall_target : float
        Rounds of refinement are made until the sampled recall reaches it, or hardly grows.
    max_rounds : int
    seed : int

    Returns
    -------
    neighbors : integer array (N, k + 1)
        Each point, then neighbours by (distance, row), as input rows.
    distances : array (N, k + 1)
        Direct distances, in the dtype of the points.
    recall : Recall
    """
    with threadpool_limits(limits=1, user_api="blas"):
        index = split_points(points, n_partitions, seed)
        homes = range(len(index.parts))
        truth = search_sample(index, k, PILOT_POINTS, seed)
        if n_probes is None:
            ranks = probing.probe_ranks(index, truth.sample, truth.lists.numbers)
            n_probes = probing.enough_probes(ranks)
        width = min(k + probing.MARGIN, len(points) - 1)
        lists = in_threads(lambda home: probing.probe(index, home, n_probes, width), homes)
        exchange(index, lists)
        recall = recall_of(index, lists, truth)
        effort, gain = None, 1.0
        for _ in range(max_rounds):
            effort = probing.next_effort(effort, n_probes, gain)
            if effort is None or recall.sampled >= recall_target:
                break
            lists = join(index, lists, effort)
            exchange(index, lists)
            before, recall = recall, recall_of(index, lists, truth)
            gain = recall.sampled - before.sampled
        return *_rows(index, lists, k), recall


def split_points(points: NDArray[np.floating], n_partitions: int, seed: int) -> Partitions:
    """Divide points into partitions, none of them empty, and these into cells."""
    rng = np.random.default_rng(seed)
    n_sampled = min(len(points), SAMPLED)
    sample = points[np.sort(rng.choice(len(points), n_sampled, replace=False))]
    tree = build_means_tree(sample, n_partitions, seed)
    step = -(-len(points) // n_partitions)
    blocks = range(0, len(points), step)
    assigned = in_threads(lambda first: tree.assign(points[first : first + step]), blocks)
    part_of = np.concatenate(assigned)
    members = [np.flatnonzero(part_of == i) for i in range(n_partitions)]
    members = [rows for rows in members if len(rows)]
    firsts = np.cumsum([0, *map(len, members)])

    def make_part(i: int) -> tuple[Part, NDArray[np.int64]]:
        cells = means.cluster_cells(points[members[i]], seed)
        rows = members[i][cells.order]
        return Part(int(firsts[i]), points[rows], cells.starts, cells.centers), rows

    made = in_threads(make_part, range(len(members)))
    return Partitions(firsts, [part for part, _ in made], [rows for _, rows in made])


def search_sample(index: Partitions, k: int, n_sampled: int, seed: int) -> Truth:
    """Search some points exactly: they meet every cell."""
    n_points = int(index.firsts[-1])
    rng = np.random.default_rng(seed)
    numbers = np.sort(rng.choice(n_points, min(n_points, n_sampled), replace=False))
    sample = np.concatenate([part.points[_places(numbers, part)] for part in index.parts])
    homes = range(len(index.parts))
    found = in_threads(lambda p: probing.meet_all(index, p, sample, numbers, k), homes)
    return Truth(numbers, sample, probing.nearest_of(found, k))


def recall_of(index: Partitions, lists: Sequence[Lists], truth: Truth) -> Recall:
    """Return the share of the sample's true neighbours that are found."""
    found = [
        [array[_places(truth.numbers, part)] for array in each]
        for part, each in zip(index.parts, lists, strict=True)
    ]
    own = Lists(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))
    return sampled_recall(probing.found_shares(own, truth.lists.numbers, truth.lists.squares))


def exchange(index: Partitions, lists: Sequence[Lists]) -> None:
    """Offer every edge of the lists to its other end, and change the lists."""
    parts = index.parts
    limits = [each.squares[:, -1].copy() for each in lists]

    def edges(home: int) -> list[tuple[NDArray[Any], ...]]:
        first = parts[home].first
        return [
            joins.reverse_edges(lists[home], first, limit, part.first)
            for limit, part in zip(limits, parts, strict=True)
        ]

    def merge(home: int) -> None:
        for bucket in buckets:
            joins.merge_edges(lists[home], parts[home].first, *bucket[home])

    buckets = in_threads(edges, range(len(parts)))
    in_threads(merge, range(len(parts)))


def join(index: Partitions, lists: Sequence[Lists], effort: Effort) -> list[Lists]:
    """Return lists that have met the neighbours of their neighbours."""
    numbers = np.concatenate([each.numbers[:, : effort.n_heads] for each in lists])
    fresh = np.concatenate([each.fresh[:, : effort.n_heads] for each in lists])

    def heads_of(
        wanted: NDArray[np.integer], n_heads: int
    ) -> tuple[NDArray[np.integer], NDArray[np.bool_]]:
        return numbers[wanted], fresh[wanted]

    def join_home(home: int) -> Lists:
        return probing.join_partition(index, home, lists[home], heads_of, effort)

    return in_threads(join_home, range(len(lists)))


def _rows(index: Partitions, lists: Sequence[Lists], k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the neighbour graph in input rows."""
    n_points = int(index.firsts[-1])
    neighbors = np.empty((n_points, k + 1), number_dtype(n_points))
    distances = np.zeros((n_points, k + 1), lists[0].squares.dtype)
    neighbors[:, 0] = np.arange(n_points)
    row_of = np.concatenate(index.input_rows)

    def write(home: int) -> None:
        rows, own = index.rows(home), lists[home]
        ranked, direct = probing.measure_rows(index, home, own.numbers, slice(0, len(rows)))
        if ranked[:, :k].min() < 0:
            raise RuntimeError("a row of the neighbour graph is not full")
        neighbors[rows, 1:] = row_of[ranked[:, :k]]
        distances[rows, 1:] = direct[:, :k]

    in_threads(write, range(len(lists)))
    return neighbors, distances


def _places(numbers: NDArray[np.int64], part: Part) -> NDArray[np.int64]:
    """Return where in a partition those of sorted numbers are that are its points."""
    first, last = np.searchsorted(numbers, [part.first, part.first + len(part.points)])
    return numbers[first:last] - part.first
