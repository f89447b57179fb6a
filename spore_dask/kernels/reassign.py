"""Small-Cluster Reassignment: fragments take the label that most of their neighbours vote for.

Fragment rows come in pieces, in density order; one call votes one piece. Memory: the labels,
a round number a point, and two floats and a counter for each cluster large enough to vote.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spore_dask.kernels.compiling import kernel, part
from spore_dask.kernels.machine import prefetch_row
from spore_dask.kernels.rows import ALL_COLUMNS, count_copies

FRAGMENT = -1
LOOKAHEAD = 4
LAST_ROUND_KEPT = np.iinfo(np.int16).max


class Fragments(NamedTuple):
    """A piece of the fragments in density order, with their rows of the graph."""

    points: NDArray[np.integer]
    """The fragments; those that have a label by now are passed over."""
    rows: NDArray[np.integer]
    """Where the row of each of them is in `neighbors` and `distances`."""
    neighbors: NDArray[np.integer]
    """(rows, K + 1)"""
    distances: NDArray[np.floating]
    """(rows, K + 1)"""


class Gates(NamedTuple):
    """Who may vote: a neighbour in cluster C if its distance - means[C] <= tolerances[C]."""

    means: NDArray[np.float64]
    tolerances: NDArray[np.float64]
    reach: int
    """Neighbours that are asked, counted behind the point's copies."""
    width: int = ALL_COLUMNS
    """Columns of the rows that count; all by default."""


def gates_of(clusters: NDArray[Any], max_z: float, reach: int) -> Gates:
    """Return who may vote, given a record with `mean` and `std` for each cluster."""
    means = np.ascontiguousarray(clusters["mean"])
    return Gates(means, max_z * clusters["std"], reach)


@kernel
def vote(fragments, gates, labels, rounds, this_round):
    """Let each fragment of one piece take the winning label at once; return how many did.

    Parameters
    ----------
    fragments : Fragments
    gates : Gates
        One entry for each cluster that may be joined.
    labels : integer array of N, the cluster that a point is in, -1 for a fragment
        Read and written.
    rounds : int16 array of N
        Written: `this_round` for each fragment that takes a label.
    this_round : int
    """
    points, rows, neighbors, distances = fragments
    means, tolerances, reach, width = gates
    if means.size == 0:
        return 0
    width = min(width, neighbors.shape[1])
    votes = np.zeros(means.size, np.int64)
    met = np.empty(width, np.int64)
    n_changed = 0
    for i in range(points.size):
        if i + LOOKAHEAD < points.size:
            prefetch_row(neighbors, rows[i + LOOKAHEAD], reach)
            prefetch_row(distances, rows[i + LOOKAHEAD], reach if this_round == 1 else 1)
        point, row = points[i], rows[i]
        if labels[point] != FRAGMENT:
            continue
        first = count_copies(distances, row, width)
        last = min(first + reach, width)
        if this_round > 1 and not _any_news(neighbors, row, first, last, rounds, this_round):
            continue
        if not _any_label(neighbors, row, first, last, labels):
            continue
        n_met = 0
        for j in range(first, last):
            label = labels[neighbors[row, j]]
            n_met = _cast(label, distances[row, j], means, tolerances, votes, met, n_met)
        if n_met > 0:
            labels[point] = _winner(votes, met, n_met)
            _clear(votes, met, n_met)
            rounds[point] = min(this_round, LAST_ROUND_KEPT)
            n_changed += 1
    return n_changed


@part
def _any_news(neighbors, row, first, last, rounds, this_round):
    """Tell whether a neighbour has taken a label since this fragment's vote in the last round.

    If none has, the vote would find nobody again: gates do not change.
    """
    asked = neighbors[row][first:last]  # from 0 on, so that it runs on vectors
    latest = rounds[neighbors[row, 0]]  # its own: 0
    for j in range(asked.size):
        latest = max(latest, rounds[asked[j]])
    return latest >= min(this_round, LAST_ROUND_KEPT) - 1


@part
def _any_label(neighbors, row, first, last, labels):
    """Tell whether any of the neighbours that are asked is in a cluster that may be joined."""
    asked = neighbors[row][first:last]
    largest = labels[neighbors[row, 0]]  # its own: a fragment's
    for j in range(asked.size):
        largest = max(largest, labels[asked[j]])
    return largest != FRAGMENT


@part
def _cast(label, distance, means, tolerances, votes, met, n_met):
    """Count the vote of one entry if its gate lets it; return how many labels are met by then.

    There is at least one gate. Branches that nobody can foresee cost more than what they skip.
    """
    known = max(label, 0)
    counts = (label != FRAGMENT) & (np.float64(distance) - means[known] <= tolerances[known])
    if counts & (votes[known] == 0):
        met[n_met] = known
        n_met += 1
    votes[known] += counts
    return n_met


@part
def _winner(votes, met, n_met):
    """Return the label with most votes, the one met first on a tie."""
    winner = met[0]
    for i in range(n_met):
        if votes[met[i]] > votes[winner]:
            winner = met[i]
    return winner


@part
def _clear(votes, met, n_met):
    """Forget the votes of the labels that were met."""
    for i in range(n_met):
        votes[met[i]] = 0


@kernel
def poll(labels, distances, gates):
    """Return the label of each row of new points, and the share of the votes that it has.

    The same vote as that of a fragment, among points that are settled. A row that begins with a
    copy takes the copy's label, with a share of 1; one without votes gets -1, with a share of 0.

    Parameters
    ----------
    labels : integer array (rows, k + 1)
        Clusters of the entries, nearest first, -1 for one that has no vote. The first entry, which
        is the new point itself, is passed over.
    distances : array (rows, k + 1)
    gates : Gates
        One entry for each cluster.

    Returns
    -------
    int32 array (rows,), float32 array (rows,)
    """
    means, tolerances, reach, _ = gates
    last = min(1 + reach, labels.shape[1]) if means.size else 1
    votes = np.zeros(means.size, np.int64)
    met = np.empty(last, np.int64)
    winners = np.full(labels.shape[0], FRAGMENT, np.int32)
    shares = np.zeros(labels.shape[0], np.float32)
    for i in range(labels.shape[0]):
        if distances[i, 1] <= 0:
            winners[i], shares[i] = labels[i, 1], 1
            continue
        n_met = 0
        for j in range(1, last):
            n_met = _cast(labels[i, j], distances[i, j], means, tolerances, votes, met, n_met)
        if n_met > 0:
            winner = _winner(votes, met, n_met)
            n_votes = 0
            for j in range(n_met):
                n_votes += votes[met[j]]
            winners[i], shares[i] = winner, votes[winner] / n_votes
            _clear(votes, met, n_met)
    return winners, shares


@kernel
def take_labels(numbers, first, labels, into):
    """Fill in the labels of those entries that are points from `first` on, one a label."""
    for i in range(numbers.shape[0]):
        for j in range(numbers.shape[1]):
            place = np.int64(numbers[i, j]) - first
            if 0 <= place < labels.size:
                into[i, j] = labels[place]
