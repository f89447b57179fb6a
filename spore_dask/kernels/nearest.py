"""The k nearest of a stream of candidates, by (distance, input row).

Candidates go into a buffer that is cut back to k whenever it is full; the k-th distance then bounds
what may still enter. Which of them stay, and in which order, is counted on vectors: hundreds of
comparisons at once cost less than a few that the processor guesses wrong. Distances are by direct
subtraction, columns summed in order and without fastmath, so that every search computes the same
bits.

There are no views in the inner loops: numba counts references to each. Memory: about 3k entries a
query.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import uintp
from numpy.typing import NDArray

from spore_dask.kernels.compiling import kernel, part

BUFFER_FACTOR = 3
SHORT = 16
MOST_RANKED = 200
"""Entries up to which each is ranked among all, on vectors, instead of sorting them."""
MOST_HALVINGS = 16
"""Of a range of distances, in search of one that parts the nearest from the others."""
UNWANTED = -1
"""Limit of a query that is not to be searched: every bound is beyond it."""


class Buffers(NamedTuple):
    """Candidates of several queries, those of query q from q * capacity on."""

    capacity: int
    distances: NDArray[Any]
    rows: NDArray[Any]
    """Input rows, which decide between equal distances."""
    points: NDArray[Any]
    """Point numbers, which go along."""
    counts: NDArray[np.int64]
    """Candidates of each query."""
    limits: NDArray[Any]
    """A candidate whose squared distance is above the limit of its query cannot enter."""
    slack: NDArray[Any]
    """Factor and summand that make a squared distance a safe limit in spite of rounding."""


Allocate = Callable[[str, tuple[int, ...], Any], NDArray[Any]]
"""What makes an array, given its name, shape and type."""


def _fresh(name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Allocate an array."""
    return np.empty(shape, dtype)


def new_buffers(
    n_queries: int,
    k: int,
    dtype: np.dtype[Any],
    number_dtype: Any,
    allocate: Allocate = _fresh,
) -> Buffers:
    """Make buffers for `n_queries` searches at a time; `number_dtype` holds a row's number."""
    capacity = BUFFER_FACTOR * k + SHORT
    size = (n_queries * capacity,)
    rounding = np.finfo(dtype)
    return Buffers(
        capacity=capacity,
        distances=allocate("candidates.distances", size, dtype),
        rows=allocate("candidates.rows", size, number_dtype),
        points=allocate("candidates.points", size, number_dtype),
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
def put(distances, rows, points, counts, limits, capacity, query, squared, row, point):
    """Take a candidate if it is within the limit of its query; True when the buffer is full then.

    Takes the arrays of the buffers one by one: see docs/design.md, "No references".
    """
    full = False
    if squared <= limits[query]:
        place = query * capacity + counts[query]
        distances[place] = np.sqrt(squared)
        rows[place] = row
        points[place] = point
        counts[query] += 1
        full = counts[query] == capacity
    return full


@kernel
def cut(buffers, query, k):
    """Keep the k nearest candidates of a query, and lower its limit to the k-th distance."""
    capacity, distances, rows, points, counts, limits, slack = buffers
    n_found = counts[query]
    if n_found < k:
        return
    first = query * capacity
    if n_found > k:
        between = _distance_behind(distances, first, n_found, k)
        if between >= 0:
            _keep_within(distances, rows, points, first, n_found, between)
        else:
            _select(distances, rows, points, first, first + n_found - 1, first + k - 1)
    farthest = _largest(distances, first, k)
    counts[query] = k
    limits[query] = farthest * farthest * slack[0] + slack[1]


@part
def _distance_behind(distances, first, n_found, k):
    """Return a distance that just k of some are within, or -1 where it is not found, as with ties.

    Halves the range of distances again and again; counting runs on vectors.
    """
    start, half = uintp(first), distances.dtype.type(0.5)
    low, high = distances[start] - distances[start], _largest(distances, first, n_found)
    found = low - distances.dtype.type(1)
    for _ in range(MOST_HALVINGS):
        middle = low + (high - low) * half
        n_within = np.int32(0)
        for i in range(n_found):
            n_within += np.int32(distances[start + uintp(i)] <= middle)
        if n_within == k:
            found = middle
            break
        if n_within < k:
            low = middle
        else:
            high = middle
    return found


@part
def _keep_within(distances, rows, points, first, n_found, limit):
    """Bring the entries within a distance to the front, in the order that they have."""
    place = first
    for i in range(first, first + n_found):
        distance = distances[i]
        distances[place], rows[place], points[place] = distance, rows[i], points[i]
        place += distance <= limit


@part
def _largest(distances, first, n_found):
    """Return the largest of some distances."""
    largest = distances[first]
    for i in range(first + 1, first + n_found):
        largest = max(largest, distances[i])
    return largest


@kernel
def cut_all(buffers, first_query, n_queries, k):
    """Cut back some queries, so that their limits are as low as what they have met allows."""
    counts = buffers.counts
    for query in range(first_query, first_query + n_queries):
        if counts[query] > k or (counts[query] == k and buffers.limits[query] == np.inf):
            cut(buffers, query, k)


@kernel
def largest_limit(buffers, first_query, n_queries):
    """Return the largest limit of some queries."""
    limits = buffers.limits
    largest = limits[first_query]
    for query in range(first_query + 1, first_query + n_queries):
        largest = max(largest, limits[query])
    return largest


@kernel
def finish(buffers, queries, places, k, by_row, neighbors, distances):
    """Write the k nearest of some queries, in order, behind the first entry of their rows.

    Parameters
    ----------
    buffers : Buffers
    queries : integer array
    places : integer array
        Where in `neighbors` and `distances` each of the queries is written.
    k : int
    by_row : bool
        Whether neighbours are named by input row or by point number.
    neighbors, distances : arrays (n, k + 1)

    Returns the number of rows written: a query that has met fewer than k gets none. Whoever
    searches offers each point once.
    """
    capacity, near, rows, points, counts = buffers[:5]
    n_written = 0
    for i in range(places.size):
        query, place = queries[i], places[i]
        if counts[query] < k:
            continue
        if counts[query] > k:
            cut(buffers, query, k)
        first = query * capacity
        if k > MOST_RANKED:
            _sort(near, rows, points, first, first + k - 1)
        for j in range(first, first + k):
            rank = _rank(near, rows, first, k, j) if k <= MOST_RANKED else j - first
            neighbors[place, rank + 1] = rows[j] if by_row else points[j]
            distances[place, rank + 1] = near[j]
        n_written += 1
    return n_written


@part
def _rank(distances, rows, first, k, j):
    """Return how many of k entries come before entry j. Runs on vectors."""
    start, distance, row = uintp(first), distances[j], rows[j]
    rank = np.int32(0)
    for i in range(k):
        other = distances[start + uintp(i)]
        rank += np.int32(
            (other < distance) | ((other == distance) & (rows[start + uintp(i)] < row))
        )
    return rank


@part
def squared_distance(points, i, others, j):
    """Return the squared distance of point i and the other j, summed in the order of columns."""
    total = points[i, 0] - points[i, 0]
    for column in range(points.shape[1]):
        difference = points[i, column] - others[j, column]
        total += difference * difference
    return total


@part
def _swap(distances, rows, points, i, j):
    distances[i], distances[j] = distances[j], distances[i]
    rows[i], rows[j] = rows[j], rows[i]
    points[i], points[j] = points[j], points[i]


@part
def _partition(distances, rows, points, first, last):
    """Bring the middle one of the entries first..last to its place, and return that place.

    Smaller entries go before it, larger ones behind; without branches, which the processor would
    guess wrong half of the time.
    """
    _swap(distances, rows, points, (first + last) // 2, last)
    pivot, pivot_row = distances[last], rows[last]
    place = first
    for i in range(first, last):
        distance, row, point = distances[i], rows[i], points[i]
        distances[i], rows[i], points[i] = distances[place], rows[place], points[place]
        distances[place], rows[place], points[place] = distance, row, point
        place += (distance < pivot) | ((distance == pivot) & (row < pivot_row))
    _swap(distances, rows, points, place, last)
    return place


@kernel
def _select(distances, rows, points, first, last, wanted):
    """Bring the entry that belongs at `wanted` there, smaller ones before, larger ones behind."""
    while first < last:
        place = _partition(distances, rows, points, first, last)
        if wanted == place:
            return
        if wanted < place:
            last = place - 1
        else:
            first = place + 1


@kernel
def _sort(distances, rows, points, first, last):
    """Sort the entries first..last: quicksort down to short runs, then insertion."""
    stack = np.empty((64, 2), np.int64)
    stack[0, 0], stack[0, 1] = first, last
    depth = 1
    while depth > 0:
        depth -= 1
        low, high = stack[depth, 0], stack[depth, 1]
        while high - low > SHORT:
            place = _partition(distances, rows, points, low, high)
            if place - low < high - place:
                stack[depth, 0], stack[depth, 1] = place + 1, high
                high = place - 1
            else:
                stack[depth, 0], stack[depth, 1] = low, place - 1
                low = place + 1
            depth += 1
    for i in range(first + 1, last + 1):
        distance, row, point = distances[i], rows[i], points[i]
        j = i
        while j > first and (
            distances[j - 1] > distance or (distances[j - 1] == distance and rows[j - 1] > row)
        ):
            distances[j], rows[j], points[j] = distances[j - 1], rows[j - 1], points[j - 1]
            j -= 1
        distances[j], rows[j], points[j] = distance, row, point
