"""Least and largest values of columns, in one pass.

Memory: a few numbers a column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.kernels.compiling import kernel


def column_limits(data: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the least and the largest value of each column; NaN where one is not finite."""
    if data.dtype in (np.float32, np.float64) and data.dtype.isnative:
        low, high = _limits(data)
        return low, high
    return data.min(axis=0), data.max(axis=0)


@kernel
def _limits(data):
    low, high = data[0].copy(), data[0].copy()
    finite = np.ones(data.shape[1], np.bool_)
    for i in range(data.shape[0]):
        for j in range(data.shape[1]):
            value = data[i, j]
            low[j] = min(low[j], value)
            high[j] = max(high[j], value)
            finite[j] &= np.isfinite(value)
    return np.where(finite, low, np.nan), np.where(finite, high, np.nan)
