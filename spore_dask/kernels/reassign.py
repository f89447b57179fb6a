"""Small-Cluster Reassignment: fragments take the label that most of their neighbours vote for.

Fragment rows come in pieces, in density order; one call votes one piece. Memory: the labels,
a round number a point, and two floats and a counter for each cluster large enough to vote.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from spore_dask.kernels.order import count_copies

FRAGMENT = -1
LAST_ROUND_KEPT = np.iinfo(np.int16).max


@njit(cache=True, nogil=True)
def vote(fragments, rows, neighbors, distances, reach, means, tolerances, labels, rounds, this_round):  # type: ignore[no-untyped-def]
    """Let each fragment of one piece take the winning label at once; return how many did.

    Parameters
    ----------
    fragments : integer array
        Points in density order; those that have a label by now are passed over.
    rows : integer array
        Where the row of each of them is in `neighbors` and `distances`.
    neighbors, distances : arrays (rows, K + 1)
    reach : int
        Neighbours that vote, counted behind the point's copies.
    means, tolerances : float64 arrays, one entry a cluster that may be joined
        A neighbour in cluster C votes if its distance - means[C] <= tolerances[C].
    labels : integer array of N, the cluster that a point is in, -1 for a fragment
        Read and written.
    rounds : int16 array of N
        Written: `this_round` for each fragment that takes a label.
    """
    votes = np.zeros(means.size, np.int64)
    met = np.empty(neighbors.shape[1], np.int64)
    n_changed = 0
    for i in range(fragments.size):
        point = fragments[i]
        if labels[point] != FRAGMENT:
            continue
        row_neighbors = neighbors[rows[i]]
        row_distances = distances[rows[i]]
        first = count_copies(row_distances)
        n_met = 0
        for j in range(first, min(first + reach, row_distances.size)):
            label = labels[row_neighbors[j]]
            if label == FRAGMENT:
                continue
            if np.float64(row_distances[j]) - means[label] <= tolerances[label]:
                if votes[label] == 0:
                    met[n_met] = label
                    n_met += 1
                votes[label] += 1
        if n_met > 0:
            labels[point] = _count_votes(votes, met[:n_met])
            rounds[point] = min(this_round, LAST_ROUND_KEPT)
            n_changed += 1
    return n_changed


@njit(cache=True, nogil=True)
def _count_votes(votes, met):  # type: ignore[no-untyped-def]
    """Return the label with most votes, the one met first on a tie, and clear the votes."""
    winner = met[0]
    most = votes[winner]
    for label in met:
        if votes[label] > most:
            winner = label
            most = votes[label]
    for label in met:
        votes[label] = 0
    return winner
