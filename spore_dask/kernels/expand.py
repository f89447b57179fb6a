"""Expansion: grow clusters breadth-first from seeds, over rows that may arrive in pieces.

Rows live in slots. A slot holds one shard of consecutive rows, and `slot_of_shard` says which
slot holds a shard, or -1. When the kernel needs a row that no slot holds, it returns the number
of its shard with everything else saved in `state`, and goes on where it was when called again.
A graph in memory is one shard in one slot.

Memory: labels and queue, two integers a point; a record for each seed of the piece at hand.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from spore_dask.kernels.order import count_copies

STATE = np.dtype(
    [
        ("seed", np.int64),  # place of the next seed in the piece of seeds
        ("head", np.int64),  # place in the queue of the point that expands next
        ("tail", np.int64),  # points queued so far in this cluster, expanded ones included
        ("n_closed", np.int64),  # clusters finished since the piece of seeds began
        ("cluster", np.int64),  # number of the cluster that grows now, or grows next
        ("mean", np.float64),
        ("std", np.float64),
    ]
)
"""Where an expansion stands; all of it, besides labels and queue."""

CLUSTER = np.dtype(
    [("seed", np.int64), ("size", np.int64), ("mean", np.float64), ("std", np.float64)]
)
"""A finished cluster: its seed, its number of points, its final statistics."""

SETTINGS = np.dtype(
    [
        ("expansion_neighbors", np.int64),
        ("min_retained", np.int64),
        ("z", np.float64),
        ("start_mean", np.float64),
        ("start_std", np.float64),
    ]
)
"""What stays the same during one expansion."""

DONE = -1
UNASSIGNED = -1


@njit(cache=True, nogil=True)
def expand(state, settings, seeds, slot_of_shard, neighbors, distances, labels, queue, closed):  # type: ignore[no-untyped-def]
    """Grow a cluster from each seed in turn that no earlier cluster has taken.

    Parameters
    ----------
    state : array of one STATE record
        Read and written; zero `seed` and `n_closed` at the start of each piece of seeds.
    settings : array of one SETTINGS record
    seeds : integer array
        The next piece of the seed order.
    slot_of_shard : integer array
        The slot of each shard, or -1 for a shard that is not at hand.
    neighbors, distances : arrays (slots, rows a shard, K + 1)
    labels : integer array of N, -1 where unassigned
        Written: the number of each point's cluster.
    queue : integer array of N
        Points of the growing cluster in the order in which they joined.
    closed : array of CLUSTER records, one for each seed of the piece
        Written: the finished clusters, `state["n_closed"]` of them.

    Returns
    -------
    int
        -1 when every seed of the piece is done, else the shard that must be brought first.
    """
    now = state[0]
    rows_per_shard = neighbors.shape[1]
    kept = np.empty(neighbors.shape[2], np.int64)
    while True:
        if now.head == now.tail and not _begin_cluster(now, settings[0], seeds, labels, queue):
            return DONE
        while now.head < now.tail:
            point = queue[now.head]
            shard = point // rows_per_shard
            slot = slot_of_shard[shard]
            if slot < 0:
                return shard
            row = point - shard * rows_per_shard
            _expand_point(
                now, settings[0], neighbors[slot, row], distances[slot, row], labels, queue, kept
            )
            now.head += 1
        _close_cluster(now, queue, closed)


@njit(cache=True, nogil=True)
def _begin_cluster(now, settings, seeds, labels, queue):  # type: ignore[no-untyped-def]
    """Queue the next unassigned seed; False when there is none."""
    while now.seed < seeds.size:
        point = seeds[now.seed]
        now.seed += 1
        if labels[point] == UNASSIGNED:
            labels[point] = now.cluster
            queue[0] = point
            now.head = 0
            now.tail = 1
            now.mean = settings.start_mean
            now.std = settings.start_std
            return True
    return False


@njit(cache=True, nogil=True)
def _expand_point(now, settings, neighbors, distances, labels, queue, kept):  # type: ignore[no-untyped-def]
    """Queue the neighbours of one point that fit the cluster, if enough of them do."""
    end = min(count_copies(distances) + settings.expansion_neighbors, distances.size)
    mean = now.mean
    tolerance = settings.z * now.std
    n_kept = 0
    for j in range(end):
        if labels[neighbors[j]] == UNASSIGNED and np.float64(distances[j]) - mean <= tolerance:
            kept[n_kept] = j
            n_kept += 1
    if n_kept < settings.min_retained:
        return
    total = 0.0
    squares = 0.0
    for j in kept[:n_kept]:
        distance = np.float64(distances[j])
        total += distance
        squares += (distance - mean) * (distance - mean)
        labels[neighbors[j]] = now.cluster
        queue[now.tail] = neighbors[j]
        now.tail += 1
    n_before = now.tail - n_kept
    now.std = np.sqrt((now.std * now.std * n_before + squares) / now.tail)
    now.mean = (mean * n_before + total) / now.tail


@njit(cache=True, nogil=True)
def _close_cluster(now, queue, closed):  # type: ignore[no-untyped-def]
    """Record the cluster whose queue has run out, and stand ready for the next."""
    record = closed[now.n_closed]
    record.seed = queue[0]
    record.size = now.tail
    record.mean = now.mean
    record.std = now.std
    now.n_closed += 1
    now.cluster += 1
    now.head = 0
    now.tail = 0
