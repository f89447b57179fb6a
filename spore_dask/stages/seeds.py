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
    run_stage(engine, folder, functools.partial(_build, graph, seed))
    starts = [graph.span(shard)[0] for shard in range(graph.n_shards)]
    return Order(folder, np.append(starts, graph.n_points))


def _build(graph: GraphRows, seed: int | None, folder: Folder) -> Receipt:
    point_of_row = np.empty(graph.n_points, number_dtype(graph.n_points))
    rows = graph.array("rows")
    for shard in range(graph.n_shards):
        first, last = graph.span(shard)
        point_of_row[rows.read(first, last)] = np.arange(first, last)
    order = None if seed is None else np.random.default_rng(seed).permutation(graph.n_points)
    for shard in range(graph.n_shards):
        part = slice(*graph.span(shard))
        points = point_of_row[part] if order is None else point_of_row[order[part]]
        write_range(folder, shard, points)
    return {}
