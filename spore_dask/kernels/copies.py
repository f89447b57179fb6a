"""Groups of identical points, found by hashing. Memory: 16 bytes a point."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


def large_groups(points: NDArray[np.floating], larger_than: int) -> list[NDArray[np.int64]]:
    """Return the rows, ascending, of each group of more than `larger_than` identical points."""
    if len(points) <= larger_than:
        return []
    bits = points.view(np.uint32 if points.dtype == np.float32 else np.uint64)
    hashes = _hash_rows(bits)
    ranked = np.sort(hashes)
    crowded = np.unique(ranked[larger_than:][ranked[larger_than:] == ranked[:-larger_than]])
    if not len(crowded):
        return []
    members = np.flatnonzero(np.isin(hashes, crowded))
    _, group, sizes = np.unique(bits[members], axis=0, return_inverse=True, return_counts=True)
    by_group: NDArray[Any] = members[np.argsort(group.ravel(), kind="stable")]
    groups = np.split(by_group, np.cumsum(sizes)[:-1])
    return [rows for rows in groups if len(rows) > larger_than]


@njit(cache=True, nogil=True)
def _hash_rows(bits):
    """Hash the bits of each row to 64 bits."""
    hashes = np.empty(bits.shape[0], np.uint64)
    factor = np.uint64(0x9E3779B97F4A7C15)
    for i in range(bits.shape[0]):
        value = factor
        for j in range(bits.shape[1]):
            value = (value ^ np.uint64(bits[i, j])) * factor
            value ^= value >> np.uint64(29)
        hashes[i] = value
    return hashes
