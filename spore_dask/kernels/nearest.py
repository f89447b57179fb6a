"""The k nearest of a stream of candidates, by (distance, number).

Candidates go into a buffer that a quickselect cuts back to k whenever it is full; the k-th
distance then bounds what may still enter. Distances are by direct subtraction, columns summed in
order and without fastmath, so that every search computes the same bits.

There are no views in the inner loops: numba counts references to each. Memory: about 3k entries a
query.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spore_dask.kernels.compiling import kernel, part

BUFFER_FACTOR = 3
SHORT = 16


class Buffers(NamedTuple):
    """Candidates of several queries, those of query q from q * capacity on."""

    capacity: int
    distances: NDArray[Any]
    numbers: NDArray[Any]
    counts: NDArray[np.int64]
    """Candidates of each query."""
    limits: NDArray[Any]
    """A candidate whose squared distance is above the limit of its query cannot enter."""
    slack: NDArray[Any]
    """Factor and summand that make a squared distance a safe limit in spite of rounding."""


def new_buffers(n_queries: int, k: int, dtype: np.dtype[Any], number_dtype: Any) -> Buffers:
    """Allocate buffers for `n_queries` searches at a time."""
    capacity = BUFFER_FACTOR * k + SHORT
    rounding = np.finfo(dtype)
    return Buffers(
        capacity=capacity,
        distances=np.empty(n_queries * capacity, dtype),
        numbers=np.empty(n_queries * capacity, number_dtype),
        counts=np.zeros(n_queries, np.int64),
        limits=np.full(n_queries, np.inf, dtype),
        slack=np.array([1 + 8 * rounding.eps, 8 * rounding.smallest_subnormal], dtype),
    )


@kernel
def reset(buffers):
    """Empty the buffers."""
    buffers.counts[:] = 0
    buffers.limits[:] = np.inf


@part
def put(distances, numbers, counts, limits, capacity, query, squared, number):
    """Take a candidate if it is within the limit of its query; True when the buffer is full then.

    Takes the arrays of the buffers one by one: see docs/design.md, "No references".
    """
    full = False
    if squared <= limits[query]:
        place = query * capacity + counts[query]
        distances[place] = np.sqrt(squared)
        numbers[place] = number
        counts[query] += 1
        full = counts[query] == capacity
    return full


@kernel
def cut(buffers, query, k):
    """Keep the k nearest candidates of a query, and lower its limit to the k-th distance."""
    capacity, distances, numbers, counts, limits, slack = buffers
    if counts[query] < k:
        return
    first = query * capacity
    _select(distances, numbers, first, first + counts[query] - 1, first + k - 1)
    farthest = distances[first + k - 1]
    counts[query] = k
    limits[query] = farthest * farthest * slack[0] + slack[1]


@kernel
def finish(buffers, rows, k, neighbors, distances):
    """Write the k nearest of each query, in order, behind the first entry of its row.

    Returns the number of rows written: a query that has met fewer than k gets none.
    """
    capacity, near, numbers, counts = buffers[:4]
    n_written = 0
    for query in range(rows.size):
        if counts[query] < k:
            continue
        cut(buffers, query, k)
        first, row = query * capacity, rows[query]
        _sort(near, numbers, first, first + k - 1)
        for i in range(k):
            neighbors[row, i + 1] = numbers[first + i]
            distances[row, i + 1] = near[first + i]
        n_written += 1
    return n_written


@kernel
def measure(points, queries, candidates, k, buffers):
    """Offer to each query its own candidates, by direct distance; passes over -1 and itself."""
    capacity, distances, numbers, counts, limits, _ = buffers
    for q in range(queries.size):
        for j in range(candidates.shape[1]):
            number = candidates[q, j]
            if number < 0 or number == queries[q]:
                continue
            squared = squared_distance(points, queries[q], number)
            if put(distances, numbers, counts, limits, capacity, q, squared, number):
                cut(buffers, q, k)


@part
def squared_distance(points, left, right):
    """Return the squared distance of two points, summed column by column in their dtype."""
    total = points[left, 0] - points[left, 0]
    for column in range(points.shape[1]):
        difference = points[left, column] - points[right, column]
        total += difference * difference
    return total


@kernel
def count_at_zero(points, row):
    """Count the points whose computed distance from the one at `row` is 0, itself included."""
    count = 0
    for i in range(points.shape[0]):
        count += squared_distance(points, row, i) == 0
    return count


@part
def _swap(distances, numbers, i, j):
    distances[i], distances[j] = distances[j], distances[i]
    numbers[i], numbers[j] = numbers[j], numbers[i]


@part
def _partition(distances, numbers, first, last):
    """Bring the middle one of the entries first..last to its place, and return that place.

    Smaller entries go before it, larger ones behind; without branches, which the processor would
    guess wrong half of the time.
    """
    _swap(distances, numbers, (first + last) // 2, last)
    pivot, pivot_number = distances[last], numbers[last]
    place = first
    for i in range(first, last):
        distance, number = distances[i], numbers[i]
        distances[i], numbers[i] = distances[place], numbers[place]
        distances[place], numbers[place] = distance, number
        place += (distance < pivot) | ((distance == pivot) & (number < pivot_number))
    _swap(distances, numbers, place, last)
    return place


@kernel
def _select(distances, numbers, first, last, wanted):
    """Bring the entry that belongs at `wanted` there, smaller ones before, larger ones behind."""
    while first < last:
        place = _partition(distances, numbers, first, last)
        if wanted == place:
            return
        if wanted < place:
            last = place - 1
        else:
            first = place + 1


@kernel
def _sort(distances, numbers, first, last):
    """Sort the entries first..last: quicksort down to short runs, then insertion."""
    stack = np.empty((64, 2), np.int64)
    stack[0, 0], stack[0, 1] = first, last
    depth = 1
    while depth > 0:
        depth -= 1
        low, high = stack[depth, 0], stack[depth, 1]
        while high - low > SHORT:
            place = _partition(distances, numbers, low, high)
            if place - low < high - place:
                stack[depth, 0], stack[depth, 1] = place + 1, high
                high = place - 1
            else:
                stack[depth, 0], stack[depth, 1] = low, place - 1
                low = place + 1
            depth += 1
    for i in range(first + 1, last + 1):
        distance, number = distances[i], numbers[i]
        j = i
        while j > first and (
            distances[j - 1] > distance
            or (distances[j - 1] == distance and numbers[j - 1] > number)
        ):
            distances[j], numbers[j] = distances[j - 1], numbers[j - 1]
            j -= 1
        distances[j], numbers[j] = distance, number
