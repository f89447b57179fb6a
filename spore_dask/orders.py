"""The total order of the points on disk, in ranges, and exchanges from shards to ranges.

Reads one range or shard at a time. Memory of whoever plans an exchange: 16 bytes for each pair of a
shard and a range.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from spore_dask.exact import number_dtype
from spore_dask.store import CHECKS, Folder, Limits, RowFiles

DOCUMENT = "done.json"
"""Says in the folder of an order where its ranges start."""


@dataclasses.dataclass(frozen=True)
class Order:
    """The total order of the points on disk, in ranges. Small enough to travel with every task."""

    folder: Folder
    starts: NDArray[np.int64]
    """Place in the order of the first point of each range, and the number of points."""

    @classmethod
    def from_summary(cls, folder: Folder, starts: list[int], n_points: int) -> Self:
        """Return the order that a stage has found, or raise `DamagedError`."""
        with folder.understood(DOCUMENT):
            found = np.array(starts, np.int64)
            if (
                len(found) < 2
                or (found[0], found[-1]) != (0, n_points)
                or (np.diff(found) < 0).any()
            ):
                raise ValueError(f"starts do not ascend from 0 to {n_points}")
        return cls(folder, found)

    @property
    def n_points(self) -> int:
        """Number of points."""
        return int(self.starts[-1])

    @property
    def n_ranges(self) -> int:
        """Number of ranges."""
        return len(self.starts) - 1

    def points(self, i: int) -> NDArray[Any]:
        """Return the numbers of the points of a range, in order."""
        size = int(self.starts[i + 1] - self.starts[i])
        dtype, limits = number_dtype(self.n_points), Limits(0, self.n_points)
        folder = self.folder.child("order")
        return folder.read_array(str(i), shape=(size,), dtype=dtype, limits=limits)

    def ranges_of(self, shard: int, n_points: int | None = None) -> NDArray[np.uint16]:
        """Return the range that each of the points of a shard of the graph is in."""
        folder, limits = self.folder.child("ranges"), Limits(0, self.n_ranges)
        return folder.read_array(str(shard), shape=(n_points,), dtype=np.uint16, limits=limits)


def write_range(folder: Folder, i: int, points: NDArray[Any]) -> None:
    """Write the numbers of the points of a range, in order."""
    folder.child("order").write_array(str(i), points)


def write_ranges_of(folder: Folder, shard: int, ranges: NDArray[np.integer]) -> None:
    """Write the range that each point of a shard of the graph is in."""
    folder.child("ranges").write_array(str(shard), ranges.astype(np.uint16))


PLACES = "places"


def write_counts(folder: Folder, shard: int, ranges: NDArray[np.integer], n_ranges: int) -> None:
    """Write how many entries a shard has for each range, beside its bucket file."""
    keep_counts(folder, shard, np.bincount(ranges, minlength=n_ranges))


def keep_counts(folder: Folder, shard: int, counts: NDArray[np.integer]) -> None:
    """Write how many entries a bucket file has for each range, beside it."""
    folder.child("buckets").write_array(f"{shard}.counts", counts.astype(np.uint32))


def plan_exchange(folder: Folder, n_shards: int, n_ranges: int) -> None:
    """Write down where each range begins in the bucket file of each shard.

    Once is enough; `end_exchange` removes it last, so that neither needs the other's files.
    """
    buckets = folder.child("buckets")
    if folder.exists(PLACES) or not buckets.exists("0.counts.npy"):
        return
    places = np.zeros((n_ranges + 1, n_shards), np.int64)
    for shard in range(n_shards):
        counts = buckets.read_array(f"{shard}.counts", shape=(n_ranges,), dtype=np.uint32)
        np.cumsum(counts, out=places[1:, shard])
    folder.write_rows(PLACES, places)


def _places(folder: Folder, n_shards: int, n_ranges: int) -> RowFiles:
    """Return what `plan_exchange` has written."""
    limits = np.array([0, n_ranges + 1])
    return RowFiles(folder, (PLACES,), limits, (n_shards,), np.dtype(np.int64))


def range_sizes(folder: Folder, n_shards: int, n_ranges: int) -> NDArray[np.int64]:
    """Return how many entries each range has in the bucket files of all shards."""
    places = _places(folder, n_shards, n_ranges).read(0, n_ranges + 1)
    _check_places(folder, places)
    ends: NDArray[np.int64] = places.sum(axis=1)
    return np.diff(ends)


def _check_places(folder: Folder, places: NDArray[np.int64]) -> None:
    """Refuse places that do not ascend in each file."""
    if (places[:1] < 0).any() or (np.diff(places, axis=0) < 0).any():
        raise folder.damaged("file", PLACES, "its numbers do not ascend")


class PlacesInFiles(NamedTuple):
    """Where the entries of some ranges are, in each bucket file by itself."""

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    sizes: NDArray[np.int64]
    """Entries of the whole file."""


def places_in_files(
    folder: Folder, i: int, n_shards: int, n_ranges: int, n_together: int = 1
) -> PlacesInFiles:
    """Return where the entries of one range, or of some, are in the bucket file of each shard."""
    rows = np.array([i, i + n_together, n_ranges])
    found = _places(folder, n_shards, n_ranges).read_ranges(rows, rows + 1)
    _check_places(folder, found)
    return PlacesInFiles(*found)


class Places(NamedTuple):
    """Where the entries of some ranges are, in the bucket files of all shards behind each other."""

    starts: NDArray[np.int64]
    """The first entry of each file, and the number of entries."""
    firsts: NDArray[np.int64]
    """The first entry of these ranges in each file."""
    lasts: NDArray[np.int64]


def places_of(folder: Folder, i: int, n_shards: int, n_ranges: int, n_together: int = 1) -> Places:
    """Return where the entries of one range are, or of some."""
    begins, ends, sizes = places_in_files(folder, i, n_shards, n_ranges, n_together)
    starts = np.append(0, np.cumsum(sizes))
    return Places(starts, starts[:-1] + begins, starts[:-1] + ends)


def end_exchange(folder: Folder) -> None:
    """Remove the files of an exchange."""
    folder.remove("buckets")
    folder.remove(PLACES)
    folder.remove(CHECKS)
