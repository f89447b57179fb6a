"""The rows of fragments on disk, and what is at hand of them while they vote.

Shards write them sorted by ranges of the density order; where they are too many to be held, they
are gathered in files of ranges. Memory: what is held, within a budget, or the rows of one range.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from spore_dask.exact import number_dtype
from spore_dask.kernels.reassign import Fragments as Piece
from spore_dask.memory import HELD_NBYTES
from spore_dask.orders import Order, Places, places_of
from spore_dask.shards import Entries
from spore_dask.store import AtHand, Folder, RowFiles
from spore_dask.threads import in_threads

ARRAYS = ("points", *Entries._fields)


@dataclasses.dataclass(frozen=True)
class Fragments:
    """The rows of fragments on disk."""

    folder: Folder
    n_points: int
    """Points of the graph."""
    k: int
    """Neighbours of each row."""
    dtype: str
    """Type of the distances."""
    counts: NDArray[np.int64]
    """Fragments of each range of the order."""
    n_shards: int
    """Shards of the graph."""
    gathered: bool
    """Whether they are in files of ranges, not in those of shards."""

    @classmethod
    def from_summary(cls, folder: Folder, summary: dict[str, Any]) -> Self:
        """Return the fragments that a stage has found."""
        names = [field.name for field in dataclasses.fields(cls)][1:]
        known = {name: summary[name] for name in names}
        return cls(folder, **{**known, "counts": np.array(known["counts"], np.int64)})

    @property
    def fragment_nbytes(self) -> int:
        """Bytes that a fragment takes in memory."""
        entry = number_dtype(self.n_points).itemsize + np.dtype(self.dtype).itemsize
        return (self.k + 1) * entry + HELD_NBYTES

    @property
    def held_nbytes(self) -> int:
        """Bytes that all of them take in memory."""
        return int(self.counts.sum()) * self.fragment_nbytes

    def of_range(self, i: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.floating]]:
        """Read the fragments of a range that are gathered, their neighbours and the distances."""
        points, neighbors, distances = (self.folder.read_array(f"{i}.{name}") for name in ARRAYS)
        return points, neighbors, distances

    def places(self, i: int) -> Places:
        """Return where the fragments of a range are in the files of shards; they ascend."""
        return places_of(self.folder, i, self.n_shards, len(self.counts))

    def arrays(self) -> list[RowFiles]:
        """Return all arrays in the files of shards, none where they are gathered."""
        starts = None if self.gathered else self.places(0).starts
        return [] if starts is None else [self.array(name, starts) for name in ARRAYS]

    def array(self, name: str, starts: NDArray[np.int64]) -> RowFiles:
        """Return "points", "neighbors" or "distances" in the files of shards."""
        row_shape = () if name == "points" else (self.k + 1,)
        dtype: Any = self.dtype if name == "distances" else number_dtype(self.n_points)
        names = tuple(f"{shard}.{name}" for shard in range(self.n_shards))
        return RowFiles(self.folder.child("buckets"), names, starts, row_shape, np.dtype(dtype))


def in_order(order: NDArray[np.integer], points: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return which of some ascending points comes first in an order, which second, and so on."""
    places = np.minimum(np.searchsorted(points, order), len(points) - 1)
    ordered: NDArray[np.int64] = places[points[places] == order]
    return ordered


class Rows(abc.ABC):
    """Rows of fragments at hand."""

    def __init__(self, fragments: Fragments) -> None:
        self._fragments = fragments
        self._pieces: dict[int, Piece] = {}
        self._arrays: list[AtHand] = []
        self.read_nbytes = 0
        """Bytes read so far."""

    @abc.abstractmethod
    def piece(self, i: int) -> Piece:
        """Return the fragments of a range that has some, in order, with their rows."""

    def keep(self, i: int, left: NDArray[np.bool_]) -> None:
        """Forget the fragments of a piece at hand that are not left."""
        if i in self._pieces:
            piece = self._pieces[i]
            self._pieces[i] = piece._replace(points=piece.points[left], rows=piece.rows[left])

    def check(self) -> None:
        """Notice whether files in use have changed."""
        in_threads(AtHand.check, self._arrays)


def rows_of(fragments: Fragments, order: Order, budget_nbytes: int) -> Rows:
    """Return what brings the rows of fragments, piece by piece."""
    if fragments.gathered:
        return GatheredRows(fragments, budget_nbytes)
    return HeldRows(fragments, order)


class HeldRows(Rows):
    """Rows in the files of shards, all of them at hand."""

    def __init__(self, fragments: Fragments, order: Order) -> None:
        super().__init__(fragments)
        self._order = order
        points, *files = fragments.arrays()
        self._points = points.read(0, int(points.starts[-1]))
        self._arrays = in_threads(RowFiles.at_hand, files)
        self.read_nbytes = sum(one.row_nbytes for one in files) * len(self._points)

    def piece(self, i: int) -> Piece:
        """Return the fragments of a range, in order, with their rows."""
        if i not in self._pieces:
            starts, firsts, lasts = self._fragments.places(i)
            sizes = lasts - firsts
            places = np.arange(int(sizes.sum())) + np.repeat(lasts - np.cumsum(sizes), sizes)
            rows = places + np.repeat(self._arrays[0].begins - starts[:-1], sizes)
            points = self._points[places]
            order = in_order(self._order.points(i), points)
            arrays = (found.rows for found in self._arrays)
            self._pieces[i] = Piece(points[order], rows[order], *arrays)
        return self._pieces[i]


class GatheredRows(Rows):
    """Rows in files of ranges, as many at hand as a budget allows."""

    def __init__(self, fragments: Fragments, budget_nbytes: int) -> None:
        super().__init__(fragments)
        largest = int(fragments.counts.max(initial=0)) * fragments.fragment_nbytes
        self._left_nbytes = budget_nbytes - largest  # which may be at hand beside those held

    def piece(self, i: int) -> Piece:
        """Return the fragments of a range, in order, with their rows."""
        if i in self._pieces:
            return self._pieces[i]
        points, neighbors, distances = self._fragments.of_range(i)
        piece = Piece(points, np.arange(len(points)), neighbors, distances)
        self.read_nbytes += points.nbytes + neighbors.nbytes + distances.nbytes
        nbytes = len(points) * self._fragments.fragment_nbytes
        if nbytes <= self._left_nbytes:
            self._pieces[i] = piece
            self._left_nbytes -= nbytes
        return piece
