"""The k nearest of a stream of candidates, by (distance, number).

Candidates go into a buffer that a quickselect cuts back to k whenever it is full; the k-th
distance then bounds what may still enter. Distances are by direct subtraction, columns summed in
order and without fastmath, so that every search computes the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

BUFFER_FACTOR = 3
COLUMNS_PER_STEP = 8
SHORT = 16


class Buffers(NamedTuple):
    """Candidates of several queries; the first `counts[q]` entries of row q are filled."""

    distances: NDArray[Any]
    numbers: NDArray[Any]
    counts: NDArray[np.int64]
    limits: NDArray[Any]
    """A candidate whose squared distance is above the limit of its query cannot enter."""
    slack: NDArray[Any]
    """Factor and summand that make a squared distance a safe limit in spite of rounding."""


def new_buffers(n_queries: int, k: int, dtype: np.dtype[Any], number_dtype: Any) -> Buffers:
    """Allocate buffers for `n_queries` searches at a time."""
    capacity = BUFFER_FACTOR * k + SHORT
    rounding = np.finfo(dtype)
    return Buffers(
        distances=np.empty((n_queries, capacity), dtype),
        numbers=np.empty((n_queries, capacity), number_dtype),
        counts=np.zeros(n_queries, np.int64),
        limits=np.full(n_queries, np.inf, dtype),
        slack=np.array([1 + 8 * rounding.eps, 8 * rounding.smallest_subnormal], dtype),
    )


@njit(cache=True, nogil=True)
def reset(buffers):
    """Empty the buffers."""
    buffers.counts[:] = 0
    buffers.limits[:] = np.inf


@njit(cache=True, nogil=True)
def offer(buffers, query, squared, number, k):
    """Take a candidate whose squared distance is within the limit of its query."""
    count = buffers.counts[query]
    buffers.distances[query, count] = np.sqrt(squared)
    buffers.numbers[query, count] = number
    buffers.counts[query] = count + 1
    if count + 1 == buffers.distances.shape[1]:
        cut(buffers, query, k)


@njit(cache=True, nogil=True)
def cut(buffers, query, k):
    """Keep the k nearest candidates of a query, and lower its limit to the k-th distance."""
    count = buffers.counts[query]
    if count < k:
        return
    distances = buffers.distances[query]
    _select(distances, buffers.numbers[query], count, k)
    farthest = distances[0]
    for i in range(1, k):
        farthest = max(farthest, distances[i])
    buffers.counts[query] = k
    buffers.limits[query] = farthest * farthest * buffers.slack[0] + buffers.slack[1]


@njit(cache=True, nogil=True)
def finish(buffers, rows, k, neighbors, distances):
    """Write the k nearest of each query, in order, behind the first entry of its row.

    Returns the number of rows written: a query that has met fewer than k gets none.
    """
    n_written = 0
    for query in range(rows.size):
        if buffers.counts[query] >= k:
            cut(buffers, query, k)
            _sort(buffers.distances[query], buffers.numbers[query], k)
            neighbors[rows[query], 1:] = buffers.numbers[query, :k]
            distances[rows[query], 1:] = buffers.distances[query, :k]
            n_written += 1
    return n_written


@njit(cache=True, nogil=True)
def measure(points, queries, candidates, k, buffers):
    """Offer to each query its own candidates, by direct distance; passes over -1 and itself."""
    for q in range(queries.size):
        for candidate in candidates[q]:
            if candidate >= 0 and candidate != queries[q]:
                squared = squared_distance(points[queries[q]], points[candidate])
                if squared <= buffers.limits[q]:
                    offer(buffers, q, squared, candidate, k)


@njit(cache=True, nogil=True)
def squared_distances(block, query, limit, out):
    """Fill `out` with the squared distances of a query to a block stored column by column.

    Stops as soon as every point is beyond `limit`. Returns the number of columns summed: fewer
    than all means that no point of the block is within the limit.
    """
    size = out.size
    for j in range(size):
        out[j] = 0
    for column in range(query.size):
        values = block[column * size : (column + 1) * size]
        at = query[column]
        for j in range(size):
            difference = values[j] - at
            out[j] += difference * difference
        if (column + 1) % COLUMNS_PER_STEP == 0 and column + 1 < query.size:
            nearest = out[0]
            for j in range(size):
                nearest = min(nearest, out[j])
            if nearest > limit:
                return column + 1
    return query.size


@njit(cache=True, nogil=True)
def squared_distance(left, right):
    """Return the squared distance of two points, the same bits as `squared_distances`."""
    total = left[0] - left[0]
    for column in range(left.size):
        difference = left[column] - right[column]
        total += difference * difference
    return total


@njit(cache=True, nogil=True, inline="always")
def _before(distance, number, other_distance, other_number):
    return distance < other_distance or (distance == other_distance and number < other_number)


@njit(cache=True, nogil=True, inline="always")
def _swap(distances, numbers, i, j):
    distances[i], distances[j] = distances[j], distances[i]
    numbers[i], numbers[j] = numbers[j], numbers[i]


@njit(cache=True, nogil=True)
def _partition(distances, numbers, first, last):
    """Part [first, last] around its middle entry; return where the left part ends."""
    middle = (first + last) // 2
    pivot, pivot_number = distances[middle], numbers[middle]
    i, j = first - 1, last + 1
    while True:
        i += 1
        while _before(distances[i], numbers[i], pivot, pivot_number):
            i += 1
        j -= 1
        while _before(pivot, pivot_number, distances[j], numbers[j]):
            j -= 1
        if i >= j:
            return j
        _swap(distances, numbers, i, j)


@njit(cache=True, nogil=True)
def _select(distances, numbers, count, k):
    """Bring the k smallest of the first `count` entries to the front, in any order."""
    first, last = 0, count - 1
    while first < last:
        end = _partition(distances, numbers, first, last)
        if k - 1 <= end:
            last = end
        else:
            first = end + 1


@njit(cache=True, nogil=True)
def _sort(distances, numbers, count):
    """Sort the first `count` entries: quicksort down to short runs, then insertion."""
    stack = np.empty((64, 2), np.int64)
    stack[0] = 0, count - 1
    depth = 1
    while depth > 0:
        depth -= 1
        first, last = stack[depth]
        while last - first > SHORT:
            end = _partition(distances, numbers, first, last)
            if end - first < last - end - 1:
                stack[depth] = end + 1, last
                last = end
            else:
                stack[depth] = first, end
                first = end + 1
            depth += 1
    for i in range(1, count):
        distance, number = distances[i], numbers[i]
        j = i
        while j > 0 and _before(distance, number, distances[j - 1], numbers[j - 1]):
            distances[j], numbers[j] = distances[j - 1], numbers[j - 1]
            j -= 1
        distances[j], numbers[j] = distance, number
