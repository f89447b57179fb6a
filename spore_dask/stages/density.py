"""Density: the total order of the points, and the statistics of their distances, all exact.

First every task measures a shard: densities, sums of distances and of their squares, and keys
(density, coordinates, row) drawn from it. The drawn keys cut the order into ranges. Then every task
sorts the keys of its shard into a file with a bucket for each range; at last every task sorts one
range. Percentiles are selected later, as they are asked for, from histograms.
Reads the points and, once, the distances of the graph; writes `order/`, `ranges/` and `reach/` (the
distance of each point to its last expansion neighbour), and for a while `densities/`, `sample/` and
`buckets/`.
Memory: one shard of distances, its partitions and three times its keys, or the keys of one range.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.engine import Engine
from spore_dask.exact import number_dtype
from spore_dask.kernels.order import densities, total_order
from spore_dask.kernels.sums import Moments, moments
from spore_dask.memory import keys_per_range, n_ranges
from spore_dask.orders import (
    Order,
    end_exchange,
    places_of,
    plan_exchange,
    write_counts,
    write_range,
    write_ranges_of,
)
from spore_dask.percentiles import (
    N_BINS,
    between,
    count_digits,
    float_of,
    n_digits,
    next_digit,
    ranks_around,
)
from spore_dask.points import CACHE, Points
from spore_dask.shards import DISTANCES, GraphRows
from spore_dask.store import Folder, Limits, RowFiles
from spore_dask.tasks import MARKER, Receipt, Work, run_stage, run_work
from spore_dask.threads import scratch

POINTS_PER_HISTOGRAM = 1 << 20
"""Points that a task counts at least, so that reading histograms costs less than making them."""


@dataclasses.dataclass(frozen=True)
class DensitySpec:
    """What is asked for."""

    points: Points
    graph: GraphRows
    density_neighbors: int
    expansion_neighbors: int
    k: int
    """K: rows count for their first K + 1 entries."""
    extent: float
    """Euclidean norm of the ranges of the columns, above 0."""
    cache_nbytes: int
    needs_nbytes: int

    @property
    def n_ranges(self) -> int:
        """Ranges of the order."""
        return n_ranges(self.graph.n_shards)

    @property
    def key_dtype(self) -> np.dtype[Any]:
        """What decides on a point's place in the order, and its number."""
        numbers = number_dtype(self.points.n_points)
        coordinates = np.dtype((self.points.dtype, (self.points.n_columns,)))
        return np.dtype(
            [("density", "f8"), ("row", numbers), ("number", numbers), ("point", coordinates)]
        )


@dataclasses.dataclass(frozen=True)
class Density:
    """The order of the points, and what their distances are like."""

    folder: Folder
    spec: DensitySpec
    order: Order
    reach_mean: float
    """Mean distance to the last expansion neighbour."""
    reach_std: float
    start_mean: float
    """Mean of all distances from a point, itself included, to the last expansion neighbour."""
    start_std: float
    n_upper: int
    """Points whose reach is at least the mean."""

    def reach(self, shard: int) -> NDArray[np.floating]:
        """Return the distance of each point of a shard to its last expansion neighbour."""
        return _read_reach(self.spec, self.folder, shard)


def rank_points(engine: Engine, folder: Folder, spec: DensitySpec) -> Density:
    """Put the points in their total order, or take up what was done before."""
    summary = run_stage(engine, folder, functools.partial(_build, engine, spec))
    names = [field.name for field in dataclasses.fields(Density)][3:]
    with folder.understood(MARKER):
        found: dict[str, Any] = {name: float(summary[name]) for name in names}
        found["n_upper"] = int(summary["n_upper"])
        starts = summary["starts"]
        if len(starts) != spec.n_ranges + 1:
            raise ValueError(f"{len(starts)} starts of {spec.n_ranges} ranges")
        if not 0 <= found["n_upper"] <= spec.graph.n_points:
            raise ValueError(f"n_upper is {found['n_upper']} of {spec.graph.n_points} points")
    order = Order.from_summary(folder, starts, spec.graph.n_points)
    return Density(folder, spec, order, **found)


def _build(engine: Engine, spec: DensitySpec, folder: Folder) -> Receipt:
    shards = range(spec.graph.n_shards)
    measure = functools.partial(_measure, spec, folder)
    receipts = run_work(
        engine, folder, Work("density", measure, shards, spec.needs_nbytes, light=True)
    )
    n_points = spec.graph.n_points
    reach_mean, reach_std = _total(receipts, "reach").mean_and_std(n_points)
    n_distances = n_points * (spec.expansion_neighbors + 1)
    start_mean, start_std = _total(receipts, "start").mean_and_std(n_distances)
    if not folder.exists("splitters.npy"):
        folder.write_array("splitters", _choose_splitters(spec, folder))
    exchange = functools.partial(_exchange, spec, folder, reach_mean)
    receipts = run_work(
        engine, folder, Work("ranges", exchange, shards, spec.needs_nbytes, light=True)
    )
    folder.remove("densities")
    plan_exchange(folder, spec.graph.n_shards, spec.n_ranges)
    sort = functools.partial(_sort, spec, folder)
    work = Work("order", sort, range(spec.n_ranges), spec.needs_nbytes, light=True)
    sizes = [r["n_points"] for r in run_work(engine, folder, work)]
    folder.remove("sample")
    end_exchange(folder)
    return {
        "starts": np.append(0, np.cumsum(sizes)).tolist(),
        "reach_mean": reach_mean,
        "reach_std": reach_std,
        "start_mean": start_mean,
        "start_std": start_std,
        "n_upper": sum(r["n_upper"] for r in receipts),
    }


def _total(receipts: list[Receipt], name: str) -> Moments:
    """Add up exact sums, which receipts have as text because JSON would round them."""
    totals, squares = zip(*(receipt[name] for receipt in receipts), strict=True)
    return Moments(sum(map(int, totals)), sum(map(int, squares)))


def _measure(spec: DensitySpec, folder: Folder, shard: int) -> Receipt:
    """Add up the distances of a shard, tell its densities, and draw keys from it."""
    distances, (first, last) = _distances(spec, shard), spec.graph.span(shard)
    spec.graph.refuse_falling("distances", range(first, last), distances)
    density = _densities(spec, distances)
    if spec.graph.n_longer[shard]:
        longer = spec.graph.longer(shard)
        places = longer.points.astype(np.int64) - first
        density[places] = _densities(spec, longer.distances)
    folder.child("densities").write_array(str(shard), density)
    ke = spec.expansion_neighbors
    reach = np.ascontiguousarray(distances[:, ke])
    folder.child("reach").write_array(str(shard), reach)
    drawn = _drawn(spec, shard, len(reach))
    folder.child("sample").write_array(str(shard), _keys(spec, shard, density, drawn))
    sums = {"reach": moments(reach), "start": moments(distances[:, : ke + 1])}
    return {name: [str(total) for total in found] for name, found in sums.items()}


def _distances(spec: DensitySpec, shard: int) -> NDArray[np.floating]:
    """Read the distances of a shard, into memory that the next one overwrites."""
    first, last = spec.graph.span(shard)
    into = scratch("distances", (last - first, spec.graph.k + 1), spec.graph.dtype)
    ends = np.array([first]), np.array([last])
    return spec.graph.array("distances").without_limits().read_ranges(*ends, into)


def _read_reach(spec: DensitySpec, folder: Folder, shard: int) -> NDArray[np.floating]:
    """Read the distance of each point of a shard to its last expansion neighbour."""
    first, last = spec.graph.span(shard)
    return folder.child("reach").read_array(
        str(shard), shape=(last - first,), dtype=spec.graph.dtype, limits=DISTANCES
    )


def _drawn(spec: DensitySpec, shard: int, n_points: int) -> NDArray[np.int64]:
    """Draw points of a shard, as many as its share in all points asks for."""
    n_keys = keys_per_range(spec.n_ranges, spec.key_dtype.itemsize)
    n_drawn = min(n_points, -(-n_keys * n_points // spec.graph.shard_rows))
    return np.random.default_rng(shard).choice(n_points, n_drawn, replace=False)


def _keys(
    spec: DensitySpec,
    shard: int,
    density: NDArray[np.float64],
    places: NDArray[np.int64] | slice = slice(None),
) -> NDArray[Any]:
    """Return the keys of the points of a shard, or of those at some places in it."""
    CACHE.budget_nbytes = spec.cache_nbytes
    first, last = spec.graph.span(shard)
    keys = np.empty(len(density[places]), spec.key_dtype)
    keys["density"] = density[places]
    keys["row"] = spec.graph.array("rows").read(first, last)[places]
    keys["number"] = np.arange(first, last)[places]
    keys["point"] = spec.points.coordinates(first, last)[places]
    return keys


def _densities(spec: DensitySpec, distances: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the densities that rows tell with their first K + 1 entries."""
    counted = distances[:, : spec.k + 1]
    found: NDArray[np.float64] = densities(counted, spec.density_neighbors, spec.extent)
    return found


def _ranked(keys: NDArray[Any]) -> NDArray[np.int64]:
    """Return the order of keys."""
    return total_order(keys["density"], keys["point"], keys["row"])


def _choose_splitters(spec: DensitySpec, folder: Folder) -> NDArray[Any]:
    """Return the keys at which ranges begin, but for the first one."""
    sample = folder.child("sample")
    form: dict[str, Any] = {"shape": (None,), "dtype": spec.key_dtype}
    drawn = np.concatenate([sample.read_array(str(i), **form) for i in range(spec.graph.n_shards)])
    places = np.arange(1, spec.n_ranges) * len(drawn) // spec.n_ranges
    return drawn[_ranked(drawn)[places]]


def _exchange(spec: DensitySpec, folder: Folder, reach_mean: float, shard: int) -> Receipt:
    """Write the keys of a shard with a bucket for each range."""
    first, last = spec.graph.span(shard)
    density = folder.child("densities").read_array(
        str(shard), shape=(last - first,), dtype=np.float64, limits=Limits(0, np.inf)
    )
    keys, n_splitters = _keys(spec, shard, density), spec.n_ranges - 1
    splitters = folder.read_array("splitters", shape=(n_splitters,), dtype=keys.dtype)
    ranges = _ranges_of(keys, splitters)
    write_ranges_of(folder, shard, ranges)
    order = np.argsort(ranges.astype(np.min_scalar_type(spec.n_ranges)), kind="stable")
    folder.child("buckets").write_rows(f"{shard}.keys", keys.take(order))
    write_counts(folder, shard, ranges, spec.n_ranges)
    reach = _read_reach(spec, folder, shard)
    return {"n_upper": len(_upper(reach, reach_mean))}


def _ranges_of(keys: NDArray[Any], splitters: NDArray[Any]) -> NDArray[np.int64]:
    """Return the range of each key: the number of splitters before it.

    Densities tell, but for those that tie with a splitter's. A key that is itself a splitter may be
    on either side of it, because it is alone there.
    """
    falling, cuts = -keys["density"], -splitters["density"]
    ranges = np.searchsorted(cuts, falling, side="right")
    tied = np.flatnonzero(np.append(np.nan, cuts).take(ranges) == falling)
    if len(tied):
        order = _ranked(np.concatenate([splitters, keys.take(tied)]))
        is_key = order >= len(splitters)
        ranges[tied[order[is_key] - len(splitters)]] = np.cumsum(~is_key)[is_key]
    return ranges


def _sort(spec: DensitySpec, folder: Folder, i: int) -> Receipt:
    """Sort one range."""
    keys = _read_range(spec, folder, i)
    write_range(folder, i, keys["number"][_ranked(keys)])
    return {"n_points": len(keys)}


def _read_range(spec: DensitySpec, folder: Folder, i: int) -> NDArray[Any]:
    """Return the keys of a range, which every shard has some of."""
    n_shards = spec.graph.n_shards
    places = places_of(folder, i, n_shards, spec.n_ranges)
    names = tuple(f"{shard}.keys" for shard in range(n_shards))
    keys = RowFiles(folder.child("buckets"), names, places.starts, (), spec.key_dtype)
    return keys.read_ranges(places.firsts, places.lasts)


def _upper(reach: NDArray[np.floating], reach_mean: float) -> NDArray[np.floating]:
    """Return the values that are at least the mean, compared in float64."""
    return reach[reach >= np.float64(reach_mean)]


def reach_percentiles(engine: Engine, density: Density, percentiles: list[float]) -> list[float]:
    """Return percentiles of the reach of the points where it is at least the mean.

    They equal those of `numpy.percentile` over all such points, to the last bit.
    """
    if not percentiles:
        return []
    name = "-".join(repr(float(percentile)) for percentile in percentiles)
    folder = density.folder.child(f"percentiles/{name}")
    select = functools.partial(_select, engine, density, percentiles)
    found = run_stage(engine, folder, select)
    folder.remove("histograms")
    with folder.understood(MARKER):
        values = [float(value) for value in found["percentiles"]]
        if len(values) != len(percentiles):
            raise ValueError(f"{len(values)} percentiles, not {len(percentiles)}")
    return values


def _select(engine: Engine, density: Density, percentiles: list[float], folder: Folder) -> Receipt:
    """Find the values of the ranks that percentiles lie between, digit by digit."""
    around = [ranks_around(density.n_upper, percentile) for percentile in percentiles]
    ranks = sorted({rank for low, high, _ in around for rank in (low, high)})
    heads, lefts = dict.fromkeys(ranks, 0), {rank: rank for rank in ranks}
    dtype = density.spec.graph.dtype
    for n_known in range(n_digits(dtype)):
        prefixes = sorted(set(heads.values()))
        counts = _histograms(engine, density, folder, prefixes, n_known)
        for rank in ranks:
            of_head = counts[prefixes.index(heads[rank])]
            if not 0 <= lefts[rank] < of_head.sum():
                why = f"it has {of_head.sum()} distances where there should be more"
                raise density.folder.damaged("array", "reach", why)
            digit, lefts[rank] = next_digit(of_head, lefts[rank])
            heads[rank] = heads[rank] * N_BINS + digit
    value = {rank: float_of(heads[rank], dtype) for rank in ranks}
    return {"percentiles": [between(value[a], value[b], part) for a, b, part in around]}


def _histograms(
    engine: Engine, density: Density, folder: Folder, prefixes: list[int], n_known: int
) -> NDArray[np.int64]:
    """Count the next digit of the values that begin with each prefix, over all shards."""
    graph = density.spec.graph
    step = max(1, POINTS_PER_HISTOGRAM // graph.shard_rows)
    firsts = range(0, graph.n_shards, step)
    items = [(i, range(i, min(i + step, graph.n_shards))) for i in firsts]
    count = functools.partial(_count, density, folder, prefixes, n_known)
    work = Work(f"percentiles-{n_known}", count, items, density.spec.needs_nbytes, light=True)
    run_work(engine, folder, work)
    made = folder.child(f"histograms/{n_known}")
    total = np.zeros((len(prefixes), N_BINS), np.int64)
    limits = Limits(0, graph.n_points + 1)
    for i in firsts:
        total += made.read_array(str(i), shape=total.shape, dtype=total.dtype, limits=limits)
    return total


def _count(
    density: Density, folder: Folder, prefixes: list[int], n_known: int, item: tuple[int, range]
) -> Receipt:
    """Count the next digit in some shards."""
    number, shards = item
    counts = np.zeros((len(prefixes), N_BINS), np.int64)
    for shard in shards:
        values = _upper(density.reach(shard), density.reach_mean)
        counts += count_digits(values, prefixes, n_known)
    folder.child(f"histograms/{n_known}").write_array(str(number), counts)
    return {"n_values": int(counts.sum())}
