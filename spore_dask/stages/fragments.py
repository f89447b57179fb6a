"""Fragments: rows with K neighbours for the points outside of large clusters, in density order.

First every task finds the fragments of one shard of the graph, searches for their neighbours (or
cuts the rows of a graph that has as many), and writes them, one file with a bucket for each range
of the order; then every task gathers the buckets of one range. Reads the points, the graph, the
order and the clusters; writes `<range>.points`, `<range>.neighbors` and `<range>.distances`.
Memory: the fragments of one shard and what a search takes, or those of one range twice.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.engine import Engine
from spore_dask.exact import number_dtype
from spore_dask.memory import BUFFERS_NBYTES, PAGE_ROWS, Shape
from spore_dask.orders import Order, end_exchange, places_of, plan_exchange, write_counts
from spore_dask.points import CACHE, Points
from spore_dask.searching import search_points
from spore_dask.shards import Entries, Fragments, GraphRows, new_entries
from spore_dask.store import Folder, RowFiles
from spore_dask.tasks import Receipt, Work, run_stage, run_work

BUCKETS = ("points", *Entries._fields)
"""The files of each shard."""


@dataclasses.dataclass(frozen=True)
class FragmentSpec:
    """What the rows of fragments are asked for."""

    points: Points
    graph: GraphRows
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
    summary = run_stage(folder, functools.partial(_build, engine, spec, large))
    counts = np.array(summary["counts"], np.int64)
    return Fragments(folder, spec.graph.n_points, spec.k, spec.graph.dtype, counts)


def _build(engine: Engine, spec: FragmentSpec, large: NDArray[np.int64], folder: Folder) -> Receipt:
    folder.write_array("large", large)
    extract = functools.partial(_extract, spec, folder)
    shards = range(spec.graph.n_shards)
    receipts = run_work(engine, folder, Work("fragments", extract, shards, spec.needs_nbytes))
    n_ranges = spec.order.n_ranges
    plan_exchange(folder, spec.graph.n_shards, n_ranges)
    gather = functools.partial(_gather, spec, folder)
    gathered = run_work(
        engine, folder, Work("gather", gather, range(n_ranges), spec.needs_nbytes, light=True)
    )
    end_exchange(folder)
    return {
        "counts": [r["n_fragments"] for r in gathered],
        "coordinates_compared": sum(r["n_compared"] for r in receipts),
    }


def _extract(spec: FragmentSpec, folder: Folder, shard: int) -> Receipt:
    """Write the rows of the fragments of a shard, sorted by range and number."""
    CACHE.budget_nbytes = spec.cache_nbytes
    numbers = _fragments_of(spec, folder, shard)
    ranges = spec.order.ranges_of(shard)[numbers - spec.graph.span(shard)[0]]
    order = np.argsort(ranges, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    entries = new_entries(numbers[order], spec.graph.n_points, spec.k, spec.graph.dtype)
    n_compared = 0
    if spec.graph.k < spec.k:
        n_compared = search_points(spec.points, numbers, entries, places)
    else:
        _cut_rows(spec.graph, shard, numbers, entries, places)
    arrays = (np.ascontiguousarray(entries.neighbors[:, 0]), *entries)
    for name, array in zip(BUCKETS, arrays, strict=True):
        folder.child("buckets").write_rows(f"{shard}.{name}", array)
    write_counts(folder, shard, ranges, spec.order.n_ranges)
    return {"n_fragments": len(numbers), "n_compared": int(n_compared)}


def _fragments_of(spec: FragmentSpec, folder: Folder, shard: int) -> NDArray[np.int64]:
    """Return the points of a shard that are not in a large cluster, ascending."""
    first, last = spec.graph.span(shard)
    clusters = spec.skeletons.open_rows("skeletons").read(first, last)
    large = folder.read_array("large")
    return first + np.flatnonzero(~np.isin(clusters, large))


def _cut_rows(
    graph: GraphRows,
    shard: int,
    numbers: NDArray[np.int64],
    into: Entries,
    places: NDArray[np.int64],
) -> None:
    """Fill the rows of some points of a shard with the first entries of the graph's rows."""
    for name, rows in into._asdict().items():
        array = graph.array(name)
        first, last = graph.span(shard)
        step = PAGE_ROWS * max(1, BUFFERS_NBYTES // (PAGE_ROWS * array.row_nbytes))
        for low in range(first, last, step):
            high = min(low + step, last)
            here = slice(*np.searchsorted(numbers, (low, high)))
            if len(numbers[here]):
                found = array.read(low, high)[numbers[here] - low, : into.k + 1]
                rows[places[here]] = found


def _gather(spec: FragmentSpec, folder: Folder, i: int) -> Receipt:
    """Write the fragments of a range in order, if there are any."""
    places = places_of(folder, i, spec.graph.n_shards, spec.order.n_ranges)
    buckets = functools.partial(_bucket_array, spec, folder, places.starts)
    points = buckets("points").read_ranges(places.firsts, places.lasts)
    if len(points):
        ordered = _in_order(spec.order.points(i), points)
        folder.write_array(f"{i}.points", points[ordered])
        for name in Entries._fields:
            rows = buckets(name).read_ranges(places.firsts, places.lasts)
            folder.write_array(f"{i}.{name}", rows[ordered])
    return {"n_fragments": len(points)}


def _bucket_array(
    spec: FragmentSpec, folder: Folder, starts: NDArray[np.int64], name: str
) -> RowFiles:
    """Return one of the arrays of the buckets of all shards."""
    n_points, row_shape = spec.graph.n_points, () if name == "points" else (spec.k + 1,)
    dtype: Any = spec.graph.dtype if name == "distances" else number_dtype(n_points)
    names = tuple(f"{shard}.{name}" for shard in range(len(starts) - 1))
    return RowFiles(folder.child("buckets"), names, starts, row_shape, np.dtype(dtype))


def _in_order(order: NDArray[np.integer], points: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return which of some ascending points comes first in an order, which second, and so on."""
    places = np.minimum(np.searchsorted(points, order), len(points) - 1)
    ordered: NDArray[np.int64] = places[points[places] == order]
    return ordered
