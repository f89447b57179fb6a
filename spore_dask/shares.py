"""The share of fragments to expect, from clustering a sample.

Apart from `fitting`, so that a worker that does it need not import what only a whole fit needs.
Memory: the rows of the sample.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from spore_dask.clustering import cluster_rows
from spore_dask.params import ResolvedParams
from spore_dask.search import neighbor_rows
from spore_dask.stages.scan import Scan
from spore_dask.tasks import Receipt

PILOT_POINTS = 1 << 13
PILOT_NBYTES = 64 << 20
PILOT_COORDINATES = 1 << 32
LEAST_POINTS = 1024
"""Points that are clustered to tell the share of fragments, the bytes of their rows, and the
coordinates of all pairs of them; and points at the least."""


def cluster_sample(scanned: Scan, params: ResolvedParams, n_points: int) -> Receipt:
    """Cluster some of the sample; return the share of fragments before reassignment."""
    sample = scanned.sample()
    most = min(
        PILOT_NBYTES // (24 * (params.k + 1)), math.isqrt(PILOT_COORDINATES // sample.shape[1])
    )
    n_points = min(n_points, max(LEAST_POINTS, most))
    sample = np.ascontiguousarray(sample[:: max(1, len(sample) // n_points)][:n_points])
    n_points = len(sample)
    size, most = params.min_cluster_size, n_points - 1
    exponent = math.log(size) / math.log(params.n_points)
    small = dataclasses.replace(
        params,
        n_points=n_points,
        min_cluster_size=max(1, math.floor(n_points**exponent)),
        density_neighbors=min(params.density_neighbors, most),
        expansion_neighbors=min(params.expansion_neighbors, most),
        reassignment_neighbors=min(params.reassignment_neighbors, most),
        k=min(params.k, most),
        max_scr_rounds=0,
        post_reassignment_policy="noise",
    )
    rows = neighbor_rows(sample, small.k, "exact")
    found = cluster_rows(rows.neighbors, rows.distances, sample, small)
    return {"share": float((found.provenance < 0).mean())}
