"""Shards of the neighbour graph: what one task fills, and writes once. Memory: one shard.

Rows have k neighbours. A point that has copies needs more of them, because its copies come first:
where `longest_k` is larger than k, such points have a second, longer row in files beside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spore_dask.exact import number_dtype
from spore_dask.kernels.rows import LARGEST_DISTANCE, first_falling_row
from spore_dask.memory import BUFFERS_NBYTES, PAGE_ROWS, Shape
from spore_dask.store import Folder, Limits, RowFiles
from spore_dask.threads import scratch


@dataclasses.dataclass(frozen=True)
class Shard:
    """Rows of the graph, for the points from `first` on."""

    first: int
    neighbors: NDArray[Any]
    distances: NDArray[np.floating]
    rows: NDArray[Any]
    """Input row of each point."""

    @property
    def entries(self) -> Entries:
        """The rows, without the places of their points in the input."""
        return Entries(self.neighbors, self.distances)

    @property
    def k(self) -> int:
        """Neighbours of each point."""
        return self.entries.k

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
    """Return room for one shard, with the points themselves filled in.

    A thread has one shard at a time: the next one overwrites it.
    """
    first = number * shape.shard_rows
    numbers = np.arange(first, min(first + shape.shard_rows, shape.n_points))
    size, number_type = (len(numbers), shape.k + 1), number_dtype(shape.n_points)
    entries = Entries(scratch("neighbors", size, number_type), scratch("distances", size, dtype))
    entries.fill_in(numbers)
    return Shard(first, *entries, np.empty(len(numbers), number_type))


def empty_shard(first: int, n_rows: int, shape: Shape, dtype: Any) -> Shard:
    """Allocate the rows of some points, with the points themselves filled in."""
    numbers = np.arange(first, first + n_rows)
    entries = new_entries(numbers, shape.n_points, shape.k, dtype)
    return Shard(first, *entries, np.empty(n_rows, number_dtype(shape.n_points)))


class Entries(NamedTuple):
    """The entries of the rows of some points: each point itself, then its neighbours."""

    neighbors: NDArray[Any]
    """(rows, k + 1)"""
    distances: NDArray[np.floating]

    @property
    def k(self) -> int:
        """Neighbours of each point."""
        return int(self.neighbors.shape[1]) - 1

    def fill_in(self, numbers: NDArray[np.integer]) -> None:
        """Begin each row with its point itself."""
        self.neighbors[:, 0] = numbers
        self.distances[:, 0] = 0


def new_entries(numbers: NDArray[np.integer], n_points: int, k: int, dtype: Any) -> Entries:
    """Allocate rows for some of the points of a graph, with the points themselves filled in."""
    entries = Entries(
        np.empty((len(numbers), k + 1), number_dtype(n_points)),
        np.empty((len(numbers), k + 1), dtype),
    )
    entries.fill_in(numbers)
    return entries


ARRAYS = ("neighbors", "distances", "rows")
DISTANCES = Limits(0, LARGEST_DISTANCE)
"""What distances may be."""
DOCUMENT = "graph.json"
"""Says in the folder of a graph what it is."""


def write_shard(folder: Folder, shard: Shard) -> None:
    """Write one shard of the graph."""
    for name in ARRAYS:
        folder.open_rows(name).write(shard.first, getattr(shard, name))


class Longer(NamedTuple):
    """The longer rows of the points of a shard that have copies."""

    points: NDArray[Any]
    """Their numbers, ascending."""
    neighbors: NDArray[Any]
    """(rows, longest_k + 1)"""
    distances: NDArray[np.floating]


def write_longer(folder: Folder, number: int, longer: Longer) -> None:
    """Write the longer rows of a shard."""
    for name, array in longer._asdict().items():
        folder.child("longer").write_rows(f"{number}.{name}", array)


@dataclasses.dataclass(frozen=True)
class GraphRows:
    """The rows of a finished graph on disk. Small enough to travel with every task."""

    folder: Folder
    n_points: int
    k: int
    """Neighbours of each row."""
    longest_k: int
    """Neighbours of the longer rows of points that have copies; k where no row is longer."""
    dtype: str
    """Type of the distances."""
    shard_rows: int
    n_longer: NDArray[np.int64]
    """Longer rows of each shard."""

    @classmethod
    def from_summary(cls, folder: Folder, summary: dict[str, Any]) -> GraphRows:
        """Return what a finished graph says of its rows, or raise `DamagedError`."""
        with folder.understood(DOCUMENT):
            found = cls(
                folder=folder,
                n_points=int(summary["n_points"]),
                k=int(summary["k"]),
                longest_k=int(summary["longest_k"]),
                dtype=np.dtype(summary["dtype"]).str,
                shard_rows=int(summary["shard_rows"]),
                n_longer=np.array(summary["n_longer"], np.int64),
            )
            found._check_sizes()
        for name in ARRAYS:
            found._check_files(name)
        return found

    def _check_sizes(self) -> None:
        """Raise `ValueError` if the numbers do not go together."""
        if not 1 <= self.k <= self.longest_k < self.n_points or self.shard_rows < 1:
            raise ValueError(
                f"{self.n_points} points in shards of {self.shard_rows}, k is {self.k} and "
                f"longest_k {self.longest_k}"
            )
        if self.dtype not in ("<f4", "<f8"):
            raise ValueError(f"dtype is {self.dtype!r}")
        n_shards = -(-self.n_points // self.shard_rows)
        if self.n_longer.shape != (n_shards,) or Limits(0, self.shard_rows + 1).broken_by(
            self.n_longer
        ):
            raise ValueError(f"n_longer is {self.n_longer.tolist()} in {n_shards} shards")

    def _check_files(self, name: str) -> None:
        """Refuse an array of other sizes than the summary says."""
        array = self.array(name)
        shape = int(array.starts[-1]), *array.row_shape
        chunk_rows = self.folder.open_rows(name, shape, array.dtype).chunk_rows
        nbytes = array.folder.file_nbytes(array.names[-1])
        if chunk_rows != array.starts[1] or nbytes != chunk_rows * array.row_nbytes:
            why = f"chunks have {chunk_rows} rows and {nbytes} bytes, {DOCUMENT} says otherwise"
            raise self.folder.damaged("array", name, why)

    @classmethod
    def of_shape(cls, folder: Folder, shape: Shape, dtype: str) -> GraphRows:
        """Return the rows of a graph none of which are longer yet."""
        none = np.zeros(shape.n_shards, np.int64)
        sizes = shape.n_points, shape.k, shape.longest_k
        return cls(folder, *sizes, dtype, shape.shard_rows, none)

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return len(self.n_longer)

    def span(self, shard: int) -> tuple[int, int]:
        """Return the points [first, last) of a shard."""
        first = shard * self.shard_rows
        return first, min(first + self.shard_rows, self.n_points)

    def array(self, name: str) -> RowFiles:
        """Return "neighbors", "distances" or "rows", one row a point."""
        row_shape = () if name == "rows" else (self.k + 1,)
        shape = (self.n_points, *row_shape)
        dtype, limits = self._numbers(name)
        return self.folder.known_rows(name, shape, dtype, self.shard_rows, limits)

    def _numbers(self, name: str) -> tuple[np.dtype[Any], Limits]:
        """Return the dtype of an array, and what it may hold."""
        if name == "distances":
            return np.dtype(self.dtype), DISTANCES
        return number_dtype(self.n_points), Limits(0, self.n_points)

    def fill(
        self,
        shard: int,
        numbers: NDArray[np.int64],
        into: Entries,
        places: NDArray[np.int64] | None = None,
    ) -> None:
        """Begin the rows of some points of a shard, ascending, with as much as there is of them.

        `places` tells which row each point has; default: one after another.
        """
        places = np.arange(len(numbers)) if places is None else places
        for name, rows in into._asdict().items():
            array = self.array(name)
            first, last = self.span(shard)
            step = PAGE_ROWS * max(1, BUFFERS_NBYTES // (PAGE_ROWS * array.row_nbytes))
            for low in range(first, last, step):
                high = min(low + step, last)
                here = slice(*np.searchsorted(numbers, (low, high)))
                if len(numbers[here]):
                    found = array.read(low, high)[numbers[here] - low, : into.k + 1]
                    rows[places[here], : found.shape[1]] = found

    def longer_array(self, name: str) -> RowFiles:
        """Return "points", "neighbors" or "distances" of the longer rows of all shards."""
        names = tuple(f"{i}.{name}" for i in np.flatnonzero(self.n_longer).tolist())
        starts = np.append(0, np.cumsum(self.n_longer[self.n_longer > 0]))
        row_shape = () if name == "points" else (self.longest_k + 1,)
        return RowFiles(self.folder.child("longer"), names, starts, row_shape, *self._numbers(name))

    def longer(self, shard: int) -> Longer:
        """Return the longer rows of a shard."""
        last = int(self.n_longer[: shard + 1].sum())
        first = last - int(self.n_longer[shard])
        arrays = (self.longer_array(name).read(first, last) for name in Entries._fields)
        found = Longer(self.longer_points(shard), *arrays)
        self.refuse_falling(f"longer/{shard}.distances", found.points.tolist(), found.distances)
        return found

    def longer_points(self, shard: int) -> NDArray[Any]:
        """Return the points of a shard that have longer rows, ascending."""
        last = int(self.n_longer[: shard + 1].sum())
        first = last - int(self.n_longer[shard])
        points = self.longer_array("points").read(first, last)
        low, end = self.span(shard)
        if Limits(low, end).broken_by(points) or (points[1:] <= points[:-1]).any():
            why = f"its numbers do not ascend from {low} to {end - 1}"
            raise self.folder.damaged("file", f"longer/{shard}.points", why)
        return points

    def refuse_falling(
        self, name: str, points: Sequence[int], distances: NDArray[np.floating]
    ) -> None:
        """Refuse an array of distances if those of a point do not ascend."""
        row = int(first_falling_row(distances))
        if row >= 0:
            why = f"the distances of point {points[row]} do not ascend from 0 on"
            raise self.folder.damaged("array", name, why)
