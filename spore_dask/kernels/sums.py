"""Exact sums of floats, so that means and deviations depend on neither order nor chunks.

A sum is a Python integer in units of 2**-1074 (the smallest positive float64): integers add
exactly, whoever adds them, and a mean rounds once, in the final division. Memory: 96 KiB.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import uintp
from numpy.typing import NDArray

from spore_dask.kernels.compiling import kernel, part, rough
from spore_dask.kernels.machine import bits_of

UNIT_EXPONENT = 1074
BINS = 2048, 2
LOW_BITS = 26
LOW_MASK = (1 << LOW_BITS) - 1
HALF_BITS = 27
MOST_TOGETHER = 128
LEAST_SHARE = 2.0**-20
SHIFT = 384.0
"""A row of float32 that is added up at once: its most values, the least of them over the largest,
and over the largest square a summand that rounds the others to multiples of a unit."""


def exact_sum(values: NDArray[np.floating]) -> int:
    """Return the sum of finite `values` (any shape, float32 or float64) in units of 2**-1074."""
    return _collect(_accumulate(_as_rows(values), 0.0, False))


def exact_squared_deviations(values: NDArray[np.floating], center: float) -> int:
    """Return the sum of the float64 terms (v - center)**2 in units of 2**-1074."""
    return _collect(_accumulate(_as_rows(values), center, True))


def exact_mean(total: int, count: int) -> float:
    """Return total / count, rounded once; `total` in units of 2**-1074."""
    return total / (count << UNIT_EXPONENT)


class Moments(NamedTuple):
    """Exact sums of some values, and of their squares."""

    total: int
    """In units of 2**-1074."""
    squares: int
    """In units of 2**-2148."""

    def mean_and_std(self, count: int) -> tuple[float, float]:
        """Return mean and population deviation of so many values, their variance rounded once."""
        spread = count * self.squares - self.total * self.total
        variance = spread / (count * count << 2 * UNIT_EXPONENT)
        return exact_mean(self.total, count), math.sqrt(variance)


def moments(values: NDArray[np.floating]) -> Moments:
    """Return the sums of finite `values` (any shape, float32 or float64) and of their squares."""
    rows = _as_rows(values)
    if rows.dtype != np.float32:
        return Moments(_collect(_accumulate(rows, 0.0, False)), _collect_squares(_square(rows)))
    if rows.shape[1] <= MOST_TOGETHER:
        totals, squares = _add_rows(rows)
    else:
        totals, squares = _accumulate(rows, 0.0, False), _accumulate(rows, 0.0, True)
    return Moments(_collect(totals), _collect(squares) << UNIT_EXPONENT)


def mean_and_std(values: NDArray[np.floating]) -> tuple[float, float]:
    """Return mean and population deviation of `values`, independent of their order."""
    return moments(values).mean_and_std(values.size)


def _as_rows(values: NDArray[np.floating]) -> NDArray[np.floating]:
    return values.reshape(1, -1) if values.ndim == 1 else values


def _collect(bins: NDArray[np.int64]) -> int:
    """Combine the sums per exponent into one integer."""
    total = 0
    for exponent in np.flatnonzero(bins.any(axis=1)):
        low, high = bins[exponent].tolist()
        total += ((high << LOW_BITS) + low) << max(int(exponent) - 1, 0)
    return total


def _collect_squares(bins: NDArray[np.int64]) -> int:
    """Combine the sums of products of halves per exponent into one integer."""
    total = 0
    for exponent in np.flatnonzero(bins.any(axis=(1, 2))):
        high, mixed, low = ((high << LOW_BITS) + low for low, high in bins[exponent].tolist())
        squares = (high << 2 * HALF_BITS) + (mixed << HALF_BITS + 1) + low
        total += squares << 2 * max(int(exponent) - 1, 0)
    return total


@part
def _add(bins, value):
    """Add a mantissa to the sum of its exponent, in two parts; 2**36 of them cannot overflow."""
    bits = bits_of(value)
    exponent = (bits >> 52) & 0x7FF
    mantissa = bits & 0xFFFFFFFFFFFFF
    if exponent > 0:
        mantissa |= 0x10000000000000
    if bits < 0:
        mantissa = -mantissa
    bins[exponent, 0] += mantissa & LOW_MASK
    bins[exponent, 1] += mantissa >> LOW_BITS


@kernel
def _accumulate(values, center, squared):
    """Add up mantissas per exponent."""
    bins = np.zeros(BINS, np.int64)
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            value = np.float64(values[i, j])
            if squared:
                value -= center
                value *= value
            _add(bins, value)
    return bins


@kernel
def _square(values):
    """Add up the squares of mantissas per exponent: products of their halves, each in two parts.

    2**35 terms are too few to overflow.
    """
    bins = np.zeros((BINS[0], 3, 2), np.int64)
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            bits = bits_of(np.float64(values[i, j]))
            exponent = (bits >> 52) & 0x7FF
            mantissa = bits & 0xFFFFFFFFFFFFF
            if exponent > 0:
                mantissa |= 0x10000000000000
            high, low = mantissa >> HALF_BITS, mantissa & ((1 << HALF_BITS) - 1)
            for part_of, product in enumerate((high * high, high * low, low * low)):
                bins[exponent, part_of, 0] += product & LOW_MASK
                bins[exponent, part_of, 1] += product >> LOW_BITS
    return bins


@kernel
def _add_rows(rows):
    """Add up short rows of float32, and their squares, which float64 holds exactly.

    The values of a row add up without rounding, whatever the order, if none is larger than the
    last, or smaller than a 2**20th of it without being 0. Squares do in two parts: multiples of a
    unit of about a 2**44th of the largest one, and what is left.
    """
    width = rows.shape[1]
    totals, squares = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)
    values, high, low = np.empty(width), np.empty(width), np.empty(width)
    for i in range(rows.shape[0] if width > 0 else 0):
        largest = np.float64(rows[i, width - 1])
        shift = largest * largest * SHIFT
        for j in range(width):
            value = np.float64(rows[uintp(i), uintp(j)])
            square = value * value
            rounded = square + shift - shift
            values[j] = value
            high[j] = rounded
            low[j] = square - rounded
        n_fit, total, high_total, low_total = _sum_row(values, high, low, largest)
        if n_fit == width:
            _add(totals, total)
            _add(squares, high_total)
            _add(squares, low_total)
        else:
            for j in range(width):
                _add(totals, values[j])
                _add(squares, values[j] * values[j])
    return totals, squares


@rough
def _sum_row(values, high, low, largest):
    """Count the values that fit in a sum; add them up, and both parts of squares, in any order."""
    least = largest * LEAST_SHARE
    n_fit = np.int32(0)
    total, high_total, low_total = 0.0, 0.0, 0.0
    for j in range(values.size):
        value = values[j]
        n_fit += np.int32((value == 0) | ((value >= least) & (value <= largest)))
        total += value
        high_total += high[j]
        low_total += low[j]
    return n_fit, total, high_total, low_total
