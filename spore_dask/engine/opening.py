"""Opens the place where tasks run: this process, local workers, or someone's cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from numbers import Integral
from typing import TYPE_CHECKING, Any

from spore_dask.engine.connecting import connect, connect_local
from spore_dask.engine.processes import leave_as_it_is
from spore_dask.engine.running import Engine
from spore_dask.engine.watching import Watch, wait_for_workers
from spore_dask.errors import ParameterError
from spore_dask.params import Range
from spore_dask.progress import Consumer, ignore
from spore_dask.threads import n_threads

if TYPE_CHECKING:
    from distributed import Client

N_WORKERS = Range(
    "a whole number from 0 on",
    lambda v: isinstance(v, Integral) and not isinstance(v, bool) and int(v) >= 0,
    int,
    optional=True,
)


@contextlib.contextmanager
def open_engine(
    client: Client | str | None = None,
    n_workers: int | None = None,
    memory_limit: int | None = None,
    progress: Consumer = ignore,
) -> Iterator[Engine]:
    """Open the place where the tasks of a run are executed, and close what was opened for it.

    Parameters
    ----------
    client
        A `distributed.Client` (used and left open), the address of a scheduler (connected to and
        left running), or None for local processes that are started here and ended on leaving.
    n_workers
        Number of local processes; 0 runs every task in this process, one after another, without
        retries; None means one for each processor. Not together with `client`.
    memory_limit
        Bytes that each process may use. A local worker past it is ended and its task tried
        again. None means no limit for local processes, and with `client` the smallest share of a
        worker's thread in its worker's limit.
    progress
        Called with each `Event`, in the thread that calls `Engine.run`.
    """
    n_workers = N_WORKERS.check("n_workers", n_workers)
    if client is not None and n_workers is not None:
        raise ParameterError(
            f"n_workers is {n_workers} although client is given; the client's cluster decides how "
            "many workers there are, so leave one of the two out."
        )
    leave_as_it_is()
    with contextlib.ExitStack() as stack:
        if client is not None:
            yield _outside_engine(stack, client, memory_limit, progress)
        elif n_workers == 0:
            yield Engine(memory_limit=memory_limit, progress=progress)
        else:
            yield _local_engine(stack, n_workers or n_threads(), memory_limit, progress)


def _outside_engine(
    stack: contextlib.ExitStack, client: Any, memory_limit: int | None, progress: Consumer
) -> Engine:
    """Return an engine on a cluster that someone else started."""
    import distributed

    if isinstance(client, str):
        client = stack.enter_context(connect(client))
    if not isinstance(client, distributed.Client) or client.asynchronous:
        raise ParameterError(
            f"client is {client!r}, but it must be a distributed.Client that is not asynchronous, "
            "the address of a scheduler, or None."
        )
    wait_for_workers(client, 1)
    workers = client.scheduler_info()["workers"].values()
    shares = [w["memory_limit"] // w["nthreads"] for w in workers if w["memory_limit"]]
    if memory_limit is None:
        memory_limit = min(shares, default=None)
    local = getattr(client, "workers", None)  # a connection of ours has its own
    return Engine(client, Watch(client, local), len(workers), memory_limit, progress)


def _local_engine(
    stack: contextlib.ExitStack, n_workers: int, memory_limit: int | None, progress: Consumer
) -> Engine:
    """Start a scheduler in this process and workers in others, and return an engine on them."""
    client: Any = stack.enter_context(connect_local(n_workers, memory_limit))
    return Engine(client, Watch(client, client.workers), n_workers, memory_limit, progress)
