"""Exact sums of floats, so that means and deviations depend on neither order nor chunks.

A sum is a Python integer in units of 2**-1074 (the smallest positive float64): integers add
exactly, whoever adds them, and a mean rounds once, in the final division. Memory: 32 KiB.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from spore_dask.kernels.compiling import kernel
from spore_dask.kernels.machine import bits_of

UNIT_EXPONENT = 1074
LOW_BITS = 26
LOW_MASK = (1 << LOW_BITS) - 1


def exact_sum(values: NDArray[np.floating]) -> int:
    """Return the sum of finite `values` (any shape, float32 or float64) in units of 2**-1074."""
    return _collect(_accumulate(_as_rows(values), 0.0, False))


def exact_squared_deviations(values: NDArray[np.floating], center: float) -> int:
    """Return the sum of the float64 terms (v - center)**2 in units of 2**-1074."""
    return _collect(_accumulate(_as_rows(values), center, True))


def exact_mean(total: int, count: int) -> float:
    """Return total / count, rounded once; `total` in units of 2**-1074."""
    return total / (count << UNIT_EXPONENT)


def mean_and_std(values: NDArray[np.floating]) -> tuple[float, float]:
    """Return mean and population deviation of `values`, independent of their order."""
    mean = exact_mean(exact_sum(values), values.size)
    return mean, math.sqrt(exact_mean(exact_squared_deviations(values, mean), values.size))


def _as_rows(values: NDArray[np.floating]) -> NDArray[np.floating]:
    return values.reshape(1, -1) if values.ndim == 1 else values


def _collect(bins: NDArray[np.int64]) -> int:
    """Combine the sums per exponent into one integer."""
    total = 0
    for exponent in np.flatnonzero(bins.any(axis=1)):
        low, high = bins[exponent].tolist()
        total += ((high << LOW_BITS) + low) << max(int(exponent) - 1, 0)
    return total


@kernel
def _accumulate(values, center, squared):
    """Add up mantissas per exponent, in two halves that cannot overflow below 2**36 terms."""
    bins = np.zeros((2048, 2), np.int64)
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            value = np.float64(values[i, j])
            if squared:
                value -= center
                value *= value
            bits = bits_of(value)
            exponent = (bits >> 52) & 0x7FF
            mantissa = bits & 0xFFFFFFFFFFFFF
            if exponent > 0:
                mantissa |= 0x10000000000000
            if bits < 0:
                mantissa = -mantissa
            bins[exponent, 0] += mantissa & LOW_MASK
            bins[exponent, 1] += mantissa >> LOW_BITS
    return bins
