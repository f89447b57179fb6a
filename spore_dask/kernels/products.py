"""Exact nearest neighbours where boxes prune nothing: products screen, direct distances decide.

A product gives a squared distance up to a rounding error that has a bound; every candidate that
could be within the k-th distance, given that bound, is measured by direct subtraction.
"""

from __future__ import annotations

from numba import njit

from spore_dask.kernels.nearest import offer, squared_distance


@njit(cache=True, nogil=True)
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
    block_squares = squares[first : first + products.shape[1]]
    for q in range(queries.size):
        row = products[q]
        own = squares[queries[q]] - margins[q]
        for j in range(row.size):
            if own + block_squares[j] - 2 * row[j] <= buffers.limits[q] and first + j != queries[q]:
                squared = squared_distance(points[queries[q]], points[first + j])
                if squared <= buffers.limits[q]:
                    offer(buffers, q, squared, first + j, k)
