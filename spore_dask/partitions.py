"""How points are shared out among partitions: a tree of cuts, grown on a sample.

Few dimensions: each node cuts one column. The tree, and what is heavy, are functions of the sample,
which is drawn by row numbers: chunks and workers do not matter. Memory: the sample.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.kernels import means
from spore_dask.kernels.copies import hash_rows
from spore_dask.kernels.routes import route

MEANS_SAMPLES = 1000
HEAVY_SAMPLES = 16
"""A point whose copies are drawn this often is heavy: its copies are kept apart."""
WELL_CUT = 0.75
"""A cut is good enough if each side has this share of what it should have."""


def sample_rows(n_points: int, size: int, seed: int) -> NDArray[np.int64]:
    """Draw about `size` rows, ascending; all of them where `size` is at least their number."""
    if size >= n_points:
        return np.arange(n_points)
    return np.unique(np.random.default_rng(seed).integers(0, n_points, size))


@dataclasses.dataclass(frozen=True)
class Tree:
    """Cuts that assign every point to one of `n_partitions` partitions."""

    n_partitions: int
    columns: NDArray[np.int64]
    values: NDArray[np.floating]
    children: NDArray[np.int64]

    def assign(self, points: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return the partition of each point."""
        partitions: NDArray[np.int64] = route(points, self.columns, self.values, self.children)
        return partitions


@dataclasses.dataclass(frozen=True)
class MeansTree:
    """Hyperplanes that do the same in many dimensions."""

    n_partitions: int
    planes: means.Tree

    def assign(self, points: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return the partition of each point."""
        partitions: NDArray[np.int64] = means.assign(self.planes, points)
        return partitions


def build_means_tree(sample: NDArray[np.floating], n_partitions: int, seed: int) -> MeansTree:
    """Part the sample by hyperplanes between means, into parts of about equal size."""
    if len(sample) > MEANS_SAMPLES * n_partitions:
        sample = sample[:: len(sample) // (MEANS_SAMPLES * n_partitions)]
    return MeansTree(n_partitions, means.build_tree(sample, n_partitions, seed))


def build_tree(sample: NDArray[np.floating], n_partitions: int) -> Tree:
    """Cut the sample into parts of about equal size.

    Each cut is at the median of the column with the widest spread, or of the first that ties do not
    make lopsided; sides get partitions in proportion to their share of the sample.
    """
    columns: list[int] = []
    values: list[Any] = []
    children: list[list[int]] = []

    def grow(members: NDArray[np.floating], first: int, count: int) -> int:
        cut = _best_cut(members, count) if count > 1 else None
        if cut is None:
            return -1 - first
        node = len(columns)
        columns.append(cut.column)
        values.append(cut.value)
        children.append([0, 0])
        right = members[:, cut.column] >= cut.value
        n_left = round(count * (1 - right.mean()))
        n_left = min(max(1, n_left), count - 1)
        children[node][0] = grow(members[~right], first, n_left)
        children[node][1] = grow(members[right], first + n_left, count - n_left)
        return node

    grow(sample, 0, n_partitions)
    return Tree(
        n_partitions,
        np.array(columns, np.int64),
        np.array(values, sample.dtype),
        np.array(children, np.int64).reshape(-1, 2),
    )


@dataclasses.dataclass(frozen=True)
class _Cut:
    column: int
    value: Any


def _best_cut(members: NDArray[np.floating], count: int) -> _Cut | None:
    """Return the cut of the widest column that parts the members well, or the best there is."""
    if len(members) < 2:
        return None
    share = (count // 2) / count
    spreads = members.max(axis=0).astype(np.float64) - members.min(axis=0)
    best, best_balance = None, 0.0
    for column in np.argsort(-spreads, kind="stable"):
        if spreads[column] <= 0:
            break
        values = members[:, column]
        place = min(max(1, round(share * len(values))), len(values) - 1)
        median = np.partition(values, place)[place]
        above = values[values > median]
        for value in [median, above.min()] if len(above) else [median]:
            left = float((values < value).mean())
            balance = min(left / share, (1 - left) / (1 - share))
            if balance > best_balance:
                best, best_balance = _Cut(int(column), value), balance
        if best_balance >= WELL_CUT:
            break
    return best


def heavy_points(sample: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the points of which the sample has many copies, in the order of their coordinates.

    Returns
    -------
    array (n_heavy, D)
    """
    if len(sample) < HEAVY_SAMPLES:
        return sample[:0]
    hashes = np.sort(hash_rows(_bits(sample)))
    last = HEAVY_SAMPLES - 1
    crowded = np.unique(hashes[last:][hashes[last:] == hashes[: len(hashes) - last]])
    if not len(crowded):
        return sample[:0]
    members = sample[np.isin(hash_rows(_bits(sample)), crowded)]
    values, counts = np.unique(members, axis=0, return_counts=True)
    return np.ascontiguousarray(values[counts >= HEAVY_SAMPLES])


def find_heavy(points: NDArray[np.floating], heavy: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return for each point which heavy one it is a copy of, or -1."""
    return find_copies(points, heavy, np.arange(len(heavy)))


def find_copies(
    points: NDArray[np.floating], known: NDArray[np.floating], rows: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Return for each point which of the known ones it is a copy of, or -1.

    Where several are the same, that with the smallest of `rows`, which has one for each of them.
    """
    found = np.full(len(points), -1)
    if not len(known):
        return found
    known_hashes = hash_rows(_bits(known))
    order = np.lexsort((rows, known_hashes))
    hashes = hash_rows(_bits(points))
    candidate = order[np.minimum(np.searchsorted(known_hashes[order], hashes), len(known) - 1)]
    same = np.flatnonzero(known_hashes[candidate] == hashes)
    same = same[(points[same] == known[candidate[same]]).all(axis=1)]
    found[same] = candidate[same]
    return found


def _bits(points: NDArray[np.floating]) -> NDArray[Any]:
    return np.ascontiguousarray(points).view(f"u{points.dtype.itemsize}")
