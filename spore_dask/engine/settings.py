"""How processes and schedulers are set up, and how long they are waited for."""

from __future__ import annotations

N_RETRIES = 2
"""Times that a task is tried again after an exception that is not a `SporeError`."""
N_DEATHS = 3
"""Deaths of its worker after which a task is given up."""
WINDOW = 10
"""Tasks in flight for each worker thread."""
START_TIMEOUT = 60.0
"""Seconds that workers may take to start, and that a stage waits when none is left."""
LOOK_TIMEOUT = 10.0
"""Seconds that the scheduler may take to say which workers are there."""
FETCH_TIMEOUT = 10.0
"""Seconds to wait for receipts whose workers may just have died."""
LOOK_INTERVAL = 1.0
"""Seconds between two looks at which workers are there."""
SILENT_TIMEOUT = 30.0
"""Seconds without a sign of life after which a worker is named, and replaced if it is stopped."""
WORKER_TTL = 300.0
"""Seconds without a sign of life after which a local worker is replaced in any case."""
LIMIT_EXIT = 86
"""Exit status of a worker that went past its memory limit."""

# What threads and malloc read when a process starts. Memory of arrays up to 4 MiB is used again,
# since fresh memory costs time; that of larger ones, and more than 32 MiB, goes back at once.
WORKER_ENVIRON = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "4194304",
    "MALLOC_TRIM_THRESHOLD_": "33554432",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# The same for the workers of clusters that others' libraries start for us.
OUTSIDE_ENVIRON = {
    **WORKER_ENVIRON,
    "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "False",
}
SCHEDULER_CONFIG = {
    "distributed.diagnostics.nvml": False,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.allowed-failures": N_DEATHS - 1,
    "distributed.scheduler.http.routes": [],
    "distributed.scheduler.work-stealing": False,
    # One task a worker: those waiting on a worker that dies would be blamed for its death too.
    "distributed.scheduler.worker-saturation": 1.0,
}
# `Watch` looks for silent workers itself: dask would give them all up when this process has been
# stopped for a while.
LOCAL_CONFIG = {**SCHEDULER_CONFIG, "distributed.scheduler.worker-ttl": None}
# Receipts are tiny, so dask's own measures against memory would act on what they cannot change:
# a paused worker might never resume. `_guard` ends a process that goes past its limit.
WORKER_CONFIG = {
    "distributed.diagnostics.nvml": False,
    "distributed.worker.http.routes": [],
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    "logging": {"distributed": "critical", "distributed.worker": "critical"},
}
