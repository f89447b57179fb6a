"""What one row of the neighbour graph says by itself."""

from __future__ import annotations

from spore_dask.kernels.compiling import kernel, part

LARGEST_DISTANCE = 1e154
"""Squares of larger ones are beyond float64."""


ALL_COLUMNS = 1 << 62
"""A width that cuts no row."""


@part
def count_copies(distances, row, width):
    """Count the leading entries of a row at distance 0: the point itself and its copies.

    `width` is the number of columns that count.
    """
    count = 1
    while count < width and distances[row, count] <= 0:
        count += 1
    return count


@kernel
def first_repeating_row(neighbors, last_row):
    """Return the first row that names a point twice, or -1.

    All numbers are below the number of rows; `last_row` has -1 for each point, and is written.
    """
    n_points, width = neighbors.shape
    for i in range(n_points):
        for j in range(width):
            point = neighbors[i, j]
            if last_row[point] == i:
                return i
            last_row[point] = i
    return -1


@kernel
def first_falling_row(distances):
    """Return the first row whose distances do not ascend from 0 or more to what can be squared."""
    n_rows, width = distances.shape
    for i in range(n_rows):
        n_ascending = 0
        for j in range(1, width):  # without branches, so that it runs on vectors
            n_ascending += distances[i, j - 1] <= distances[i, j]
        if n_ascending < width - 1 or not 0 <= distances[i, 0] <= distances[i, width - 1]:
            return i
        if distances[i, width - 1] >= LARGEST_DISTANCE:
            return i
    return -1


@kernel
def first_bad_row(neighbors, distances):
    """Return the first row that does not list itself and then others in order, or -1."""
    n_points, width = neighbors.shape
    for i in range(n_points):
        good = neighbors[i, 0] == i and distances[i, 0] == 0
        for j in range(1, width):  # without branches, so that it runs on vectors
            number, distance = neighbors[i, j], distances[i, j]
            farther = distances[i, j - 1] < distance
            level = (distances[i, j - 1] == distance) & ((neighbors[i, j - 1] < number) | (j == 1))
            good &= (farther | level) & (number != i) & (number >= 0) & (number < n_points)
        if not (good and distances[i, width - 1] < LARGEST_DISTANCE):
            return i
    return -1
