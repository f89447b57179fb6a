"""The plan: what a graph will need in memory and disk, before anything is written.

Reads the source's metadata, writes nothing; refuses what cannot work.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import numpy as np
from dask.utils import format_bytes, parse_bytes

from spore_dask import memory
from spore_dask.cgroups import usable_nbytes
from spore_dask.coordinates import check_options
from spore_dask.engine import N_WORKERS
from spore_dask.errors import LimitError, ParameterError
from spore_dask.inputs import Input, is_dask
from spore_dask.memory import Shape
from spore_dask.params import RANGES, Params, Range, one_of
from spore_dask.store import Folder, Source
from spore_dask.threads import n_threads

KNN = one_of("auto", "exact", "approximate")
KNN_INDEX = one_of("cells", "pynndescent", optional=True)
FEW_COLUMNS = 3
"""Columns up to which boxes always prune."""
RECALL = Range("a number in (0, 1]", lambda v: isinstance(v, float | int) and 0 < v <= 1, float)


@dataclasses.dataclass(frozen=True)
class Options:
    """What `build_graph` is asked for."""

    k: int | None = None
    knn: str = "auto"
    knn_index: str | None = None
    recall_target: float = 0.97
    n_partitions: int | None = None
    metric: str = "euclidean"
    scale: str | None = None
    seed: int = 42
    longest_k: int | None = None
    """Neighbours of the rows of points that have copies; k by default."""

    def check(self, n_points: int) -> Options:
        """Return the same with every default filled in, or raise `ParameterError`."""
        check_options(self.scale, self.metric)
        k = RANGES["density_neighbors"].check("k", self.k) or Params().resolve(n_points).k
        if k >= n_points:
            raise ParameterError(
                f"k is {k}, but with {n_points} points it must be in [1, {n_points - 1}]."
            )
        longest_k = RANGES["density_neighbors"].check("longest_k", self.longest_k) or k
        if not k <= longest_k < n_points:
            raise ParameterError(
                f"longest_k is {longest_k}, but with k = {k} and {n_points} points it must be in "
                f"[{k}, {n_points - 1}]."
            )
        n_partitions = RANGES["max_connectivity"].check("n_partitions", self.n_partitions)
        if n_partitions is not None and n_partitions > n_points:
            raise ParameterError(
                f"n_partitions is {n_partitions}, but with {n_points} points it must be in "
                f"[1, {n_points}]."
            )
        index = KNN_INDEX.check("knn_index", self.knn_index)
        if index == "pynndescent" and self.knn == "exact":
            raise ParameterError(
                "knn_index is 'pynndescent', which is approximate, but knn is 'exact': use "
                "knn_index='cells', or knn='approximate'."
            )
        return dataclasses.replace(
            self,
            k=k,
            longest_k=longest_k,
            knn=KNN.check("knn", self.knn),
            knn_index=index or "cells",
            recall_target=RECALL.check("recall_target", self.recall_target),
            n_partitions=n_partitions,
            seed=RANGES["seed"].check("seed", self.seed),
        )


def refuse_memory(
    projected: Mapping[str, int], limit: int, reason: Callable[[str, str], str]
) -> None:
    """Refuse stages that would go past the limit of a process; `reason` says why they need it."""
    for stage, nbytes in projected.items():
        if nbytes > limit:
            raise LimitError(
                f"memory_limit is {format_bytes(limit)} a process, but "
                f"{reason(stage, format_bytes(nbytes))}."
            )


def refuse_disk(needed: int, free: int | None) -> None:
    """Refuse what there is no room for on the disk, where that is known."""
    if free is not None and needed > free:
        raise LimitError(
            f"The run needs {format_bytes(needed)} of disk, but {format_bytes(free)} are free "
            "where it goes: free some, or give another `out`."
        )


def store_nbytes(data: Input, disk_free: int | None) -> int:
    """Return what each process takes to reach object stores, if input or output is in one."""
    return 0 if disk_free is not None and data.source.is_local else memory.STORE_NBYTES


def chunk_reason(data: Input, stage: str, needed: str) -> str:
    """Say why a stage that reads the input needs so much, and what to change."""
    source = data.source
    n_rows, n_columns = source.shape
    rows = memory.imported_rows(n_rows, n_columns * np.dtype(source.dtype).itemsize)
    smaller = f"rechunk(({min(rows, n_rows)}, {n_columns}))"
    call = f"dask.array.from_zarr(source).{smaller}.to_zarr(path)"
    return (
        f"{stage} needs {needed} for chunks of {source.chunk_rows} rows "
        f"({format_bytes(source.chunk_nbytes)} decoded): raise it, or give the data in smaller "
        f"chunks, with {smaller if is_dask(data.content) else call}"
    )


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a graph will need. Printed, it says so."""

    data: Input
    options: Options
    shape: Shape
    input_shape: memory.InputShape
    memory_limit: int
    """Bytes that each process may use."""
    disk_free: int | None
    """Bytes free where the run goes, if that is known."""

    @property
    def disk_nbytes(self) -> int:
        """Bytes that the run has on disk at most."""
        return self.graph_disk_nbytes

    @property
    def copied_nbytes(self) -> int:
        """Bytes of the input that have to be written first."""
        n_points, n_columns = self.data.source.shape
        nbytes = n_points * n_columns * np.dtype(self.data.source.dtype).itemsize
        return 0 if self.data.content is None else nbytes

    @property
    def graph_disk_nbytes(self) -> int:
        """Bytes that the graph has on disk at most, with its points."""
        return memory.disk_nbytes(self._planned_shape, self.copied_nbytes, self.may_approximate)

    @property
    def search_disk_nbytes(self) -> int:
        """Bytes that the search has on disk at most, beside the points."""
        return memory.search_disk_nbytes(self._planned_shape, self.may_approximate)

    @property
    def _planned_shape(self) -> Shape:
        """The sizes of the graph, as far as options tell: approximate rows may be long."""
        approximate = self.options.knn == "approximate" or self.options.knn_index == "pynndescent"
        return self._largest_shape if approximate and self.may_approximate else self.shape

    @property
    def store_nbytes(self) -> int:
        """Bytes that each process takes to reach object stores."""
        return store_nbytes(self.data, self.disk_free)

    def memory(self) -> dict[str, int]:
        """Return the projected peak of a process in each stage; that of the cache is beside."""
        return {stage: nbytes + self.store_nbytes for stage, nbytes in self._needs().items()}

    def _needs(self) -> dict[str, int]:
        """Return what each stage takes in a process, beside the way to its store."""
        projected = {
            "driver": memory.driver_nbytes(self.input_shape, self.shape, self.may_approximate),
            "scan": memory.scan_nbytes(self.input_shape),
            "exchange": memory.exchange_nbytes(self.input_shape, self.shape),
            "partition": memory.gather_nbytes(self.shape),
            "neighbors": max(
                memory.neighbors_nbytes(self.shape), memory.neighbors_nbytes(self._largest_shape)
            ),
        }
        if self.may_approximate:
            approximate = memory.approximate_nbytes(self._largest_shape)
            extended = memory.extend_nbytes(self.shape)
            projected["neighbors"] = max(projected["neighbors"], approximate, extended)
        return projected

    @property
    def by_cells(self) -> bool:
        """Whether the search is sure to be by the cells of k-d trees: few dimensions prune."""
        return self.shape.n_columns <= FEW_COLUMNS and self.options.knn_index == "cells"

    @property
    def may_approximate(self) -> bool:
        """Whether the search may turn out to be approximate."""
        return self.options.knn != "exact" and not self.by_cells

    @property
    def _largest_shape(self) -> Shape:
        """The sizes of the graph with the most entries that may have to be built."""
        return self.shape if self.by_cells else self.whole().shape

    def whole(self) -> Self:
        """Return the plan of the graph in which all rows are as long as the longest."""
        return dataclasses.replace(
            self, shape=dataclasses.replace(self.shape, k=self.shape.longest_k)
        )

    def exact(self) -> Self:
        """Return the plan of a search that is sure to be exact, which leaves more to the cache."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, knn="exact"))

    @property
    def cache_nbytes(self) -> int:
        """Bytes of other partitions that a searching process keeps: half of what is left."""
        projected = self.memory()
        stages = ("neighbors", "density", "fragments")
        left = self.memory_limit - max(projected.get(stage, 0) for stage in stages)
        return max(0, left // 2)

    def check(self) -> None:
        """Refuse what has not enough memory."""
        refuse_memory(self.memory(), self.memory_limit, self.reason)

    def reason(self, stage: str, needed: str) -> str:
        """Say why a stage needs so much, and what to change."""
        if stage in ("scan", "exchange"):
            return chunk_reason(self.data, stage, needed)
        if stage == "driver":
            return f"a sample of {self.input_shape.sample_size} rows needs {needed}: raise it"
        return (
            f"{stage} needs {needed} for {self.shape.n_partitions} partitions and k = "
            f"{self.shape.k}: raise it, or ask for more partitions (n_partitions)"
        )

    def __str__(self) -> str:
        shape = self.shape
        projected = self.memory() | {"limit": self.memory_limit}
        return "\n".join(
            [
                f"graph of {shape.n_points} x {shape.n_columns} "
                f"{np.dtype(self.data.source.dtype)}, k = {shape.k}",
                f"{shape.n_partitions} partitions, {shape.n_shards} shards of "
                f"{shape.shard_rows} points",
                *(f"{name:<10}{format_bytes(n):>12} a process" for name, n in projected.items()),
                f"{'disk':<10}{format_bytes(self.disk_nbytes):>12}",
            ]
        )


@dataclasses.dataclass(frozen=True)
class FitPlan(Plan):
    """What a whole fit will need."""

    cache_limit: int | None = None
    """Bytes of neighbour rows that the coordinator may hold, if that is limited."""
    known: Shape | None = None
    """The sizes of a graph that is there already, if one is."""

    def _needs(self) -> dict[str, int]:
        """Return what each stage takes in a process, beside the way to its store."""
        shape, projected = self.known or self._largest_shape, super()._needs()
        driver = memory.density_driver_nbytes(shape)
        before = projected if self.known is None else {"driver": driver}
        if self.data.content is not None:  # what is copied is read whatever is known
            before["scan"] = projected["scan"]
        return {
            **before,
            "driver": max(before["driver"], driver),
            "density": memory.density_nbytes(shape),
            "expand": memory.coordinator_nbytes(shape),
            "fragments": self._fragments_nbytes(shape),
        }

    def _fragments_nbytes(self, shape: Shape) -> int:
        """Return what a process takes for rows of fragments, searched, extended or cut."""
        graph = self.known or self.shape
        found = memory.fragments_nbytes(graph, shape.longest_k, memory.most_in_range(shape))
        if self.may_approximate and graph.k < graph.longest_k:
            found = max(found, memory.extend_nbytes(graph))
        return found

    @property
    def disk_nbytes(self) -> int:
        """Bytes that the run has on disk at most: points, rows or lists, order and labels.

        Longer rows, of fragments (twice, while they are put in order) and of points with copies,
        are beside: `estimate` tells.
        """
        before = self.graph_disk_nbytes if self.known is None else 0
        return before + self.order_disk_nbytes + self.labels_disk_nbytes

    @property
    def order_disk_nbytes(self) -> int:
        """Bytes that the order has on disk at most."""
        return memory.order_disk_nbytes(self.shape)

    @property
    def labels_disk_nbytes(self) -> int:
        """Bytes that labels have on disk: skeletons, settled, published."""
        return self.shape.n_points * 3 * memory.LABEL_NBYTES

    def check_clusters(self, n_clusters: int) -> None:
        """Refuse more clusters than the coordinator can hold beside its state of the points."""
        room = self.memory_limit - self.store_nbytes
        room -= memory.coordinator_nbytes(self.known or self._largest_shape)
        room += (memory.POINT_STATE_NBYTES - memory.LABEL_NBYTES - 1) * self.shape.n_points
        if 2 * memory.CLUSTER_NBYTES * n_clusters > room:
            raise LimitError(
                f"These parameters leave {n_clusters} clusters, but memory_limit, "
                f"{format_bytes(self.memory_limit)}, has room for "
                f"{room // (2 * memory.CLUSTER_NBYTES)}: raise it, or min_cluster_size."
            )

    @property
    def coordinator_cache_nbytes(self) -> int:
        """Bytes of neighbour rows that the coordinator holds: most of what its limit leaves."""
        left = max(0, self.memory_limit - self.memory()["expand"]) * 3 // 4
        return left if self.cache_limit is None else min(left, self.cache_limit)

    def reason(self, stage: str, needed: str) -> str:
        """Say why a stage needs so much, and what to change."""
        if stage == "driver":
            return (
                f"the driver needs {needed} for a sample of {self.input_shape.sample_size} rows "
                f"and an exchange between {self.shape.n_shards} shards: raise it"
            )
        if stage == "expand":
            return (
                f"the coordinator needs {needed} for {self.shape.n_points} points "
                f"({memory.POINT_STATE_NBYTES} bytes each): raise it"
            )
        return super().reason(stage, needed)


PlanType = TypeVar("PlanType", bound=Plan)


def make_plan(
    data: Input,
    folder: Folder,
    options: Options,
    memory_limit: Any,
    n_workers: int | None,
    make: Callable[..., PlanType],
) -> PlanType:
    """Make the plan of a graph or a fit; raise a sentence where there is not enough memory."""
    n_points, n_columns = data.source.shape
    options = options.check(n_points)
    shape = memory.shape_of(
        n_points,
        n_columns,
        working_itemsize(data.source.dtype),
        options.k or 1,
        options.n_partitions,
        options.longest_k,
    )
    plan = make(
        data,
        options,
        shape,
        input_shape_of(data.source, shape.sample_size),
        as_memory_limit(memory_limit, n_workers),
        disk_free(folder),
    )
    plan.check()
    return plan


def working_itemsize(dtype: Any) -> int:
    """Return the bytes of a working coordinate at most, for input of a type."""
    dtype = np.dtype(dtype)
    return 8 if dtype.itemsize > (2 if dtype.kind in "iu" else 4) else 4


def input_shape_of(source: Source, sample_size: int) -> memory.InputShape:
    """Return the sizes of a source."""
    n_rows, n_columns = source.shape
    row_nbytes = n_columns * np.dtype(source.dtype).itemsize
    return memory.input_shape_of(
        n_rows, row_nbytes, source.chunk_rows, source.decoding_nbytes, sample_size
    )


def as_memory_limit(memory_limit: Any, n_workers: int | None) -> int:
    """Return the limit of each process: what is asked for, or a fair share of what may be used."""
    n_workers = N_WORKERS.check("n_workers", n_workers)
    if memory_limit is None:
        n_processes = 1 + (n_threads() if n_workers is None else n_workers)
        return usable_nbytes() // n_processes
    try:
        limit = parse_bytes(memory_limit)
    except (ValueError, AttributeError, TypeError):
        limit = 0
    if limit <= 0:
        raise ParameterError(
            f"memory_limit is {memory_limit!r}, but it must be a number of bytes or a text such "
            "as '1GiB'."
        )
    return int(limit)


def disk_free(folder: Folder) -> int | None:
    """Return the bytes free on the disk of a local folder."""
    if not folder.is_local:
        return None
    place = os.path.abspath(folder.url.removeprefix("file://"))
    while not os.path.exists(place):
        place = os.path.dirname(place)
    return shutil.disk_usage(place).free
