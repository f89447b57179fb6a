"""Longer rows for some points of an approximate graph: what comes behind the rows that it has.

A row stays as it is, and goes on with the nearest that are not in it and not nearer than its last
entry, so that each point has one row, with fewer or more neighbours. They are found among the
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
from spore_dask.probing import HARD, HeadsOf, Index, Start
from spore_dask.searching import leaders_of
from spore_dask.shards import Entries, GraphRows
from spore_dask.store import Limits

Numbers = NDArray[np.int64]
WIDER = (1, 4, 16)
"""Times the length of a row that is looked for, one after another, where heads have missed much."""


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
            By (distance, input row); none is nearer than the last of the head, unless this has
            missed so many that what is behind it is not in reach: then, the nearest.
        """
        neighbors = np.empty((len(places), self.k + 1 - heads.shape[1]), heads.dtype)
        distances = np.empty(neighbors.shape, self.index.part(home).points.dtype)
        is_behind = np.zeros(len(places), np.bool_)
        for times in WIDER:
            left, step = np.flatnonzero(~is_behind), max(1, len(places) // times)
            for some in (left[first : first + step] for first in range(0, len(left), step)):
                width = times * (self.k + probing.MARGIN)
                found = self._behind(home, places[some], heads[some], width)
                is_behind[some], neighbors[some], distances[some] = found
        if len(neighbors) and neighbors.min() < 0:
            raise RuntimeError("a row of the neighbour graph is not full")
        return neighbors, distances

    def _behind(
        self, home: int, places: Numbers, heads: NDArray[np.integer], width: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.integer], NDArray[np.floating]]:
        """Return where enough comes behind the last of a head, and what; elsewhere the nearest."""
        n_more = self.k + 1 - heads.shape[1]
        lists = self._nearest(home, places, heads, width)
        found, distances = probing.measure_rows(self.index, home, lists.numbers, places)
        last = probing.measure_rows(self.index, home, heads[:, -1:], places)[1]
        n_nearer = (distances < last).sum(axis=1)
        enough = n_nearer + n_more <= (found >= 0).sum(axis=1)
        wanted = np.where(enough, n_nearer, 0)[:, None] + np.arange(n_more)
        behind = (np.take_along_axis(array, wanted, axis=1) for array in (found, distances))
        return enough, *behind

    def _nearest(self, home: int, places: Numbers, heads: NDArray[np.integer], width: int) -> Lists:
        """Return the nearest that are found of the points that are not in the heads."""
        own = some_points(self.index.part(home), places)
        lists = probing.probe_beside(self.index, home, own, heads, self.n_probes, width)
        for cells, rows in probing.passes(own):
            here = Lists(*(array[rows] for array in lists))
            known = np.concatenate([heads[rows], here.numbers], axis=1)
            near = known[:, 1 : HARD.n_near + 1]
            near = np.where(near < 0, known[:, 1:2], near)  # a list may have an end
            start = Start(near, np.ones(near.shape, np.bool_), known)
            probing.join_cells(self.index, cells, here, start, self.heads_of, HARD)
        return lists


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
    n_searched = int(points.firsts[-1])
    heads_of = functools.partial(_heads_of, graph, n_searched)
    extension = Extension(points, heads_of, into.k, n_probes)
    first_copy = int(np.searchsorted(numbers, n_searched))
    leaders = list(leaders_of(points, numbers[first_copy:]))
    found = _extended(extension, graph, numbers[:first_copy])
    shared = _extended(extension, graph, np.array([leader for leader, _ in leaders], np.int64))
    for rows, own, theirs in zip(into, found, shared, strict=True):
        rows[places[:first_copy], graph.k + 1 :] = own
        for i, (_, run) in enumerate(leaders):
            rows[places[first_copy:][run], graph.k + 1 :] = theirs[i]
    n_met = n_probes * POINTS_PER_PROBE + HARD.n_near * min(graph.k, HARD.n_heads)
    return (first_copy + len(leaders)) * n_met * points.n_columns


def _extended(
    extension: Extension, graph: GraphRows, numbers: Numbers
) -> tuple[NDArray[np.integer], NDArray[np.floating]]:
    """Return what comes behind the rows of some points, in any partitions."""
    order = np.argsort(numbers)
    ends = np.searchsorted(numbers[order], extension.index.firsts)
    n_more = extension.k - graph.k
    neighbors = np.empty((len(numbers), n_more), probing.number_dtype(graph.n_points))
    distances = np.empty(neighbors.shape, graph.dtype)
    for p in np.flatnonzero(np.diff(ends)).tolist():
        here = order[ends[p] : ends[p + 1]]
        places = numbers[here] - extension.index.firsts[p]
        heads = neighbors_of(graph, numbers[here], slice(None))
        _refuse_copies(graph, heads, int(extension.index.firsts[-1]))
        neighbors[here], distances[here] = extension.rows(p, places, heads)
    return neighbors, distances


def _heads_of(
    graph: GraphRows, n_searched: int, wanted: NDArray[np.integer], n_heads: int
) -> tuple[NDArray[np.integer], NDArray[np.bool_]]:
    """Return the first neighbours of some points, ascending; all of them count as fresh."""
    heads = neighbors_of(graph, wanted, slice(1, n_heads + 1))
    _refuse_copies(graph, heads, n_searched)
    return heads, np.ones(heads.shape, np.bool_)


def _refuse_copies(graph: GraphRows, heads: NDArray[np.integer], n_searched: int) -> None:
    """Refuse neighbours that are copies: these share neighbours, and are nobody's."""
    if why := Limits(0, n_searched).broken_by(heads):
        raise graph.folder.damaged("array", "neighbors", why)


def neighbors_of(
    graph: GraphRows, numbers: NDArray[np.integer], entries: slice
) -> NDArray[np.integer]:
    """Return some entries of the rows of points, ascending."""
    n_entries = len(range(graph.k + 1)[entries])
    found = np.empty((len(numbers), n_entries), probing.number_dtype(graph.n_points))
    shards = numbers // graph.shard_rows
    for shard in np.unique(shards).tolist():
        first, _ = graph.span(shard)
        (rows,) = CACHE.get((graph.folder.url, shard), functools.partial(_read, graph, shard))
        here = slice(*np.searchsorted(shards, (shard, shard + 1)))
        found[here] = rows[numbers[here] - first, entries]
    return found


def _read(graph: GraphRows, shard: int) -> tuple[NDArray[np.integer]]:
    """Read the neighbours of the points of a shard."""
    return (graph.array("neighbors").read(*graph.span(shard)),)
