"""What one row of the neighbour graph says by itself."""

from __future__ import annotations

from spore_dask.kernels.compiling import kernel, part

LARGEST_DISTANCE = 1e154
"""Squares of larger ones are beyond float64."""


@part
def count_copies(distances, row):
    """Count the leading entries of a row at distance 0: the point itself and its copies."""
    count = 1
    while count < distances.shape[1] and distances[row, count] <= 0:
        count += 1
    return count


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
