"""Approximate nearest neighbours in many dimensions: probes, then refinement, until it is enough.

Reads working coordinates, writes rows of the neighbour graph. Each step works on arrays alone, for
one home partition, in one thread, and meets the points of others one partition at a time: tasks
elsewhere are made of the same steps.

Memory beside the graph: the points once more, the lists (9 bytes an entry, twice in a round), and
for each thread the buffers and candidates of one partition.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from spore_dask.kernels import joins, means, probes
from spore_dask.kernels.probes import Lists, Part, new_buffers, new_lists
from spore_dask.threads import in_threads

SAMPLE_PER_PARTITION = 1000
"""Points a partition that the tree is built from."""
NEAR_CELLS = 256
"""Cells that a home cell keeps in view, beside `NEAR_FACTOR` times the probes of a point."""
NEAR_FACTOR = 4
MARGIN = 4
"""Entries of a list beyond k, for what rough distances may get wrong."""
PILOT_POINTS = 300
"""Points that are searched exactly, to count recall."""
FEWEST_PROBES = 8
START_RECALL = 0.7
"""Recall of the probes alone from which refinement gets on."""
RECALL_TARGET = 0.97
MAX_ROUNDS = 4
LEAST_GAIN = 0.003
"""Recall that a round must have brought for another one to be made."""
LEVEL = 1 + 1e-5
"""Factor within which rough squares count as equal."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much a round of refinement looks at."""

    n_near: int
    """Entries of a list whose own lists are followed."""
    n_heads: int
    """Entries of those lists that become candidates."""
    n_candidates: int
    """Candidates of a cell, at most."""


EASY = Effort(10, 20, 16384)
HARD = Effort(30, 50, 32768)


@dataclasses.dataclass(frozen=True)
class Partitions:
    """Points in the order of partitions and cells, numbered in that order."""

    parts: list[Part]
    rows: list[NDArray[np.int64]]
    """Input row of each point, for each partition."""


@dataclasses.dataclass(frozen=True)
class Truth:
    """What an exact search of some points says."""

    numbers: NDArray[np.int64]
    """Points that were searched."""
    lists: Lists
    """Their k nearest, by rough squares."""


def approximate_rows(
    points: NDArray[np.floating],
    k: int,
    n_partitions: int,
    *,
    n_probes: int | None = None,
    n_rounds: int | None = None,
    recall_target: float = RECALL_TARGET,
    effort: Effort | None = None,
    seed: int = 42,
) -> tuple[NDArray[np.int64], NDArray[Any], float]:
    """Find most of the k nearest others of each point.

    Parameters
    ----------
    points : float32 or float64 array (N, D), C-contiguous
        Working coordinates.
    k : int, 1 to N - 1
    n_partitions : int
    n_probes : int, optional
        Cells that each point probes; by default as many as the pilot asks for.
    n_rounds : int, optional
        Rounds of refinement; by default as many as the recall target needs, 4 at most.
    recall_target : float
    effort : Effort, optional
        By default `EASY` where the fewest probes get far enough, `HARD` otherwise.
    seed : int

    Returns
    -------
    neighbors : int64 array (N, k + 1)
        Each point, then neighbours by (distance, row), as input rows.
    distances : array (N, k + 1)
        Direct distances, in the dtype of the points.
    recall : float
        Sampled.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        partitions = split_points(points, n_partitions, seed)
        parts = partitions.parts
        truth = search_sample(parts, k, PILOT_POINTS, seed)
        width = min(k + MARGIN, len(points) - 1)
        n_probes = n_probes or choose_n_probes(parts, truth, START_RECALL)
        effort = effort or (EASY if n_probes <= FEWEST_PROBES else HARD)
        lists = in_threads(lambda home: probe(parts, home, n_probes, width), range(len(parts)))
        exchange(parts, lists)
        recall = sampled_recall(parts, lists, truth)
        for _ in range(MAX_ROUNDS if n_rounds is None else n_rounds):
            if n_rounds is None and recall >= recall_target:
                break
            last = recall
            lists = join(parts, lists, effort)
            exchange(parts, lists)
            recall = sampled_recall(parts, lists, truth)
            if n_rounds is None and recall < last + LEAST_GAIN:
                break
        return *_rows(partitions, lists, k), recall


def split_points(points: NDArray[np.floating], n_partitions: int, seed: int) -> Partitions:
    """Divide points into partitions, none of them empty, and these into cells."""
    rng = np.random.default_rng(seed)
    n_sampled = min(len(points), SAMPLE_PER_PARTITION * n_partitions)
    sample = points[np.sort(rng.choice(len(points), n_sampled, replace=False))]
    tree = means.build_tree(sample, n_partitions, seed)
    step = -(-len(points) // n_partitions)
    blocks = range(0, len(points), step)
    part_of = np.concatenate(
        in_threads(lambda first: means.assign(tree, points[first : first + step]), blocks)
    )
    members = [np.flatnonzero(part_of == i) for i in range(n_partitions)]
    members = [rows for rows in members if len(rows)]
    firsts = np.cumsum([0, *map(len, members)])

    def make_part(i: int) -> tuple[Part, NDArray[np.int64]]:
        cells = means.cluster_cells(points[members[i]], seed)
        rows = members[i][cells.order]
        return Part(int(firsts[i]), points[rows], cells.starts, cells.centers), rows

    made = in_threads(make_part, range(len(members)))
    return Partitions([part for part, _ in made], [rows for _, rows in made])


def search_sample(parts: Sequence[Part], k: int, n_sampled: int, seed: int) -> Truth:
    """Search some points exactly, up to the rounding of products: they meet every cell."""
    n_points = sum(len(part.points) for part in parts)
    rng = np.random.default_rng(seed)
    numbers = np.sort(rng.choice(n_points, min(n_points, n_sampled), replace=False))
    sample = np.concatenate([part.points[_inside(numbers, part) - part.first] for part in parts])
    own = numbers[:, None].astype(_number_dtype(n_points))
    lists = new_lists(len(sample), k, sample.dtype, own.dtype)
    buffers = new_buffers(len(sample), k, sample.dtype, own.dtype)
    for part in parts:
        n_cells = len(part.starts) - 1
        probers = np.tile(np.arange(len(sample), dtype=np.int32), n_cells)
        starts = np.arange(n_cells + 1) * len(sample)
        none = (
            -1 - n_points
        )  # the sample has no numbers of its own: `known` keeps a point from itself
        probes.search_part(sample, none, probers, starts, part, own, k, buffers)
    probes.write_lists(buffers, lists)
    return Truth(numbers, lists)


def choose_n_probes(parts: Sequence[Part], truth: Truth, start_recall: float) -> int:
    """Return the smallest of 8, 16, 32, ... probes that reaches a recall by itself."""
    ranks = probe_ranks(parts, truth)
    n_cells = sum(len(part.centers) for part in parts)
    n_probes = FEWEST_PROBES
    while n_probes < n_cells and np.mean(ranks < n_probes) < start_recall:
        n_probes *= 2
    return min(n_probes, n_cells)


def probe_ranks(parts: Sequence[Part], truth: Truth) -> NDArray[np.int64]:
    """Return, for each true neighbour of the sample, how many cells are nearer than its own."""
    sample = np.concatenate(
        [part.points[_inside(truth.numbers, part) - part.first] for part in parts]
    )
    centers = np.concatenate([part.centers for part in parts])
    middle = centers.mean(axis=0)
    lengths = ((centers - middle) ** 2).sum(axis=1)
    squares = lengths - 2 * ((sample - middle) @ (centers - middle).T)
    places = np.argsort(np.argsort(squares, axis=1), axis=1)
    ends = np.concatenate([part.first + part.starts[1:] for part in parts])
    cells = np.searchsorted(ends, truth.lists.numbers, side="right")
    return np.take_along_axis(places, cells, axis=1)


def sampled_recall(parts: Sequence[Part], lists: Sequence[Lists], truth: Truth) -> float:
    """Return the share of the sample's true neighbours that are found, ties included."""
    k = truth.lists.squares.shape[1]
    found = np.concatenate(
        [
            each.squares[_inside(truth.numbers, part) - part.first, :k]
            for part, each in zip(parts, lists, strict=True)
        ]
    )
    return float(np.mean(found <= truth.lists.squares[:, -1:] * LEVEL))


def probe(parts: Sequence[Part], home: int, n_probes: int, width: int) -> Lists:
    """Make the lists of one partition from the cells that its points probe."""
    own = parts[home]
    n_rows = len(own.points)
    centers = [part.centers for part in parts]
    first_cells = np.cumsum([0, *map(len, centers)])
    n_cells = int(first_cells[-1])
    sizes = np.concatenate([np.diff(part.starts) for part in parts])
    n_probes = min(n_cells, max(n_probes, probes.fewest_probes(sizes, width)))
    n_near = min(n_cells, NEAR_CELLS + NEAR_FACTOR * n_probes)
    near = probes.near_cells(own.centers, centers, n_near)
    chosen = probes.choose_probes(
        own.points, own.starts, own.centers, near, np.concatenate(centers), n_probes
    )
    probers, starts = probes.group_probers(chosen, n_cells)
    number_dtype = _number_dtype(sum(len(part.points) for part in parts))
    lists = new_lists(n_rows, width, own.points.dtype, number_dtype)
    buffers = new_buffers(n_rows, width, own.points.dtype, number_dtype)
    known = np.empty((n_rows, 0), number_dtype)
    others = [i for i in range(len(parts)) if i != home]
    for i in [home, *others]:  # at home first: what is found there rules out most of the rest
        its_starts = starts[first_cells[i] : first_cells[i + 1] + 1]
        probes.search_part(
            own.points, own.first, probers, its_starts, parts[i], known, width, buffers
        )
    probes.write_lists(buffers, lists)
    return lists


def exchange(parts: Sequence[Part], lists: Sequence[Lists]) -> None:
    """Offer every edge of the lists to its other end, and change the lists."""
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


def join(parts: Sequence[Part], lists: Sequence[Lists], effort: Effort) -> list[Lists]:
    """Return lists that have met the neighbours of their neighbours."""
    heads = np.concatenate([each.numbers[:, : effort.n_heads] for each in lists])
    fresh = np.concatenate([each.fresh[:, : effort.n_heads] for each in lists])

    def join_home(home: int) -> Lists:
        middles = lists[home].numbers[:, : effort.n_near]
        return join_partition(parts, home, lists[home], middles, heads, fresh, effort)

    return in_threads(join_home, range(len(parts)))


def join_partition(
    parts: Sequence[Part],
    home: int,
    lists: Lists,
    middles: NDArray[np.integer],
    heads: NDArray[np.integer],
    fresh_heads: NDArray[np.bool_],
    effort: Effort,
) -> Lists:
    """Return new lists of one partition; `middles` are rows of `heads`, for each of its points."""
    own = parts[home]
    candidates, starts = joins.cell_candidates(
        lists, own.starts, np.ascontiguousarray(middles), heads, fresh_heads, effort.n_candidates
    )
    n_rows, width = lists.numbers.shape
    buffers = new_buffers(n_rows, width, lists.squares.dtype, lists.numbers.dtype)
    joins.open_lists(lists, buffers)
    for part in parts:
        joins.join_part(own, candidates, starts, part.points, part.first, lists.numbers, buffers)
    joined = Lists(*(array.copy() for array in lists))
    joins.close_lists(buffers, joined)
    return joined


def finish(
    partitions: Partitions, home: int, lists: Lists
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.integer]]:
    """Return direct distances, input rows and numbers of lists, sorted by (distance, row)."""
    own = partitions.parts[home]
    if lists.numbers.min() < 0:
        raise RuntimeError("a row of the neighbour graph is not full")
    distances = np.empty(lists.numbers.shape, own.points.dtype)
    entry_rows = np.empty(lists.numbers.shape, np.int64)
    for part, rows in zip(partitions.parts, partitions.rows, strict=True):
        probes.measure_lists(
            own.points, lists.numbers, part.points, part.first, rows, distances, entry_rows
        )
    numbers = lists.numbers.copy()
    probes.rank_lists(distances, entry_rows, numbers)
    return distances, entry_rows, numbers


def _rows(
    partitions: Partitions, lists: Sequence[Lists], k: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the neighbour graph in input rows."""
    n_points = sum(map(len, partitions.rows))
    neighbors = np.empty((n_points, k + 1), np.int64)
    distances = np.zeros((n_points, k + 1), lists[0].squares.dtype)
    neighbors[:, 0] = np.arange(n_points)

    def write(home: int) -> None:
        rows = partitions.rows[home]
        direct, entry_rows, _ = finish(partitions, home, lists[home])
        neighbors[rows, 1:] = entry_rows[:, :k]
        distances[rows, 1:] = direct[:, :k]

    in_threads(write, range(len(lists)))
    return neighbors, distances


def _inside(numbers: NDArray[np.int64], part: Part) -> NDArray[np.int64]:
    """Return those of sorted numbers that are points of a partition."""
    first, last = np.searchsorted(numbers, [part.first, part.first + len(part.points)])
    return numbers[first:last]


def _number_dtype(n_points: int) -> np.dtype[Any]:
    return np.dtype(np.int32 if n_points < 2**31 else np.int64)
