"""The true neighbours of sampled points, kept beside an approximate graph: what recall is told by.

Reads and writes three small arrays. Memory: these.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spore_dask import probing
from spore_dask.kernels.probes import Lists
from spore_dask.store import Folder, Limits

NAMES = ("truth-numbers", "truth-distances", "truth")
"""Of the arrays, in the order in which they are written."""


class Truth(NamedTuple):
    """What an exact search of some points has found."""

    numbers: NDArray[np.int64]
    """(n,): the points, ascending."""
    distances: NDArray[np.floating]
    """(n, k)"""
    neighbors: NDArray[np.integer]

    def among(self, numbers: NDArray[np.int64]) -> tuple[Truth, NDArray[np.int64]]:
        """Return what is known of the points among others, ascending, and their places there."""
        _, here, places = np.intersect1d(
            self.numbers, numbers, assume_unique=True, return_indices=True
        )
        return Truth(self.numbers[here], self.distances[here], self.neighbors[here]), places

    def shares(
        self, neighbors: NDArray[np.integer], distances: NDArray[np.floating], k: int
    ) -> NDArray[np.float64]:
        """Return the share of the k nearest of these points that are among some neighbours.

        `distances` may be squares: what is at 0 counts as a copy.
        """
        lists = Lists(neighbors, distances, np.zeros((0, 0), np.bool_))
        return probing.found_shares(lists, self.neighbors[:, :k], self.distances[:, :k])


def write_truth(folder: Folder, truth: Truth) -> None:
    """Write what is known of the sampled points of a graph."""
    for name, array in zip(NAMES, truth, strict=True):
        folder.write_array(name, array)


def has_truth(folder: Folder) -> bool:
    """Tell whether all of it is there."""
    return folder.exists(f"{NAMES[-1]}.npy")


def read_truth(folder: Folder, n_searched: int) -> Truth:
    """Read what is known of the sampled points of a graph, in which so many are searched."""
    numbers = folder.read_array(
        NAMES[0], shape=(None,), dtype=np.int64, limits=Limits(0, n_searched)
    )
    neighbors = folder.read_array(
        NAMES[2],
        shape=(len(numbers), None),
        dtype=probing.number_dtype(n_searched),
        limits=Limits(-1, n_searched),
    )
    if not neighbors.size:
        raise folder.damaged("array", f"{NAMES[2]}.npy", "it is empty")
    return Truth(numbers, folder.read_array(NAMES[1], shape=neighbors.shape), neighbors)
