"""Connected pieces of a neighbour graph."""

from __future__ import annotations

import numpy as np

from spore_dask.kernels.compiling import kernel


@kernel
def count_pieces(neighbors, reach):
    """Return how many connected pieces the graph of the `reach` nearest neighbours has.

    Column 0 of `neighbors` is the point itself. Memory: one integer per point.
    """
    n_points = neighbors.shape[0]
    parents = np.arange(n_points)
    n_pieces = n_points
    for i in range(n_points):
        for j in range(1, min(reach + 1, neighbors.shape[1])):
            first, second = np.int64(i), np.int64(neighbors[i, j])
            while parents[first] != first:
                parents[first] = parents[parents[first]]
                first = parents[first]
            while parents[second] != second:
                parents[second] = parents[parents[second]]
                second = parents[second]
            if first != second:
                parents[max(first, second)] = np.int64(min(first, second))
                n_pieces -= 1
    return n_pieces
