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


def in_threads(task: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Run a task for each item on all processors; return the results in order."""
    with ThreadPoolExecutor(n_threads()) as pool:
        return list(pool.map(task, items))
