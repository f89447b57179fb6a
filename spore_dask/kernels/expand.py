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
from numpy.typing import NDArray

from spore_dask.kernels.compiling import kernel, part
from spore_dask.kernels.machine import prefetch_row
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
REPEATED = -2
LOOKAHEAD = 4
UNASSIGNED = -1


class Slots(NamedTuple):
    """The rows of the graph that are at hand."""

    slot_of_shard: NDArray[np.integer]
    """The slot of each shard, or -1 for a shard that is not at hand."""
    rows_per_shard: int
    neighbors: NDArray[np.integer]
    """(slots * rows_per_shard, K + 1): the rows of one slot after those of another."""
    distances: NDArray[np.floating]
    """(slots * rows_per_shard, K + 1)"""


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


@kernel
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
        -1 when every seed of the piece is done, -2 when the row of the point at the head of the
        queue names a point twice, else the shard that must be brought first.
    """
    slot_of_shard, rows_per_shard, neighbors, distances = slots
    state, labels, queue, closed = growth
    now, setting = state[0], settings[0]
    reach = setting.expansion_neighbors
    kept = np.empty(neighbors.shape[1], np.int64)
    while True:
        if now.head == now.tail and not _begin_cluster(now, setting, seeds, labels, queue):
            return DONE
        if now.seed + LOOKAHEAD < seeds.size:
            soon = _row_of(slot_of_shard, rows_per_shard, seeds[now.seed + LOOKAHEAD])
            _prefetch(neighbors, distances, soon, reach)
        while now.head < now.tail:
            row = _row_of(slot_of_shard, rows_per_shard, queue[now.head])
            if row < 0:
                return np.int64(queue[now.head]) // rows_per_shard
            if now.head + LOOKAHEAD < now.tail:
                soon = _row_of(slot_of_shard, rows_per_shard, queue[now.head + LOOKAHEAD])
                _prefetch(neighbors, distances, soon, reach)
            n_kept = _choose(now, setting, neighbors, distances, row, labels, kept)
            enough = n_kept >= setting.min_retained
            if enough and not _admit(now, neighbors, distances, row, kept, n_kept, labels, queue):
                return REPEATED
            now.head += 1
        _close_cluster(now, queue, closed)


# The parts of `expand` take arrays one by one and are inlined: to pass them on, or to take them
# out of a tuple in a loop, costs more than what the parts do.


@part
def _row_of(slot_of_shard, rows_per_shard, point):
    """Return where the row of a point is at hand, or -1."""
    shard = np.int64(point) // rows_per_shard
    slot = slot_of_shard[shard]
    return np.int64(point) + (slot - shard) * rows_per_shard if slot >= 0 else -1


@part
def _prefetch(neighbors, distances, row, reach):
    """Ask for a row that is wanted soon, if it is at hand."""
    if row >= 0:
        prefetch_row(neighbors, row, reach)
        prefetch_row(distances, row, reach)


@part
def _begin_cluster(now, setting, seeds, labels, queue):
    """Queue the next unassigned seed; False when there is none."""
    found = False
    while now.seed < seeds.size and not found:
        point = seeds[now.seed]
        now.seed += 1
        if labels[point] == UNASSIGNED:
            labels[point] = now.cluster
            queue[0] = point
            now.head = 0
            now.tail = 1
            now.mean = setting.start_mean
            now.std = setting.start_std
            found = True
    return found


@part
def _choose(now, setting, neighbors, distances, row, labels, kept):
    """List in `kept` the places in a row that are free and fit the cluster; return how many."""
    mean = now.mean
    tolerance = setting.z * now.std
    end = min(count_copies(distances, row) + setting.expansion_neighbors, distances.shape[1])
    n_kept = 0
    for j in range(end):
        free = labels[neighbors[row, j]] == UNASSIGNED
        if free and np.float64(distances[row, j]) - mean <= tolerance:
            kept[n_kept] = j
            n_kept += 1
    return n_kept


@part
def _admit(now, neighbors, distances, row, kept, n_kept, labels, queue):
    """Queue the chosen neighbours, and recalibrate the cluster; False if one is named twice."""
    mean = now.mean
    total = 0.0
    squares = 0.0
    n_before = now.tail
    once = True
    for i in range(n_kept):
        distance = np.float64(distances[row, kept[i]])
        point = neighbors[row, kept[i]]
        total += distance
        squares += (distance - mean) * (distance - mean)
        once = once and labels[point] == UNASSIGNED
        if once:
            labels[point] = now.cluster
            queue[n_before + i] = point
    now.tail = n_before + n_kept
    now.std = np.sqrt((now.std * now.std * n_before + squares) / now.tail)
    now.mean = (mean * n_before + total) / now.tail
    return once


@part
def _close_cluster(now, queue, closed):
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
