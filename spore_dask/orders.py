"""The total order of the points on disk, in ranges. Reads one range or shard at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.store import Folder


@dataclasses.dataclass(frozen=True)
class Order:
    """The total order of the points on disk, in ranges. Small enough to travel with every task."""

    folder: Folder
    starts: NDArray[np.int64]
    """Place in the order of the first point of each range, and the number of points."""

    @property
    def n_ranges(self) -> int:
        """Number of ranges."""
        return len(self.starts) - 1

    def points(self, i: int) -> NDArray[Any]:
        """Return the numbers of the points of a range, in order."""
        return self.folder.child("order").read_array(str(i))

    def ranges_of(self, shard: int) -> NDArray[np.uint32]:
        """Return the range that each point of a shard of the graph is in."""
        return self.folder.child("ranges").read_array(str(shard))


def write_range(folder: Folder, i: int, points: NDArray[Any]) -> None:
    """Write the numbers of the points of a range, in order."""
    folder.child("order").write_array(str(i), points)


def write_ranges_of(folder: Folder, shard: int, ranges: NDArray[np.integer]) -> None:
    """Write the range that each point of a shard of the graph is in."""
    folder.child("ranges").write_array(str(shard), ranges.astype(np.uint32))
