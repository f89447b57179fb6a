"""Exact nearest neighbours over the cells of a balanced k-d tree.

A cell is a leaf of the tree: some dozens of points with consecutive numbers, stored column by
column. All points of a home cell search together: cells are met in the order of the lower bound
between the boxes, and a point skips a cell whose box is strictly beyond its k-th distance.
Bounds add up columns as distances do, so that rounding never lifts a bound above a distance:
what is skipped is proven not to matter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from spore_dask.kernels.nearest import cut, finish, offer, reset, squared_distances

POINTS_PER_CELL = 80
SPREAD_SAMPLE = 128


class Cells(NamedTuple):
    """Points in cells, and the boxes of the tree above them.

    Node 0 is the root, the children of node i are 2i + 1 and 2i + 2, the last nodes are the cells.
    """

    starts: NDArray[np.int64]
    """Where each cell starts among the points, and where the last one ends."""
    rows: NDArray[Any]
    """The input row of each point."""
    columns: NDArray[Any]
    """Coordinates, cell by cell, in each cell column by column."""
    low: NDArray[Any]
    """Least corner of each node's box."""
    high: NDArray[Any]
    """Largest corner of each node's box."""


def n_levels(n_points: int) -> int:
    """Return the depth of the tree that leaves 40 to 80 points in a cell."""
    return max(0, int(np.ceil(np.log2(max(1, n_points) / POINTS_PER_CELL))))


def largest_cell(starts: NDArray[np.int64]) -> int:
    """Return the number of points of the largest cell."""
    return int(np.diff(starts).max())


def cell_starts(n_points: int, levels: int) -> NDArray[np.int64]:
    """Halve [0, n_points) again and again; return where the parts start, and the end."""
    starts = np.array([0, n_points], np.int64)
    for _ in range(levels):
        middles = (starts[:-1] + starts[1:]) // 2
        starts = np.insert(starts, np.arange(1, len(starts)), middles)
    return starts


@njit(cache=True, nogil=True)
def split(points, order, starts):
    """Reorder `order` so that its parts between `starts` are the cells of a k-d tree.

    At each node the column with the widest spread is cut at the median. `starts` has 2**n + 1
    entries relative to the beginning of `order`.
    """
    n_cells = starts.size - 1
    keys = np.empty(order.size, points.dtype)
    width = n_cells
    while width > 1:
        for first in range(0, n_cells, width):
            start, middle, stop = starts[first], starts[first + width // 2], starts[first + width]
            column = _widest_column(points, order[start:stop])
            for i in range(start, stop):
                keys[i] = points[order[i], column]
            _select_key(keys[start:stop], order[start:stop], middle - start)
        width //= 2


@njit(cache=True, nogil=True)
def _widest_column(points, order):
    """Return the column with the largest range over a regular sample of the points."""
    step = max(1, order.size // SPREAD_SAMPLE)
    widest, best = -1.0, 0
    for column in range(points.shape[1]):
        low = high = points[order[0], column]
        for i in range(0, order.size, step):
            value = points[order[i], column]
            low = min(low, value)
            high = max(high, value)
        if np.float64(high) - np.float64(low) > widest:
            widest, best = np.float64(high) - np.float64(low), column
    return best


@njit(cache=True, nogil=True)
def _select_key(keys, order, middle):
    """Bring the `middle` smallest keys to the front, moving `order` along."""
    first, last = 0, keys.size - 1
    while first < last:
        pivot = keys[(first + last) // 2]
        i, j = first - 1, last + 1
        while True:
            i += 1
            while keys[i] < pivot:
                i += 1
            j -= 1
            while keys[j] > pivot:
                j -= 1
            if i >= j:
                break
            keys[i], keys[j] = keys[j], keys[i]
            order[i], order[j] = order[j], order[i]
        if middle - 1 <= j:
            last = j
        else:
            first = j + 1


@njit(cache=True, nogil=True)
def fill_cells(points, cells, first_cell, last_cell):
    """Copy the points of some cells column by column, and take their boxes."""
    n_columns = points.shape[1]
    leaves = cells.starts.size - 2
    for cell in range(first_cell, last_cell):
        start, stop = cells.starts[cell], cells.starts[cell + 1]
        low, high = cells.low[leaves + cell], cells.high[leaves + cell]
        low[:] = points[cells.rows[start]]
        high[:] = low
        block = cells.columns[start * n_columns : stop * n_columns]
        for i in range(stop - start):
            point = points[cells.rows[start + i]]
            for column in range(n_columns):
                value = point[column]
                block[column * (stop - start) + i] = value
                low[column] = min(low[column], value)
                high[column] = max(high[column], value)


@njit(cache=True, nogil=True)
def fill_boxes(cells):
    """Take the boxes of the inner nodes from those of the cells."""
    for node in range(cells.starts.size - 3, -1, -1):
        left, right = 2 * node + 1, 2 * node + 2
        for column in range(cells.low.shape[1]):
            cells.low[node, column] = min(cells.low[left, column], cells.low[right, column])
            cells.high[node, column] = max(cells.high[left, column], cells.high[right, column])


@njit(cache=True, nogil=True)
def bound(low, high, other_low, other_high):
    """Return a squared distance that no pair of points from the two boxes is computed below."""
    total = low[0] - low[0]
    for column in range(low.size):
        gap = max(other_low[column] - high[column], low[column] - other_high[column])
        if gap > 0:
            total += gap * gap
    return total


@njit(cache=True, nogil=True)
def search_homes(cells, first_home, last_home, k, buffers, neighbors, distances):
    """Find the k nearest others of every point in a range of home cells.

    Parameters
    ----------
    cells : Cells
    first_home, last_home : int
    k : int, at most the number of points - 1
    buffers : Buffers for as many queries as the largest cell has points
    neighbors, distances : arrays (N, k + 1)
        Written behind the first entry, at the input rows of the points, as input rows.
    """
    for home in range(first_home, last_home):
        search(cells, home, k, buffers)
        rows = cells.rows[cells.starts[home] : cells.starts[home + 1]]
        if finish(buffers, rows, k, neighbors, distances) < rows.size:
            raise RuntimeError("a row of the neighbour graph is not full")


@njit(cache=True, nogil=True)
def search(cells, home, k, buffers):
    """Collect in `buffers` the k nearest others of every point in one home cell.

    Returns the number of coordinates compared, the measure of how well the bounds prune.
    """
    size = cells.starts[home + 1] - cells.starts[home]
    squared = np.empty(buffers.counts.size, cells.columns.dtype)
    queries = _points_of(cells, home)
    reset(buffers)
    first, last = _window(cells, home, k)
    n_compared = 0
    for cell in range(first, last):
        n_compared += _visit(cells, home, cell, k, queries, buffers, squared)
    for query in range(size):
        cut(buffers, query, k)
    limits = buffers.limits[:size]
    found, bounds = _cells_within(cells, home, limits.max(), first, last)
    for i in np.argsort(bounds):
        if bounds[i] > limits.max():
            break
        n_compared += _visit(cells, home, found[i], k, queries, buffers, squared)
    return n_compared


@njit(cache=True, nogil=True)
def _points_of(cells, cell):
    """Return the points of a cell row by row."""
    start, stop = cells.starts[cell], cells.starts[cell + 1]
    n_columns = cells.low.shape[1]
    block = cells.columns[start * n_columns : stop * n_columns]
    return block.reshape(n_columns, stop - start).T.copy()


@njit(cache=True, nogil=True)
def _window(cells, home, k):
    """Return a range of cells around home that holds more than k points."""
    n_cells = cells.starts.size - 1
    first, last = home, home + 1
    while cells.starts[last] - cells.starts[first] <= k:
        first, last = max(0, first - 1), min(n_cells, last + 1)
    return first, last


@njit(cache=True, nogil=True)
def _cells_within(cells, home, limit, first, last):
    """List the cells outside [first, last) whose bound to home is within the limit."""
    leaves = cells.starts.size - 2
    found = np.empty(leaves + 1, np.int64)
    bounds = np.empty(leaves + 1, cells.columns.dtype)
    low, high = cells.low[leaves + home], cells.high[leaves + home]
    stack = np.empty(64, np.int64)
    stack[0] = 0
    depth, n_found = 1, 0
    while depth > 0:
        depth -= 1
        node = stack[depth]
        nearest = bound(low, high, cells.low[node], cells.high[node])
        if nearest > limit:
            continue
        if node < leaves:
            stack[depth], stack[depth + 1] = 2 * node + 1, 2 * node + 2
            depth += 2
        elif not first <= node - leaves < last:
            found[n_found], bounds[n_found] = node - leaves, nearest
            n_found += 1
    return found[:n_found], bounds[:n_found]


@njit(cache=True, nogil=True)
def _visit(cells, home, cell, k, queries, buffers, squared):
    """Offer the points of a cell to the points of the home cell that it may concern."""
    n_columns = queries.shape[1]
    start, stop = cells.starts[cell], cells.starts[cell + 1]
    block = cells.columns[start * n_columns : stop * n_columns]
    low, high = cells.low[cells.starts.size - 2 + cell], cells.high[cells.starts.size - 2 + cell]
    out = squared[: stop - start]
    n_compared = 0
    for query in range(cells.starts[home + 1] - cells.starts[home]):
        at = queries[query]
        if bound(at, at, low, high) > buffers.limits[query]:
            continue
        n_summed = squared_distances(block, at, buffers.limits[query], out)
        n_compared += n_summed * out.size
        if n_summed < n_columns:
            continue
        itself = query if cell == home else -1
        for j in range(out.size):
            if out[j] <= buffers.limits[query] and j != itself:
                offer(buffers, query, out[j], cells.rows[start + j], k)
    return n_compared
