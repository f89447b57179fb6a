"""Percentiles without sorting: ranks, radix selection digit by digit, and interpolation.

Works on histograms of the bits of floats that are not negative, whose order is that of their
bits: whoever adds up the histograms of the parts selects from the whole. Memory: one histogram a
prefix, and a few arrays of the values at hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

DIGIT_BITS = 16
N_BINS = 1 << DIGIT_BITS


def ranks_around(n_values: int, percentile: float) -> tuple[int, int, float]:
    """Return the ranks below and above a percentile, and how far it is between the two."""
    place = (n_values - 1) * (percentile / 100)
    below = min(int(place), n_values - 1)
    return below, min(below + 1, n_values - 1), place - below


def between(low: float, high: float, fraction: float) -> float:
    """Interpolate as `numpy.percentile` does, to the last bit."""
    step = high - low
    return high - step * (1 - fraction) if fraction >= 0.5 else low + step * fraction


def n_digits(dtype: Any) -> int:
    """Return the number of digits of a float."""
    return int(np.dtype(dtype).itemsize) * 8 // DIGIT_BITS


def count_digits(
    values: NDArray[np.floating], prefixes: list[int], n_known: int
) -> NDArray[np.int64]:
    """Count the next digit of the values that begin with each prefix of `n_known` digits.

    Returns an array (prefixes, N_BINS).
    """
    bits = values.view(f"u{values.dtype.itemsize}")
    shift = (n_digits(values.dtype) - n_known - 1) * DIGIT_BITS
    heads = (bits >> shift).astype(np.int64)
    counts = np.empty((len(prefixes), N_BINS), np.int64)
    for i, prefix in enumerate(prefixes):
        digits = heads - (prefix << DIGIT_BITS)
        if n_known:
            digits = digits[(digits >= 0) & (digits < N_BINS)]
        counts[i] = np.bincount(digits, minlength=N_BINS)
    return counts


def next_digit(counts: NDArray[np.int64], rank: int) -> tuple[int, int]:
    """Return the digit of the value of a rank, and its rank among those with the same digit."""
    last = np.cumsum(counts)
    digit = int(np.searchsorted(last, rank, side="right"))
    return digit, rank - int(last[digit] - counts[digit])


def float_of(bits: int, dtype: Any) -> float:
    """Return the float that has these bits."""
    dtype = np.dtype(dtype)
    return float(np.array(bits, f"u{dtype.itemsize}").view(dtype))
