"""Distances of all pairs of rows, and the nearest of many columns: tile by tile on all processors.

Reads the rows; writes nothing. Memory: the result, and for each thread a few tiles of TILE x TILE
or of ROWS x N. Values do not depend on the number of threads: a tile is always computed by one.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import euclidean_distances
from threadpoolctl import threadpool_limits

from pipelines.benchmark.methods import Floats
from spore_dask.threads import in_threads

TILE = 1024
"""Rows of a tile."""
ROWS = 128
"""Rows whose nearest are found at a time."""
FEW_COLUMNS = 64
"""Columns up to which differences are squared one by one; beyond, products are far faster."""


def distance_matrix(x: Floats, dtype: DTypeLike = np.float64) -> NDArray[Any]:
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


def nearest_by_products(x: Floats, k: int) -> NDArray[np.int32]:
    """Return the k nearest others of each row, by (distance, row).

    Distances are made of products in float64. With more than FEW_COLUMNS columns this is several
    times faster than a search that certifies every neighbour by direct distances.
    """
    squares = np.einsum("ij,ij->i", x, x)
    found = np.empty((len(x), k), np.int32)

    def fill(first: int) -> None:
        block = x[first : first + ROWS]
        distances = euclidean_distances(block, x, Y_norm_squared=squares, squared=True)
        own = np.arange(len(block))
        distances[own, first + own] = np.inf
        found[first : first + ROWS] = _least(distances, k)

    with threadpool_limits(1, user_api="blas"):
        in_threads(fill, range(0, len(x), ROWS))
    return found


def _least(values: Floats, k: int) -> NDArray[np.int64]:
    """Return the columns of the k least values of each row, ascending, by (value, column)."""
    limits = np.partition(values, k - 1, axis=1)[:, k - 1]
    rows, columns = np.nonzero(values <= limits[:, None])
    order = np.lexsort((columns, values[rows, columns], rows))
    starts = np.searchsorted(rows, np.arange(len(values)))
    least: NDArray[np.int64] = columns[order[starts[:, None] + np.arange(k)]]
    return least
