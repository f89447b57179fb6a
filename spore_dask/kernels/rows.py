"""What one row of the neighbour graph says by itself."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, inline="always")
def count_copies(distances):
    """Count the leading entries of one row at distance 0: the point itself and its copies."""
    count = 1
    while count < distances.size and distances[count] <= 0:
        count += 1
    return count


@njit(cache=True, nogil=True)
def first_bad_row(neighbors, distances):
    """Return the first row that is not as `cluster_graph` says, or -1."""
    for i in range(neighbors.shape[0]):
        if neighbors[i, 0] != i or distances[i, 0] != 0:
            return i
        for j in range(1, neighbors.shape[1]):
            nearer, farther = distances[i, j - 1], distances[i, j]
            ordered = nearer < farther or (
                nearer == farther and (j == 1 or neighbors[i, j - 1] < neighbors[i, j])
            )
            if not ordered or farther == np.inf or neighbors[i, j] == i:
                return i
            if neighbors[i, j] < 0 or neighbors[i, j] >= neighbors.shape[0]:
                return i
    return -1
