"""What arrays on disk may hold, because kernels use it without a check of their own.

A checksum shows that bytes are as they were written. It does not show that a number in them is a
place in another array. Memory: none.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Limits(NamedTuple):
    """Numbers from `low` on that are below `end`."""

    low: float
    end: float

    def broken_by(self, values: NDArray[Any]) -> str:
        """Say which number is outside; "" if all are inside. NaN is always outside."""
        if not values.size:
            return ""
        ends = [values.max().item()]
        if values.dtype.kind != "u" or self.low > 0:
            ends.append(values.min().item())
        for value in ends:
            if not self.low <= value < self.end:
                most = f"to {self.end - 1}" if values.dtype.kind in "iu" else f"below {self.end:g}"
                return f"it has the number {value}, but they must be from {self.low} {most}"
        return ""


FINITE = Limits(-np.finfo(np.float64).max, math.inf)


def broken_form(
    array: NDArray[Any],
    shape: tuple[int | None, ...] | None = None,
    dtype: Any = None,
    limits: Limits | None = None,
) -> str:
    """Say what is wrong with an array; "" if it has a shape, a dtype and is within limits.

    None stands for what may be anything.
    """
    if shape is not None and (
        len(shape) != array.ndim
        or any(wanted not in (None, n) for wanted, n in zip(shape, array.shape, strict=True))
    ):
        wanted = tuple("any" if n is None else n for n in shape)
        return f"it has shape {array.shape}, but it must have {wanted}"
    native = None if dtype is None else np.dtype(dtype).newbyteorder("=")  # as copies are written
    if dtype is not None and array.dtype not in (np.dtype(dtype), native):
        return f"it has dtype {array.dtype}, but it must have {np.dtype(dtype)}"
    return "" if limits is None else limits.broken_by(array)
