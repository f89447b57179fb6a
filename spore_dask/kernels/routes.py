"""Which partition a point belongs to: a walk down a small tree of column cuts.

Depends on the point's coordinates only. Memory: the result.
"""

from __future__ import annotations

import numpy as np

from spore_dask.kernels.compiling import kernel


@kernel
def route(points, columns, values, children):
    """Return the partition of each point.

    Parameters
    ----------
    points : array (n, D)
    columns, values : arrays (nodes,)
        A point goes right at a node if its column is at least the value.
    children : int64 array (nodes, 2)
        Left and right child; -1 - p stands for partition p.
    """
    partitions = np.empty(points.shape[0], np.int64)
    for i in range(points.shape[0]):
        node = np.int64(0) if columns.size > 0 else np.int64(-1)
        while node >= 0:
            right = points[i, columns[node]] >= values[node]
            node = children[node, 1 if right else 0]
        partitions[i] = -1 - node
    return partitions
