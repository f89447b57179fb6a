"""Nearest neighbours of points in memory: cells of a k-d tree, blocked products, or pynndescent.

Reads working coordinates, writes rows of the neighbour graph. Memory beside the graph: a copy of
the points, and for each thread the buffers of one cell or one block; where large groups of copies
are left out of the search, a second graph for a moment.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from spore_dask.errors import ParameterError
from spore_dask.kernels import cells as tree
from spore_dask.kernels.columns import column_limits, smallest_magnitude
from spore_dask.kernels.copies import large_groups
from spore_dask.kernels.nearest import count_at_zero, finish, measure, new_buffers
from spore_dask.kernels.products import screen
from spore_dask.params import one_of
from spore_dask.threads import in_threads

KNN = one_of("auto", "exact", "approximate")

TOP_LEVELS = 3
HOMES_PER_TASK = 64
PILOT_HOMES = 8
QUERIES_PER_TASK = 256
POINTS_PER_PRODUCT = 4096

PRODUCT_COST = 0.3
"""Cost of one column in a product, in columns of a direct distance."""
SCREEN_COST = 9
"""Cost of looking at one product, in columns of a direct distance."""
ALWAYS_EXACT_POINTS = 4096
"""Up to here an exact search is cheaper than the start of an approximate one."""
AUTO_EXACT_COMPARISONS = 10**12
"""Coordinates in products, N * N * D, up to which "auto" is exact: about half a minute."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """The neighbour graph of points in memory, in input rows."""

    neighbors: NDArray[np.integer]
    """(N, k + 1): each point, then its k nearest others by (distance, row)."""
    distances: NDArray[np.floating]
    """(N, k + 1), in the working dtype."""
    exact: bool
    """Whether every row is proven to be right."""


def neighbor_rows(points: NDArray[np.floating], k: int, knn: str = "auto", seed: int = 42) -> Rows:
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
    """
    KNN.check("knn", knn)
    if not 1 <= k < len(points):
        raise ParameterError(
            f"k is {k}, but with {len(points)} points it must be in [1, {len(points) - 1}]."
        )
    groups = large_groups(points, larger_than=k + 1)
    if groups and _may_vanish(points):
        groups = [group for group in groups if count_at_zero(points, group[0]) == len(group)]
    if not groups:
        return _search(points, k, knn, seed)
    searched = np.ones(len(points), bool)
    for group in groups:
        searched[group[k + 1 :]] = False
    found = _search(points[searched], k, knn, seed)
    return _with_copies(found, np.flatnonzero(searched), groups)


def _may_vanish(points: NDArray[np.floating]) -> bool:
    """Tell whether distances of different points may round to 0, as if they were copies.

    The square of a difference of less than the root of the smallest float is 0, and values differ
    by so little only if they are themselves at most that much over the rounding unit.
    """
    rounding = np.finfo(points.dtype)
    vanishing = math.sqrt(rounding.smallest_subnormal) / rounding.eps
    return bool(smallest_magnitude(points) < 4 * vanishing)


def _with_copies(found: Rows, searched: NDArray[np.int64], groups: list[NDArray[np.int64]]) -> Rows:
    """Return rows for all points, given those of the `searched` ones.

    Of a group of more than k + 1 identical points, only the first k + 1 can be anybody's
    neighbours, and only they are searched; the others have the first k at distance 0.
    """
    k = found.neighbors.shape[1] - 1
    n_points = len(searched) + sum(len(group) - k - 1 for group in groups)
    neighbors, distances = _new_arrays(n_points, k, found.distances.dtype)
    neighbors[searched] = searched.astype(neighbors.dtype)[found.neighbors]
    distances[searched] = found.distances
    for group in groups:
        neighbors[group[k + 1 :], 1:] = group[:k]
        distances[group[k + 1 :], 1:] = 0
    return Rows(neighbors, distances, found.exact)


def _new_arrays(n_points: int, k: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Allocate neighbours and distances, with the points themselves filled in."""
    neighbors = np.empty((n_points, k + 1), _number_dtype(n_points))
    distances = np.empty((n_points, k + 1), dtype)
    neighbors[:, 0] = np.arange(n_points)
    distances[:, 0] = 0
    return neighbors, distances


def _number_dtype(n_points: int) -> np.dtype[Any]:
    return np.dtype(np.int32 if n_points < 2**31 else np.int64)


def _search(points: NDArray[np.floating], k: int, knn: str, seed: int) -> Rows:
    """Choose a way to search, and search."""
    n_points, n_columns = points.shape
    neighbors, distances = _new_arrays(n_points, k, points.dtype)
    small = n_points <= ALWAYS_EXACT_POINTS
    if small or knn != "approximate":
        cells = build_cells(points)
        if small or _cells_prune(points, cells, k):
            _search_cells(points, cells, neighbors, distances)
            return Rows(neighbors, distances, exact=True)
    affordable = n_points**2 * n_columns <= AUTO_EXACT_COMPARISONS
    exact = knn == "exact" or (knn == "auto" and affordable)
    if exact:
        _search_products(points, np.arange(n_points), neighbors, distances)
    else:
        _search_pynndescent(points, seed, neighbors, distances)
    return Rows(neighbors, distances, exact)


def build_cells(points: NDArray[np.floating]) -> tree.Cells:
    """Sort the points into the cells of a k-d tree."""
    n_points, n_columns = points.shape
    levels = tree.n_levels(n_points)
    starts = tree.cell_starts(n_points, levels)
    n_nodes = 2 * (len(starts) - 1) - 1
    cells = tree.Cells(
        starts=starts,
        rows=np.arange(n_points, dtype=_number_dtype(n_points)),
        columns=np.empty(points.size, points.dtype),
        low=np.empty((n_nodes, n_columns), points.dtype),
        high=np.empty((n_nodes, n_columns), points.dtype),
    )
    part_size = 1 << max(0, levels - TOP_LEVELS)
    tree.split(points, cells.rows, starts[::part_size])

    def finish_part(first: int) -> None:
        part = starts[first : first + part_size + 1]
        tree.split(points, cells.rows[part[0] : part[-1]], part - part[0])
        tree.fill_cells(points, cells, first, first + part_size)

    in_threads(finish_part, range(0, len(starts) - 1, part_size))
    tree.fill_boxes(cells)
    return cells


def _cells_prune(points: NDArray[np.floating], cells: tree.Cells, k: int) -> bool:
    """Search from a few cells, and tell whether the bounds save more than products would."""
    n_points, n_columns = points.shape
    n_cells = len(cells.starts) - 1
    homes = np.arange(0, n_cells, max(1, n_cells // PILOT_HOMES))
    n_queries = int((cells.starts[homes + 1] - cells.starts[homes]).sum())
    buffers = new_buffers(tree.largest_cell(cells.starts), k, points.dtype, cells.rows.dtype)
    n_compared = sum(tree.search(cells, home, k, buffers) for home in homes)
    return bool(n_compared <= n_queries * n_points * (PRODUCT_COST * n_columns + SCREEN_COST))


def _search_cells(
    points: NDArray[np.floating],
    cells: tree.Cells,
    neighbors: NDArray[np.integer],
    distances: NDArray[np.floating],
) -> None:
    """Fill the rows by searching from every cell."""
    k = neighbors.shape[1] - 1
    n_cells = len(cells.starts) - 1
    largest = tree.largest_cell(cells.starts)

    def search_part(first: int) -> None:
        buffers = new_buffers(largest, k, points.dtype, neighbors.dtype)
        last = min(n_cells, first + HOMES_PER_TASK)
        tree.search_homes(cells, first, last, k, buffers, neighbors, distances)

    in_threads(search_part, range(0, n_cells, HOMES_PER_TASK))


def _search_products(
    points: NDArray[np.floating],
    queries: NDArray[np.int64],
    neighbors: NDArray[np.integer],
    distances: NDArray[np.floating],
) -> None:
    """Fill the rows of `queries` by comparing them with all points, block by block."""
    k = neighbors.shape[1] - 1
    n_columns = points.shape[1]
    low, high = column_limits(points)
    centred = points - (low + (high - low) / 2)
    squares = np.einsum("ij,ij->i", centred, centred)
    lengths = np.sqrt(squares)
    relative = (2 * n_columns + 32) * np.finfo(points.dtype).eps
    absolute = (2 * n_columns + 32) * np.finfo(points.dtype).tiny  # of what underflows

    def search_part(first: int) -> None:
        part = queries[first : first + QUERIES_PER_TASK]
        buffers = new_buffers(len(part), k, points.dtype, neighbors.dtype)
        for start in range(0, len(points), POINTS_PER_PRODUCT):
            block = slice(start, start + POINTS_PER_PRODUCT)
            products = centred[part] @ centred[block].T
            margins = relative * (lengths[part] + lengths[block].max()) ** 2 + absolute
            screen(products, points, part, start, squares, margins.astype(points.dtype), k, buffers)
        if finish(buffers, part, k, neighbors, distances) < len(part):
            raise RuntimeError("a row of the neighbour graph is not full")

    with threadpool_limits(limits=1, user_api="blas"):
        in_threads(search_part, range(0, len(queries), QUERIES_PER_TASK))


def _search_pynndescent(
    points: NDArray[np.floating],
    seed: int,
    neighbors: NDArray[np.integer],
    distances: NDArray[np.floating],
) -> None:
    """Fill the rows with what nearest-neighbour descent finds, measured by direct distances."""
    from pynndescent import NNDescent  # compiles for seconds: only where it is used

    k = neighbors.shape[1] - 1
    low, high = column_limits(points)
    centred = ((points - low) / np.max(high - low)).astype(np.float32)  # all that it computes in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that it leaves short are completed below
        index = NNDescent(centred, n_neighbors=k + 1, random_state=seed % 2**32)
    candidates = index.neighbor_graph[0]
    queries = np.arange(len(points))
    short = []

    def measure_part(first: int) -> None:
        part = queries[first : first + QUERIES_PER_TASK]
        buffers = new_buffers(len(part), k, points.dtype, neighbors.dtype)
        measure(points, part, candidates[part], k, buffers)
        full = buffers.counts >= k
        finish(buffers, part, k, neighbors, distances)
        short.append(part[~full])

    in_threads(measure_part, range(0, len(points), QUERIES_PER_TASK))
    _search_products(points, np.sort(np.concatenate(short)), neighbors, distances)
