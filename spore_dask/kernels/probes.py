"""Nearest neighbours in many dimensions: each point probes the cells whose centers are nearest.

Which cells a point can probe is chosen for its home cell, which of them it does probe for the point
itself. The probers of a cell meet its points in one matrix product, relative to the center of the
cell: rounding is then small against the distances that matter, wherever the points are. The lists
that come out hold squared distances up to that rounding, which is all that a choice of candidates
needs; `measure_lists` and `rank_lists` put direct distances in their place at the end.

Memory: the lists, the buffers of the queries (24 bytes an entry), 4 bytes a probe, one product.

numba multiplies with the BLAS of scipy. It is imported here, so that it is loaded before anyone
limits the threads of what is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg.cython_blas  # type: ignore[import-untyped]  # noqa: F401
from numba import uintp
from numpy.typing import NDArray

from spore_dask.kernels.compiling import kernel, part, rough

BUFFER_FACTOR = 3
QUERIES_PER_PRODUCT = 256
NEAR_BLOCKS = 4
"""Times the wanted cells that are collected before the nearest are chosen."""
ROUNDING = 16
"""Rounding units, times the square of a query, that a product may be off by."""
CANCELLING = 0.01
"""Share of the square of a query below which a squared distance is measured, not multiplied."""
SCREENED = 64
"""Products that are looked at together: mostly none of them is large enough."""


class Part(NamedTuple):
    """The points of one partition, sorted into cells."""

    first: int
    """Number of its first point; the others follow."""
    points: NDArray[Any]
    """(n, D), C-contiguous."""
    starts: NDArray[np.int64]
    """Where each cell starts among them, and where the last one ends."""
    centers: NDArray[Any]
    """(cells, D), in the dtype of the points."""


class Lists(NamedTuple):
    """The neighbour lists of consecutive points, nearest first."""

    numbers: NDArray[Any]
    """(R, width): numbers of points; -1 behind the end of a list that is not full."""
    squares: NDArray[Any]
    """(R, width): squared distances, rough; inf behind the end."""
    fresh: NDArray[np.bool_]
    """(R, width): whether an entry has not yet been used in a round of refinement."""


class Buffers(NamedTuple):
    """Candidates of several queries, those of query q from q * capacity on."""

    capacity: int
    squares: NDArray[Any]
    """Squared distances, rough."""
    numbers: NDArray[Any]
    counts: NDArray[np.int64]
    """Candidates of each query."""
    limits: NDArray[Any]
    """A candidate enters if its squared distance is below the limit of its query."""


def new_lists(n_rows: int, width: int, dtype: Any, number_dtype: Any) -> Lists:
    """Allocate empty lists."""
    return Lists(
        np.full((n_rows, width), -1, number_dtype),
        np.full((n_rows, width), np.inf, dtype),
        np.zeros((n_rows, width), np.bool_),
    )


def new_buffers(n_queries: int, width: int, dtype: Any, number_dtype: Any) -> Buffers:
    """Allocate empty buffers for lists of some width."""
    capacity = BUFFER_FACTOR * width
    return Buffers(
        capacity,
        np.empty(n_queries * capacity, dtype),
        np.empty(n_queries * capacity, number_dtype),
        np.zeros(n_queries, np.int64),
        np.full(n_queries, np.inf, dtype),
    )


def fewest_probes(cell_sizes: NDArray[np.integer], n_wanted: int) -> int:
    """Return how many cells surely hold `n_wanted` points and one more, whichever they are."""
    held = np.cumsum(np.sort(cell_sizes))
    return min(len(held), int(np.searchsorted(held, n_wanted + 1)) + 1)


def near_cells(
    home_centers: NDArray[Any], centers: Iterable[tuple[int, NDArray[Any]]], n_near: int
) -> NDArray[np.int32]:
    """Find the cells whose centers are nearest to that of each home cell.

    Parameters
    ----------
    home_centers : float array (H, D)
    centers : pairs of a number and a float array (cells, D)
        The number of the first cell of each partition, and the centers of all; only one is used at
        a time. Those near home come best first, because then most others are soon passed over.
    n_near : int, at most the number of all cells

    Returns
    -------
    int32 array (H, n_near)
        Numbers of cells over all partitions, ascending.
    """
    near = np.empty((len(home_centers), 0), np.int32)
    squares = np.empty((len(home_centers), 0), home_centers.dtype)
    limits = np.full((len(home_centers), 1), np.inf, home_centers.dtype)
    middle = home_centers.mean(axis=0)
    for first, block in centers:
        offsets = block - middle
        lengths = np.einsum("ij,ij->i", offsets, offsets)
        found = lengths - 2 * ((home_centers - middle) @ offsets.T)
        within = np.flatnonzero((found < limits).any(axis=0))
        found, numbers = found[:, within], (first + within).astype(np.int32)
        squares = np.hstack([squares, found])
        near = np.hstack([near, np.broadcast_to(numbers, found.shape)])
        if near.shape[1] > (NEAR_BLOCKS if limits[0] < np.inf else 1) * n_near:
            near, squares = _nearest(near, squares, n_near)
            limits = squares.max(axis=1, keepdims=True)
    return np.sort(_nearest(near, squares, n_near)[0], axis=1)


def _nearest(
    numbers: NDArray[np.int32], squares: NDArray[Any], n_near: int
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Return the nearest of each row, in no particular order."""
    kept = np.argpartition(squares, n_near - 1, axis=1)[:, :n_near]
    return np.take_along_axis(numbers, kept, axis=1), np.take_along_axis(squares, kept, axis=1)


@kernel
def choose_probes(points, starts, home_centers, near, centers, n_probes):
    """Choose, for each point, the nearest of the cells that are near its home cell.

    Parameters
    ----------
    points : array (R, D)
    starts : integer array
        Where each home cell starts among the points, and the end.
    home_centers : array (home cells, D)
    near : int32 array (home cells, n_near)
        Rows of `centers`, for each home cell.
    centers : array (cells, D)
    n_probes : int, at most n_near

    Returns
    -------
    int32 array (R, n_probes)
        Rows of `centers`, in no particular order.
    """
    n_near, n_columns = near.shape[1], points.shape[1]
    size = largest_run(starts)
    probes = np.empty((points.shape[0], n_probes), np.int32)
    left = np.empty((size, n_columns + 1), points.dtype)
    right = np.empty((n_near, n_columns + 1), points.dtype)
    products = np.empty(size * n_near, points.dtype)
    chosen = np.empty(n_near, np.int32)
    keys = np.empty(n_near, points.dtype)
    for home in range(starts.size - 1):
        first, size = starts[home], starts[home + 1] - starts[home]
        for j in range(n_near):
            offset(centers, np.int64(near[home, j]), home_centers, home, right, j)
            right[j, n_columns] *= -0.5
        for i in range(size):
            offset(points, first + i, home_centers, home, left, i)
            left[i, n_columns] = 1
        multiply(left, size, right, n_near, products)
        for i in range(size):
            place = i * n_near
            for j in range(n_near):
                chosen[j] = near[home, j]
                keys[j] = -products[place + j]
            select(keys, chosen, np.int64(0), n_near - 1, n_probes - 1)
            for j in range(n_probes):
                probes[first + i, j] = chosen[j]
    return probes


@kernel
def group_probers(probes, n_cells):
    """Return the points that probe each cell, cell by cell, and where each cell's start."""
    starts = np.zeros(n_cells + 1, np.int64)
    for i in range(probes.shape[0]):
        for j in range(probes.shape[1]):
            starts[probes[i, j] + 1] += 1
    for cell in range(n_cells):
        starts[cell + 1] += starts[cell]
    ends = starts[:-1].copy()
    probers = np.empty(probes.size, np.int32)
    for i in range(probes.shape[0]):
        for j in range(probes.shape[1]):
            cell = probes[i, j]
            probers[ends[cell]] = i
            ends[cell] += 1
    return probers, starts


@kernel
def search_part(home, first, probers, prober_starts, part, known, width, buffers):
    """Offer the points of the cells of one partition to those that probe them.

    Parameters
    ----------
    home : array (R, D)
        Points that search, numbered from `first` on.
    first : int
    probers : int32 array
        Rows of `home`, cell by cell.
    prober_starts : integer array (cells + 1)
        Where the probers of each cell of the partition start.
    part : Part
    known : integer array (R, any)
        Numbers of points that are not offered: none, before there are lists.
    width : int
        Length of the lists.
    buffers : Buffers for R queries
    """
    first_point, points, starts, centers = part
    n_columns = points.shape[1]
    size = largest_run(starts)
    left = np.empty((QUERIES_PER_PRODUCT, n_columns + 1), points.dtype)
    right = np.empty((size, n_columns + 1), points.dtype)
    products = np.empty(QUERIES_PER_PRODUCT * size, points.dtype)
    squares = np.empty(QUERIES_PER_PRODUCT, points.dtype)
    numbers = np.empty(size, known.dtype)
    for cell in range(starts.size - 1):
        if prober_starts[cell] == prober_starts[cell + 1]:
            continue
        start, size = starts[cell], starts[cell + 1] - starts[cell]
        for j in range(size):
            offset(points, start + j, centers, cell, right, j)
            right[j, n_columns] *= -0.5
            numbers[j] = first_point + start + j
        for begin in range(prober_starts[cell], prober_starts[cell + 1], QUERIES_PER_PRODUCT):
            end = min(begin + QUERIES_PER_PRODUCT, prober_starts[cell + 1])
            for i in range(end - begin):
                offset(home, np.int64(probers[begin + i]), centers, cell, left, i)
                squares[i] = left[i, n_columns]
                left[i, n_columns] = 1
            multiply(left, end - begin, right, size, products)
            queries = probers[begin:end]
            screen(
                products,
                left,
                right,
                squares,
                queries,
                numbers[:size],
                first,
                known,
                width,
                buffers,
            )


@kernel
def screen(products, left, right, squares, queries, numbers, first, known, width, buffers):
    """Offer to each query the points whose products are large enough.

    A product is the inner product of a query and a point less half of the point's square, so that
    the square of the query less two products is a squared distance. Where that is so small against
    the squares that it is mostly rounding, the difference of the two is measured instead.

    Parameters
    ----------
    products : array, query by query
    left, right : arrays
        The queries and the points, relative to a center.
    squares : array
        Squared lengths of the queries.
    queries : int32 array
        Rows of the queries, numbered from `first` on.
    numbers : integer array
        Numbers of the points.
    first : int
    known : integer array (R, any)
        Numbers that a query does not take, beside its own.
    width : int
    buffers : Buffers
    """
    capacity, near, near_numbers, counts, limits = buffers
    half, two, zero = squares.dtype.type(0.5), squares.dtype.type(2), squares.dtype.type(0)
    n_known = known.shape[1]
    rounding = squares.dtype.type(ROUNDING * np.finfo(squares.dtype).eps)
    cancelling = squares.dtype.type(CANCELLING)
    for i in range(queries.size):
        query, place = np.int64(queries[i]), i * numbers.size
        unsure = rounding * squares[i]
        least = (squares[i] - limits[query]) * half - unsure
        for begin in range(0, numbers.size, SCREENED):
            end = min(begin + SCREENED, numbers.size)
            n_within = 0
            for j in range(uintp(place + begin), uintp(place + end)):
                n_within += products[j] > least
            for j in range(begin, end if n_within > 0 else begin):
                number = numbers[j]
                if products[place + j] <= least or number == first + query:
                    continue
                is_known = False
                for entry in range(n_known):
                    is_known |= known[query, uintp(entry)] == number
                if is_known:
                    continue
                squared = max(zero, squares[i] - two * products[place + j])
                if squared < cancelling * squares[i]:
                    squared = difference(left, i, right, j)
                if squared >= limits[query]:
                    continue
                if put(near, near_numbers, counts, capacity, query, squared, number):
                    cut(buffers, query, width)
                    least = (squares[i] - limits[query]) * half - unsure


@kernel
def multiply(left, n_left, right, n_right, products):
    """Write the products of the first rows of two arrays, row by row of the left one."""
    block = products[: n_left * n_right].reshape(n_left, n_right)
    np.dot(left[:n_left], right[:n_right].T, block)


@part
def put(squares, numbers, counts, capacity, query, squared, number):
    """Take a candidate; True when the buffer is full then."""
    place = query * capacity + counts[query]
    squares[place] = squared
    numbers[place] = number
    counts[query] += 1
    return counts[query] == capacity


@kernel
def cut(buffers, query, width):
    """Keep the nearest candidates of a query, and lower its limit to the last of them."""
    capacity, squares, numbers, counts, limits = buffers
    if counts[query] >= width:
        first = query * capacity
        select(squares, numbers, first, first + counts[query] - 1, first + width - 1)
        counts[query] = width
        limits[query] = squares[first + width - 1]


@kernel
def select(keys, numbers, first, last, wanted):
    """Bring the entry that belongs at `wanted` there, smaller ones before, larger ones behind.

    Entries are ordered by (key, number). Without branches that depend on keys, which the processor
    would guess wrong half of the time.
    """
    while first < last:
        middle = (first + last) // 2
        pivot, pivot_number = keys[middle], numbers[middle]
        keys[middle], numbers[middle] = keys[last], numbers[last]
        place = first
        for i in range(first, last):
            key, number = keys[i], numbers[i]
            keys[i], numbers[i] = keys[place], numbers[place]
            keys[place], numbers[place] = key, number
            place += (key < pivot) | ((key == pivot) & (number < pivot_number))
        keys[last], numbers[last] = keys[place], numbers[place]
        keys[place], numbers[place] = pivot, pivot_number
        if wanted == place:
            return
        if wanted < place:
            last = place - 1
        else:
            first = place + 1


@kernel
def write_lists(buffers, lists):
    """Write the nearest of each buffer to its list, by (square, number), as fresh entries."""
    capacity, squares, numbers, counts, _ = buffers
    list_numbers, list_squares, fresh = lists
    for i in range(list_numbers.shape[0]):
        cut(buffers, i, list_numbers.shape[1])
        for j in range(counts[i]):
            entry = i * capacity + j
            insert(list_squares, list_numbers, fresh, i, j, squares[entry], numbers[entry], True)


@part
def insert(squares, numbers, fresh, row, count, squared, number, is_fresh):
    """Insert an entry among the first `count` ones of a list."""
    place = count
    while place > 0 and (
        squares[row, place - 1] > squared
        or (squares[row, place - 1] == squared and numbers[row, place - 1] > number)
    ):
        squares[row, place] = squares[row, place - 1]
        numbers[row, place] = numbers[row, place - 1]
        fresh[row, place] = fresh[row, place - 1]
        place -= 1
    squares[row, place], numbers[row, place], fresh[row, place] = squared, number, is_fresh


@kernel
def measure_lists(home, numbers, points, first, rows, distances, entry_rows):
    """Write the direct distances of the entries of lists that are points of one partition.

    Parameters
    ----------
    home : array (R, D)
    numbers : integer array (R, width)
    points : array (n, D)
        Points of the partition, numbered from `first` on.
    first : int
    rows : integer array of n
        Their input rows.
    distances : array (R, width)
        Written, for the entries of the partition.
    entry_rows : integer array (R, width)
        Their input rows, written likewise.
    """
    width = numbers.shape[1]
    places = np.empty(width + 4, np.int64)
    near = np.empty(width + 4, np.int64)
    for i in range(numbers.shape[0]):
        count = 0
        for j in range(width):
            place = np.int64(numbers[i, j]) - first
            places[count], near[count] = j, place
            count += (place >= 0) & (place < rows.size)
        near[count], near[count + 1], near[count + 2] = near[0], near[0], near[0]
        for j in range(0, count, 4):
            squares = four_squares(home, i, points, near[j], near[j + 1], near[j + 2], near[j + 3])
            for lane in range(min(4, count - j)):
                distances[i, places[j + lane]] = np.sqrt(squares[lane])
                entry_rows[i, places[j + lane]] = rows[near[j + lane]]


@part
def four_squares(home, i, points, a, b, c, d):
    """Return four squared distances of a point, each summed in the order of columns.

    Each sum waits for its last summand; four at a time keep the processor busy.
    """
    zero = home[i, 0] - home[i, 0]
    sum_a, sum_b, sum_c, sum_d = zero, zero, zero, zero
    for column in range(uintp(home.shape[1])):
        at = home[i, column]
        from_a, from_b = at - points[a, column], at - points[b, column]
        from_c, from_d = at - points[c, column], at - points[d, column]
        sum_a += from_a * from_a
        sum_b += from_b * from_b
        sum_c += from_c * from_c
        sum_d += from_d * from_d
    return sum_a, sum_b, sum_c, sum_d


@kernel
def rank_lists(distances, rows, numbers):
    """Sort each list by (distance, input row), in place."""
    width = distances.shape[1]
    for i in range(distances.shape[0]):
        for j in range(1, width):
            distance, row, number = distances[i, j], rows[i, j], numbers[i, j]
            place = j
            while place > 0 and (
                distances[i, place - 1] > distance
                or (distances[i, place - 1] == distance and rows[i, place - 1] > row)
            ):
                distances[i, place] = distances[i, place - 1]
                rows[i, place] = rows[i, place - 1]
                numbers[i, place] = numbers[i, place - 1]
                place -= 1
            distances[i, place], rows[i, place], numbers[i, place] = distance, row, number


@part
def largest_run(starts):
    """Return the length of the longest run between starts."""
    largest = 0
    for i in range(starts.size - 1):
        largest = max(largest, starts[i + 1] - starts[i])
    return largest


@rough
def difference(left, i, right, j):
    """Return the squared distance of two points that are given relative to a center."""
    total = left.dtype.type(0)
    for column in range(left.shape[1] - 1):
        apart = left[i, uintp(column)] - right[j, uintp(column)]
        total += apart * apart
    return total


@rough
def offset(points, row, centers, cell, offsets, place):
    """Write a point relative to a center, and behind that the square of its length."""
    n_columns = points.shape[1]
    total = points.dtype.type(0)
    for column in range(n_columns):
        difference = points[row, uintp(column)] - centers[cell, uintp(column)]
        offsets[place, uintp(column)] = difference
        total += difference * difference
    offsets[place, n_columns] = total
