"""Groups of identical points, found by hashing. Memory: 16 bytes a point."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.kernels.compiling import kernel


def large_groups(points: NDArray[np.floating], larger_than: int) -> list[NDArray[np.int64]]:
    """Return the rows, ascending, of each group of more than `larger_than` identical points."""
    if len(points) <= larger_than:
        return []
    bits = points.view(np.uint32 if points.dtype == np.float32 else np.uint64)
    hashes = hash_rows(bits)
    ranked = np.sort(hashes)
    if not (ranked[larger_than:] == ranked[:-larger_than]).any():
        return []
    order = np.argsort(hashes, kind="stable")
    starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    sizes = np.diff(np.append(starts, len(points)))
    crowded = sizes > larger_than
    groups: list[NDArray[np.int64]] = []
    for start, size in zip(starts[crowded], sizes[crowded], strict=True):
        groups += _equal_rows(bits, order[start : start + size])
    return [rows for rows in groups if len(rows) > larger_than]


def _equal_rows(bits: NDArray[Any], rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Part rows that have the same hash into groups that are the same; mostly they are one."""
    if (bits[rows] == bits[rows[0]]).all():
        return [rows]
    group = np.unique(bits[rows], axis=0, return_inverse=True)[1].ravel()
    return [rows[group == number] for number in range(group.max() + 1)]


@kernel
def hash_rows(bits):
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
