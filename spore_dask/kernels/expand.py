"""Expansion: grow clusters breadth-first from seeds, over rows that may arrive in pieces.

Rows live in slots. A slot holds one page of consecutive rows, and `slot_of_page` says which slot
holds a page, or -1. When the kernel needs a row that no slot holds, it returns the number of its
page with everything else saved in `state`, and goes on where it was when called again. A graph in
memory is one page in one slot. Where rows are too short for points that have copies, those points
have longer rows in slots of their own.

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
        ("n_steps", np.int64),  # points to expand before a pause
        ("width", np.int64),  # columns of a row that count
    ]
)
"""What stays the same during one expansion."""

DONE = -1
REPEATED = -2
PAUSED = -3
MISSING = -4
LOOKAHEAD = 4
UNASSIGNED = -1


class Slots(NamedTuple):
    """The rows of the graph that are at hand."""

    slot_of_page: NDArray[np.integer]
    """The slot of each page, or -1 for a page that is not at hand."""
    page_rows: int
    """Rows of a page."""
    neighbors: NDArray[np.integer]
    """(slots * page_rows, columns): the rows of one slot after those of another."""
    distances: NDArray[np.floating]
    """(slots * page_rows, columns)"""


class Longer(NamedTuple):
    """Longer rows of the points that have copies."""

    points: NDArray[np.integer]
    """These points, ascending; empty where all rows are long enough."""
    slots: Slots
    """Their rows, in the order of `points`; pages are numbered from those of the graph on."""


def no_longer_rows(number_dtype: Any, dtype: Any) -> Longer:
    """Return what to give where all rows are long enough."""
    neighbors, distances = np.empty((0, 1), number_dtype), np.empty((0, 1), dtype)
    slots = Slots(np.empty(0, np.int32), 1, neighbors, distances)
    return Longer(np.empty(0, number_dtype), slots)


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
def expand(settings, seeds, slots, longer, growth):
    """Grow a cluster from each seed in turn that no earlier cluster has taken.

    Parameters
    ----------
    settings : array of one SETTINGS record
    seeds : integer array
        The next piece of the seed order.
    slots : Slots
    longer : Longer
    growth : Growth
        Read and written.

    Returns
    -------
    int
        -1 when every seed of the piece is done, -2 when the row of the point at the head of the
        queue names a point twice, -3 for a pause, -4 when that point has copies but no longer row,
        else the page that must be brought first.
    """
    slot_of_page, page_rows, neighbors, distances = slots
    longer_points, longer_slots = longer
    longer_slot_of_page, longer_page_rows, longer_neighbors, longer_distances = longer_slots
    state, labels, queue, closed = growth
    now, setting = state[0], settings[0]
    reach = setting.expansion_neighbors
    width = max(neighbors.shape[1], longer_neighbors.shape[1])
    kept, kept_distances = np.empty(width, queue.dtype), np.empty(width, np.float64)
    steps_left = setting.n_steps
    while True:
        if now.head == now.tail and not _begin_cluster(now, setting, seeds, labels, queue):
            return DONE
        if now.seed + LOOKAHEAD < seeds.size:
            soon = _row_of(slot_of_page, page_rows, seeds[now.seed + LOOKAHEAD])
            _prefetch(neighbors, distances, soon, reach)
        while now.head < now.tail:
            if steps_left == 0:
                return PAUSED
            point = queue[now.head]
            row = _row_of(slot_of_page, page_rows, point)
            if row < 0:
                return np.int64(point) // page_rows
            if now.head + LOOKAHEAD < now.tail:
                soon = _row_of(slot_of_page, page_rows, queue[now.head + LOOKAHEAD])
                _prefetch(neighbors, distances, soon, reach)
            if longer_points.size > 0 and distances[row, 1] <= 0:
                place = np.searchsorted(longer_points, point)
                if place == longer_points.size or longer_points[place] != point:
                    return MISSING
                row = _row_of(longer_slot_of_page, longer_page_rows, place)
                if row < 0:
                    return slot_of_page.size + place // longer_page_rows
                n_kept = _choose(
                    now, setting, longer_neighbors, longer_distances, row, labels, kept,
                    kept_distances,
                )  # fmt: skip
            else:
                n_kept = _choose(
                    now, setting, neighbors, distances, row, labels, kept, kept_distances
                )
            enough = n_kept >= setting.min_retained
            if enough and not _admit(now, kept, kept_distances, n_kept, labels, queue):
                return REPEATED
            now.head += 1
            steps_left -= 1
        _close_cluster(now, queue, closed)


# The parts of `expand` take arrays one by one and are inlined: to pass them on, or to take them
# out of a tuple in a loop, costs more than what the parts do.


@part
def _row_of(slot_of_page, page_rows, point):
    """Return where the row of a point is at hand, or -1."""
    page = np.int64(point) // page_rows
    slot = np.int64(slot_of_page[page])
    return np.int64(point) + (slot - page) * page_rows if slot >= 0 else -1


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
def _choose(now, setting, neighbors, distances, row, labels, kept, kept_distances):
    """List the neighbours in a row that are free and fit the cluster; return how many."""
    mean = now.mean
    tolerance = setting.z * now.std
    width = min(setting.width, distances.shape[1])
    end = min(count_copies(distances, row, width) + setting.expansion_neighbors, width)
    n_kept = 0
    for j in range(end):
        point, distance = neighbors[row, j], np.float64(distances[row, j])
        if labels[point] == UNASSIGNED and distance - mean <= tolerance:
            kept[n_kept] = point
            kept_distances[n_kept] = distance
            n_kept += 1
    return n_kept


@part
def _admit(now, kept, kept_distances, n_kept, labels, queue):
    """Queue the chosen neighbours, and recalibrate the cluster; False if one is named twice."""
    mean = now.mean
    total = 0.0
    squares = 0.0
    n_before = now.tail
    once = True
    for i in range(n_kept):
        distance, point = kept_distances[i], kept[i]
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
