"""Neighbors: find the k nearest others of every point, one shard of the graph a task.

A task searches for the points of its shard, reading other partitions as their boxes come within
reach, and writes its rows finished, once; then, where longer rows are asked for, those of its
points that have copies. Reads the points; writes `neighbors`, `distances` and `rows`, each shard by
one task, and `longer/`.
Memory: one shard of the graph twice, or its longer rows, the partitions that it overlaps, the cache
of others, and the buffers of one block.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from spore_dask import memory
from spore_dask.engine import Engine
from spore_dask.points import CACHE, Points
from spore_dask.searching import RowSearch, compare_points, search_points
from spore_dask.shards import (
    Longer,
    Shard,
    create_graph,
    new_entries,
    new_shard,
    write_longer,
    write_shard,
)
from spore_dask.store import Folder
from spore_dask.tasks import Receipt, Work, run_stage, run_work


@dataclasses.dataclass(frozen=True)
class NeighborSpec:
    """What the search is asked for."""

    points: Points
    shape: memory.Shape
    by_products: bool
    """Whether to compare with all points, because boxes would not prune."""
    cache_nbytes: int
    needs_nbytes: int

    @property
    def search(self) -> RowSearch:
        """What searches for some points."""
        return compare_points if self.by_products else search_points


def search_exactly(engine: Engine, folder: Folder, spec: NeighborSpec) -> Receipt:
    """Find the true neighbours of every point, or take up what was done before."""
    return run_stage(engine, folder, functools.partial(_build, engine, spec))


def _build(engine: Engine, spec: NeighborSpec, folder: Folder) -> Receipt:
    create_graph(folder, spec.shape, np.dtype(spec.points.dtype))
    search = functools.partial(_search_shard, spec, folder)
    work = Work("neighbors", search, range(spec.shape.n_shards), spec.needs_nbytes)
    receipts = run_work(engine, folder, work)
    return {
        "n_rows": sum(r["n_rows"] for r in receipts),
        "n_longer": [r["n_longer"] for r in receipts],
        "coordinates_compared": sum(r["n_compared"] for r in receipts),
    }


def _search_shard(spec: NeighborSpec, folder: Folder, number: int) -> Receipt:
    """Search for the points of one shard, and write their rows, then the longer ones."""
    CACHE.budget_nbytes = spec.cache_nbytes
    head, copied = _search_rows(spec, folder, number)
    if spec.shape.longest_k == spec.shape.k or not len(copied):
        return head | {"n_longer": 0}
    longer = _search_longer(spec, folder, number, copied)
    n_compared = head["n_compared"] + longer["n_compared"]
    return {"n_rows": head["n_rows"], "n_longer": len(copied), "n_compared": n_compared}


def _search_rows(
    spec: NeighborSpec, folder: Folder, number: int
) -> tuple[Receipt, NDArray[np.int64]]:
    """Write the rows of a shard; return its receipt, and the points that have copies."""
    shard = new_shard(spec.shape, spec.points.dtype, number)
    numbers = np.arange(shard.first, shard.last)
    n_compared = spec.search(spec.points, numbers, shard.entries)
    _fill_input_rows(spec.points, shard)
    write_shard(folder, shard)
    receipt = {"n_rows": len(shard.rows), "n_compared": int(n_compared)}
    return receipt, numbers[shard.distances[:, 1] <= 0]


def _fill_input_rows(points: Points, shard: Shard) -> None:
    """Fill in which input row each point of a shard is."""
    for p, first, last in points.overlapping(shard.first, shard.last):
        cells = points.cells(p)
        shard.rows[cells.first + first - shard.first :][: last - first] = cells.rows[first:last]
    first_copy = max(shard.first, int(points.firsts[-1]))
    if first_copy < shard.last:
        shard.rows[first_copy - shard.first :] = points.copy_rows(first_copy, shard.last)


def _search_longer(
    spec: NeighborSpec, folder: Folder, number: int, copied: NDArray[np.int64]
) -> Receipt:
    """Write the longer rows of the points of a shard that have copies."""
    points, shape = spec.points, spec.shape
    entries = new_entries(copied, shape.n_points, shape.longest_k, points.dtype)
    n_compared = spec.search(points, copied, entries)
    longer = Longer(copied.astype(entries.neighbors.dtype), *entries)
    write_longer(folder, number, longer)
    return {"n_compared": int(n_compared)}
