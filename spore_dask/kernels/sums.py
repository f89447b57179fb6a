"""Exact sums of floats, so that means and deviations depend on neither order nor chunks.

A sum is a Python integer in units of 2**-1074 (the smallest positive float64): integers add
exactly, whoever adds them, and a mean rounds once, in the final division. Memory: 32 KiB.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

UNIT_EXPONENT = 1074
_LOW_BITS = 26


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
    variance = exact_mean(exact_squared_deviations(values, mean), values.size)
    return mean, math.sqrt(variance)


def _as_rows(values: NDArray[np.floating]) -> NDArray[np.floating]:
    return values.reshape(1, -1) if values.ndim == 1 else values


def _collect(bins: NDArray[np.int64]) -> int:
    """Combine the sums per exponent into one integer."""
    total = 0
    for exponent in np.flatnonzero(bins.any(axis=0)):
        low, high = int(bins[0, exponent]), int(bins[1, exponent])
        total += ((high << _LOW_BITS) + low) << max(int(exponent) - 1, 0)
    return total


@njit(cache=True, nogil=True)
def _accumulate(values, center, squared):
    """Add up mantissas per exponent, in two halves that cannot overflow below 2**36 terms."""
    bins = np.zeros((2, 2048), np.int64)
    low_mask = (1 << _LOW_BITS) - 1
    one = np.empty(1, np.float64)
    bits_of_one = one.view(np.int64)
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            value = np.float64(values[i, j])
            if squared:
                value -= center
                value *= value
            one[0] = value
            bits = bits_of_one[0]
            exponent = (bits >> 52) & 0x7FF
            mantissa = bits & 0xFFFFFFFFFFFFF
            if exponent > 0:
                mantissa |= 0x10000000000000
            low = mantissa & low_mask
            high = mantissa >> _LOW_BITS
            if bits < 0:
                bins[0, exponent] -= low
                bins[1, exponent] -= high
            else:
                bins[0, exponent] += low
                bins[1, exponent] += high
    return bins
