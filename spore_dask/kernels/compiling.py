"""How kernels are compiled: without the GIL, cached where a cache can be.

Without fastmath, but for sums that only choose candidates, or that do not round in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

ROUGH = {"reassoc", "contract", "nsz"}
"""Liberties that such sums may take: order, and fused operations."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function, and keep the result on disk for later runs."""
    return _compile(function, nogil=True)


def part(function: Callable[..., Any]) -> Any:
    """Compile a part of kernels, which is written out wherever it is called."""
    return _compile(function, nogil=True, inline="always")


def rough(function: Callable[..., Any]) -> Any:
    """Compile a kernel whose sums are made in any order."""
    return _compile(function, nogil=True, fastmath=ROUGH)


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder that may be written to: every process compiles for itself
        return njit(**options)(function)
