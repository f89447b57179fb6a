"""Exact nearest neighbours where boxes prune nothing: products screen, direct distances decide.

A product gives a squared distance up to a rounding error that has a bound; every candidate that
could be within the k-th distance, given that bound, is measured by direct subtraction.
Memory: the buffers of the queries.
"""

from __future__ import annotations

from spore_dask.kernels.compiling import kernel
from spore_dask.kernels.nearest import cut, put, squared_distance


@kernel
def screen(products, points, queries, first, squares, margins, k, buffers):
    """Offer to each query the points of one block that its product does not rule out.

    Parameters
    ----------
    products : array (queries, block)
        Inner products of centred queries and centred points.
    points : array (N, D)
    queries : integer array
        Rows of the queries.
    first : int
        Row of the first point of the block.
    squares : array of N
        Squared lengths of the centred points.
    margins : array (queries,)
        What a squared distance made of products may be off by, at most.
    k : int
    buffers : Buffers
    """
    capacity, distances, numbers, counts, limits, _ = buffers
    for q in range(queries.size):
        query = queries[q]
        own = squares[query] - margins[q]
        for j in range(products.shape[1]):
            nearest = own + squares[first + j] - 2 * products[q, j]
            if nearest <= limits[q] and first + j != query:
                squared = squared_distance(points, query, first + j)
                if put(distances, numbers, counts, limits, capacity, q, squared, first + j):
                    cut(buffers, q, k)
