"""How much two clusterings of the same rows have in common."""

from __future__ import annotations

import numpy as np

from spore_dask.kernels.compiling import kernel, part


@kernel
def overlap(members, starts, second, second_sizes):
    """Return the sum over pairs of clusters of |a & b|**2 / max(|a|, |b|).

    Parameters
    ----------
    members : int64 array
        The rows of the first clustering, cluster after cluster; noise is left out.
    starts : int64 array (n_clusters + 1,)
        Where each of its clusters begins in `members`, and the end.
    second : int64 array (n_rows,)
        The cluster of each row in the second clustering, -1 for noise.
    second_sizes : int64 array
        The size of each of its clusters.
    """
    counts = np.zeros(second_sizes.size, np.int64)
    total = 0.0
    for cluster in range(starts.size - 1):
        first, last = starts[cluster], starts[cluster + 1]
        for i in range(first, last):
            other = second[members[i]]
            if other >= 0:
                counts[other] += 1
        for i in range(first, last):
            other = second[members[i]]
            if other >= 0 and counts[other] > 0:
                common = np.float64(counts[other])
                total += common * common / max(last - first, second_sizes[other])
                counts[other] = 0
    return total


@kernel
def expected(first, second, n_rows):
    """Return what `overlap` is on average when the rows of one clustering are shuffled.

    What two clusters have in common is hypergeometric, so a pair of sizes a and b adds
    a*b/n * (1 + (a-1)*(b-1)/(n-1)) / max(a, b), of which only min(a, b) is left as a factor.

    Parameters
    ----------
    first, second : int64 arrays, ascending
        The sizes of the clusters.
    n_rows : int
    """
    total = _smaller(first, second, True, n_rows) + _smaller(second, first, False, n_rows)
    return total / n_rows


@part
def _smaller(large, small, or_equal, n_rows):
    """Add up the pairs in which the second size is smaller, or equal where that is asked for."""
    total, sizes, squares = 0.0, 0.0, 0.0
    j = 0
    for i in range(large.size):
        while j < small.size and (small[j] < large[i] or (or_equal and small[j] == large[i])):
            sizes += small[j]
            squares += np.float64(small[j]) * (small[j] - 1)
            j += 1
        total += sizes + (large[i] - 1) / max(n_rows - 1, 1) * squares
    return total
