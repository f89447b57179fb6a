"""Distances of all pairs of rows: one square matrix, computed tile by tile on all processors.

Reads the rows; writes nothing. Memory: the matrix, and a few tiles of TILE x TILE for each thread.
The values do not depend on the number of threads: a tile is always computed by one.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import euclidean_distances
from threadpoolctl import threadpool_limits

from pipelines.benchmark.methods import Floats
from spore_dask.threads import in_threads

TILE = 1024
"""Rows of a tile."""
FEW_COLUMNS = 64
"""Columns up to which differences are squared one by one; beyond, products are far faster."""


def distance_matrix(x: Floats, dtype: DTypeLike = np.float64) -> NDArray[np.floating]:
    """Return the Euclidean distances of all pairs of rows.

    Parameters
    ----------
    x : float64 array (N, D)
    dtype : float64 or float32
        Of the result; tiles are computed in float64.

    Returns
    -------
    array (N, N)
        Symmetric to the last bit, with zeros on the diagonal.
    """
    measure = cdist if x.shape[1] <= FEW_COLUMNS else euclidean_distances
    distances = np.empty((len(x), len(x)), dtype)
    starts = range(0, len(x), TILE)

    def fill(corner: tuple[int, int]) -> None:
        rows, columns = (slice(start, start + TILE) for start in corner)
        tile = measure(x[rows], x[columns])
        if rows == columns:
            tile = np.triu(tile, 1)
            tile += tile.T
        distances[rows, columns] = tile
        distances[columns, rows] = tile.T

    with threadpool_limits(1, user_api="blas"):
        in_threads(fill, itertools.combinations_with_replacement(starts, 2))
    return distances
