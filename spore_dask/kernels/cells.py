"""Exact nearest neighbours over the cells of a balanced k-d tree.

A cell is a leaf of the tree: some dozens of points with consecutive numbers, stored column by
column. All points of a home cell search together: cells are met in the order of the lower bound
between the boxes, and a point skips a cell whose box is strictly beyond its k-th distance.
Bounds add up columns as distances do, so that rounding never lifts a bound above a distance:
what is skipped is proven not to matter.

The points may lie in several partitions, each with a tree of its own: a search begins in its own
partition and goes on through the others, one at a time.

Memory: the points once more, two corners a box, and 16 bytes a cell for each search under way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import uintp
from numpy.typing import NDArray

from spore_dask.kernels.compiling import kernel, part
from spore_dask.kernels.nearest import cut, cut_all, largest_limit, put

POINTS_PER_CELL = 80
SPREAD_SAMPLE = 128
COLUMNS_PER_STEP = 8


class Cells(NamedTuple):
    """The points of one partition in cells, and the boxes of the tree above them.

    Node 0 is the root, the children of node i are 2i + 1 and 2i + 2, the last nodes are the cells.
    """

    first: int
    """Number of the first point."""
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


def cell_starts(n_points: int, levels: int) -> NDArray[np.int64]:
    """Halve [0, n_points) again and again; return where the parts start, and the end."""
    starts = np.array([0, n_points], np.int64)
    for _ in range(levels):
        middles = (starts[:-1] + starts[1:]) // 2
        starts = np.insert(starts, np.arange(1, len(starts)), middles)
    return starts


@kernel
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


@kernel
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


@kernel
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


@kernel
def fill_cells(points, order, cells, first_cell, last_cell):
    """Copy the points of some cells column by column, and take their boxes.

    `order` gives the place in `points` of each point of the cells.
    """
    n_columns = points.shape[1]
    leaves = cells.starts.size - 2
    for cell in range(first_cell, last_cell):
        start, stop = cells.starts[cell], cells.starts[cell + 1]
        low, high = cells.low[leaves + cell], cells.high[leaves + cell]
        low[:] = points[order[start]]
        high[:] = low
        block = cells.columns[start * n_columns : stop * n_columns]
        for i in range(stop - start):
            point = points[order[start + i]]
            for column in range(n_columns):
                value = point[column]
                block[column * (stop - start) + i] = value
                low[column] = min(low[column], value)
                high[column] = max(high[column], value)


@kernel
def points_of(cells):
    """Return the coordinates of the points of all cells, row by row."""
    return points_between(cells, 0, cells.starts[-1])


@kernel
def points_between(cells, first, last):
    """Return the coordinates of the points at places [first, last) of a partition."""
    _, starts, _, columns, low, _ = cells
    n_columns = low.shape[1]
    points = np.empty((last - first, n_columns), columns.dtype)
    begin, cell = first, np.searchsorted(starts, first, side="right") - 1
    while begin < last:
        start, size = starts[cell], starts[cell + 1] - starts[cell]
        end = min(last, start + size)
        for i in range(begin, end):
            for column in range(n_columns):
                points[i - first, column] = columns[start * n_columns + column * size + i - start]
        begin, cell = end, cell + 1
    return points


@kernel
def fill_boxes(cells):
    """Take the boxes of the inner nodes from those of the cells."""
    for node in range(cells.starts.size - 3, -1, -1):
        left, right = 2 * node + 1, 2 * node + 2
        for column in range(cells.low.shape[1]):
            cells.low[node, column] = min(cells.low[left, column], cells.low[right, column])
            cells.high[node, column] = max(cells.high[left, column], cells.high[right, column])


@kernel
def search_own(cells, first_home, last_home, k, buffers):
    """Collect the k nearest others, in their own partition, of the points of some home cells.

    Parameters
    ----------
    cells : Cells
    first_home, last_home : int
    k : int
    buffers : Buffers
        For the points of the home cells, in order; empty before the call. Points whose limit is
        `UNWANTED` are not searched.

    Returns the number of coordinates compared, the measure of how well the bounds prune.
    """
    found, bounds, squared = _scratch(cells)
    n_compared = 0
    for home in range(first_home, last_home):
        query = cells.starts[home] - cells.starts[first_home]
        size = cells.starts[home + 1] - cells.starts[home]
        if largest_limit(buffers, query, size) < 0:
            continue
        first, last = _window(cells, home, k)
        for cell in range(first, last):
            n_compared += _visit(cells, home, query, cells, cell, cell == home, k, buffers, squared)
        cut_all(buffers, query, size, k)
        limit = largest_limit(buffers, query, size)
        n_found = _cells_within(cells, home, cells, limit, first, last, found, bounds)
        for i in np.argsort(bounds[:n_found]):
            if bounds[i] > largest_limit(buffers, query, size):
                break
            n_compared += _visit(cells, home, query, cells, found[i], False, k, buffers, squared)
        cut_all(buffers, query, size, k)
    return n_compared


@kernel
def search_other(own, first_home, last_home, cells, k, buffers):
    """Go on in another partition with what `search_own` has begun; return the same count."""
    found, bounds, squared = _scratch(cells)
    n_compared = 0
    for home in range(first_home, last_home):
        query = own.starts[home] - own.starts[first_home]
        size = own.starts[home + 1] - own.starts[home]
        limit = largest_limit(buffers, query, size)
        if limit < 0:
            continue
        n_found = _cells_within(own, home, cells, limit, 0, 0, found, bounds)
        for i in np.argsort(bounds[:n_found]):
            if bounds[i] > largest_limit(buffers, query, size):
                break
            n_compared += _visit(own, home, query, cells, found[i], False, k, buffers, squared)
        if n_found > 0:
            cut_all(buffers, query, size, k)
    return n_compared


@kernel
def nearest_to_homes(own, first_home, last_home, low, high, buffers):
    """Return whether a box is within the limits of some home cell, and the least bound to one.

    Home cells without a point that is searched do not count.
    """
    leaves = own.starts.size - 2
    least, within = np.inf, False
    for home in range(first_home, last_home):
        query = own.starts[home] - own.starts[first_home]
        size = own.starts[home + 1] - own.starts[home]
        limit = largest_limit(buffers, query, size)
        if limit < 0:
            continue
        bound = _box_bound(own.low, own.high, leaves + home, low, high, 0)
        within |= bound <= limit
        least = min(least, np.float64(bound))
    return within, least


@kernel
def boxes_in_reach(own, first_home, last_home, low, high, buffers):
    """Return the places of the boxes that some home cell may have within its limits, ascending.

    One box around the home cells that are searched is compared with each, so that the bound is
    never above that of any of them: the boxes left out are beyond all limits.
    """
    leaves = own.starts.size - 2
    n_columns = low.shape[1]
    around_low = np.full((1, n_columns), np.inf, low.dtype)
    around_high = np.full((1, n_columns), -np.inf, low.dtype)
    limit = -1.0
    for home in range(first_home, last_home):
        query = own.starts[home] - own.starts[first_home]
        largest = largest_limit(buffers, query, own.starts[home + 1] - own.starts[home])
        if largest < 0:
            continue
        limit = max(limit, largest)
        for column in range(n_columns):
            around_low[0, column] = min(around_low[0, column], own.low[leaves + home, column])
            around_high[0, column] = max(around_high[0, column], own.high[leaves + home, column])
    found = np.empty(low.shape[0], np.int64)
    n_found = 0
    if limit >= 0:
        for box in range(low.shape[0]):
            if _box_bound(around_low, around_high, 0, low, high, box) <= limit:
                found[n_found] = box
                n_found += 1
    return found[:n_found]


@kernel
def _scratch(cells):
    """Allocate what one search needs: cells found, their bounds, and the distances to one cell."""
    n_cells = cells.starts.size - 1
    largest = 0
    for cell in range(n_cells):
        largest = max(largest, cells.starts[cell + 1] - cells.starts[cell])
    dtype = cells.low.dtype
    return np.empty(n_cells, np.int64), np.empty(n_cells, dtype), np.empty(largest, dtype)


@kernel
def _window(cells, home, k):
    """Return a range of cells around home that holds more than k points, if there are as many."""
    n_cells = cells.starts.size - 1
    first, last = home, home + 1
    while cells.starts[last] - cells.starts[first] <= k and last - first < n_cells:
        first, last = max(0, first - 1), min(n_cells, last + 1)
    return first, last


@kernel
def _cells_within(own, home, cells, limit, first, last, found, bounds):
    """List the cells outside [first, last) whose box is within the limit of that of home.

    Fills `found` and `bounds`, and returns how many there are.
    """
    own_low, own_high, own_node = own.low, own.high, own.starts.size - 2 + home
    low, high = cells.low, cells.high
    leaves = cells.starts.size - 2
    stack = np.empty(64, np.int64)
    stack[0] = 0
    depth, n_found = 1, 0
    while depth > 0:
        depth -= 1
        node = stack[depth]
        nearest = _box_bound(own_low, own_high, own_node, low, high, node)
        if nearest > limit:
            continue
        if node < leaves:
            stack[depth], stack[depth + 1] = 2 * node + 1, 2 * node + 2
            depth += 2
        elif not first <= node - leaves < last:
            found[n_found], bounds[n_found] = node - leaves, nearest
            n_found += 1
    return n_found


@part
def _box_bound(own_low, own_high, own_node, low, high, node):
    """Return a squared distance that no pair of points from two boxes is computed below."""
    total = low[node, 0] - low[node, 0]
    for column in range(low.shape[1]):
        gap = max(
            low[node, column] - own_high[own_node, column],
            own_low[own_node, column] - high[node, column],
        )
        if gap > 0:
            total += gap * gap
    return total


@part
def _point_bound(columns, place, step, low, high, node):
    """Return the same for a box and a point whose columns are at `place`, `place + step`, ..."""
    total = low[node, 0] - low[node, 0]
    for column in range(low.shape[1]):
        at = columns[place + column * step]
        gap = max(low[node, column] - at, at - high[node, column])
        if gap > 0:
            total += gap * gap
    return total


@kernel
def _visit(own, home, first_query, cells, cell, is_home, k, buffers, squared):
    """Offer the points of a cell to the points of the home cell that it may concern."""
    _, own_starts, _, own_columns, _, _ = own
    first_number, starts, rows, columns, low, high = cells
    capacity, distances, found_rows, found_points, counts, limits, _ = buffers
    n_columns = low.shape[1]
    node = starts.size - 2 + cell
    first, size = starts[cell], starts[cell + 1] - starts[cell]
    own_first, own_size = own_starts[home], own_starts[home + 1] - own_starts[home]
    n_compared = 0
    for i in range(own_size):
        query, place = first_query + i, own_first * n_columns + i
        limit = limits[query]
        if limit < 0 or _point_bound(own_columns, place, own_size, low, high, node) > limit:
            continue
        n_summed, n_within = _measure(
            own_columns, place, own_size, columns, first, size, n_columns, limit, squared
        )
        n_compared += n_summed * size
        if n_within == 0:
            continue
        itself = i if is_home else -1
        for j in range(size):
            if j != itself:
                near, row, point = squared[j], rows[first + j], first_number + first + j
                if put(
                    distances,
                    found_rows,
                    found_points,
                    counts,
                    limits,
                    capacity,
                    query,
                    near,
                    row,
                    point,
                ):
                    cut(buffers, query, k)
    return n_compared


@part
def _measure(own_columns, place, step, columns, first, size, n_columns, limit, squared):
    """Fill `squared` with the squared distances of one point to the points of a cell.

    Stops as soon as every point is beyond the limit. Returns the number of columns summed, and the
    number of points within the limit as far as these columns tell. Loops run on vectors: indices
    are unsigned, because numba checks others for being negative, and points within are counted,
    because the least of floats would not.
    """
    for j in range(size):
        squared[j] = 0
    n_summed, n_within = 0, np.int32(1)
    while n_summed < n_columns and n_within > 0:
        for column in range(n_summed, min(n_summed + COLUMNS_PER_STEP, n_columns)):
            at = own_columns[place + column * step]
            start = uintp(first * n_columns + column * size)
            for j in range(size):
                difference = columns[start + uintp(j)] - at
                squared[uintp(j)] += difference * difference
        n_summed = min(n_summed + COLUMNS_PER_STEP, n_columns)
        n_within = np.int32(0)
        for j in range(size):
            n_within += np.int32(squared[uintp(j)] <= limit)
    return n_summed, n_within
