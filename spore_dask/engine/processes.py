"""What every process that does tasks is: prepared once, measured, and called by its name."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spore_dask.caches import cache_root, claim_slot
from spore_dask.engine.peaks import peak_nbytes, peak_since_now
from spore_dask.engine.proving import Proof, prove
from spore_dask.engine.settings import WORKER_ENVIRON
from spore_dask.errors import SporeError


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a task gave, and what it cost."""

    receipt: Any
    """What the task returned."""
    error: SporeError | None
    """What it raised on purpose: trying again would give the same."""
    process: str
    """Host and number of the process that did it."""
    peak_nbytes: int
    """Peak resident memory of that process so far."""
    task_nbytes: int
    """Its peak while it did the task."""
    seconds: float
    """Time the task took."""
    unfit: str = ""
    """What is wrong with the worker, which therefore did not do the task."""
    worker: str = ""
    """The address of that worker."""


def work(pickled: bytes, proof: Proof | None = None) -> Outcome:
    """Do a task on a worker, if it is fit."""
    from distributed.protocol import pickle

    prepare_process()
    if proof is not None:
        from distributed import get_worker

        worker: Any = get_worker()
        unfit = prove(proof, worker)
        if unfit is not None:
            return Outcome(None, None, process_name(), peak_nbytes(), 0, 0.0, unfit, worker.address)
    loads: Any = pickle.loads
    task, item = loads(pickled)
    return measure(task, item)


def measure(task: Callable[[Any], Any], item: Any) -> Outcome:
    """Do a task and note what it cost."""
    start = time.perf_counter()
    receipt, error = None, None
    with peak_since_now() as peak:
        try:
            receipt = task(item)
        except SporeError as raised:
            error = raised
    seconds = time.perf_counter() - start
    return Outcome(receipt, error, process_name(), peak_nbytes(), peak.nbytes, seconds)


def process_name() -> str:
    """Return a name for this process that no other process of a cluster has."""
    return f"{socket.gethostname()}:{os.getpid()}"


_preparing = threading.Lock()
_prepared = threading.Event()  # nothing to prepare, or no longer


def prepare_process() -> None:
    """Give this worker process one thread and a numba cache of its own, once.

    Must come before the first import of `spore_dask.kernels`. A process that itself opened an
    engine, and has workers as threads, stays as its user set it up.
    """
    with _preparing:
        if _prepared.is_set():
            return
        _use_one_thread()
        os.environ["NUMBA_CACHE_DIR"] = folder = str(_claim_cache())
        if "numba" in sys.modules:
            sys.modules["numba"].config.CACHE_DIR = folder
        _prepared.set()


def leave_as_it_is() -> None:
    """Keep `prepare_process` from changing this process."""
    _prepared.set()


def _use_one_thread() -> None:
    from threadpoolctl import threadpool_limits

    names = {name for name in WORKER_ENVIRON if name.endswith("_NUM_THREADS")}
    numba = sys.modules.get("numba")
    if numba is not None and numba.config.NUMBA_NUM_THREADS > 1:
        numba.set_num_threads(1)
        names.remove("NUMBA_NUM_THREADS")  # numba refuses to compile when it changes later
    os.environ.update(dict.fromkeys(names, "1"))
    threadpool_limits(1)


def _claim_cache() -> Path:
    """Return a folder for numba's cache that no other process uses while this one lives."""
    try:
        return claim_slot(cache_root())
    except (ImportError, OSError, RuntimeError):  # no home, or one that cannot be written or locked
        from distributed import get_worker

        return Path(tempfile.mkdtemp(prefix="numba-", dir=get_worker().local_directory))
