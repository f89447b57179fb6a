"""The total order of points by density, in ranges, on disk.

Reads `order/<range>.npy` and `ranges/<shard>.npy`. Memory: one range, or one shard.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.store import Folder


@dataclasses.dataclass(frozen=True)
class Order:
    """Where the order is. Small enough to travel with every task."""

    folder: Folder
    starts: NDArray[np.int64]
    """Place in the order of the first point of each range, and the number of points."""

    @property
    def n_ranges(self) -> int:
        """Number of ranges."""
        return len(self.starts) - 1

    def points(self, i: int) -> NDArray[Any]:
        """Return the numbers of the points of a range, in order."""
        return self.folder.read_array(f"order/{i}")

    def ranges_of(self, shard: int) -> NDArray[np.uint32]:
        """Return the range that each point of a shard of the graph is in."""
        return self.folder.read_array(f"ranges/{shard}")
