"""Neighbors: find the k nearest others of every point, one shard of the graph a task.

A task searches for the points of its shard, reading other partitions as their boxes come within
reach, and writes its rows finished, once. Reads the points; writes `neighbors`, `distances` and
`rows`, each shard by one task.
Memory: one shard of the graph twice, the partitions that it overlaps, the cache of others, and the
buffers of one block.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from spore_dask import memory
from spore_dask.engine import Engine
from spore_dask.exact import (
    Centred,
    Others,
    block_buffers,
    blocks,
    centre,
    compare_block,
    search_block,
)
from spore_dask.kernels.cells import points_of
from spore_dask.kernels.nearest import Buffers, finish, new_buffers
from spore_dask.points import CACHE, Points
from spore_dask.shards import Shard, create_graph, empty_shard, new_shard, write_shard
from spore_dask.store import Folder
from spore_dask.tasks import Receipt, Work, run_stage, run_work

QUERIES_PER_PASS = memory.QUERIES
"""Points that are compared with all others while each partition is read once."""
QUERIES_PER_PRODUCT = 256


@dataclasses.dataclass(frozen=True)
class NeighborSpec:
    """What the search is asked for."""

    points: Points
    shape: memory.Shape
    by_products: bool
    """Whether to compare with all points, because boxes would not prune."""
    cache_nbytes: int
    needs_nbytes: int


def search_exactly(engine: Engine, folder: Folder, spec: NeighborSpec) -> Receipt:
    """Find the true neighbours of every point, or take up what was done before."""
    return run_stage(folder, functools.partial(_build, engine, spec))


def _build(engine: Engine, spec: NeighborSpec, folder: Folder) -> Receipt:
    create_graph(folder, spec.shape, np.dtype(spec.points.dtype))
    search = functools.partial(_search_shard, spec, folder)
    work = Work("neighbors", search, range(spec.shape.n_shards), spec.needs_nbytes)
    receipts = run_work(engine, folder, work)
    return {
        "n_rows": sum(r["n_rows"] for r in receipts),
        "coordinates_compared": sum(r["n_compared"] for r in receipts),
    }


def _search_shard(spec: NeighborSpec, folder: Folder, number: int) -> Receipt:
    """Search for the points of one shard, and write its rows."""
    CACHE.budget_nbytes = spec.cache_nbytes
    search = _by_products if spec.by_products else _by_boxes
    shard = new_shard(spec.shape, spec.points.dtype, number)
    n_compared = 0
    for p, first, last in spec.points.overlapping(shard.first, shard.last):
        cells = spec.points.cells(p)
        n_compared += search(spec.points, p, first, last, shard)
        shard.rows[cells.first + first - shard.first :][: last - first] = cells.rows[first:last]
    for leader, copies in spec.points.copies_in(shard.first, shard.last):
        shard.share(copies, _search_one(spec, leader), spec.points.copy_rows(*copies))
    checksums = write_shard(folder, shard)
    return {"n_rows": len(shard.rows), "n_compared": int(n_compared), "checksums": checksums}


def _by_boxes(points: Points, p: int, first: int, last: int, shard: Shard) -> int:
    """Fill the rows of the points [first, last) of a partition; return coordinates compared."""
    cells, k = points.cells(p), shard.k
    buffers = block_buffers(cells, k)
    others = _others(points, p)
    n_compared = 0
    for block in blocks(cells, k, first, last):
        n_compared += search_block(cells, block, k, buffers, others)
        low, high = max(first, block.first), min(last, block.last)
        _finish(buffers, low - block.first, np.arange(low, high) + cells.first, shard)
    return n_compared


def _by_products(points: Points, p: int, first: int, last: int, shard: Shard) -> int:
    """Do the same by comparing with all points."""
    low, high = points.boxes()
    full = points.sizes() > 0
    low, high = low[full].min(axis=0), high[full].max(axis=0)
    center = low + (high - low) / 2
    n_points = int(points.firsts[-1])
    for begin in range(first, last, QUERIES_PER_PASS):
        own = _centred(points, p, center).part(begin, min(begin + QUERIES_PER_PASS, last))
        numbers = np.arange(own.first, own.first + len(own.points), dtype=own.rows.dtype)
        parts = [
            slice(i, i + QUERIES_PER_PRODUCT) for i in range(0, len(numbers), QUERIES_PER_PRODUCT)
        ]
        buffers = [
            new_buffers(len(numbers[part]), shard.k, own.points.dtype, own.rows.dtype)
            for part in parts
        ]
        for other in np.flatnonzero(full).tolist():
            others = _centred(points, other, center)
            for part, buffer in zip(parts, buffers, strict=True):
                queries = own.part(part.start, part.stop)
                compare_block(queries, numbers[part], others, shard.k, buffer)
        for part, buffer in zip(parts, buffers, strict=True):
            _finish(buffer, 0, numbers[part].astype(np.int64), shard)
    return (last - first) * n_points * points.n_columns


def _centred(points: Points, p: int, center: NDArray[np.floating]) -> Centred:
    """Return the points of a partition, ready for products."""
    cells = points.cells(p)
    return centre(points_of(cells), cells.rows, cells.first, center)


def _others(points: Points, own: int) -> Others:
    """Return the partitions beside one's own that are not empty."""
    low, high = points.boxes()
    numbers = np.flatnonzero(points.sizes() > 0)
    numbers = numbers[numbers != own]
    return Others(low[numbers], high[numbers], numbers, points.cells)


def _finish(buffers: Buffers, first_query: int, numbers: NDArray[np.int64], shard: Shard) -> None:
    """Write the nearest of some queries, points `numbers`, into a shard; rows must be full."""
    places = numbers - shard.first
    into = shard.neighbors, shard.distances
    if finish(buffers, first_query, places, shard.k, False, *into) < len(places):
        raise RuntimeError("a row of the neighbour graph is not full")


def _search_one(spec: NeighborSpec, number: int) -> Shard:
    """Return the row of one point."""
    points, k = spec.points, spec.shape.k
    p = points.partition_of(number)
    cells = points.cells(p)
    place = number - cells.first
    block = next(blocks(cells, k, place, place + 1))
    buffers = block_buffers(cells, k)
    search_block(cells, block, k, buffers, _others(points, p))
    one = empty_shard(number, 1, spec.shape, points.dtype)
    _finish(buffers, place - block.first, np.array([number]), one)
    return one
