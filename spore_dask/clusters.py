"""What clusters are measured with and described by, in memory or out of core.

Pure arithmetic on a few numbers, and on one record a cluster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.kernels.expand import CLUSTER, SETTINGS
from spore_dask.kernels.rows import ALL_COLUMNS
from spore_dask.params import ResolvedParams

NOISE = -1

CLUSTER_TABLE = np.dtype(
    [
        ("size", np.int64),
        ("skeleton_size", np.int64),
        ("mean", np.float64),
        ("std", np.float64),
        ("seed_row", np.int64),
    ]
)
"""A final cluster: points, points at the end of Expansion, its statistics, the row it grew from."""


LARGE = np.dtype([("number", np.int64), *CLUSTER.descr])
"""A cluster of Expansion with its number."""


def label_dtype(n_points: int) -> np.dtype[Any]:
    """Return the type of cluster numbers."""
    return np.dtype(np.int32 if n_points < 2**31 else np.int64)


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """The numbers that Expansion and reassignment measure distances with."""

    extent: float
    """Euclidean norm of the ranges of the columns."""
    z: float
    """Deviations above a cluster's mean that Expansion admits."""
    max_z: float
    """Deviations above a cluster's mean that reassignment admits."""
    start_mean: float
    """Mean distance that every cluster starts with."""
    start_std: float
    """Deviation that every cluster starts with."""


def thresholds_of(
    params: ResolvedParams,
    extent: float,
    reach: tuple[float, float],
    start: tuple[float, float],
    percentile: Callable[[float], float],
) -> Thresholds:
    """Turn percentiles into z-scores.

    Parameters
    ----------
    params : ResolvedParams
    extent : float
    reach : (float, float)
        Mean and deviation of the distances to the ke-th neighbours.
    start : (float, float)
        Mean and deviation that clusters start with.
    percentile : function of one float
        Returns a percentile of those distances that are at least their mean.
    """
    mean, std = reach

    def z_of(z: float | None, asked: float) -> float:
        if z is not None:
            return float(z)
        return (percentile(asked) - mean) / std if std > 0 else 0.0

    return Thresholds(
        extent=extent,
        z=z_of(params.z, params.z_percentile),
        max_z=z_of(params.max_z, params.max_z_percentile),
        start_mean=start[0],
        start_std=start[1],
    )


def expansion_settings(params: ResolvedParams, thresholds: Thresholds) -> NDArray[Any]:
    """Return the record that Expansion reads, without a pause."""
    settings = np.zeros(1, SETTINGS)
    settings["expansion_neighbors"] = params.expansion_neighbors
    settings["min_retained"] = params.min_retained
    settings["n_steps"] = -1
    settings["width"] = ALL_COLUMNS
    for name in ("z", "start_mean", "start_std"):
        settings[name] = getattr(thresholds, name)
    return settings


def smallest_final_size(sizes: NDArray[np.int64], params: ResolvedParams) -> int:
    """Return the size from which on a cluster stays; 1 where reassignment is off.

    `sizes` has those of all clusters, or at least of the two largest.
    """
    smallest = params.min_cluster_size
    if smallest > 1 and params.max_scr_rounds > 0 and len(sizes) > 1:
        smallest = min(smallest, int(np.partition(sizes, -2)[-2]))
    return smallest
