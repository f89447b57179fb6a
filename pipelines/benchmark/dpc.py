"""DPC, clustering by density peaks (Rodriguez and Laio, 2014), with the number of clusters given.

The density of a point is the number of others nearer than the cut-off distance d_c, or a Gaussian
sum with that width. Delta is the distance to the nearest denser point. The points with the largest
gamma, density times delta, are the centres; every other point has the label of its nearest denser
point. d_c is a percentile of the distances of pairs: of all pairs up to MOST_EXACT points, else of
N_SAMPLED pairs drawn with a fixed seed.

Of equally dense points, the one with the larger row number counts as denser; of equally near denser
points the densest is followed; of equal gammas the densest point is a centre first. So the densest
point is always a centre, and labels are a function of the data, not of threads. Counts often tie:
on the paper's small datasets, smaller row numbers first, or Gaussian sums, score lower than the
paper says; larger row numbers first do not.

Memory: the distances of all pairs, float64 up to MOST_DOUBLE points, float32 beyond.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pipelines.benchmark.distances import distance_matrix
from pipelines.benchmark.methods import Floats, Labels
from spore_dask.kernels.compiling import kernel
from spore_dask.threads import in_threads

MOST_EXACT = 3_000
N_SAMPLED = 2_000_000
MOST_DOUBLE = 12_000
ROWS_PER_TASK = 256
CUTOFF, GAUSSIAN = "cutoff", "gaussian"


@dataclasses.dataclass(frozen=True)
class Pairs:
    """What all configurations have in common."""

    distances: NDArray[np.floating]
    """(N, N)."""
    some: NDArray[np.floating]
    """Distances of the pairs whose percentiles are taken."""


@dataclasses.dataclass(frozen=True)
class Ascent:
    """The way from each point to denser ones."""

    order: NDArray[np.int64]
    """Points from the densest to the least dense."""
    delta: Floats
    """Distance to the nearest denser point; for the densest, to the farthest point."""
    nearest: NDArray[np.int64]
    """The nearest denser point; the densest has itself."""


def measure_pairs(x: Floats) -> Pairs:
    """Compute the distances of all pairs, and pick those whose percentiles are taken."""
    dtype = np.float64 if len(x) <= MOST_DOUBLE else np.float32
    distances = distance_matrix(x, dtype)
    if len(x) <= MOST_EXACT:
        some = distances[np.triu_indices(len(x), 1)]
    else:
        draw = np.random.default_rng(0).integers
        first = draw(len(x), size=N_SAMPLED)
        second = (first + draw(1, len(x), size=N_SAMPLED)) % len(x)
        some = distances[first, second]
    return Pairs(distances, some)


def cut_distance(pairs: Pairs, percentile: float) -> float:
    """Return the percentile of the distances of pairs; if that is 0, the smallest that is not."""
    some = pairs.some
    if not some.size:  # a single point
        return 1.0
    cut = float(np.percentile(some, percentile))
    if cut > 0:
        return cut
    return float(np.min(some, where=some > 0, initial=np.inf)) if some.any() else 1.0


def densities(distances: NDArray[np.floating], cut: float, shape: str = CUTOFF) -> Floats:
    """Return how many others are nearer than the cut, or their Gaussian sum."""
    count = {CUTOFF: _count_nearer, GAUSSIAN: _sum_gaussians}[shape]
    found = np.empty(len(distances))
    _over_rows(functools.partial(count, distances, cut, found), len(distances))
    return found


def ascend(distances: NDArray[np.floating], density: Floats) -> Ascent:
    """Find the nearest denser point of each."""
    n_points = len(distances)
    order = np.argsort(density, kind="stable")[::-1]
    rank = np.empty(n_points, np.int64)
    rank[order] = np.arange(n_points)
    delta, nearest = np.empty(n_points), np.empty(n_points, np.int64)
    _over_rows(functools.partial(_find_denser, distances, rank, delta, nearest), n_points)
    delta[order[0]] = distances[order[0]].max()
    return Ascent(order, delta, nearest)


def centres(density: Floats, ascent: Ascent, n_clusters: int) -> NDArray[np.int64]:
    """Return the points with the largest gamma, in that order."""
    gamma = density * ascent.delta
    largest = np.argsort(-gamma[ascent.order], kind="stable")[:n_clusters]
    return ascent.order[largest]


def dpc_labels(pairs: Pairs, percentile: float, n_clusters: int, shape: str = CUTOFF) -> Labels:
    """Cluster by density peaks.

    Parameters
    ----------
    pairs : Pairs
        Of the N points.
    percentile : float, 0 to 100
        Which of the pairs' distances is d_c.
    n_clusters : int, 1 to N
    shape : "cutoff" or "gaussian"
        What a neighbour adds to the density. The original article counts neighbours.

    Returns
    -------
    int64 array (N,)
        Cluster 0 has the centre with the largest gamma. There is no noise.
    """
    n_points = len(pairs.distances)
    if not 1 <= n_clusters <= n_points:
        raise ValueError(
            f"n_clusters is {n_clusters}, but with {n_points} points it must be in "
            f"[1, {n_points}]; give as many clusters as there are classes."
        )
    density = densities(pairs.distances, cut_distance(pairs, percentile), shape)
    ascent = ascend(pairs.distances, density)
    labels = np.full(n_points, -1, np.int64)
    labels[centres(density, ascent, n_clusters)] = np.arange(n_clusters)
    _hand_down(ascent.order, ascent.nearest, labels)
    return labels


def _over_rows(task: Callable[[int, int], None], n_points: int) -> None:
    """Run a kernel on ranges of rows, on all processors."""
    starts = range(0, n_points, ROWS_PER_TASK)
    in_threads(lambda first: task(first, min(first + ROWS_PER_TASK, n_points)), starts)


@kernel
def _count_nearer(distances, cut, found, first, last):
    """Count the others that are nearer than the cut, which is positive."""
    for i in range(first, last):
        n_nearer = 0
        for j in range(distances.shape[1]):
            n_nearer += distances[i, j] < cut
        found[i] = n_nearer - 1


@kernel
def _sum_gaussians(distances, cut, found, first, last):
    """Add up the Gaussians of the others."""
    for i in range(first, last):
        total = 0.0
        for j in range(distances.shape[1]):
            if j != i:
                ratio = distances[i, j] / cut
                total += math.exp(-ratio * ratio)
        found[i] = total


@kernel
def _find_denser(distances, rank, delta, nearest, first, last):
    """Find the nearest point of lower rank, the one of lowest rank among equally near ones."""
    for i in range(first, last):
        found, least = i, np.inf
        for j in range(distances.shape[1]):
            if rank[j] < rank[i]:
                distance = distances[i, j]
                if distance < least or (distance == least and rank[j] < rank[found]):
                    found, least = j, distance
        delta[i], nearest[i] = least, found


@kernel
def _hand_down(order, nearest, labels):
    """Give labels from denser to less dense points."""
    for point in order:
        if labels[point] < 0:
            labels[point] = labels[nearest[point]]
