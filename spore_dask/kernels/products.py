"""Exact nearest neighbours where boxes prune nothing: products screen, direct distances decide.

A product gives a squared distance up to a rounding error that has a bound; every candidate that
could be within the k-th distance, given that bound, is measured by direct subtraction.
Memory: the buffers of the queries.
"""

from __future__ import annotations

from spore_dask.kernels.compiling import kernel
from spore_dask.kernels.nearest import cut, put, squared_distance


@kernel
def screen(products, queries, query_points, squares, margins, block, block_rows, first, k, buffers):
    """Offer to each query the points of one block that its product does not rule out.

    Parameters
    ----------
    products : array (queries, block)
        Inner products of centred queries and centred points.
    queries, block : arrays of working coordinates
    query_points : integer array
        Point numbers of the queries.
    squares : pair of arrays
        Squared lengths of the centred queries, and of the centred points of the block.
    margins : array (queries,)
        What a squared distance made of products may be off by, at most.
    block_rows : integer array
        Input rows of the points of the block, whose numbers begin at `first`.
    k : int
    buffers : Buffers
    """
    capacity, distances, rows, points, counts, limits, _ = buffers
    own_squares, block_squares = squares
    for q in range(query_points.size):
        own = own_squares[q] - margins[q]
        for j in range(products.shape[1]):
            nearest = own + block_squares[j] - 2 * products[q, j]
            if nearest <= limits[q] and first + j != query_points[q]:
                squared = squared_distance(queries, q, block, j)
                row, point = block_rows[j], first + j
                if put(distances, rows, points, counts, limits, capacity, q, squared, row, point):
                    cut(buffers, q, k)
