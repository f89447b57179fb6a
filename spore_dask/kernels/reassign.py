"""Small-Cluster Reassignment: fragments take the label that most of their neighbours vote for.

Fragment rows come in pieces, in density order; one call votes one piece. Memory: the labels,
a round number a point, and two floats and a counter for each cluster large enough to vote.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spore_dask.kernels.compiling import kernel, part
from spore_dask.kernels.machine import prefetch_row
from spore_dask.kernels.rows import count_copies

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
    means, tolerances, reach = gates
    width = neighbors.shape[1]
    votes = np.zeros(means.size, np.int64)
    met = np.empty(width, np.int64)
    n_changed = 0
    for i in range(points.size):
        if i + LOOKAHEAD < points.size:
            prefetch_row(neighbors, rows[i + LOOKAHEAD], reach)
            prefetch_row(distances, rows[i + LOOKAHEAD], reach)
        point, row = points[i], rows[i]
        if labels[point] != FRAGMENT:
            continue
        first = count_copies(distances, row)
        last = min(first + reach, width)
        if this_round > 1 and not _any_news(neighbors, row, first, last, rounds, this_round):
            continue
        n_met = 0
        for j in range(first, last):
            label = labels[neighbors[row, j]]
            if label == FRAGMENT:
                continue
            if np.float64(distances[row, j]) - means[label] <= tolerances[label]:
                if votes[label] == 0:
                    met[n_met] = label
                    n_met += 1
                votes[label] += 1
        if n_met > 0:
            labels[point] = _count_votes(votes, met, n_met)
            rounds[point] = min(this_round, LAST_ROUND_KEPT)
            n_changed += 1
    return n_changed


@part
def _any_news(neighbors, row, first, last, rounds, this_round):
    """Tell whether a neighbour has taken a label since this fragment's vote in the last round.

    If none has, the vote would find nobody again: gates do not change.
    """
    latest = 0
    for j in range(first, last):
        latest = max(latest, rounds[neighbors[row, j]])
    return latest >= min(this_round, LAST_ROUND_KEPT) - 1


@part
def _count_votes(votes, met, n_met):
    """Return the label with most votes, the one met first on a tie, and clear the votes."""
    winner = met[0]
    for i in range(n_met):
        if votes[met[i]] > votes[winner]:
            winner = met[i]
    for i in range(n_met):
        votes[met[i]] = 0
    return winner
