"""The pilot: what an exact search of the whole would cost, counted on a sample, never timed.

Memory: the sample, in cells.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from spore_dask.exact import Block, block_buffers, build_cells, search_block
from spore_dask.kernels.cells import Cells

CELLS = "cells of k-d trees"
PRODUCTS = "products with all points"
PROBES = "probes of cells around centres"
PYNNDESCENT = "pynndescent"
EXACT = (CELLS, PRODUCTS)
"""The ways to search."""

PILOT_HOMES = 16
PILOT_SHRINK = 16
SHRINK = 4
"""The sample is also searched shrunk by these factors, to see how the cost grows."""

PRODUCT_COST = 0.3
"""Cost of one column in a product, in columns of a direct distance."""
SCREEN_COST = 9
"""Cost of looking at one product, in columns of a direct distance."""
EXACT_COORDINATES = {"auto": 300_000, "approximate": 200_000}
"""Coordinates compared for a point up to which an exact search is worth its proof: in "auto" about
four times the cost of an approximate one, in "approximate" as much."""
ALWAYS_EXACT_POINTS = 4096
"""Up to here an exact search is cheaper than the start of an approximate one."""
AUTO_EXACT_COMPARISONS = 10**12
"""Coordinates in products, N * N * D, up to which "auto" is exact: about half a minute."""


def compared_from_cells(cells: Cells, k: int) -> float:
    """Return the coordinates compared for one point, searching from some of the cells."""
    n_cells = len(cells.starts) - 1
    homes = np.arange(0, n_cells, max(1, n_cells // PILOT_HOMES)).tolist()
    buffers = block_buffers(cells, k)
    n_compared = n_queries = 0
    for home in homes:
        block = Block(home, home + 1, int(cells.starts[home]), int(cells.starts[home + 1]))
        n_compared += search_block(cells, block, k, buffers)
        n_queries += block.last - block.first
    return n_compared / n_queries


def compared_by_cells(sample: NDArray[np.floating], k: int, n_points: int, knn: str) -> float:
    """Project the coordinates that a point is compared with in an exact search of `n_points`.

    The count on the sample grows to that of the whole half as fast as it grew from a part of the
    sample, which is about what it does. Stops where that part settles that the search is
    approximate.
    """
    rows = np.arange(len(sample), dtype=np.uint32)
    exact = is_exact(knn, n_points, sample.shape[1])
    for step in (PILOT_SHRINK, SHRINK):
        few = np.ascontiguousarray(sample[::step])
        first = compared_from_cells(
            build_cells(few, rows[::step], n_threads=1), min(k, len(few) - 1)
        )
        projected = first * math.sqrt(n_points / len(few))
        if not exact and projected > EXACT_COORDINATES[knn]:
            return projected
    second = compared_from_cells(build_cells(sample, rows, n_threads=1), k)
    growth = min(1.0, max(0.0, math.log(second / first, SHRINK))) / 2
    return float(second * (n_points / len(sample)) ** growth)


def is_exact(knn: str, n_points: int, n_columns: int) -> bool:
    """Tell whether a search is exact, whatever cells would compare."""
    affordable = n_points**2 * n_columns <= AUTO_EXACT_COMPARISONS
    return knn == "exact" or (knn == "auto" and affordable)


def choose_search(knn: str, compared: float, n_points: int, n_columns: int) -> str:
    """Return how to search, given the coordinates that cells would compare for a point."""
    exact = is_exact(knn, n_points, n_columns)
    if n_points <= ALWAYS_EXACT_POINTS or (
        exact and cells_beat_products(compared, n_points, n_columns)
    ):
        return CELLS
    if exact:
        return PRODUCTS
    return CELLS if compared <= EXACT_COORDINATES[knn] else PROBES


def cells_beat_products(compared: float, n_points: int, n_columns: int) -> bool:
    """Tell whether cells compare less than products with all points would cost."""
    return compared <= n_points * (PRODUCT_COST * n_columns + SCREEN_COST)
