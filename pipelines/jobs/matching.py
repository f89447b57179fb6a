"""Which cluster of today is which of before: two clusterings of the same points, compared.

Pure: knows labels, no files. The table of what they have in common is built chunk by chunk and
holds only pairs that occur. Two clusters may match if they share enough of the points that either
has (the size of the intersection over that of the union); of all ways to match, each cluster once,
the one with most points in common is taken. Memory: 24 bytes a pair, a chunk of labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from scipy.sparse import coo_array  # type: ignore[import-untyped]
from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

NOISE = -1
NONE = -1
"""What stands for the match of a cluster that has none."""

Integers = NDArray[np.int64]
Labels = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Overlaps:
    """How many points each cluster of today has in common with each of before; noise is -1."""

    today: Integers
    before: Integers
    counts: Integers
    """Three columns of a table with a row for each pair that occurs."""
    n_today: int
    n_before: int
    """Clusters in either."""

    @property
    def n_points(self) -> int:
        """All points."""
        return int(self.counts.sum())

    def sizes_today(self) -> Integers:
        """Return the points of each cluster of today, noise last."""
        return _sums(self.today, self.counts, self.n_today)

    def sizes_before(self) -> Integers:
        """Return today's points in each cluster of before, noise last."""
        return _sums(self.before, self.counts, self.n_before)


def _sums(labels: Integers, counts: Integers, n_clusters: int) -> Integers:
    sums = np.zeros(n_clusters + 1, np.int64)
    np.add.at(sums, labels, counts)  # noise is -1, so the last
    return sums


def count_overlaps(
    chunks: Iterable[tuple[Labels, Labels]], n_today: int, n_before: int
) -> Overlaps:
    """Count pairs of labels.

    Parameters
    ----------
    chunks
        Labels of today and of before, of the same points; each pair of arrays is read once.
    n_today, n_before : int
        Clusters in either.
    """
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for today, before in chunks:
        pairs = (today.astype(np.int64) + 1) * (n_before + 1) + (before.astype(np.int64) + 1)
        new_keys, new_counts = np.unique(pairs, return_counts=True)
        keys, places = np.unique(np.concatenate((keys, new_keys)), return_inverse=True)
        merged = np.zeros(len(keys), np.int64)
        np.add.at(merged, places, np.concatenate((counts, new_counts)))
        counts = merged
    today, before = np.divmod(keys, n_before + 1)
    return Overlaps(today - 1, before - 1, counts, n_today, n_before)


def match(overlaps: Overlaps, least_overlap: float) -> Integers:
    """Return for each cluster of today the one of before that it is, or `NONE`.

    Parameters
    ----------
    overlaps : Overlaps
    least_overlap : float
        Share of the points of either that two clusters must have in common.
    """
    today, before, counts = overlaps.today, overlaps.before, overlaps.counts
    union = overlaps.sizes_today()[today] + overlaps.sizes_before()[before] - counts
    may = (today != NOISE) & (before != NOISE) & (counts >= least_overlap * union)
    today, before, counts = today[may], before[may], counts[may]
    found = np.full(overlaps.n_today, NONE, np.int64)
    for part in _components(today, before, overlaps):
        rows, row_places = np.unique(today[part], return_inverse=True)
        columns, column_places = np.unique(before[part], return_inverse=True)
        table = np.zeros((len(rows), len(columns)), np.int64)
        table[row_places, column_places] = counts[part]
        chosen = linear_sum_assignment(table, maximize=True)
        is_pair = table[chosen] > 0
        found[rows[chosen[0][is_pair]]] = columns[chosen[1][is_pair]]
    return found


def _components(today: Integers, before: Integers, overlaps: Overlaps) -> list[Integers]:
    """Share out pairs so that no cluster is in two parts; each part is matched by itself."""
    if not len(today):
        return []
    n_nodes = overlaps.n_today + overlaps.n_before
    edges = coo_array(
        (np.ones(len(today)), (today, before + overlaps.n_today)), shape=(n_nodes, n_nodes)
    )
    _, parts = connected_components(edges, directed=False)
    order = np.argsort(parts[today], kind="stable")
    firsts = np.flatnonzero(np.diff(parts[today][order])) + 1
    return list(np.split(order, firsts))


def number(matched: Integers, numbers_before: Integers, next_number: int) -> Integers:
    """Return the number of each cluster: that of its match, or one that was never used."""
    numbers = np.empty(len(matched), np.int64)
    is_new = matched == NONE
    numbers[~is_new] = numbers_before[matched[~is_new]]
    numbers[is_new] = next_number + np.arange(int(is_new.sum()))
    return numbers
