"""Cluster a sample of rows in memory with many configurations: votes for the choice among trials.

Reads working coordinates of the sample, writes labels. Memory: the graph of the sample and four
bytes a row and configuration.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spore_dask.clustering import cluster_rows
from spore_dask.params import Params
from spore_dask.search import neighbor_rows


def voter_labels(points: NDArray[np.floating], trials: Sequence[Params]) -> NDArray[np.int32]:
    """Cluster a few thousand points with each configuration, over one graph.

    Parameters
    ----------
    points : float32 or float64 array (N, D), C-contiguous, N at least 2
        Working coordinates of the sampled rows, searched as if they were all there is.
    trials : sequence of Params

    Returns
    -------
    int32 array (len(trials), N)
        -1 is noise.
    """
    resolved = [params.resolve(len(points)) for params in trials]
    rows = neighbor_rows(points, max(params.k for params in resolved))
    labels = np.empty((len(resolved), len(points)), np.int32)
    for number, params in enumerate(resolved):
        neighbors = np.ascontiguousarray(rows.neighbors[:, : params.k + 1])
        distances = np.ascontiguousarray(rows.distances[:, : params.k + 1])
        labels[number] = cluster_rows(neighbors, distances, points, params).labels
    return labels
