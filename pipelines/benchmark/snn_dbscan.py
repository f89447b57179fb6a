"""SNN-DBSCAN (Ertoz, Steinbach and Kumar, 2003): DBSCAN on the number of shared neighbours.

A point's list has its k nearest others, without itself; of equally near ones those with smaller row
numbers. Two points are similar if their lists share at least a threshold of entries; a point with
`min_samples` similar ones, itself included, is a core point; similar core points share a cluster;
any other point belongs to the first cluster with a core point similar to it, or is noise. In the
original only pairs that are in each other's lists can be similar (`mutual`); without that rule the
method scores higher on the paper's small datasets, as high as the paper says.

Clusters are numbered by their first core point. scikit-learn's DBSCAN gives the same labels from a
matrix of k minus the shared entries, but that matrix, or its sparse form, has up to N x N entries.
Here shared entries are counted row by row over reverse lists, once for the densities and once for
the clusters, and forgotten.

Memory: three times N x k x 4 bytes, and 16 bytes a point for each task under way.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.benchmark.distances import FEW_COLUMNS, nearest_by_products
from pipelines.benchmark.methods import Floats, Labels
from spore_dask.kernels.compiling import kernel
from spore_dask.search import neighbor_rows
from spore_dask.threads import in_threads

N_TASKS, ROWS_PER_TASK = 64, 64
"""Tasks at most, and rows of one at least."""
Numbers = NDArray[np.int32]


class Sharing(NamedTuple):
    """Who is in whose list, and what makes two points similar."""

    lists: Numbers
    """(N, k): the nearest others of each point."""
    starts: NDArray[np.int64]
    """Where the holders of each point start, and where the last one's end."""
    holders: Numbers
    """(N k,): the points whose lists have point 0, ascending, then those of point 1, ..."""
    threshold: int
    """Shared entries of similar points, at least 1."""
    mutual: bool


def nearest_lists(x: Floats, k: int) -> Numbers:
    """Return the k nearest others of each row, by (distance, row)."""
    if not 1 <= k < len(x):
        raise ValueError(
            f"k is {k}, but with {len(x)} points it must be in [1, {len(x) - 1}]; "
            "ask for shorter lists."
        )
    if x.shape[1] > FEW_COLUMNS:
        return nearest_by_products(x, k)
    found = neighbor_rows(np.ascontiguousarray(x, np.float64), k, knn="exact")
    return np.ascontiguousarray(found.neighbors[:, 1:], np.int32)


def share_neighbors(lists: Numbers, threshold: int, mutual: bool = False) -> Sharing:
    """Turn the lists round."""
    n_points, k = lists.shape
    entries = lists.ravel()
    starts = np.zeros(n_points + 1, np.int64)
    np.cumsum(np.bincount(entries, minlength=n_points), out=starts[1:])
    holders = (np.argsort(entries, kind="stable") // k).astype(np.int32)
    return Sharing(lists, starts, holders, threshold, mutual)


def snn_dbscan_labels(
    lists: Numbers, threshold: int, min_samples: int, mutual: bool = False
) -> Labels:
    """Cluster by shared neighbours.

    Parameters
    ----------
    lists : int32 array (N, k)
        The nearest others of each point.
    threshold : int, 0 to k
        Shared entries that make two points similar; with 0 all pairs are similar.
    min_samples : int
        Similar points of a core point, itself included.
    mutual : bool
        Whether only points in each other's lists can be similar.

    Returns
    -------
    int64 array (N,)
        -1 for noise.
    """
    n_points = len(lists)
    if threshold <= 0:
        return np.full(n_points, 0 if n_points >= min_samples else -1, np.int64)
    sharing = share_neighbors(np.ascontiguousarray(lists), threshold, mutual)
    density = np.empty(n_points, np.int64)
    _over_rows(functools.partial(_count_similar, sharing, density), n_points)
    core = density >= min_samples
    forests = _over_rows(functools.partial(_join_cores, sharing, core), n_points)
    labels = np.full(n_points, -1, np.int64)
    labels[core] = np.unique(_merge(forests)[core], return_inverse=True)[1]
    _over_rows(functools.partial(_adopt, sharing, core, labels), n_points)
    return labels


def _over_rows(task: Callable[[int, int], Any], n_points: int) -> list[Any]:
    """Run a kernel on ranges of rows, on all processors; return what it returns, in order."""
    n_tasks = max(1, min(N_TASKS, n_points // ROWS_PER_TASK))
    bounds = np.linspace(0, n_points, n_tasks + 1).astype(int).tolist()
    return in_threads(lambda ends: task(*ends), itertools.pairwise(bounds))


def _merge(forests: list[Numbers]) -> Numbers:
    """Return the smallest point of each one's tree when all forests are one."""
    merged = forests[0]
    for forest in forests[1:]:
        _merge_into(merged, forest)
    _flatten(merged)
    return merged


@kernel
def _scratch(sharing):
    """Return what one task counts with: a zero for each point, and room for two lists."""
    n_points = sharing.lists.shape[0]
    return (
        np.zeros(n_points, np.int32),
        np.empty(n_points, np.int32),
        np.empty(n_points, np.int32),
    )


@kernel
def _similar_to(sharing, i, counts, met, similar):
    """Write the points similar to point i, without itself; return how many.

    `counts` has a zero for each point, before and after.
    """
    n_met = 0
    for entry in sharing.lists[i]:
        for place in range(sharing.starts[entry], sharing.starts[entry + 1]):
            j = sharing.holders[place]
            if counts[j] == 0:
                met[n_met] = j
                n_met += 1
            counts[j] += 1
    counts[i] = 0
    n_similar = 0
    if sharing.mutual:
        for place in range(sharing.starts[i], sharing.starts[i + 1]):
            j = sharing.holders[place]
            if counts[j] >= sharing.threshold and j in sharing.lists[i]:
                similar[n_similar] = j
                n_similar += 1
    else:
        for j in met[:n_met]:
            if counts[j] >= sharing.threshold:
                similar[n_similar] = j
                n_similar += 1
    for j in met[:n_met]:
        counts[j] = 0
    return n_similar


@kernel
def _count_similar(sharing, density, first, last):
    """Count the points similar to each, itself included."""
    counts, met, similar = _scratch(sharing)
    for i in range(first, last):
        density[i] = 1 + _similar_to(sharing, i, counts, met, similar)


@kernel
def _root(forest, i):
    """Return the top of a point's tree, and shorten the way."""
    while forest[i] != i:
        forest[i] = forest[forest[i]]
        i = forest[i]
    return i


@kernel
def _join(forest, i, j):
    """Make one tree of two, with the smaller point on top."""
    i, j = _root(forest, i), _root(forest, j)
    forest[max(i, j)] = min(i, j)


@kernel
def _join_cores(sharing, core, first, last):
    """Return a forest in which similar core points, one of them in the range, share a tree."""
    counts, met, similar = _scratch(sharing)
    forest = np.arange(core.size).astype(np.int32)
    for i in range(first, last):
        if core[i]:
            for j in similar[: _similar_to(sharing, i, counts, met, similar)]:
                if core[j]:
                    _join(forest, i, j)
    return forest


@kernel
def _merge_into(merged, forest):
    """Join what another forest joins."""
    for i in range(merged.size):
        _join(merged, i, forest[i])


@kernel
def _flatten(forest):
    """Point every point at the top of its tree."""
    for i in range(forest.size):
        forest[i] = _root(forest, i)


@kernel
def _adopt(sharing, core, labels, first, last):
    """Give points that are not core the first cluster with a core point similar to them."""
    counts, met, similar = _scratch(sharing)
    for i in range(first, last):
        if not core[i]:
            for j in similar[: _similar_to(sharing, i, counts, met, similar)]:
                if core[j] and (labels[i] < 0 or labels[j] < labels[i]):
                    labels[i] = labels[j]
