"""Density of each point, and the one total order that seeding and reassignment follow.

Reads neighbour distances row by row; memory: a few arrays of N.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.kernels.columns import column_limits
from spore_dask.kernels.compiling import kernel
from spore_dask.kernels.rows import ALL_COLUMNS, count_copies


@kernel
def densities(distances, density_neighbors, extent, width=ALL_COLUMNS):
    """Return the density of each row of `distances` (float64): rank over relative distance.

    Rows are read as if they had `width` columns, where they have more.
    """
    width = min(width, distances.shape[1])
    density = np.empty(distances.shape[0], np.float64)
    for i in range(distances.shape[0]):
        copies = count_copies(distances, i, width)
        rank = min(density_neighbors, width - copies)
        delta = np.float64(distances[i, copies + rank - 1]) if rank > 0 else extent
        density[i] = (rank + 1) / (delta / extent)
    return density


def extent(points: NDArray[np.floating]) -> float:
    """Return the Euclidean norm of the ranges of the columns, in float64."""
    return extent_of(*column_limits(points))


def extent_of(low: NDArray[np.floating], high: NDArray[np.floating]) -> float:
    """Return the same for the least and the largest value of each column."""
    ranges = high.astype(np.float64) - low.astype(np.float64)
    total = 0.0
    for column_range in ranges:
        total += column_range * column_range
    return float(np.sqrt(total))


def total_order(
    density: NDArray[np.float64],
    points: NDArray[np.floating],
    rows: NDArray[np.integer] | None = None,
) -> NDArray[np.int64]:
    """Order points by density descending, then coordinates ascending, then row.

    `rows` has the row of each point, by default its place. Only ties look at the coordinates, so
    that the common case is one sort of N numbers.
    """
    falling = -density
    order = np.argsort(falling)
    ranked = falling.take(order)
    new_value = np.empty(len(order), bool)
    new_value[:1] = True
    np.not_equal(ranked[1:], ranked[:-1], out=new_value[1:])
    tied = ~new_value
    tied[:-1] |= ~new_value[1:]
    places = np.flatnonzero(tied)
    if len(places):
        ties = order[places]
        group = np.cumsum(new_value)[places]
        last = ties if rows is None else rows[ties]
        keys: list[NDArray[Any]] = [last, *points[ties].T[::-1], group]
        order[places] = ties[np.lexsort(keys)]
    return order


@kernel
def find_members(known, wanted):
    """Return the places in `known`, which ascends, of those of `wanted` that are there, in order.

    Both are numbers from 0 on, none twice. A table by their leading bits, no longer than `known`,
    leaves few steps to a search.
    """
    places = np.empty(wanted.size, np.int64)
    if known.size == 0:
        return places[:0]
    last, shift = np.int64(known[-1]), 0
    while last >> shift >= known.size:
        shift += 1
    starts = np.zeros((last >> shift) + 2, np.int64)
    for number in known:
        starts[(np.int64(number) >> shift) + 1] += 1
    for i in range(1, starts.size):
        starts[i] += starts[i - 1]
    n_found = 0
    for number in wanted:
        if number > last:
            continue
        group = np.int64(number) >> shift
        low, end = starts[group], starts[group + 1]
        high = end
        while low < high:
            middle = (low + high) // 2
            if known[middle] < number:
                low = middle + 1
            else:
                high = middle
        if low < end and known[low] == number:
            places[n_found] = low
            n_found += 1
    return places[:n_found].copy()  # those of many ranges are held at once
