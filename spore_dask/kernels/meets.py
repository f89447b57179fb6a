"""The nearest of groups of points, for queries that are none of them.

The queries that ask for a group meet its points in one matrix product, relative to the center of
the group. A product gives a squared distance up to a rounding error that has a bound; every point
that could be within the k-th distance, given that bound, is measured by direct subtraction. What
comes out is exact among the groups that were met, whatever queries come together.
Memory: one group, and one product.
"""

from __future__ import annotations

import numpy as np
from numba import uintp

from spore_dask.kernels.compiling import kernel
from spore_dask.kernels.nearest import cut, put
from spore_dask.kernels.probes import (
    QUERIES_PER_PRODUCT,
    SCREENED,
    four_squares,
    largest_run,
    multiply,
    offset,
)


@kernel
def meet_groups(queries, askers, asked, part, rows, k, buffers):
    """Offer the points of the cells of a part to the queries that ask for them.

    Parameters
    ----------
    queries : array (R, D)
    askers : int32 array
        Rows of `queries`, cell by cell.
    asked : pair of integer arrays (cells,)
        Where in `askers` those of each cell begin and end.
    part : Part
    rows : integer array
        Input row of each of its points.
    k : int
    buffers : Buffers for R queries
    """
    first, points, starts, centers = part
    begins, ends = asked
    n_columns, largest = points.shape[1], largest_run(starts)
    left = np.empty((QUERIES_PER_PRODUCT, n_columns + 1), points.dtype)
    right = np.empty((largest, n_columns + 1), points.dtype)
    products = np.empty(QUERIES_PER_PRODUCT * largest, points.dtype)
    squares = np.empty(QUERIES_PER_PRODUCT, points.dtype)
    for cell in range(starts.size - 1):
        start, size = starts[cell], starts[cell + 1] - starts[cell]
        if begins[cell] == ends[cell]:
            continue
        widest = points.dtype.type(0)
        for j in range(size):
            offset(points, start + j, centers, cell, right, j)
            widest = max(widest, right[j, n_columns])
            right[j, n_columns] *= -0.5
        for begin in range(begins[cell], ends[cell], QUERIES_PER_PRODUCT):
            end = min(begin + QUERIES_PER_PRODUCT, ends[cell])
            for i in range(end - begin):
                offset(queries, np.int64(askers[begin + i]), centers, cell, left, i)
                squares[i] = left[i, n_columns]
                left[i, n_columns] = 1
            multiply(left, end - begin, right, size, products)
            group = first, points, rows, start, size, widest
            _screen(products, squares, queries, askers[begin:end], group, k, buffers)


@kernel
def _screen(products, squares, queries, askers, group, k, buffers):
    """Measure the points of a group that the products do not rule out.

    A product is that of a query and a point less half of the point's square, so that the square of
    the query less two products is a squared distance.
    """
    capacity, near, near_rows, near_points, counts, limits, _ = buffers
    first, points, rows, start, size, widest = group
    half, n_roundings = squares.dtype.type(0.5), 2 * points.shape[1] + 32
    relative = squares.dtype.type(n_roundings * np.finfo(squares.dtype).eps)
    absolute = squares.dtype.type(n_roundings * np.finfo(squares.dtype).tiny)  # of what underflows
    chosen = np.empty(SCREENED + 3, np.int64)
    for i in range(askers.size):
        query, place = np.int64(askers[i]), i * size
        reach = np.sqrt(squares[i]) + np.sqrt(widest)
        margin = relative * reach * reach + absolute
        for begin in range(0, size, SCREENED):
            least = (squares[i] - limits[query] - margin) * half
            end = min(begin + SCREENED, size)
            n_within = 0
            for j in range(uintp(place + begin), uintp(place + end)):
                n_within += products[j] >= least
            if n_within == 0:
                continue
            n_chosen = 0
            for j in range(begin, end):
                chosen[n_chosen] = start + j
                n_chosen += products[place + j] >= least
            for j in range(n_chosen, n_chosen + 3):
                chosen[j] = chosen[0]
            for j in range(0, n_chosen, 4):
                a, b, c, d = chosen[j], chosen[j + 1], chosen[j + 2], chosen[j + 3]
                measured = four_squares(queries, query, points, a, b, c, d)
                for lane in range(min(4, n_chosen - j)):
                    other = chosen[j + lane]
                    if put(
                        near,
                        near_rows,
                        near_points,
                        counts,
                        limits,
                        capacity,
                        query,
                        measured[lane],
                        rows[other],
                        first + other,
                    ):
                        cut(buffers, query, k)
