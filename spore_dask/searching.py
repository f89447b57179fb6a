"""Exact rows of points on disk, all of a shard or some of them, by cells or by products.

Reads partitions in the cells of k-d trees, each as its box comes within reach, or all of them.
Writes nothing: fills rows at hand.
Memory: the rows, a partition and one other, the cache of others, and the buffers of one block, or
of the queries of one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from spore_dask.exact import (
    Block,
    Others,
    block_buffers,
    blocks,
    centre,
    compare_block,
    search_block,
)
from spore_dask.kernels.cells import points_of
from spore_dask.kernels.nearest import Buffers, finish, new_buffers
from spore_dask.memory import QUERIES
from spore_dask.points import Points
from spore_dask.shards import Entries, new_entries

Numbers = NDArray[np.int64]
RowSearch = Callable[..., int]
"""`search_points` or `compare_points`."""
QUERIES_PER_PASS = QUERIES
"""Points that are compared with all others while each partition is read once."""
QUERIES_PER_PRODUCT = 256


def search_points(
    points: Points, numbers: Numbers, into: Entries, places: Numbers | None = None
) -> int:
    """Fill the rows of some points with their true neighbours.

    Parameters
    ----------
    points : Points
        In the cells of k-d trees; of heavy points, at least k + 1 copies are in partitions.
    numbers : int64 array (n,)
        The points, ascending.
    into : Entries
        Rows with k + 1 entries; their first ones are left as they are.
    places : int64 array (n,), optional
        Which row each point has; default: one after another.

    Returns the number of coordinates compared.
    """
    places = np.arange(len(numbers)) if places is None else places
    ends = np.searchsorted(numbers, points.firsts)
    n_compared = 0
    for p in np.flatnonzero(np.diff(ends)).tolist():
        here = slice(ends[p], ends[p + 1])
        n_compared += _search_partition(points, p, numbers[here], into, places[here])
    copies = slice(ends[-1], len(numbers))
    return n_compared + _share_with_copies(points, numbers[copies], into, places[copies])


def compare_points(
    points: Points, numbers: Numbers, into: Entries, places: Numbers | None = None
) -> int:
    """Fill the rows of some points like `search_points`, by comparing them with all points."""
    places = np.arange(len(numbers)) if places is None else places
    ends = np.searchsorted(numbers, points.firsts)
    for p in np.flatnonzero(np.diff(ends)).tolist():
        for first in range(ends[p], ends[p + 1], QUERIES_PER_PASS):
            here = slice(first, min(first + QUERIES_PER_PASS, ends[p + 1]))
            _compare_with_all(points, p, numbers[here], into, places[here])
    n_compared = int(ends[-1]) * int(points.firsts[-1]) * points.n_columns
    copies = slice(ends[-1], len(numbers))
    return n_compared + _share_with_copies(points, numbers[copies], into, places[copies])


def _compare_with_all(
    points: Points, p: int, numbers: Numbers, into: Entries, places: Numbers
) -> None:
    """Fill the rows of some points of a partition."""
    low, high = points.range()
    center = low + (high - low) / 2
    cells, here = points.cells(p), numbers - points.firsts[p]
    queries = centre(points_of(cells)[here], cells.rows[here], int(numbers[0]), center)
    own = numbers.astype(cells.rows.dtype)
    parts = [slice(i, i + QUERIES_PER_PRODUCT) for i in range(0, len(own), QUERIES_PER_PRODUCT)]
    buffers = [
        new_buffers(len(own[part]), into.k, queries.points.dtype, own.dtype) for part in parts
    ]
    for other in np.flatnonzero(points.sizes() > 0).tolist():
        cells = points.cells(other)
        others = centre(points_of(cells), cells.rows, cells.first, center)
        for part, buffer in zip(parts, buffers, strict=True):
            compare_block(queries.part(part.start, part.stop), own[part], others, into.k, buffer)
    for part, buffer in zip(parts, buffers, strict=True):
        fill_rows(buffer, np.arange(len(own[part])), into, places[part])


def _search_partition(
    points: Points, p: int, numbers: Numbers, into: Entries, places: Numbers
) -> int:
    """Fill the rows of some points of a partition; return the coordinates compared."""
    cells, others = points.cells(p), _others(points, p)
    buffers = block_buffers(cells, into.k)
    own = numbers - cells.first
    n_compared = 0
    for block in blocks(cells, into.k, int(own[0]), int(own[-1]) + 1):
        here = slice(*np.searchsorted(own, (block.first, block.last)))
        queries = own[here] - block.first
        if len(queries):
            wanted = _wanted(block, queries)
            n_compared += search_block(cells, block, into.k, buffers, others, wanted)
            fill_rows(buffers, queries, into, places[here])
    return n_compared


def _wanted(block: Block, queries: Numbers) -> NDArray[np.bool_]:
    """Return which points of a block are among the queries."""
    wanted = np.zeros(block.last - block.first, np.bool_)
    wanted[queries] = True
    return wanted


def _others(points: Points, own: int) -> Others:
    """Return the partitions beside one's own that are not empty."""
    low, high = points.boxes()
    numbers = np.flatnonzero(points.sizes() > 0)
    numbers = numbers[numbers != own]
    return Others(low[numbers], high[numbers], numbers, points.cells)


def fill_rows(buffers: Buffers, queries: Numbers, into: Entries, places: Numbers) -> None:
    """Write the nearest of some queries into rows, which must become full."""
    if finish(buffers, queries, places, into.k, False, *into) < len(queries):
        raise RuntimeError("a row of the neighbour graph is not full")


def _share_with_copies(points: Points, copies: Numbers, into: Entries, places: Numbers) -> int:
    """Fill the rows of some copies of heavy points with the neighbours of their leaders.

    Takes and returns what a search does; each leader is searched once, by cells: its nearest are at
    distance 0, so that boxes prune.
    """
    n_compared = 0
    for leader, run in leaders_of(points, copies):
        number = np.array([leader])
        row = new_entries(number, points.n_points, into.k, points.dtype)
        n_compared += search_points(points, number, row)
        into.neighbors[places[run], 1:] = row.neighbors[0, 1:]
        into.distances[places[run], 1:] = row.distances[0, 1:]
    return n_compared


def leaders_of(points: Points, copies: Numbers) -> Iterator[tuple[int, slice]]:
    """Return the leaders of some copies, ascending, and where the copies of each are."""
    if len(copies):
        for leader, run in points.copies_in(int(copies[0]), int(copies[-1]) + 1):
            here = slice(*np.searchsorted(copies, run).tolist())
            if here.start < here.stop:
                yield leader, here
