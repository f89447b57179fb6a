"""L2-normalisation of rows, in place."""

from __future__ import annotations

import math

import numpy as np

from spore_dask.kernels.compiling import kernel

SAFE_MAGNITUDE = 1e100
"""Squares of values between this and one over this neither overflow nor vanish."""


@kernel
def divide_by_length(block):
    """Normalise rows in place; return the first that is all zeros, or -1.

    Rows beyond the safe range are first brought near 1 by a power of two, which rounds nothing.
    """
    for i in range(block.shape[0]):
        largest = 0.0
        for j in range(block.shape[1]):
            largest = max(largest, abs(block[i, j]))
        if largest == 0:
            return i
        if not 1 / SAFE_MAGNITUDE < largest < SAFE_MAGNITUDE:
            exponent = math.frexp(largest)[1]
            for j in range(block.shape[1]):
                block[i, j] = math.ldexp(block[i, j], -exponent)
        total = 0.0
        for j in range(block.shape[1]):
            total += block[i, j] * block[i, j]
        length = np.sqrt(total)
        for j in range(block.shape[1]):
            block[i, j] /= length
    return -1
