"""Threads of this process, for kernels that release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def n_threads() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_threads(
    task: Callable[[Any], Any], items: Iterable[Any], limit: int | None = None
) -> list[Any]:
    """Run a task for each item on all processors, or on `limit`; return the results in order."""
    if limit == 1:
        return [task(item) for item in items]
    with ThreadPoolExecutor(limit or n_threads()) as pool:
        return list(pool.map(task, items))
