"""SPORE on a neighbour graph in memory: order, thresholds, expansion, reassignment.

Reads rows of K + 1 entries, writes labels. Memory beside the graph: at most 100 bytes a point.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spore_dask.clusters import (
    CLUSTER_TABLE,
    NOISE,
    Thresholds,
    expansion_settings,
    label_dtype,
    smallest_final_size,
    thresholds_of,
)
from spore_dask.coordinates import as_points
from spore_dask.errors import InputError
from spore_dask.kernels import expand as expansion
from spore_dask.kernels import order as density_order
from spore_dask.kernels.pieces import count_pieces
from spore_dask.kernels.reassign import FRAGMENT, Fragments, Gates, vote
from spore_dask.kernels.rows import first_bad_row, first_repeating_row
from spore_dask.kernels.sums import mean_and_std
from spore_dask.params import Params, ResolvedParams

SEEDS_PER_PIECE = 1 << 16


@dataclasses.dataclass(frozen=True)
class Clustering:
    """What SPORE found."""

    labels: NDArray[np.int32]
    """Cluster of each row, -1 for noise."""
    provenance: NDArray[np.int16]
    """How each row got its label: 0 in Expansion, r in round r of reassignment, -1 noise."""
    clusters: NDArray[Any]
    """A CLUSTER_TABLE record for each label."""
    thresholds: Thresholds
    """What the distances were measured with."""
    smallest: int
    """Points that a cluster needed to stay."""


def cluster_graph(
    neighbors: ArrayLike, distances: ArrayLike, points: ArrayLike, **params: Any
) -> NDArray[np.int32]:
    """Cluster a k-nearest-neighbour graph that is in memory.

    Parameters
    ----------
    neighbors : integer array (N, at least K + 1)
        Row i names point i itself, then its nearest others by (distance, number).
    distances : float array of the same shape
        Their distances from point i, 0 for itself, ascending.
    points : array (N, D)
        The coordinates that the distances were measured in.
    **params
        The fields of `Params`.

    Returns
    -------
    int32 array (N,)
        Clusters 0, 1, ... in the order in which they were seeded; -1 is noise.
    """
    asked = Params.from_keywords(params)
    points = as_points(points)
    resolved = asked.resolve(len(points))
    neighbors, distances = _check_graph(_native(neighbors), _native(distances), resolved)
    return cluster_rows(neighbors, distances, points, resolved, check=True).labels


def cluster_rows(
    neighbors: NDArray[np.integer],
    distances: NDArray[np.floating],
    points: NDArray[np.floating],
    params: ResolvedParams,
    check: bool = False,
    rows: NDArray[np.integer] | None = None,
) -> Clustering:
    """Cluster rows of at least K + 1 entries; `check` refuses any that are not as they must be.

    `rows` has the input row of each point where points have other numbers.
    """
    if check:
        _check_rows(neighbors, distances)
    return GraphInMemory(neighbors, distances, points, rows).cluster(params)


class GraphInMemory:
    """A neighbour graph in memory, to be clustered with any number of configurations.

    What a configuration shares with the one before is not worked out again: the density order where
    kd is the same, the skeletons where only minimum size and reassignment differ, and statistics of
    the distances to the ke-th neighbours. `grouped` puts configurations in a good order.

    Parameters
    ----------
    neighbors, distances : arrays (N, columns)
        Rows with enough entries for each configuration.
    points : float array (N, D)
    rows : integer array (N,), optional
        The input row of each point, where points have other numbers.
    """

    def __init__(
        self,
        neighbors: NDArray[np.integer],
        distances: NDArray[np.floating],
        points: NDArray[np.floating],
        rows: NDArray[np.integer] | None = None,
    ) -> None:
        self.neighbors, self.distances = neighbors, distances
        self.points, self.rows = points, rows
        self.extent = density_order.extent(points)
        self._has_copies = bool((distances[:, 1] <= 0).any())
        self._order: tuple[Any, NDArray[np.int64]] | None = None
        self._grown: tuple[Any, tuple[NDArray[np.int32], NDArray[Any]]] | None = None
        self._statistics: dict[int, Statistics] = {}

    def cluster(self, params: ResolvedParams) -> Clustering:
        """Cluster with one configuration."""
        if self.extent <= 0:
            return _one_cluster(len(self.points))
        with ThreadPoolExecutor(1) as beside:
            measured = beside.submit(
                measure_thresholds, self.distances, params, self.extent, self._statistics
            )
            order = self._ordered(params)
            thresholds = measured.result()
        labels, grown = self._expanded(order, params, thresholds)
        return _reassign(self.neighbors, self.distances, order, labels, grown, params, thresholds)

    def _expanded(
        self, order: NDArray[np.int64], params: ResolvedParams, thresholds: Thresholds
    ) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """Return the cluster number of every point after Expansion, and each cluster's record."""
        width = params.k + 1 if self._has_copies else 0
        seeding = params.seeding_order, params.seed, params.density_neighbors
        reach = params.expansion_neighbors, params.min_retained, thresholds.z
        key, known = (width, *seeding, *reach), self._grown
        if known is not None and known[0] == key:
            return known[1]
        seeds = _seed_order(order, params, self.rows)
        grown = _expand(self.neighbors, self.distances, seeds, params, thresholds)
        self._grown = key, grown
        return grown

    def share(self) -> GraphInMemory:
        """Return the same graph, for another thread."""
        return copy.copy(self)

    def n_pieces(self, ke: int) -> int:
        """Return the number of connected pieces of the graph of the ke nearest neighbours."""
        return int(count_pieces(self.neighbors, ke))

    def _ordered(self, params: ResolvedParams) -> NDArray[np.int64]:
        """Return the points in the order of their densities."""
        kd, width = params.density_neighbors, params.k + 1
        key, known = (kd, width if self._has_copies else 0), self._order
        if known is not None and known[0] == key:
            return known[1]
        density = density_order.densities(self.distances, kd, self.extent, width)
        order = density_order.total_order(density, self.points, self.rows)
        self._order = key, order
        return order


def grouped(configurations: Sequence[ResolvedParams]) -> list[list[int]]:
    """Return the numbers of configurations in groups of equal kd, the largest group first.

    In a group, those that share most are beside each other.
    """
    groups: dict[int, list[int]] = {}
    for number, params in enumerate(configurations):
        groups.setdefault(params.density_neighbors, []).append(number)

    def shared(number: int) -> tuple[Any, ...]:
        params = configurations[number]
        z = params.z_percentile if params.z is None else params.z
        return params.expansion_neighbors, z, params.min_retained, params.k

    ordered = [sorted(numbers, key=shared) for numbers in groups.values()]
    return sorted(ordered, key=len, reverse=True)


Statistics = tuple[tuple[float, float], tuple[float, float]]
"""Mean and deviation of the distances to the ke-th neighbours, and of those to all up to it."""


def measure_thresholds(
    distances: NDArray[np.floating],
    params: ResolvedParams,
    extent: float,
    known: dict[int, Statistics] | None = None,
) -> Thresholds:
    """Turn percentiles into z-scores, and take the statistics that clusters start with.

    `known` keeps the statistics for each ke that was asked for.
    """
    ke, known = params.expansion_neighbors, {} if known is None else known
    reach = distances[:, ke].astype(np.float64)
    if ke not in known:
        known[ke] = mean_and_std(reach), mean_and_std(distances[:, : ke + 1])
    (mean, std), start = known[ke]
    upper = reach[reach >= mean]
    return thresholds_of(
        params, extent, (mean, std), start, lambda q: float(np.percentile(upper, q))
    )


def _one_cluster(n_points: int) -> Clustering:
    """Return the defined result for points that are all the same."""
    clusters = np.array([(n_points, n_points, 0.0, 0.0, 0)], CLUSTER_TABLE)
    return Clustering(
        labels=np.zeros(n_points, np.int32),
        provenance=np.zeros(n_points, np.int16),
        clusters=clusters,
        thresholds=Thresholds(0.0, 0.0, 0.0, 0.0, 0.0),
        smallest=n_points,
    )


def _seed_order(
    order: NDArray[np.int64], params: ResolvedParams, rows: NDArray[np.integer] | None
) -> NDArray[np.int64]:
    if params.seeding_order == "density":
        return order
    seeds = np.arange(len(order))
    if params.seeding_order == "random":
        seeds = np.random.default_rng(params.seed).permutation(len(order))
    return seeds if rows is None else np.argsort(rows)[seeds]


def _expand(
    neighbors: NDArray[np.integer],
    distances: NDArray[np.floating],
    seeds: NDArray[np.int64],
    params: ResolvedParams,
    thresholds: Thresholds,
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Return the cluster number of every point, and a record for each cluster."""
    settings = expansion_settings(params, thresholds)
    settings["width"] = params.k + 1
    slots = expansion.Slots(np.zeros(1, np.int32), len(neighbors), neighbors, distances)
    longer = expansion.no_longer_rows(neighbors.dtype, distances.dtype)
    labels = np.full(len(seeds), expansion.UNASSIGNED, np.int32)
    growth = expansion.Growth(
        state=np.zeros(1, expansion.STATE),
        labels=labels,
        queue=np.empty(len(seeds), neighbors.dtype),
        closed=np.empty(SEEDS_PER_PIECE, expansion.CLUSTER),
    )
    grown = []
    for first in range(0, len(seeds), SEEDS_PER_PIECE):
        growth.state["seed"] = growth.state["n_closed"] = 0
        piece = seeds[first : first + SEEDS_PER_PIECE]
        ended = expansion.expand(settings, piece, slots, longer, growth)
        if ended == expansion.REPEATED:
            raise repeated(int(growth.queue[growth.state["head"][0]]))
        grown.append(growth.closed[: growth.state["n_closed"][0]].copy())
    return labels, np.concatenate(grown)


def _reassign(
    neighbors: NDArray[np.integer],
    distances: NDArray[np.floating],
    order: NDArray[np.int64],
    skeletons: NDArray[np.int32],
    grown: NDArray[Any],
    params: ResolvedParams,
    thresholds: Thresholds,
) -> Clustering:
    """Vote fragments into the large clusters, settle the rest, and number what remains."""
    rounds = np.zeros(len(skeletons), np.int16)
    smallest = smallest_final_size(grown["size"], params)
    large = np.flatnonzero(grown["size"] >= smallest)
    number_of = np.full(len(grown), FRAGMENT, np.int32)
    number_of[large] = np.arange(len(large))
    labels = number_of[skeletons]
    fragments = order[labels[order] == FRAGMENT]
    gates = Gates(
        means=grown["mean"][large],
        tolerances=thresholds.max_z * grown["std"][large],
        reach=params.reassignment_neighbors,
        width=params.k + 1,
    )
    for this_round in range(1, params.max_scr_rounds + 1):
        piece = Fragments(fragments, fragments, neighbors, distances)
        if not vote(piece, gates, labels, rounds, this_round):
            break
        fragments = fragments[labels[fragments] == FRAGMENT]
    if params.post_reassignment_policy == "noise":
        rounds[fragments] = NOISE
    else:
        labels, large = _keep_fragments(labels, skeletons, large)
    return Clustering(labels, rounds, _describe(labels, grown, large), thresholds, smallest)


def _keep_fragments(
    labels: NDArray[np.int32],
    skeletons: NDArray[np.int32],
    large: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Give fragments their own clusters back; number all clusters in seed order."""
    cluster_of = skeletons.astype(np.int64)
    settled = labels != FRAGMENT
    cluster_of[settled] = large[labels[settled]]
    kept, numbers = np.unique(cluster_of, return_inverse=True)
    return numbers.astype(np.int32), kept


def _describe(
    labels: NDArray[np.int32], grown: NDArray[Any], kept: NDArray[np.int64]
) -> NDArray[Any]:
    """Make the table of the final clusters; `kept` are their numbers in Expansion."""
    table = np.empty(len(kept), CLUSTER_TABLE)
    table["size"] = np.bincount(labels[labels != NOISE], minlength=len(kept))
    for name, source in (("skeleton_size", "size"), ("mean", "mean"), ("std", "std")):
        table[name] = grown[source][kept]
    table["seed_row"] = grown["seed"][kept]
    return table


def _native(array: ArrayLike) -> NDArray[Any]:
    """Return an array in the byte order of this machine."""
    array = np.asarray(array)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_graph(
    neighbors: NDArray[Any], distances: NDArray[Any], params: ResolvedParams
) -> tuple[NDArray[np.integer], NDArray[np.floating]]:
    """Return the first K + 1 columns, or say what is wrong with the shape of the graph."""
    n_points, width = params.n_points, params.k + 1
    if neighbors.ndim != 2 or neighbors.shape != distances.shape or len(neighbors) != n_points:
        raise InputError(
            f"neighbors has shape {neighbors.shape} and distances {distances.shape}, but both must "
            f"be ({n_points}, columns): one row for each of the {n_points} points."
        )
    if neighbors.dtype.kind not in "iu" or distances.dtype not in (np.float32, np.float64):
        raise InputError(
            f"neighbors is {neighbors.dtype} and distances {distances.dtype}, but they must be "
            "integers and float32 or float64."
        )
    if neighbors.shape[1] < width:
        raise InputError(
            f"The graph has {neighbors.shape[1]} columns, but these parameters need {width} "
            f"(the point itself and K = {params.k} neighbours): build it with k >= {params.k}, "
            "or lower the neighbour counts or max_connectivity."
        )
    return neighbors[:, :width], distances[:, :width]


def _check_rows(neighbors: NDArray[np.integer], distances: NDArray[np.floating]) -> None:
    """Refuse a graph with a row that is not in order."""
    row = first_bad_row(neighbors, distances)
    if row >= 0:
        raise InputError(
            f"Row {row} of the graph is {neighbors[row].tolist()} at distances "
            f"{distances[row].tolist()}, but it must start with {row} at distance 0 and go on with "
            f"other points from 0 to {len(neighbors) - 1}, by (distance, number) ascending."
        )
    last_row = np.full(len(neighbors), -1, label_dtype(len(neighbors)))
    row = first_repeating_row(neighbors, last_row)
    if row >= 0:
        raise repeated(row)


def repeated(row: int) -> InputError:
    """Return what to raise about a row that names a point twice."""
    return InputError(f"Row {row} of the graph names a point twice: list each only once.")
