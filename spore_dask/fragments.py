"""The rows of fragments on disk, in density order, and what is at hand of them while they vote.

They are in pieces. Memory: what is held, within a budget, and one piece.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from spore_dask.clusters import label_dtype
from spore_dask.exact import number_dtype
from spore_dask.kernels.reassign import Fragments as Piece
from spore_dask.memory import HELD_NBYTES
from spore_dask.shards import DISTANCES, Entries
from spore_dask.store import AtHand, Folder, Limits, RowFiles
from spore_dask.tasks import MARKER
from spore_dask.threads import in_threads

ARRAYS = ("points", *Entries._fields)


@dataclasses.dataclass(frozen=True)
class Fragments:
    """The rows of fragments on disk, in density order."""

    folder: Folder
    n_points: int
    """Points of the graph."""
    k: int
    """Neighbours of each row."""
    dtype: str
    """Type of the distances."""
    counts: NDArray[np.int64]
    """Fragments of each piece."""

    @classmethod
    def from_summary(cls, folder: Folder, summary: dict[str, Any]) -> Self:
        """Return the fragments that a stage has found, or raise `DamagedError`."""
        with folder.understood(MARKER):
            n_points, k = int(summary["n_points"]), int(summary["k"])
            dtype, counts = np.dtype(summary["dtype"]).str, np.array(summary["counts"], np.int64)
            if not 1 <= k < n_points or dtype not in ("<f4", "<f8"):
                raise ValueError(f"{n_points} points, k is {k} and dtype {dtype!r}")
            if counts.ndim != 1 or (counts < 1).any() or counts.sum() > n_points:
                raise ValueError(f"counts are {counts.tolist()} of {n_points} points")
        return cls(folder, n_points, k, dtype, counts)

    @property
    def fragment_nbytes(self) -> int:
        """Bytes that a fragment takes in memory."""
        entry = number_dtype(self.n_points).itemsize + np.dtype(self.dtype).itemsize
        return (self.k + 1) * entry + HELD_NBYTES

    @property
    def rows(self) -> Folder:
        """The folder of their files."""
        return self.folder.child("rows")

    def array(self, name: str) -> RowFiles:
        """Return "points", "neighbors" or "distances", in density order."""
        starts = np.append(0, np.cumsum(self.counts))
        return self.files(self.rows, name, starts)

    def files(self, folder: Folder, name: str, starts: NDArray[np.int64]) -> RowFiles:
        """Return "points", "neighbors" or "distances" in the files of pieces or of shards."""
        row_shape = () if name == "points" else (self.k + 1,)
        dtype, limits = number_dtype(self.n_points), Limits(0, self.n_points)
        if name == "distances":
            dtype, limits = np.dtype(self.dtype), DISTANCES
        names = tuple(f"{i}.{name}" for i in range(len(starts) - 1))
        return RowFiles(folder, names, starts, row_shape, dtype, limits)


def open_skeletons(folder: Folder, n_points: int, n_clusters: int | None = None) -> RowFiles:
    """Open the cluster that Expansion has given each point, a number below `n_clusters`.

    By default, there can be as many clusters as points.
    """
    limits = Limits(0, n_points if n_clusters is None else n_clusters)
    return folder.open_rows("skeletons", (n_points,), label_dtype(n_points), limits)


class Rows:
    """Rows of fragments, as many at hand as a budget allows."""

    def __init__(self, fragments: Fragments, budget_nbytes: int) -> None:
        self._fragments = fragments
        self._files = [fragments.array(name) for name in ARRAYS]
        counts = fragments.counts
        fit = int(counts.sum()) * fragments.fragment_nbytes <= budget_nbytes
        beside = 0 if fit else int(counts.max()) * fragments.fragment_nbytes  # those not held
        self._left_nbytes = budget_nbytes - beside
        self._pieces: dict[int, Piece] = {}
        self._at_hand: list[AtHand] = []
        self.read_nbytes = 0
        """Bytes read so far."""

    def piece(self, i: int) -> Piece:
        """Return the fragments of a piece, in order, with their rows."""
        if i in self._pieces:
            return self._pieces[i]
        points, *files = self._files
        n_fragments, span = int(self._fragments.counts[i]), points.starts[i : i + 2]
        self.read_nbytes += n_fragments * sum(each.row_nbytes for each in self._files)
        nbytes = n_fragments * self._fragments.fragment_nbytes
        about = points.read(*span), np.arange(n_fragments)
        if nbytes > self._left_nbytes:
            return Piece(*about, *(each.read(*span) for each in files))
        found = [each.at_hand(span[:1], span[1:]) for each in files]
        self._at_hand += found
        self._left_nbytes -= nbytes
        self._pieces[i] = Piece(*about, *(each.rows for each in found))
        return self._pieces[i]

    def keep(self, i: int, left: NDArray[np.bool_]) -> None:
        """Forget the fragments of a piece at hand that are not left."""
        if i in self._pieces:
            piece = self._pieces[i]
            self._pieces[i] = piece._replace(points=piece.points[left], rows=piece.rows[left])

    def check(self) -> None:
        """Notice whether files in use have changed."""
        in_threads(AtHand.check, self._at_hand)
