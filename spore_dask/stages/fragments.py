"""Fragments: rows with K neighbours for the points outside of large clusters, in density order.

First every task finds the fragments of one shard of the graph, searches for their neighbours,
extends their approximate rows, or cuts the rows of a graph that has as many, and writes them, one
file with a bucket for each range of the order; then every task gathers the buckets of one piece, a
few ranges. Reads the points, the graph, the order and the clusters; writes `rows/<piece>.points`,
`.neighbors` and `.distances`, and for a while `buckets/`.
Memory: the fragments of one shard and what a search takes, or those of one piece.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spore_dask.engine import Engine
from spore_dask.extending import extend_points
from spore_dask.fragments import ARRAYS, Fragments, open_skeletons
from spore_dask.kernels.order import find_members
from spore_dask.memory import Shape
from spore_dask.orders import (
    Order,
    Places,
    end_exchange,
    places_of,
    plan_exchange,
    range_sizes,
    write_counts,
)
from spore_dask.pilot import EXACT, PRODUCTS
from spore_dask.points import CACHE, Points
from spore_dask.recall import sampled_recall
from spore_dask.searching import compare_points, search_points
from spore_dask.shards import Entries, GraphRows, new_entries
from spore_dask.store import Folder, RowFiles
from spore_dask.tasks import MARKER, Receipt, Work, run_stage, run_work
from spore_dask.truths import has_truth, read_truth


class Rows(NamedTuple):
    """Rows of some points of a shard that are to be filled."""

    numbers: NDArray[np.int64]
    """The points, ascending."""
    into: Entries
    places: NDArray[np.int64]
    """Which row each of them has."""


@dataclasses.dataclass(frozen=True)
class FragmentSpec:
    """What the rows of fragments are asked for."""

    points: Points
    graph: GraphRows
    search: str
    """How the graph was searched, one of those in `pilot`."""
    n_probes: int
    """Cells that each point probed there; 0 where the search was exact."""
    shape: Shape
    order: Order
    skeletons: Folder
    """Has `skeletons`, the cluster of each point."""
    k: int
    """Neighbours of a fragment, at most the longest_k of the shape."""
    cache_nbytes: int
    needs_nbytes: int


def gather_fragments(
    engine: Engine, folder: Folder, spec: FragmentSpec, large: NDArray[np.int64]
) -> Fragments:
    """Write the rows of all fragments in density order, or take up what was done before.

    Fragments are the points that are in none of the `large` clusters, numbers that ascend.
    """
    if spec.k > spec.shape.longest_k:  # partitions keep no more copies of heavy points than that
        raise ValueError(f"k is {spec.k}, but longest_k is {spec.shape.longest_k}")
    summary = run_stage(engine, folder, functools.partial(_build, engine, spec, large))
    end_exchange(folder)
    found = Fragments.from_summary(folder, summary)
    known = spec.graph.n_points, spec.k, spec.graph.dtype
    if (found.n_points, found.k, found.dtype) != known:
        why = "its n_points, k or dtype are not those that were asked for"
        raise folder.damaged("document", MARKER, why)
    return found


def _build(engine: Engine, spec: FragmentSpec, large: NDArray[np.int64], folder: Folder) -> Receipt:
    folder.write_array("large", large)
    n_shards, n_ranges = spec.graph.n_shards, spec.order.n_ranges
    extract = functools.partial(_extract, spec, folder)
    work = Work("fragments", extract, _longest_first(spec, large), spec.needs_nbytes)
    receipts = run_work(engine, folder, work)
    plan_exchange(folder, n_shards, n_ranges)
    counts = range_sizes(folder, n_shards, n_ranges)
    pieces = _cut(counts, spec.graph.shard_rows)
    summary = {
        "n_points": spec.graph.n_points,
        "k": spec.k,
        "dtype": spec.graph.dtype,
        "counts": [int(counts[piece].sum()) for piece in pieces],
        "coordinates_compared": sum(r["n_compared"] for r in receipts),
    }
    if shares := [share for r in receipts for share in r["shares"]]:
        recall = sampled_recall(np.array(shares))
        summary |= {"recall": recall.sampled, "error": recall.error}
    gather = functools.partial(_gather, spec, Fragments.from_summary(folder, summary), pieces)
    largest_first = np.argsort(summary["counts"], kind="stable")[::-1].tolist()
    run_work(engine, folder, Work("gather", gather, largest_first, spec.needs_nbytes))
    return summary


def _cut(counts: NDArray[np.int64], most: int) -> list[slice]:
    """Return the ranges of each piece; it has at most so many fragments, unless it is one range."""
    pieces, n_here = [], 0
    for i, count in enumerate(counts.tolist()):
        if count and (not n_here or n_here + count > most):
            pieces.append(slice(i, i + 1))
            n_here = count
        elif count:
            pieces[-1] = slice(pieces[-1].start, i + 1)
            n_here += count
    return pieces


def _longest_first(spec: FragmentSpec, large: NDArray[np.int64]) -> list[int]:
    """Return the shards, those with most fragments first, so that no worker ends long after all."""
    skeletons = open_skeletons(spec.skeletons, spec.graph.n_points)
    counts = np.zeros(spec.graph.n_shards, np.int64)
    for first, last in itertools.pairwise(skeletons.starts.tolist()):
        fragments = first + np.flatnonzero(~np.isin(skeletons.read(first, last), large))
        counts += np.bincount(fragments // spec.graph.shard_rows, minlength=len(counts))
    order: list[int] = np.argsort(-counts, kind="stable").tolist()
    return order


def _extract(spec: FragmentSpec, folder: Folder, shard: int) -> Receipt:
    """Write the rows of the fragments of a shard, sorted by range and number."""
    CACHE.budget_nbytes = spec.cache_nbytes
    numbers = _fragments_of(spec, folder, shard)
    first, last = spec.graph.span(shard)
    ranges = spec.order.ranges_of(shard, last - first)[numbers - first]
    order = np.argsort(ranges, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    entries = new_entries(numbers[order], spec.graph.n_points, spec.k, spec.graph.dtype)
    n_compared = _complete(spec, shard, Rows(numbers, entries, places))
    arrays = (np.ascontiguousarray(entries.neighbors[:, 0]), *entries)
    for name, array in zip(ARRAYS, arrays, strict=True):
        folder.child("buckets").write_rows(f"{shard}.{name}", array)
    write_counts(folder, shard, ranges, spec.order.n_ranges)
    shares = _sampled_shares(spec, Rows(numbers, entries, places))
    return {"n_fragments": len(numbers), "n_compared": int(n_compared), "shares": shares}


def _sampled_shares(spec: FragmentSpec, rows: Rows) -> list[float]:
    """Return the share of its true neighbours that each has whose true ones are known."""
    if not has_truth(spec.graph.folder):
        return []
    n_searched = int(spec.points.firsts[-1])
    truth, here = read_truth(spec.graph.folder, n_searched).among(rows.numbers)
    places = rows.places[here]
    found: list[float] = truth.shares(
        rows.into.neighbors[places, 1:], rows.into.distances[places, 1:], spec.k
    ).tolist()
    return found


def _fragments_of(spec: FragmentSpec, folder: Folder, shard: int) -> NDArray[np.int64]:
    """Return the points of a shard that are not in a large cluster, ascending."""
    first, last = spec.graph.span(shard)
    clusters = open_skeletons(spec.skeletons, spec.graph.n_points).read(first, last)
    large = folder.read_array("large", shape=(None,), dtype=np.int64)
    return first + np.flatnonzero(~np.isin(clusters, large))


def _complete(spec: FragmentSpec, shard: int, rows: Rows) -> int:
    """Fill the rows of some points of a shard; return the coordinates compared."""
    if spec.graph.k >= spec.k:
        spec.graph.fill(shard, *rows)
        return 0
    left = _copied_filled(spec, shard, rows)
    if spec.search in EXACT:
        search = compare_points if spec.search == PRODUCTS else search_points
        return search(spec.points, *left)
    spec.graph.fill(shard, *left)
    return extend_points(spec.points, spec.graph, spec.n_probes, *left)


def _copied_filled(spec: FragmentSpec, shard: int, rows: Rows) -> Rows:
    """Fill the rows of points that have copies, which have longer rows already; return the rest."""
    longer = spec.graph.longer(shard)
    known = np.isin(rows.numbers, longer.points)
    at = np.searchsorted(longer.points, rows.numbers[known])
    for array, found in zip(rows.into, longer[1:], strict=True):
        array[rows.places[known]] = found[at, : spec.k + 1]
    return Rows(rows.numbers[~known], rows.into, rows.places[~known])


def _gather(spec: FragmentSpec, fragments: Fragments, pieces: list[slice], i: int) -> Receipt:
    """Write a piece of the fragments, in order."""
    ranges = range(pieces[i].start, pieces[i].stop)
    where = spec.graph.n_shards, spec.order.n_ranges, len(ranges)
    places = places_of(fragments.folder, ranges.start, *where)
    points = _buckets(fragments, "points", places).read_ranges(places.firsts, places.lasts)
    ranked = _ranked(points, spec.order, ranges)
    for name in ARRAYS:
        _write_ranked(fragments, name, places, ranked, i)
    return {"n_fragments": len(points)}


def _buckets(fragments: Fragments, name: str, places: Places) -> RowFiles:
    """Return one array of the fragments of all shards."""
    folder = fragments.folder.child("buckets")
    return fragments.files(folder, name, places.starts).without_limits()


def _write_ranked(
    fragments: Fragments, name: str, places: Places, ranked: NDArray[np.int64], i: int
) -> None:
    """Write one array of a piece, in order."""
    found = _buckets(fragments, name, places).at_hand(places.firsts, places.lasts)
    fragments.rows.write_some_rows(f"{i}.{name}", found.rows, found.places()[ranked])
    found.check()


def _ranked(points: NDArray[np.integer], order: Order, ranges: range) -> NDArray[np.int64]:
    """Return which of the points, all of some ranges of an order, is first, second, and so on."""
    ascending = np.argsort(points)
    known = points[ascending]
    ranked = np.concatenate([find_members(known, order.points(i)) for i in ranges])
    is_ranked = np.zeros(len(points), np.bool_)
    is_ranked[ranked] = True
    if len(ranked) != len(points) or not is_ranked.all():
        why = f"the points of its ranges {ranges.start} to {ranges.stop - 1} are not all in them"
        raise order.folder.damaged("array", "order", why)
    found: NDArray[np.int64] = ascending[ranked]
    return found
