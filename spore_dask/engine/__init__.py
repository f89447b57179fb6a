"""Where tasks run: in this process, in local worker processes or on a user's Dask cluster.

The only package that knows dask.distributed, which it imports only when it is used. A task is a
top-level function (or a partial of one) of one small item; it reads and writes arrays itself and
returns a small receipt, so that the memory held here is a window of items and all the receipts.
Compiled kernels are kept between runs: see `caches`.
"""

from spore_dask.engine.connecting import check_cluster, connect
from spore_dask.engine.failures import NoSchedulerError, TaskTooBigError, WorkerLostError
from spore_dask.engine.opening import N_WORKERS, open_engine
from spore_dask.engine.peaks import peak_nbytes
from spore_dask.engine.processes import prepare_process, process_name
from spore_dask.engine.running import Engine
from spore_dask.engine.settings import WINDOW

__all__ = [
    "N_WORKERS",
    "WINDOW",
    "Engine",
    "NoSchedulerError",
    "TaskTooBigError",
    "WorkerLostError",
    "check_cluster",
    "connect",
    "open_engine",
    "peak_nbytes",
    "prepare_process",
    "process_name",
]
