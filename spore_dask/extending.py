"""Longer rows for some points of an approximate graph: what comes behind the rows that it has.

A row stays as it is: entries are appended that come behind its last one, by distance and input row,
so that the graph stays one graph, however much of it is extended. They are the nearest among the
points of the cells that a point probes and the neighbours of its neighbours.
Reads points and the graph, writes nothing: completes rows at hand. Memory: as a step of `probing`,
for the points that are extended; shards of the graph are held in the cache.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from spore_dask import probing
from spore_dask.costs import POINTS_PER_PROBE
from spore_dask.kernels.probes import Lists, Part
from spore_dask.points import CACHE, Points
from spore_dask.probing import HARD, Effort, HeadsOf, Index, Start
from spore_dask.searching import leaders_of
from spore_dask.shards import Entries, GraphRows

Numbers = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Extension:
    """How rows are extended."""

    index: Index
    heads_of: HeadsOf
    """What brings the neighbours of others."""
    k: int
    """Neighbours that rows are to have."""
    n_probes: int
    """Cells that each point probes."""

    def rows(
        self, home: int, places: Numbers, heads: NDArray[np.integer]
    ) -> tuple[NDArray[np.integer], NDArray[np.floating]]:
        """Find what comes behind the rows of some points of a partition.

        Parameters
        ----------
        home : int
            The partition.
        places : int64 array (n,)
            Where in it the points are, ascending.
        heads : integer array (n, h + 1)
            Their rows: each point's own number, then its neighbours, fewer than k.

        Returns
        -------
        neighbors, distances : arrays (n, k - h)
            By (distance, input row), all of them behind the last of the head.
        """
        n_points, n_more = int(self.index.firsts[-1]), self.k + 1 - heads.shape[1]
        neighbors = np.empty((len(places), n_more), heads.dtype)
        distances = np.empty(neighbors.shape, self.index.part(home).points.dtype)
        is_full = np.zeros(len(places), np.bool_)
        width, step = self.k + probing.MARGIN, len(places)
        while not is_full.all():
            left = np.flatnonzero(~is_full)
            for some in (left[first : first + step] for first in range(0, len(left), step)):
                found = self._behind(home, places[some], heads[some], width)
                is_full[some], neighbors[some], distances[some] = found
            if width >= n_points and not is_full.all():
                raise RuntimeError("a row of the neighbour graph is not full")
            width, step = 2 * width, max(1, step // 2)  # what heads have missed took the room
        return neighbors, distances

    def _nearest(self, home: int, places: Numbers, heads: NDArray[np.integer], width: int) -> Lists:
        """Return the nearest that are found of the points that are not in the heads."""
        own, n_head = some_points(self.index.part(home), places), heads.shape[1] - 1
        lists = probing.probe_beside(self.index, home, own, heads, self.n_probes, width)
        effort = Effort(max(n_head, HARD.n_near), n_head, HARD.n_candidates)
        for cells, rows in probing.passes(own):
            here = Lists(*(array[rows] for array in lists))
            known = np.concatenate([heads[rows], here.numbers], axis=1)
            near = known[:, 1 : effort.n_near + 1]
            near = np.where(near < 0, known[:, 1:2], near)  # a list may have an end
            start = Start(near, np.ones(near.shape, np.bool_), known)
            probing.join_cells(self.index, cells, here, start, self.heads_of, effort)
        return lists

    def _behind(
        self, home: int, places: Numbers, heads: NDArray[np.integer], width: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.integer], NDArray[np.floating]]:
        """Return where enough comes behind the last of a head, and what."""
        lists = self._nearest(home, places, heads, width)
        both = np.concatenate([heads[:, 1:], lists.numbers], axis=1)
        ranked, distances = probing.measure_rows(self.index, home, both, places)
        last = np.argmax(ranked == heads[:, -1:], axis=1)
        wanted = last[:, None] + np.arange(1, self.k + 2 - heads.shape[1])
        within = np.minimum(wanted, both.shape[1] - 1)
        behind = np.take_along_axis(ranked, within, axis=1)
        full = (wanted[:, -1] < both.shape[1]) & (behind[:, -1] >= 0)
        return full, behind, np.take_along_axis(distances, within, axis=1)


def some_points(part: Part, places: Numbers) -> Part:
    """Return some points of a partition in its cells, with numbers that no point has."""
    starts = np.searchsorted(places, part.starts)
    full = np.flatnonzero(np.diff(starts))
    starts = np.append(starts[full], len(places))
    return Part(-1 - len(places), part.points[places], starts, part.centers[full])


def extend_points(
    points: Points,
    graph: GraphRows,
    n_probes: int,
    numbers: Numbers,
    into: Entries,
    places: Numbers | None = None,
) -> int:
    """Complete the rows of some points, which begin as those of the graph.

    Parameters
    ----------
    points : Points
        In cells around centres.
    graph : GraphRows
        Of these points, with fewer neighbours than the rows are to have.
    n_probes : int
        Cells that each point probes.
    numbers : int64 array (n,)
        The points, ascending.
    into : Entries
        The rows; their first entries, as many as the graph has, are there.
    places : int64 array (n,), optional
        Which row each point has; default: one after another.

    Returns about how many coordinates were compared.
    """
    places = np.arange(len(numbers)) if places is None else places
    extension = Extension(points, functools.partial(_heads_of, graph), into.k, n_probes)
    ends = np.searchsorted(numbers, points.firsts)
    n_extended = first_copy = int(ends[-1])
    for p in np.flatnonzero(np.diff(ends)).tolist():
        here = slice(ends[p], ends[p + 1])
        _append(extension, graph, p, numbers[here], into, places[here])
    for leader, run in leaders_of(points, numbers[first_copy:]):
        p = points.partition_of(leader)
        _append(extension, graph, p, np.array([leader]), into, places[first_copy:][run])
        n_extended += 1
    n_met = n_probes * POINTS_PER_PROBE + graph.k**2
    return n_extended * n_met * points.n_columns


def _append(
    extension: Extension,
    graph: GraphRows,
    p: int,
    numbers: Numbers,
    into: Entries,
    places: Numbers,
) -> None:
    """Complete the rows of points of a partition; those of one may be completed at many places."""
    first = int(extension.index.firsts[p])
    found = extension.rows(p, numbers - first, neighbors_of(graph, numbers))
    for rows, more in zip(into, found, strict=True):
        rows[places, graph.k + 1 :] = more


def _heads_of(
    graph: GraphRows, wanted: NDArray[np.integer], n_heads: int
) -> tuple[NDArray[np.integer], NDArray[np.bool_]]:
    """Return the first neighbours of some points, ascending; all of them count as fresh."""
    heads = np.ascontiguousarray(neighbors_of(graph, wanted)[:, 1 : n_heads + 1])
    return heads, np.ones(heads.shape, np.bool_)


def neighbors_of(graph: GraphRows, numbers: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return the neighbours of some points, ascending, each after the point itself."""
    found = np.empty((len(numbers), graph.k + 1), probing.number_dtype(graph.n_points))
    shards = numbers // graph.shard_rows
    for shard in np.unique(shards).tolist():
        first, _ = graph.span(shard)
        (rows,) = CACHE.get((graph.folder.url, shard), functools.partial(_read, graph, shard))
        here = shards == shard
        found[here] = rows[numbers[here] - first]
    return found


def _read(graph: GraphRows, shard: int) -> tuple[NDArray[np.integer]]:
    """Read the neighbours of the points of a shard."""
    return (graph.array("neighbors").read(*graph.span(shard)),)
