"""Nearest neighbours of points in memory: cells of a k-d tree, blocked products, or probes.

Reads working coordinates, writes rows of the neighbour graph. Memory beside the graph: a copy of
the points, and for each thread the buffers of one cell or one block; where large groups of copies
are left out of the search, a second graph for a moment.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from spore_dask.approximate import RECALL_TARGET, approximate_rows
from spore_dask.errors import ParameterError
from spore_dask.exact import (
    Block,
    block_buffers,
    blocks,
    build_cells,
    centre,
    compare_block,
    number_dtype,
    search_block,
)
from spore_dask.kernels.cells import Cells
from spore_dask.kernels.columns import column_limits
from spore_dask.kernels.copies import large_groups
from spore_dask.kernels.nearest import Buffers, finish, new_buffers
from spore_dask.memory import shape_of
from spore_dask.params import one_of
from spore_dask.pilot import CELLS, PROBES, choose_search, compared_from_cells
from spore_dask.recall import CERTIFIED, Recall
from spore_dask.threads import in_threads

KNN = one_of("auto", "exact", "approximate")

QUERIES_PER_TASK = 256


@dataclasses.dataclass(frozen=True)
class Rows:
    """The neighbour graph of points in memory, in input rows."""

    neighbors: NDArray[np.integer]
    """(N, k + 1): each point, then its k nearest others by (distance, row)."""
    distances: NDArray[np.floating]
    """(N, k + 1), in the working dtype."""
    recall: Recall = CERTIFIED

    @property
    def exact(self) -> bool:
        """Whether every row is proven to be right."""
        return self.recall.certified == 1


def neighbor_rows(
    points: NDArray[np.floating],
    k: int,
    knn: str = "auto",
    seed: int = 42,
    recall_target: float = RECALL_TARGET,
) -> Rows:
    """Find the k nearest others of each point.

    Parameters
    ----------
    points : float32 or float64 array (N, D), C-contiguous
        Working coordinates.
    k : int, 1 to N - 1
    knn : "auto", "exact" or "approximate"
        "auto" is exact wherever that is cheap enough; small sets are searched exactly anyway.
    seed : int
        Seed of the approximate search.
    recall_target : float
        Share of the true neighbours that it aims for.
    """
    KNN.check("knn", knn)
    if not 1 <= k < len(points):
        raise ParameterError(
            f"k is {k}, but with {len(points)} points it must be in [1, {len(points) - 1}]."
        )
    groups = large_groups(points, larger_than=k + 1)
    if not groups:
        return _search(points, k, knn, seed, recall_target)
    searched = np.ones(len(points), bool)
    for group in groups:
        searched[group[k + 1 :]] = False
    found = _search(points[searched], k, knn, seed, recall_target)
    return _with_copies(found, np.flatnonzero(searched), groups)


def _with_copies(found: Rows, searched: NDArray[np.int64], groups: list[NDArray[np.int64]]) -> Rows:
    """Return rows for all points, given those of the `searched` ones.

    Of a group of more than k + 1 identical points, only the first k + 1 can be anybody's
    neighbours, and only they are searched; the others have the same nearest as the last of these.
    """
    k = found.neighbors.shape[1] - 1
    n_points = len(searched) + sum(len(group) - k - 1 for group in groups)
    neighbors, distances = _new_arrays(n_points, k, found.distances.dtype)
    neighbors[searched] = searched.astype(neighbors.dtype)[found.neighbors]
    distances[searched] = found.distances
    for group in groups:
        neighbors[group[k + 1 :], 1:] = neighbors[group[k], 1:]
        distances[group[k + 1 :], 1:] = distances[group[k], 1:]
    return Rows(neighbors, distances, found.recall)


def _new_arrays(n_points: int, k: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Allocate neighbours and distances, with the points themselves filled in."""
    neighbors = np.empty((n_points, k + 1), number_dtype(n_points))
    distances = np.empty((n_points, k + 1), dtype)
    neighbors[:, 0] = np.arange(n_points)
    distances[:, 0] = 0
    return neighbors, distances


def _search(
    points: NDArray[np.floating], k: int, knn: str, seed: int, recall_target: float
) -> Rows:
    """Choose a way to search, and search."""
    n_points, n_columns = points.shape
    cells = build_cells(points, np.arange(n_points, dtype=number_dtype(n_points)))
    chosen = choose_search(knn, compared_from_cells(cells, k), n_points, n_columns)
    if chosen == PROBES:
        del cells
        n_partitions = shape_of(n_points, n_columns, points.itemsize, k).n_partitions
        neighbors, distances, recall = approximate_rows(
            points, k, n_partitions, seed=seed, recall_target=recall_target
        )
        return Rows(neighbors, distances, recall)
    neighbors, distances = _new_arrays(n_points, k, points.dtype)
    if chosen == CELLS:
        _search_cells(cells, neighbors, distances)
    else:
        _search_products(points, neighbors, distances)
    return Rows(neighbors, distances)


def _search_cells(
    cells: Cells, neighbors: NDArray[np.integer], distances: NDArray[np.floating]
) -> None:
    """Fill the rows by searching from every cell."""
    k = neighbors.shape[1] - 1

    def search_part(block: Block) -> None:
        buffers = block_buffers(cells, k)
        search_block(cells, block, k, buffers)
        write_rows(buffers, cells.rows[block.first : block.last], k, neighbors, distances)

    in_threads(search_part, blocks(cells, k))


def write_rows(
    buffers: Buffers,
    rows: NDArray[np.integer],
    k: int,
    neighbors: NDArray[np.integer],
    distances: NDArray[np.floating],
) -> None:
    """Write what the queries have found, in input rows; every row must be full."""
    queries = np.arange(len(rows))
    if finish(buffers, queries, rows, k, True, neighbors, distances) < len(rows):
        raise RuntimeError("a row of the neighbour graph is not full")


def _search_products(
    points: NDArray[np.floating],
    neighbors: NDArray[np.integer],
    distances: NDArray[np.floating],
) -> None:
    """Fill the rows by comparing all points with all, block by block."""
    k = neighbors.shape[1] - 1
    low, high = column_limits(points)
    rows = np.arange(len(points), dtype=neighbors.dtype)
    every = centre(points, rows, 0, low + (high - low) / 2)

    def search_part(first: int) -> None:
        queries = every.part(first, first + QUERIES_PER_TASK)
        buffers = new_buffers(len(queries.rows), k, points.dtype, neighbors.dtype)
        compare_block(queries, queries.rows, every, k, buffers)
        write_rows(buffers, queries.rows, k, neighbors, distances)

    with threadpool_limits(limits=1, user_api="blas"):
        in_threads(search_part, range(0, len(points), QUERIES_PER_TASK))
