"""The nearest fitted points of new points, which are none of them.

Three ways: the cells of k-d trees, as their boxes come within reach; products with all points;
or products with the points of the cells that a new point probes, those whose centres are nearest to
it in the partitions that are nearest to it. The first two are exact, the third is exact among the
points of these cells: what a new point finds does not depend on which others come with it.
Reads fitted points a partition at a time, in memory or on disk; writes nothing.
Memory: one fitted partition, and the buffers of one block or pass of new points.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.exact import Block, Others, search_others
from spore_dask.kernels import probes
from spore_dask.kernels.cells import Cells
from spore_dask.kernels.meets import meet_groups
from spore_dask.kernels.nearest import BUFFER_FACTOR, SHORT, Buffers, cut_all, new_buffers
from spore_dask.kernels.probes import Part
from spore_dask.memory import PASS_NBYTES, QUERIES
from spore_dask.probing import FEWEST_PROBES, Index, center_squares, full_partitions, probe_ranks
from spore_dask.recall import Recall, sampled_recall
from spore_dask.searching import fill_rows
from spore_dask.shards import Entries, new_entries
from spore_dask.threads import scratch

POINTS_PER_BLOCK = 512
"""Points that meet queries in one product, where they are in no cells."""
NEAREST_CELLS = 2
"""Cells that queries meet before all others: what they find there rules out most of the rest."""
FEW_CELLS = 1 << 14
"""Cells up to which a new point looks at the centres of all."""
MOST_PROBES = 1024
"""Cells that a new point probes at most, unless they are too small to fill a row."""


def meet_by_cells(own: Cells, block: Block, fitted: Others, n_fitted: int, k: int) -> Entries:
    """Return the k nearest fitted points of the new points of a block, by (distance, row).

    Parameters
    ----------
    own : Cells
        New points.
    block : Block
        Which of them.
    fitted : Others
        The fitted points in partitions, each in the cells of a k-d tree.
    n_fitted : int
        Number of fitted points.
    k : int

    Returns
    -------
    Entries
        A row for each point of the block; its first entry stands for the point itself.
    """
    n_queries = block.last - block.first
    entries = _new_rows(n_queries, n_fitted, k, own.columns.dtype)
    numbers = entries.neighbors.dtype
    buffers = new_buffers(n_queries, k, own.columns.dtype, numbers, scratch)
    search_others(own, block, k, buffers, fitted)
    return _fill(buffers, entries)


def meet_by_products(
    queries: NDArray[np.floating],
    parts: Iterable[tuple[Part, NDArray[Any]]],
    n_fitted: int,
    k: int,
) -> Entries:
    """Return the k nearest of all the points of some parts, which come with their input rows."""
    entries = _new_rows(len(queries), n_fitted, k, queries.dtype)
    buffers = new_buffers(len(queries), k, queries.dtype, entries.neighbors.dtype)
    for part, rows in parts:
        _meet(queries, part, rows, k, buffers, np.arange(len(queries), dtype=np.int32))
    return _fill(buffers, entries)


def passes(n_queries: int, k: int, itemsize: int) -> Iterator[slice]:
    """Part queries into passes, whose buffers of k entries take a limited memory."""
    entry_nbytes = itemsize + 16
    step = min(QUERIES, max(1, PASS_NBYTES // ((BUFFER_FACTOR * k + SHORT) * entry_nbytes)))
    for first in range(0, n_queries, step):
        yield slice(first, min(first + step, n_queries))


def in_blocks(first: int, points: NDArray[np.floating]) -> Part:
    """Return points without cells as a part, whose cells then are blocks of them."""
    starts = np.append(np.arange(0, len(points), POINTS_PER_BLOCK), len(points))
    center = points.mean(axis=0, dtype=np.float64).astype(points.dtype)
    return Part(first, points, starts, np.tile(center, (len(starts) - 1, 1)))


@dataclasses.dataclass(frozen=True)
class Aim:
    """Which cells new points probe."""

    n_near: int
    """Partitions whose cells a new point looks at, those with the nearest centres."""
    n_probes: int
    """Cells of these that it probes."""
    centres: NDArray[np.floating]
    """(partitions that are not empty, D)"""


def choose_aim(
    index: Index,
    sample: NDArray[np.floating],
    neighbors: NDArray[np.integer],
    target: float,
) -> tuple[Aim, Recall]:
    """Return how many partitions and cells reach a recall, and the recall that they reach.

    Parameters
    ----------
    index : Index
        The fitted points.
    sample : array (n, D)
        Some of them.
    neighbors : integer array (n, k)
        The numbers of their true neighbours.
    target : float
        Share of these to be found.
    """
    full, k = full_partitions(index), neighbors.shape[1]
    centres = np.stack([_centre(index, p) for p in full])
    sizes = [np.diff(index.starts(p)) for p in full]
    n_cells = sum(map(len, sizes))
    partition_ranks = _partition_ranks(index, full, centres, sample, neighbors)
    cell_ranks = probe_ranks(index, sample, neighbors)
    n_near = len(full) if n_cells <= FEW_CELLS else 1
    while n_near < len(full) and np.mean(partition_ranks < n_near) < (1 + target) / 2:
        n_near *= 2
    n_probes = FEWEST_PROBES
    while n_probes < MOST_PROBES and (
        np.mean((partition_ranks < n_near) & (cell_ranks < n_probes)) < target
    ):
        n_probes *= 2
    n_probes = max(n_probes, probes.fewest_probes(np.concatenate(sizes), k))
    n_probes = min(n_cells, n_probes)
    counts = np.array([len(each) for each in sizes])
    n_near = min(len(full), max(n_near, probes.fewest_probes(counts, n_probes)))
    found = (partition_ranks < n_near) & (cell_ranks < n_probes)
    return Aim(n_near, n_probes, centres), sampled_recall(found.mean(axis=1))


def meet_by_probes(queries: NDArray[np.floating], index: Index, k: int, aim: Aim) -> Entries:
    """Return the k nearest of the points in the cells that each query probes."""
    full = full_partitions(index)
    first_cells = np.cumsum([0, *(len(index.starts(p)) - 1 for p in full)])
    near = None
    if aim.n_near < len(full):
        centres = in_blocks(0, aim.centres), np.arange(len(full), dtype=np.uint32)
        near = _numbers(meet_by_products(queries, [centres], len(full), aim.n_near))
    cells = _near_cells(queries, index, near, first_cells, aim.n_probes)
    entries = _new_rows(len(queries), int(index.firsts[-1]), k, queries.dtype)
    buffers = new_buffers(len(queries), k, queries.dtype, entries.neighbors.dtype)
    for some in (cells[:, :NEAREST_CELLS], cells[:, NEAREST_CELLS:]):  # to rule out most of these
        askers, starts = probes.group_probers(np.ascontiguousarray(some), int(first_cells[-1]))
        for i, p in enumerate(full):
            here = starts[first_cells[i] : first_cells[i + 1] + 1]
            if here[0] < here[-1]:
                asked = here[:-1], here[1:]
                meet_groups(queries, askers, asked, index.part(p), index.rows(p), k, buffers)
        cut_all(buffers, 0, len(queries), k)
    return _fill(buffers, entries)


def _near_cells(
    queries: NDArray[np.floating],
    index: Index,
    near: NDArray[np.int32] | None,
    first_cells: NDArray[np.int64],
    n_probes: int,
) -> NDArray[np.int32]:
    """Return the cells with the nearest centres, in the partitions near each query, or in all."""
    entries = _new_rows(len(queries), int(first_cells[-1]), n_probes, queries.dtype)
    buffers = new_buffers(len(queries), n_probes, queries.dtype, entries.neighbors.dtype)
    every, n_full = np.arange(len(queries), dtype=np.int32), len(first_cells) - 1
    if near is not None:
        askers, starts = probes.group_probers(near, n_full)
    for i, p in enumerate(full_partitions(index)):
        here = every if near is None else askers[starts[i] : starts[i + 1]]
        if len(here):
            cells = np.arange(first_cells[i], first_cells[i + 1], dtype=np.uint32)
            part = in_blocks(int(cells[0]), index.centers(p))
            _meet(queries, part, cells, n_probes, buffers, here)
    return _numbers(_fill(buffers, entries))


def _meet(
    queries: NDArray[np.floating],
    part: Part,
    rows: NDArray[Any],
    k: int,
    buffers: Buffers,
    askers: NDArray[np.int32],
) -> None:
    """Offer all the points of a part to some queries."""
    n_groups = len(part.starts) - 1
    asked = np.zeros(n_groups, np.int64), np.full(n_groups, len(askers))
    meet_groups(queries, askers, asked, part, rows, k, buffers)


def _new_rows(n_queries: int, n_fitted: int, k: int, dtype: Any) -> Entries:
    """Allocate rows, with a first entry that stands for the new point itself."""
    return new_entries(np.zeros(n_queries, np.int64), n_fitted, k, dtype)


def _fill(buffers: Buffers, entries: Entries) -> Entries:
    """Write what was found, and return it."""
    places = np.arange(len(entries.neighbors))
    fill_rows(buffers, places, entries, places)
    return entries


def _numbers(entries: Entries) -> NDArray[np.int32]:
    """Return what was found, without the distances."""
    return entries.neighbors[:, 1:].astype(np.int32)


def _centre(index: Index, p: int) -> NDArray[np.floating]:
    """Return the mean of the points of a partition, from those of its cells."""
    centers, sizes = index.centers(p), np.diff(index.starts(p))
    found: NDArray[np.floating] = (sizes @ centers.astype(np.float64) / sizes.sum()).astype(
        centers.dtype
    )
    return found


def _partition_ranks(
    index: Index,
    full: list[int],
    centres: NDArray[np.floating],
    sample: NDArray[np.floating],
    neighbors: NDArray[np.integer],
) -> NDArray[np.int64]:
    """Return, for each true neighbour, how many partitions are nearer than its own."""
    homes = np.searchsorted(index.firsts[full], neighbors, side="right") - 1
    squares = center_squares(sample, centres)
    own = np.take_along_axis(squares, homes, axis=1)
    ranks = [np.searchsorted(np.sort(each), mine) for each, mine in zip(squares, own, strict=True)]
    return np.stack(ranks)
