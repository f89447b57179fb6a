"""How kernels are compiled: without the GIL, without fastmath, cached where a cache can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function, and keep the result on disk for later runs."""
    return _compile(function, nogil=True)


def part(function: Callable[..., Any]) -> Any:
    """Compile a part of kernels, which is written out wherever it is called."""
    return _compile(function, nogil=True, inline="always")


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder that may be written to: every process compiles for itself
        return njit(**options)(function)
