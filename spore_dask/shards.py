"""Shards of the neighbour graph: what one task fills, and writes once. Memory: one shard."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.exact import number_dtype
from spore_dask.memory import Shape
from spore_dask.store import Folder


@dataclasses.dataclass(frozen=True)
class Shard:
    """Rows of the graph, for the points from `first` on."""

    first: int
    neighbors: NDArray[Any]
    distances: NDArray[np.floating]
    rows: NDArray[Any]
    """Input row of each point."""

    @property
    def k(self) -> int:
        """Neighbours of each point."""
        return int(self.neighbors.shape[1]) - 1

    @property
    def last(self) -> int:
        """One more than the number of the last point."""
        return self.first + len(self.rows)

    def share(self, copies: tuple[int, int], leader: Shard, rows: NDArray[Any]) -> None:
        """Give the points [first, last), copies from input `rows`, the neighbours of a leader."""
        part = slice(copies[0] - self.first, copies[1] - self.first)
        self.neighbors[part, 1:] = leader.neighbors[0, 1:]
        self.distances[part, 1:] = leader.distances[0, 1:]
        self.rows[part] = rows


def create_graph(folder: Folder, shape: Shape, dtype: np.dtype[Any]) -> None:
    """Create the arrays of a graph."""
    numbers = number_dtype(shape.n_points)
    size = shape.n_points, shape.k + 1
    folder.create_rows("neighbors", size, numbers, shape.shard_rows)
    folder.create_rows("distances", size, dtype, shape.shard_rows)
    folder.create_rows("rows", size[:1], numbers, shape.shard_rows)


def new_shard(shape: Shape, dtype: Any, number: int) -> Shard:
    """Allocate one shard, with the points themselves filled in."""
    first = number * shape.shard_rows
    return empty_shard(first, min(shape.shard_rows, shape.n_points - first), shape, dtype)


def empty_shard(first: int, n_rows: int, shape: Shape, dtype: Any) -> Shard:
    """Allocate the rows of some points, with the points themselves filled in."""
    numbers = number_dtype(shape.n_points)
    shard = Shard(
        first,
        np.empty((n_rows, shape.k + 1), numbers),
        np.empty((n_rows, shape.k + 1), dtype),
        np.empty(n_rows, numbers),
    )
    shard.neighbors[:, 0] = np.arange(first, first + n_rows)
    shard.distances[:, 0] = 0
    return shard


ARRAYS = ("neighbors", "distances", "rows")


def write_shard(folder: Folder, shard: Shard) -> dict[str, int]:
    """Write one shard of the graph; return the checksum of each of its arrays."""
    for name in ARRAYS:
        folder.open_rows(name).write(shard.first, getattr(shard, name))
    return {name: zlib.crc32(getattr(shard, name).data) for name in ARRAYS}
