"""How much two clusterings of the same rows have in common."""

from __future__ import annotations

import numpy as np

from spore_dask.kernels.compiling import kernel


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
