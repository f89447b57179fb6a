"""L2-normalisation of rows."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def divide_by_length(block):
    """Normalise rows in place; return the first that has length 0, or -1."""
    for i in range(block.shape[0]):
        total = 0.0
        for j in range(block.shape[1]):
            total += block[i, j] * block[i, j]
        length = np.sqrt(total)
        if not length > 0:
            return i
        for j in range(block.shape[1]):
            block[i, j] /= length
    return -1
