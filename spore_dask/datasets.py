"""Generated data: clusters of varied size, density and shape, as large as you like.

Reads nothing, writes nothing; memory is a small multiple of the result in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from spore_dask.errors import ParameterError

Floats = NDArray[np.float64]

N_BLOBS = 24
N_RINGS = 3
N_MOON_PAIRS = 3
NOISE_SHARE = 0.05
SIZE_RATIO = 50.0
SPREAD_RANGE = (0.001, 0.04)
BOX = (-0.1, 1.1)


def blobs_and_shapes(
    n_points: int, n_columns: int = 2, seed: int = 0, dtype: DTypeLike = np.float64
) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Draw clusters of varied size, density and shape, with 5 % of uniform noise.

    Sizes and spreads of the clusters vary by a factor of about 50, independently of each other, so
    that densities differ by orders of magnitude. Clusters are Gaussian blobs, each with its own
    spread in every column; two columns add rings and pairs of interlocking moons. Clusters may
    overlap. Rows are shuffled. Everything is drawn in float64 and rounded once.

    Parameters
    ----------
    n_points : int
        Number of rows.
    n_columns : int
        Number of columns.
    seed : int
        Seed of the generator; the same arguments give the same result.
    dtype : dtype
        Floating-point type of ``X``.

    Returns
    -------
    X : ndarray of shape (n_points, n_columns)
        The points, most of them in the unit cube.
    y : int32 ndarray of shape (n_points,)
        The cluster that each point was drawn from; -1 for noise.
    """
    for name, value in (("n_points", n_points), ("n_columns", n_columns)):
        if value < 1:
            raise ParameterError(f"{name} is {value}, but it must be a whole number >= 1.")
    rng = np.random.default_rng(seed)
    n_noise = round(NOISE_SHARE * n_points)
    n_shapes = N_RINGS + 2 * N_MOON_PAIRS if n_columns == 2 else 0
    sizes = _sizes(n_points - n_noise, N_BLOBS + n_shapes, rng)
    parts = _blobs(sizes[:N_BLOBS], n_columns, rng)
    if n_shapes:
        parts += _rings(sizes[N_BLOBS : N_BLOBS + N_RINGS], rng)
        parts += _moons(sizes[N_BLOBS + N_RINGS :], rng)
    parts.append(rng.uniform(*BOX, (n_noise, n_columns)))
    labels = np.append(np.arange(len(sizes)), -1)
    y = np.repeat(labels, [len(part) for part in parts]).astype(np.int32)
    order = rng.permutation(n_points)
    return np.concatenate(parts)[order].astype(dtype), y[order]


def _sizes(n_points: int, n_clusters: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Share out ``n_points`` among clusters whose sizes vary log-uniformly."""
    weights = SIZE_RATIO ** rng.uniform(0, 1, n_clusters)
    ends = np.rint(np.cumsum(weights) / weights.sum() * n_points)
    sizes: NDArray[np.int64] = np.diff(ends, prepend=0).astype(np.int64)
    return sizes


def _blobs(sizes: NDArray[np.int64], n_columns: int, rng: np.random.Generator) -> list[Floats]:
    """Draw Gaussian blobs, the spread of each stretched a little in every column."""
    spreads = rng.permutation(np.geomspace(*SPREAD_RANGE, len(sizes)))
    blobs = []
    for size, spread in zip(sizes, spreads, strict=True):
        centre = rng.uniform(0, 1, n_columns)
        stretch = rng.uniform(0.5, 1.5, n_columns)
        blobs.append(centre + spread * stretch * rng.standard_normal((size, n_columns)))
    return blobs


def _arc(
    size: int, centre: Floats, radius: float, angles: tuple[float, float], rng: np.random.Generator
) -> Floats:
    """Draw an arc of the given radius between two angles, a twentieth of its radius thick."""
    angle = rng.uniform(*angles, size)
    points = np.column_stack((np.cos(angle), np.sin(angle)))
    return centre + radius * (points + 0.05 * rng.standard_normal((size, 2)))


def _rings(sizes: NDArray[np.int64], rng: np.random.Generator) -> list[Floats]:
    """Draw full circles of different radii."""
    radii = rng.permutation(np.geomspace(0.02, 0.2, len(sizes)))
    return [
        _arc(size, rng.uniform(0, 1, 2), radius, (0, 2 * np.pi), rng)
        for size, radius in zip(sizes, radii, strict=True)
    ]


def _moons(sizes: NDArray[np.int64], rng: np.random.Generator) -> list[Floats]:
    """Draw pairs of half circles, the second hooked into the first."""
    radii = rng.permutation(np.geomspace(0.02, 0.2, len(sizes) // 2))
    moons = []
    for pair, radius in zip(sizes.reshape(-1, 2), radii, strict=True):
        centre = rng.uniform(0, 1, 2)
        hooked = centre + radius * np.array([1.0, 0.5])
        moons.append(_arc(pair[0], centre, radius, (0, np.pi), rng))
        moons.append(_arc(pair[1], hooked, radius, (np.pi, 2 * np.pi), rng))
    return moons
