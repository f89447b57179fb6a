"""Exact nearest neighbours: cells of k-d trees where boxes prune, blocked products where not.

Works on arrays of one or many partitions, a block of queries at a time; a search that has met every
partition, or has proven that those it left out lie beyond its k-th distance, is exact.
Memory: the partitions at hand, and the buffers of one block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.kernels import cells as tree
from spore_dask.kernels.nearest import (
    BUFFER_FACTOR,
    SHORT,
    UNWANTED,
    Buffers,
    new_buffers,
    reset,
)
from spore_dask.kernels.products import screen
from spore_dask.threads import in_threads, scratch

TOP_LEVELS = 3
BLOCK_NBYTES = 8 << 20
"""Size of the buffers of one block of home cells."""
POINTS_PER_PRODUCT = 4096


def number_dtype(n_points: int) -> np.dtype[Any]:
    """Return the type of rows and point numbers: 32 bits below 2**32 points, else 64."""
    return np.dtype(np.uint32 if n_points <= 2**32 else np.int64)


def build_cells(
    points: NDArray[np.floating], rows: NDArray[Any], first: int = 0, n_threads: int | None = None
) -> tree.Cells:
    """Sort the points of one partition into the cells of a k-d tree.

    Parameters
    ----------
    points : array (n, D), C-contiguous
    rows : array (n,)
        Input row of each.
    first : int
        Number that the first point gets.
    n_threads : int, optional
        Default: all processors.
    """
    n_points, n_columns = points.shape
    levels = tree.n_levels(n_points)
    starts = tree.cell_starts(n_points, levels)
    n_nodes = 2 * (len(starts) - 1) - 1
    order = np.arange(n_points, dtype=number_dtype(n_points))
    cells = tree.Cells(
        first=first,
        starts=starts,
        rows=np.empty(n_points, rows.dtype),
        columns=np.empty(points.size, points.dtype),
        low=np.empty((n_nodes, n_columns), points.dtype),
        high=np.empty((n_nodes, n_columns), points.dtype),
    )
    part_size = 1 << max(0, levels - TOP_LEVELS)
    tree.split(points, order, starts[::part_size])

    def finish_part(first_cell: int) -> None:
        part = starts[first_cell : first_cell + part_size + 1]
        tree.split(points, order[part[0] : part[-1]], part - part[0])
        tree.fill_cells(points, order, cells, first_cell, first_cell + part_size)

    in_threads(finish_part, range(0, len(starts) - 1, part_size), n_threads)
    tree.fill_boxes(cells)
    np.take(rows, order, out=cells.rows)
    return cells


@dataclasses.dataclass(frozen=True)
class Block:
    """Some home cells of one partition, whose points are searched together."""

    first_home: int
    last_home: int
    first: int
    """Place in the partition of the first point."""
    last: int


def blocks(cells: tree.Cells, k: int, first: int = 0, last: int | None = None) -> Iterator[Block]:
    """Part the home cells that hold the points [first, last) of a partition into blocks."""
    starts, step = cells.starts, _homes_per_block(cells, k)
    last = int(starts[-1]) if last is None else last
    first_home = int(np.searchsorted(starts, first, side="right")) - 1
    last_home = int(np.searchsorted(starts, last, side="left"))
    for home in range(first_home, last_home, step):
        stop = min(home + step, last_home)
        yield Block(home, stop, int(starts[home]), int(starts[stop]))


def _homes_per_block(cells: tree.Cells, k: int) -> int:
    entry_nbytes = cells.columns.dtype.itemsize + 2 * cells.rows.dtype.itemsize
    n_queries = BLOCK_NBYTES // ((BUFFER_FACTOR * k + SHORT) * entry_nbytes)
    return max(1, n_queries // tree.POINTS_PER_CELL)


def block_buffers(cells: tree.Cells, k: int) -> Buffers:
    """Return buffers that any block of a partition fits in.

    A thread has one of them at a time: the next call overwrites it.
    """
    n_homes = min(len(cells.starts) - 1, _homes_per_block(cells, k))
    n_queries = n_homes * int(np.diff(cells.starts).max())
    return new_buffers(n_queries, k, cells.columns.dtype, cells.rows.dtype, scratch)


@dataclasses.dataclass(frozen=True)
class Others:
    """The other partitions of a search."""

    low: NDArray[Any]
    """(partitions, D): least corner of the box of each."""
    high: NDArray[Any]
    numbers: NDArray[np.int64]
    """Which partitions these are."""
    load: Callable[[int], tree.Cells]
    """What brings the cells of one of them."""


def search_block(
    cells: tree.Cells,
    block: Block,
    k: int,
    buffers: Buffers,
    others: Others | None = None,
    wanted: NDArray[np.bool_] | None = None,
) -> int:
    """Collect in `buffers` the k nearest others of the points of a block.

    `wanted` tells which of its points to search for; all of them by default. Returns the number of
    coordinates compared.
    """
    reset(buffers)
    if wanted is not None:
        buffers.limits[: len(wanted)][~wanted] = UNWANTED
    n_compared: int = tree.search_own(cells, block.first_home, block.last_home, k, buffers)
    return (
        n_compared
        if others is None
        else n_compared + search_others(cells, block, k, buffers, others)
    )


def search_others(cells: tree.Cells, block: Block, k: int, buffers: Buffers, others: Others) -> int:
    """Go on in other partitions, the nearest first, as long as one is within reach.

    Buffers may be empty: the points of the block then are none of those that are searched.
    """
    homes = block.first_home, block.last_home
    n_compared = 0
    near = tree.boxes_in_reach(cells, *homes, others.low, others.high, buffers)
    bounds = [
        tree.nearest_to_homes(
            cells, *homes, others.low[i : i + 1], others.high[i : i + 1], buffers
        )[1]
        for i in near
    ]
    for i in near[np.argsort(bounds, kind="stable")]:
        corner = others.low[i : i + 1], others.high[i : i + 1]
        if tree.nearest_to_homes(cells, *homes, *corner, buffers)[0]:
            other = others.load(int(others.numbers[i]))
            n_compared += tree.search_other(cells, *homes, other, k, buffers)
    return n_compared


@dataclasses.dataclass(frozen=True)
class Centred:
    """Points ready for products."""

    points: NDArray[np.floating]
    rows: NDArray[Any]
    first: int
    """Number of the first point; the others follow."""
    centred: NDArray[np.floating]
    squares: NDArray[np.floating]

    def part(self, first: int, last: int) -> Centred:
        """Return some of the points."""
        s = slice(first, last)
        return Centred(
            self.points[s], self.rows[s], self.first + first, self.centred[s], self.squares[s]
        )


def centre(
    points: NDArray[np.floating], rows: NDArray[Any], first: int, center: NDArray[np.floating]
) -> Centred:
    """Make points ready for products: the nearer to the centre, the less products round."""
    centred = points - center
    return Centred(points, rows, first, centred, np.einsum("ij,ij->i", centred, centred))


def compare_block(
    queries: Centred, numbers: NDArray[Any], others: Centred, k: int, buffers: Buffers
) -> None:
    """Offer to each query all the other points, screened by products.

    `numbers` has the point numbers of the queries.
    """
    n_columns = queries.points.shape[1]
    rounding = np.finfo(queries.points.dtype)
    relative = (2 * n_columns + 32) * rounding.eps
    absolute = (2 * n_columns + 32) * rounding.tiny  # of what underflows
    lengths = np.sqrt(queries.squares)
    for start in range(0, len(others.points), POINTS_PER_PRODUCT):
        block = others.part(start, start + POINTS_PER_PRODUCT)
        products = queries.centred @ block.centred.T
        margins = relative * (lengths + np.sqrt(block.squares.max())) ** 2 + absolute
        screen(
            products,
            queries.points,
            numbers,
            (queries.squares, block.squares),
            margins.astype(queries.points.dtype),
            block.points,
            block.rows,
            block.first,
            k,
            buffers,
        )
