"""Expansion: grow clusters breadth-first from seeds, over rows that may arrive in pieces.

Rows live in slots. A slot holds one shard of consecutive rows, and `slot_of_shard` says which
slot holds a shard, or -1. When the kernel needs a row that no slot holds, it returns the number
of its shard with everything else saved in `state`, and goes on where it was when called again.
A graph in memory is one shard in one slot.

Memory: labels and queue, two integers a point; a record for each seed of the piece at hand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from spore_dask.kernels.rows import count_copies

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


class Slots(NamedTuple):
    """The shards of the graph that are at hand."""

    slot_of_shard: NDArray[np.integer]
    """The slot of each shard, or -1 for a shard that is not at hand."""
    neighbors: NDArray[np.integer]
    """(slots, rows a shard, K + 1)"""
    distances: NDArray[np.floating]
    """(slots, rows a shard, K + 1)"""


class Growth(NamedTuple):
    """What an expansion writes."""

    state: NDArray[Any]
    """One STATE record; `seed` and `n_closed` are 0 at the start of each piece of seeds."""
    labels: NDArray[np.integer]
    """The number of each point's cluster, -1 where unassigned."""
    queue: NDArray[np.integer]
    """Points of the growing cluster in the order in which they joined; room for all points."""
    closed: NDArray[Any]
    """CLUSTER records of the finished clusters, `n_closed` of them; room for one a seed."""


@njit(cache=True, nogil=True)
def expand(settings, seeds, slots, growth):
    """Grow a cluster from each seed in turn that no earlier cluster has taken.

    Parameters
    ----------
    settings : array of one SETTINGS record
    seeds : integer array
        The next piece of the seed order.
    slots : Slots
    growth : Growth
        Read and written.

    Returns
    -------
    int
        -1 when every seed of the piece is done, else the shard that must be brought first.
    """
    now = growth.state[0]
    rows_per_shard = slots.neighbors.shape[1]
    kept = np.empty(slots.neighbors.shape[2], np.int64)
    while True:
        if now.head == now.tail and not _begin_cluster(settings[0], seeds, growth):
            return DONE
        while now.head < now.tail:
            point = growth.queue[now.head]
            shard = point // rows_per_shard
            slot = slots.slot_of_shard[shard]
            if slot < 0:
                return shard
            row = point - shard * rows_per_shard
            neighbors, distances = slots.neighbors[slot, row], slots.distances[slot, row]
            _expand_point(settings[0], neighbors, distances, growth, kept)
            now.head += 1
        _close_cluster(growth)


@njit(cache=True, nogil=True)
def _begin_cluster(settings, seeds, growth):
    """Queue the next unassigned seed; False when there is none."""
    now = growth.state[0]
    while now.seed < seeds.size:
        point = seeds[now.seed]
        now.seed += 1
        if growth.labels[point] == UNASSIGNED:
            growth.labels[point] = now.cluster
            growth.queue[0] = point
            now.head = 0
            now.tail = 1
            now.mean = settings.start_mean
            now.std = settings.start_std
            return True
    return False


@njit(cache=True, nogil=True)
def _expand_point(settings, neighbors, distances, growth, kept):
    """Queue the neighbours of one point that fit the cluster, if enough of them do."""
    now, labels = growth.state[0], growth.labels
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
        growth.queue[now.tail] = neighbors[j]
        now.tail += 1
    n_before = now.tail - n_kept
    now.std = np.sqrt((now.std * now.std * n_before + squares) / now.tail)
    now.mean = (mean * n_before + total) / now.tail


@njit(cache=True, nogil=True)
def _close_cluster(growth):
    """Record the cluster whose queue has run out, and stand ready for the next."""
    now = growth.state[0]
    record = growth.closed[now.n_closed]
    record.seed = growth.queue[0]
    record.size = now.tail
    record.mean = now.mean
    record.std = now.std
    now.n_closed += 1
    now.cluster += 1
    now.head = 0
    now.tail = 0
