"""Approximate: neighbour lists from probes (or pynndescent), refined until the recall is enough.

Steps, each a list of tasks with one partition (or shard) each: the truth of a sample; lists from
the cells that points probe; then rounds, in which edges are offered to their other ends (through
files with a bucket for each partition) and neighbours of neighbours are measured; at last direct
distances, written as shards of the graph, and where longer rows are asked for, those of points that
have copies. Rounds go on until the recall of the sample reaches the target or hardly grows.
Reads the points; writes `neighbors`, `distances` and `rows`, `longer/`, and what is known of the
sample.
Memory: one partition and one other, the lists of the first with their buffers and candidates, the
first entries of the lists of its neighbours, and the cache.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask import probing
from spore_dask.engine import Engine
from spore_dask.extending import extend_points
from spore_dask.kernels import joins
from spore_dask.kernels.probes import Lists
from spore_dask.memory import MOST_PROBES, Shape
from spore_dask.orders import end_exchange, keep_counts, places_of, plan_exchange
from spore_dask.points import CACHE, Points
from spore_dask.recall import sampled_recall
from spore_dask.shards import (
    GraphRows,
    Longer,
    Shard,
    create_graph,
    empty_shard,
    new_entries,
    new_shard,
    write_longer,
    write_shard,
)
from spore_dask.store import FINITE, Folder, Limits, RowFiles
from spore_dask.tasks import Receipt, Work, run_stage, run_work
from spore_dask.truths import Truth, has_truth, read_truth, write_truth

SAMPLED_POINTS = 512
"""Points that are searched exactly; their recall decides on rounds, and is reported."""
TRUTHS_AT_HAND = 32
"""Partitions whose nearest of these are compared at a time."""


@dataclasses.dataclass(frozen=True)
class ApproximateSpec:
    """What the search is asked for."""

    points: Points
    shape: Shape
    by_descent: bool
    """Whether the first lists come from pynndescent."""
    recall_target: float
    seed: int
    cache_nbytes: int
    needs_nbytes: int

    @property
    def width(self) -> int:
        """Entries of a list."""
        return min(self.shape.k + probing.MARGIN, int(self.points.firsts[-1]) - 1)


class Run:
    """One approximate search: its steps, in order."""

    def __init__(self, engine: Engine, spec: ApproximateSpec, folder: Folder) -> None:
        self.engine, self.spec, self.folder = engine, spec, folder
        self.full = probing.full_partitions(spec.points)

    def each(self, name: str, task: Any, *arguments: Any) -> list[Receipt]:
        """Run a task for every partition that is not empty."""
        bound = functools.partial(task, self.spec, self.folder, *arguments)
        return run_work(
            self.engine, self.folder, Work(name, bound, self.full, self.spec.needs_nbytes)
        )

    def build(self) -> Receipt:
        """Search, and return what was found."""
        begun = self._begin()
        n_probes: int = begun["n_probes"]
        self.each("probe", _descend if self.spec.by_descent else _probe, n_probes)
        recall, error = self._exchange(0)
        number, effort, gain = 0, None, 1.0
        while number < probing.MAX_ROUNDS and recall < self.spec.recall_target:
            effort = probing.next_effort(effort, n_probes, gain)
            if effort is None:
                break
            last, number = recall, number + 1
            self.each(f"join-{number}", _join, number, effort)
            self.folder.remove(f"merged-{number - 1}")
            recall, error = self._exchange(number)
            gain = recall - last
        create_graph(self.folder, self.spec.shape, np.dtype(self.spec.points.dtype))
        finish = functools.partial(_finish, self.spec, self.folder, number)
        shards = range(self.spec.shape.n_shards)
        run_work(self.engine, self.folder, Work("finish", finish, shards, self.spec.needs_nbytes))
        self.folder.remove(f"merged-{number}")
        found = begun | {"n_rounds": number, "recall": recall, "error": error}
        return found | {"n_longer": self._lengthen(n_probes)}

    def _lengthen(self, n_probes: int) -> list[int]:
        """Write the longer rows of points that have copies; return how many each shard has."""
        shape = self.spec.shape
        if shape.longest_k == shape.k:
            return [0] * shape.n_shards
        longer = functools.partial(_longer, self.spec, self.folder, n_probes)
        work = Work("longer", longer, range(shape.n_shards), self.spec.needs_nbytes)
        return [r["n_longer"] for r in run_work(self.engine, self.folder, work)]

    def _begin(self) -> Receipt:
        """Search the sample exactly; return how many cells to probe, and the reach of a point."""
        if not has_truth(self.folder):
            self.each("draw", _draw)
            form = _sample_form(self.spec) | {"shape": (None, self.spec.points.n_columns)}
            drawn = [self.folder.child("drawn").read_array(str(p), **form) for p in self.full]
            self.folder.write_array("sample", np.concatenate(drawn))
            self.each("truth", _meet_all)
            best = self._nearest()
            sample = self.folder.read_array("sample", **_sample_form(self.spec))
            k = self.spec.shape.k
            ranks = probing.probe_ranks(self.spec.points, sample, best.numbers[:, :k])
            enough = {"n_probes": probing.enough_probes(ranks), "reach": probing.reach_of(ranks)}
            self.folder.write_json("probes.json", enough)
            write_truth(self.folder, Truth(_drawn(self.spec), best.squares, best.numbers))
        self.folder.remove("drawn")
        self.folder.remove("truths")
        begun: Receipt = self.folder.read_json("probes.json")
        with self.folder.understood("probes.json"):
            if not 1 <= begun["n_probes"] <= MOST_PROBES:
                raise ValueError(f"n_probes is {begun['n_probes']}")
        return begun

    def _nearest(self) -> Lists:
        """Return the nearest of the sampled points among all, from some partitions at a time."""
        best: list[Lists] = []
        size = len(_drawn(self.spec)), self.spec.shape.longest_k + probing.MARGIN
        for first in range(0, len(self.full), TRUTHS_AT_HAND):
            some = self.full[first : first + TRUTHS_AT_HAND]
            found = [_read_lists(self.spec, self.folder.child("truths"), p, size) for p in some]
            best = [probing.nearest_of([*best, *found], self.spec.shape.longest_k)]
        return best[0]

    def _exchange(self, number: int) -> tuple[float, float]:
        """Offer edges to their other ends; return the sampled recall and its standard error."""
        self.each(f"edges-{number}", _turn, number)
        n_parts, edges = len(self.full), self.folder.child(f"edges-{number}")
        plan_exchange(edges, n_parts, n_parts)
        receipts = self.each(f"merge-{number}", _merge, number)
        end_exchange(edges)
        self.folder.remove(f"edges-{number}")
        self.folder.remove(f"lists-{number}")
        shares = np.concatenate([r["shares"] for r in receipts])
        recall = sampled_recall(shares)
        return recall.sampled, recall.error


def search_approximately(engine: Engine, folder: Folder, spec: ApproximateSpec) -> Receipt:
    """Find most of the neighbours of every point, or take up what was done before."""
    return run_stage(engine, folder, lambda folder: Run(engine, spec, folder).build())


def _drawn(spec: ApproximateSpec) -> NDArray[np.int64]:
    """Return the numbers of the sampled points, ascending."""
    n_points = int(spec.points.firsts[-1])
    if n_points <= SAMPLED_POINTS:
        return np.arange(n_points)
    return np.unique(np.random.default_rng(spec.seed).integers(0, n_points, SAMPLED_POINTS))


def _sample_form(spec: ApproximateSpec) -> dict[str, Any]:
    """Return what the coordinates of the sampled points must be."""
    shape = len(_drawn(spec)), spec.points.n_columns
    return {"shape": shape, "dtype": spec.points.dtype, "limits": FINITE}


def _draw(spec: ApproximateSpec, folder: Folder, p: int) -> Receipt:
    """Write the coordinates of the sampled points of a partition."""
    numbers, firsts = _drawn(spec), spec.points.firsts
    first, last = np.searchsorted(numbers, [firsts[p], firsts[p + 1]])
    places = numbers[first:last] - firsts[p]
    folder.child("drawn").write_array(str(p), spec.points.part(p).points[places])
    return {"n_drawn": len(places)}


def _meet_all(spec: ApproximateSpec, folder: Folder, p: int) -> Receipt:
    """Write the nearest of every sampled point among the points of a partition."""
    sample = folder.read_array("sample", **_sample_form(spec))
    lists = probing.meet_all(spec.points, p, sample, _drawn(spec), spec.shape.longest_k)
    _write_lists(folder.child("truths"), p, lists)
    return {}


def _probe(spec: ApproximateSpec, folder: Folder, n_probes: int, p: int) -> Receipt:
    """Write the lists of a partition from the cells that its points probe."""
    CACHE.budget_nbytes = spec.cache_nbytes
    lists = probing.probe(spec.points, p, n_probes, spec.width)
    _write_lists(folder.child("lists-0"), p, lists)
    return {}


def _descend(spec: ApproximateSpec, folder: Folder, n_probes: int, p: int) -> Receipt:
    """Write the lists of a partition that pynndescent finds."""
    CACHE.budget_nbytes = spec.cache_nbytes
    lists = probing.descend(spec.points, p, n_probes, spec.width, spec.seed)
    _write_lists(folder.child("lists-0"), p, lists)
    return {}


def _turn(spec: ApproximateSpec, folder: Folder, number: int, p: int) -> Receipt:
    """Write the edges of a partition turned round, with a bucket for each partition."""
    points, source = spec.points, folder.child(f"lists-{number}")
    lists = _read_lists(spec, source, p)
    full = probing.full_partitions(points)
    counts = np.zeros(len(full), np.int64)
    buckets: list[tuple[NDArray[Any], ...]] = []
    for q in sorted({p, *probing.partitions_of(points, lists.numbers)}):
        limits = source.child(str(q)).read_array("limits", shape=(int(points.sizes()[q]),))
        edges = joins.reverse_edges(lists, int(points.firsts[p]), limits, int(points.firsts[q]))
        buckets.append(edges)
        counts[bisect.bisect_left(full, q)] = len(edges[0])
    place, target = bisect.bisect_left(full, p), folder.child(f"edges-{number}")
    for name, parts in zip(EDGES, zip(*buckets, strict=True), strict=True):
        target.child("buckets").write_rows(f"{place}.{name}", np.concatenate(parts))
    keep_counts(target, place, counts)
    return {"n_edges": int(counts.sum())}


EDGES = ("targets", "sources", "squares")


def _merge(spec: ApproximateSpec, folder: Folder, number: int, p: int) -> Receipt:
    """Offer the edges that end in a partition to its lists, and write these."""
    lists = _read_lists(spec, folder.child(f"lists-{number}"), p)
    full, source = probing.full_partitions(spec.points), folder.child(f"edges-{number}")
    edges_here = places_of(source, bisect.bisect_left(full, p), len(full), len(full))
    dtypes = lists.numbers.dtype, lists.numbers.dtype, lists.squares.dtype
    first, last, n_searched = spec.points.firsts[[p, p + 1, -1]].tolist()
    buckets, files = source.child("buckets"), []
    for name, dtype in zip(EDGES, dtypes, strict=True):
        names = tuple(f"{i}.{name}" for i in range(len(full)))
        limits = None if name == "squares" else Limits(0, n_searched)
        files.append(RowFiles(buckets, names, edges_here.starts, (), dtype, limits))
    for begin, end in zip(edges_here.firsts.tolist(), edges_here.lasts.tolist(), strict=True):
        if begin < end:
            targets, *others = (each.read(begin, end) for each in files)
            if why := Limits(first, last).broken_by(targets):
                raise buckets.damaged("files", "targets", why)
            joins.merge_edges(lists, first, targets, *others)
    _write_lists(folder.child(f"merged-{number}"), p, lists)
    numbers = np.arange(spec.points.firsts[p], spec.points.firsts[p + 1])
    truth, places = read_truth(folder, int(spec.points.firsts[-1])).among(numbers)
    shares = truth.shares(lists.numbers[places], lists.squares[places], spec.shape.k)
    return {"shares": shares.tolist()}


def _join(
    spec: ApproximateSpec, folder: Folder, number: int, effort: probing.Effort, p: int
) -> Receipt:
    """Offer neighbours of neighbours to the lists of a partition, and write new ones."""
    CACHE.budget_nbytes = spec.cache_nbytes
    CACHE.forget(folder.child(f"merged-{number - 2}").url)
    source = folder.child(f"merged-{number - 1}")
    heads_of = functools.partial(_heads_of, spec, source)
    lists = _read_lists(spec, source, p)
    joined = probing.join_partition(spec.points, p, lists, heads_of, effort)
    _write_lists(folder.child(f"lists-{number}"), p, joined)
    return {}


def _heads_of(
    spec: ApproximateSpec, source: Folder, wanted: NDArray[np.integer], n_heads: int
) -> tuple[NDArray[np.integer], NDArray[np.bool_]]:
    """Return the first entries of the lists of some points, and which of them are fresh."""
    heads, fresh, points = [], [], spec.points
    for q, here in _by_partition(points, wanted):
        key = source.url, q
        lists: Lists = CACHE.get(key, functools.partial(_read_lists, spec, source, q))
        places = wanted[here] - points.firsts[q]
        heads.append(lists.numbers[places, :n_heads])
        fresh.append(lists.fresh[places, :n_heads])
    return np.concatenate(heads), np.concatenate(fresh)


def _by_partition(points: Points, numbers: NDArray[Any]) -> list[tuple[int, slice]]:
    """Return the partitions of ascending numbers, and where their numbers are."""
    edges = np.searchsorted(numbers, points.firsts)
    starts, ends = edges[:-1].tolist(), edges[1:].tolist()
    return [(q, slice(a, b)) for q, (a, b) in enumerate(zip(starts, ends, strict=True)) if a < b]


def _write_lists(folder: Folder, p: int, lists: Lists) -> None:
    """Write the lists of one partition."""
    target = folder.child(str(p))
    for name, array in lists._asdict().items():
        target.write_array(name, array)
    target.write_array("limits", np.ascontiguousarray(lists.squares[:, -1]))


def _read_lists(
    spec: ApproximateSpec, folder: Folder, p: int, size: tuple[int, int] | None = None
) -> Lists:
    """Read the lists of one partition, or as many of another width."""
    source, n_searched = folder.child(str(p)), int(spec.points.firsts[-1])
    size = size or (int(spec.points.sizes()[p]), spec.width)
    dtype, limits = probing.number_dtype(n_searched), Limits(-1, n_searched)
    return Lists(
        source.read_array("numbers", shape=size, dtype=dtype, limits=limits),
        source.read_array("squares", shape=size, dtype=spec.points.dtype),
        source.read_array("fresh", shape=size, dtype=np.bool_),
    )


def _finish(spec: ApproximateSpec, folder: Folder, number: int, shard_number: int) -> Receipt:
    """Write one shard of the graph, with direct distances."""
    CACHE.budget_nbytes = spec.cache_nbytes
    CACHE.forget(folder.child(f"merged-{number - 1}").url)
    points = spec.points
    shard = new_shard(spec.shape, points.dtype, shard_number)
    for p, first, last in points.overlapping(shard.first, shard.last):
        lists = _read_lists(spec, folder.child(f"merged-{number}"), p)
        rows = slice(first, last)
        place = int(points.firsts[p]) + first - shard.first
        _write_rows(points, p, lists.numbers[rows], rows, shard, place)
        shard.rows[place : place + last - first] = points.rows(p)[rows]
    for leader, copies in points.copies_in(shard.first, shard.last):
        p = points.partition_of(leader)
        row = leader - int(points.firsts[p])
        lists = _read_lists(spec, folder.child(f"merged-{number}"), p)
        one = empty_shard(leader, 1, spec.shape, points.dtype)
        _write_rows(points, p, lists.numbers[row : row + 1], slice(row, row + 1), one, 0)
        shard.share(copies, one, points.copy_rows(*copies))
    write_shard(folder, shard)
    return {"n_rows": len(shard.rows)}


def _write_rows(
    points: Points, p: int, numbers: NDArray[Any], rows: slice, shard: Shard, place: int
) -> None:
    """Fill some rows of a shard with lists of a partition, by direct distances."""
    ranked, distances = probing.measure_rows(points, p, numbers, rows)
    if ranked[:, : shard.k].min() < 0:
        raise RuntimeError("a row of the neighbour graph is not full")
    into = slice(place, place + len(ranked))
    shard.neighbors[into, 1:] = ranked[:, : shard.k]
    shard.distances[into, 1:] = distances[:, : shard.k]


def _longer(spec: ApproximateSpec, folder: Folder, n_probes: int, number: int) -> Receipt:
    """Write the longer rows of the points of a shard that have copies."""
    CACHE.budget_nbytes = spec.cache_nbytes
    points, shape = spec.points, spec.shape
    graph = GraphRows.of_shape(folder, shape, points.dtype)
    first, last = graph.span(number)
    numbers = first + np.flatnonzero(graph.array("distances").read(first, last)[:, 1] <= 0)
    if len(numbers):
        entries = new_entries(numbers, shape.n_points, shape.longest_k, points.dtype)
        graph.fill(number, numbers, entries)
        extend_points(points, graph, n_probes, numbers, entries)
        write_longer(folder, number, Longer(entries.neighbors[:, 0].copy(), *entries))
    return {"n_longer": len(numbers)}
