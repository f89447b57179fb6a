"""Seeds: the seed order where it is not that of density, in this process.

Reads the input row of each point; writes the points in the order of the rows, or of a random
permutation of them. Memory: 4 bytes a point, and 8 more for a permutation.
"""

from __future__ import annotations

import functools

import numpy as np

from spore_dask.engine import Engine
from spore_dask.exact import number_dtype
from spore_dask.orders import Order, write_range
from spore_dask.shards import GraphRows
from spore_dask.store import Folder
from spore_dask.tasks import Receipt, run_stage


def order_seeds(engine: Engine, folder: Folder, graph: GraphRows, seed: int | None) -> Order:
    """Order the points by input row, or by a permutation of the rows drawn with a seed."""
    run_stage(engine, folder, functools.partial(_build, engine, graph, seed))
    starts = [graph.span(shard)[0] for shard in range(graph.n_shards)]
    return Order(folder, np.append(starts, graph.n_points))


def _build(engine: Engine, graph: GraphRows, seed: int | None, folder: Folder) -> Receipt:
    numbers = number_dtype(graph.n_points)
    unknown = np.iinfo(numbers).max
    point_of_row = np.full(graph.n_points, unknown, numbers)
    rows, spans = graph.array("rows"), [graph.span(shard) for shard in range(graph.n_shards)]
    with engine.here("seeds", 2 * len(spans)) as done:
        for first, last in spans:
            point_of_row[rows.read(first, last)] = np.arange(first, last)
            done()
        if graph.n_points <= unknown == int(point_of_row.max()):
            row = int(np.argmax(point_of_row))
            raise graph.folder.damaged("array", "rows", f"row {row} is not in it")
        order = None if seed is None else np.random.default_rng(seed).permutation(graph.n_points)
        for shard, (first, last) in enumerate(spans):
            ranked = slice(first, last) if order is None else order[first:last]
            write_range(folder, shard, point_of_row[ranked])
            done()
    return {}
