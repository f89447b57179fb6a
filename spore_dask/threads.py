"""Threads of this process, for kernels that release the GIL, and memory that each reuses."""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from spore_dask.cgroups import cpu_quota

_held = threading.local()
_limit: contextvars.ContextVar[int | None] = contextvars.ContextVar("limit", default=None)


def n_threads() -> int:
    """Return the number of processors that this process may use, at once or by its time."""
    if hasattr(os, "sched_getaffinity"):
        n_here = len(os.sched_getaffinity(0))
    else:
        n_here = os.cpu_count() or 1
    return min(n_here, cpu_quota() or n_here)


def in_threads(
    task: Callable[[Any], Any], items: Iterable[Any], limit: int | None = None
) -> list[Any]:
    """Run a task for each item on all processors, or on `limit`; return the results in order."""
    limit = _limit.get() or limit
    if limit == 1:
        return [task(item) for item in items]
    with ThreadPoolExecutor(limit or n_threads()) as pool:
        return list(pool.map(task, items))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Do without further threads: a worker has one, and the memory of one."""
    token = _limit.set(1)
    try:
        with one_product_thread():
            yield
    finally:
        _limit.reset(token)


def one_product_thread() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which products have one thread, and so the same bits as in any worker."""
    importlib.import_module("scipy.linalg.cython_blas")  # has the products of kernels
    limited: contextlib.AbstractContextManager[Any] = threadpool_limits(limits=1, user_api="blas")
    return limited


def scratch(name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array that the next call of this thread with the same name will overwrite.

    Memory fresh from the system costs a page fault for every 4 KiB, a tenth of a whole search.
    """
    wanted = math.prod(shape) * np.dtype(dtype).itemsize
    held: NDArray[np.uint8] | None = getattr(_held, name, None)
    if held is None or not wanted <= held.nbytes <= 2 * wanted:
        held = np.empty(wanted, np.uint8)
        setattr(_held, name, held)
    array: NDArray[Any] = held[:wanted].view(dtype).reshape(shape)
    return array
