"""The points of a run on disk: renumbered, in partitions, each in cells.

Points have consecutive numbers, partition after partition; copies of heavy points come last, and
of them only the input rows are kept. Reads and writes partitions; a process keeps those that it has
read in a cache with a byte budget.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.exact import number_dtype
from spore_dask.kernels.cells import Cells, cell_starts, n_levels, points_between
from spore_dask.kernels.means import Tree as MeansPlanes
from spore_dask.kernels.order import extent_of
from spore_dask.kernels.probes import Part
from spore_dask.partitions import MeansTree
from spore_dask.store import FINITE, Folder, Limits

DOCUMENT = "done.json"
"""Says in the folder of points what they are."""
BOXES = "boxes"
MEANS = "means"


@dataclasses.dataclass(frozen=True)
class Points:
    """Where points are, and how they are numbered. Small enough to travel with every task."""

    folder: Folder
    kind: str
    """`BOXES`: cells of k-d trees; `MEANS`: cells around centres."""
    n_points: int
    n_columns: int
    dtype: str
    firsts: NDArray[np.int64]
    """Number of the first point of each partition, and of the first copy."""
    copy_starts: NDArray[np.int64]
    """Number of the first copy of each heavy point, and the number of points."""
    leaders: NDArray[np.int64]
    """Point whose neighbours the copies of each heavy point share."""

    @classmethod
    def from_summary(cls, folder: Folder, summary: dict[str, Any]) -> Points:
        """Return what a finished partitioning says of its points, or raise `DamagedError`."""
        with folder.understood(DOCUMENT):
            found = cls(
                folder=folder,
                kind=summary["kind"],
                n_points=int(summary["n_points"]),
                n_columns=int(summary["n_columns"]),
                dtype=np.dtype(summary["dtype"]).str,
                firsts=np.array(summary["firsts"], np.int64),
                copy_starts=np.array(summary["copy_starts"], np.int64),
                leaders=np.array(summary["leaders"], np.int64),
            )
            found._check()
        return found

    def _check(self) -> None:
        """Raise `ValueError` if the numbers do not go together."""
        if self.kind not in (BOXES, MEANS) or self.dtype not in ("<f4", "<f8"):
            raise ValueError(f"kind is {self.kind!r}, dtype {self.dtype!r}")
        if self.n_columns < 1:
            raise ValueError(f"n_columns is {self.n_columns}")
        firsts, copy_starts = self.firsts, self.copy_starts
        if len(firsts) < 2 or len(copy_starts) != len(self.leaders) + 1:
            raise ValueError(f"{len(firsts)} firsts and {len(copy_starts)} copy_starts")
        ends = firsts[0], copy_starts[0], copy_starts[-1]
        starts = np.concatenate([firsts, copy_starts])
        if ends != (0, firsts[-1], self.n_points) or (np.diff(starts) < 0).any():
            raise ValueError(f"firsts and copy_starts do not ascend from 0 to {self.n_points}")
        if why := Limits(0, int(firsts[-1])).broken_by(self.leaders):
            raise ValueError(f"of the leaders, {why}")

    @property
    def n_partitions(self) -> int:
        """Number of partitions."""
        return len(self.firsts) - 1

    def sizes(self) -> NDArray[np.int64]:
        """Return the number of points of each partition."""
        return np.diff(self.firsts)

    def partition_of(self, number: int) -> int:
        """Return the partition that holds a point."""
        return int(np.searchsorted(self.firsts, number, side="right")) - 1

    def overlapping(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Return the partitions with points in [first, last), and which of their points."""
        found = []
        for p in range(self.n_partitions):
            low, high = int(self.firsts[p]), int(self.firsts[p + 1])
            if max(low, first) < min(high, last):
                found.append((p, max(low, first) - low, min(high, last) - low))
        return found

    def boxes(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the corners of the box of each partition."""
        shape = 2, self.n_partitions, self.n_columns
        low, high = self.folder.read_array("boxes", shape=shape, dtype=self.dtype, limits=FINITE)
        return low, high

    def extent(self) -> float:
        """Return the Euclidean norm of the ranges of the columns."""
        return extent_of(*self.range())

    def range(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the least and the largest coordinate in each column."""
        low, high = self.boxes()
        full = self.sizes() > 0
        return low[full].min(axis=0), high[full].max(axis=0)

    def cells(self, partition: int) -> Cells:
        """Return a partition in the cells of a k-d tree."""
        key = self.folder.url, partition
        cells: Cells = CACHE.get(key, lambda: self._read_cells(partition))
        return cells

    def _read_cells(self, partition: int) -> Cells:
        n_points = self._size(partition)
        starts = cell_starts(n_points, n_levels(n_points))
        nodes = 2 * (len(starts) - 1) - 1, self.n_columns
        return Cells(
            first=int(self.firsts[partition]),
            starts=starts,
            rows=self._read_rows(partition),
            columns=self._read_floats(partition, "columns", n_points * self.n_columns),
            low=self._read_floats(partition, "low", *nodes),
            high=self._read_floats(partition, "high", *nodes),
        )

    def _size(self, partition: int) -> int:
        """Return the number of points of a partition."""
        return int(self.firsts[partition + 1] - self.firsts[partition])

    def _read_rows(self, partition: int) -> NDArray[Any]:
        """Read the input rows of the points of a partition."""
        return self.folder.child(f"partitions/{partition}").read_array(
            "rows",
            shape=(self._size(partition),),
            dtype=number_dtype(self.n_points),
            limits=Limits(0, self.n_points),
        )

    def _read_floats(self, partition: int, name: str, *shape: int | None) -> NDArray[np.floating]:
        """Read coordinates of a partition."""
        folder = self.folder.child(f"partitions/{partition}")
        return folder.read_array(name, shape=shape, dtype=self.dtype, limits=FINITE)

    def _read_starts(self, partition: int) -> NDArray[np.int64]:
        """Read where the cells of a partition start, and the end."""
        folder, n_points = self.folder.child(f"partitions/{partition}"), self._size(partition)
        starts = folder.read_array("starts", shape=(None,), dtype=np.int64)
        ends = starts[:1].tolist() + starts[-1:].tolist()
        if ends != [0, n_points] or (np.diff(starts) < 1).any():
            why = f"its numbers do not ascend from 0 to {n_points}"
            raise folder.damaged("array", "starts.npy", why)
        return starts

    def part(self, partition: int) -> Part:
        """Return a partition in cells around centres."""
        key = self.folder.url, partition
        part: Part = CACHE.get(key, lambda: self._read_part(partition))
        return part

    def _read_part(self, partition: int) -> Part:
        size = self._size(partition), self.n_columns
        starts = self._read_starts(partition)
        return Part(
            int(self.firsts[partition]),
            self._read_floats(partition, "points", *size),
            starts,
            self._read_floats(partition, "centers", len(starts) - 1, self.n_columns),
        )

    def coordinates(self, first: int, last: int) -> NDArray[np.floating]:
        """Return the coordinates of the points [first, last), copies among them."""
        found = np.empty((last - first, self.n_columns), self.dtype)
        for p, low, high in self.overlapping(first, last):
            place = int(self.firsts[p]) + low - first
            found[place : place + high - low] = self._coordinates_in(p, low, high)
        for leader, (low, high) in self.copies_in(first, last):
            found[low - first : high - first] = self.coordinates(leader, leader + 1)
        return found

    def _coordinates_in(self, partition: int, first: int, last: int) -> NDArray[np.floating]:
        """Return the coordinates of the points at places [first, last) of a partition."""
        if self.kind == MEANS:
            return self.part(partition).points[first:last]
        found: NDArray[np.floating] = points_between(self.cells(partition), first, last)
        return found

    def tree(self) -> MeansTree:
        """Return the tree that tells which partition of means a point is in."""
        folder, n_nodes = self.folder.child("tree"), self.n_partitions - 1
        size = n_nodes, self.n_columns
        children = folder.read_array(
            "children", shape=(n_nodes, 2), dtype=np.int64, limits=Limits(-1 - n_nodes, n_nodes)
        )
        if ((children >= 0) & (children <= np.arange(n_nodes)[:, None])).any():
            raise folder.damaged("array", "children.npy", "a node is below itself")
        planes = MeansPlanes(
            folder.read_array("directions", shape=size, dtype=np.float64, limits=FINITE),
            folder.read_array("thresholds", shape=size[:1], dtype=np.float64, limits=FINITE),
            children,
        )
        return MeansTree(self.n_partitions, planes)

    def centers(self, partition: int) -> NDArray[np.floating]:
        """Return the centres of the cells of a partition."""
        size = len(self.starts(partition)) - 1, self.n_columns
        return self._small(partition, "centers", lambda p: self._read_floats(p, "centers", *size))

    def starts(self, partition: int) -> NDArray[np.int64]:
        """Return where each cell of a partition starts among its points, and the end."""
        return self._small(partition, "starts", self._read_starts)

    def rows(self, partition: int) -> NDArray[Any]:
        """Return the input row of each point of a partition."""
        return self._small(partition, "rows", self._read_rows)

    def _small(
        self, partition: int, name: str, read: Callable[[int], NDArray[Any]]
    ) -> NDArray[Any]:
        """Return one array of a partition."""
        key = self.folder.url, partition, name
        found: tuple[NDArray[Any]] = CACHE.get(key, lambda: (read(partition),))
        return found[0]

    def copies_in(self, first: int, last: int) -> list[tuple[int, tuple[int, int]]]:
        """Return the leader and the numbers of each run of copies among points [first, last)."""
        found = []
        for h, leader in enumerate(self.leaders.tolist()):
            low = max(first, int(self.copy_starts[h]))
            high = min(last, int(self.copy_starts[h + 1]))
            if low < high:
                found.append((leader, (low, high)))
        return found

    def copy_rows(self, first: int, last: int) -> NDArray[Any]:
        """Return the input rows of the copies with these numbers."""
        begin, numbers = int(self.firsts[-1]), number_dtype(self.n_points)
        shape, limits = (self.n_points - begin,), Limits(0, self.n_points)
        copies = self.folder.open_rows("copies", shape, numbers, limits)
        return copies.read(first - begin, last - begin)


def write_tree(folder: Folder, tree: MeansTree) -> None:
    """Write the tree that tells which partition of means a point is in."""
    for name, array in tree.planes._asdict().items():
        folder.child("tree").write_array(name, array)


def write_cells(folder: Folder, partition: int, cells: Cells) -> None:
    """Write one partition in the cells of a k-d tree."""
    target = folder.child(f"partitions/{partition}")
    for name in ("rows", "columns", "low", "high"):
        target.write_array(name, getattr(cells, name))


def write_part(folder: Folder, partition: int, part: Part, rows: NDArray[Any]) -> None:
    """Write one partition in cells around centres."""
    target = folder.child(f"partitions/{partition}")
    target.write_array("rows", rows)
    for name in ("points", "starts", "centers"):
        target.write_array(name, getattr(part, name))


class Cache:
    """What was read last, up to a number of bytes."""

    def __init__(self, budget_nbytes: int = 64 << 20) -> None:
        self.budget_nbytes = budget_nbytes
        self._lock = threading.RLock()
        self._held: OrderedDict[Any, tuple[Any, int]] = OrderedDict()

    def get(self, key: Any, read: Callable[[], Any]) -> Any:
        """Return what is held under a key, reading it first if it is not."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key][0]
            value = read()
            nbytes = sum(part.nbytes for part in value if isinstance(part, np.ndarray))
            self._held[key] = value, nbytes
            while len(self._held) > 1 and self.nbytes() > self.budget_nbytes:
                self._held.popitem(last=False)
            return value

    def forget(self, url: str) -> None:
        """Let go of what was read from a folder."""
        with self._lock:
            for key in [key for key in self._held if key[0] == url]:
                del self._held[key]

    def nbytes(self) -> int:
        """Return the bytes that are held."""
        return sum(nbytes for _, nbytes in self._held.values())

    def clear(self) -> None:
        """Hold nothing."""
        with self._lock:
            self._held.clear()


CACHE = Cache()
"""The cache of this process."""
