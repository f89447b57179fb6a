"""Where tasks run: in this process, in local worker processes or on a user's Dask cluster.

The only module that knows dask.distributed, which it imports only when it is used. A task is a
top-level function (or a partial of one) of one small item; it reads and writes arrays itself and
returns a small receipt, so that the memory held here is a window of items and all the receipts.

Local workers are plain Python processes with one thread each. They never import the user's main
module, are replaced when they die, end themselves when their memory goes past the limit, and do
not outlive the process that started them. Compiled kernels are kept between runs: see `caches`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from spore_dask.caches import cache_root, claim_slot
from spore_dask.errors import ClusterError, LimitError, ParameterError, SporeError
from spore_dask.params import Range
from spore_dask.progress import Consumer, Event, ignore
from spore_dask.threads import n_threads

if TYPE_CHECKING:
    from distributed import Client

Item = TypeVar("Item")
Receipt = TypeVar("Receipt")

N_RETRIES = 2
"""Times that a task is tried again after an exception that is not a `SporeError`."""
N_DEATHS = 3
"""Deaths of its worker after which a task is given up."""
WINDOW = 10
"""Tasks in flight for each worker thread."""
START_TIMEOUT = 60.0
"""Seconds that workers may take to start, and that a stage waits when none is left."""
FETCH_TIMEOUT = 10.0
"""Seconds to wait for receipts whose workers may just have died."""
LOOK_INTERVAL = 1.0
"""Seconds between two looks at which workers are there."""

_LIMIT_EXIT = 86  # exit status of a worker that went past its memory limit

# What threads and malloc read when a process starts. Freed memory goes back to the system at once:
# a fixed trim threshold also keeps glibc from raising the size from which it maps arrays.
_WORKER_ENVIRON = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_SCHEDULER_CONFIG = {
    "distributed.diagnostics.nvml": False,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.allowed-failures": N_DEATHS - 1,
    "distributed.scheduler.http.routes": [],
    "distributed.scheduler.work-stealing": False,
    # One task a worker: those waiting on a worker that dies would be blamed for its death too.
    "distributed.scheduler.worker-saturation": 1.0,
    # A long task that holds the GIL is not a dead worker; a dead process is noticed anyway.
    "distributed.scheduler.worker-ttl": None,
}
# Receipts are tiny, so dask's own measures against memory would act on what they cannot change:
# a paused worker might never resume. `_guard` ends a process that goes past its limit.
_WORKER_CONFIG = {
    "distributed.diagnostics.nvml": False,
    "distributed.worker.http.routes": [],
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    "logging": {"distributed": "critical", "distributed.worker": "critical"},
}

N_WORKERS = Range(
    "a whole number from 0 on",
    lambda v: isinstance(v, Integral) and not isinstance(v, bool) and int(v) >= 0,
    int,
    optional=True,
)


class WorkerLostError(ClusterError):
    """Worker processes died, or went away, and the work cannot go on."""


class TaskTooBigError(WorkerLostError, LimitError):
    """Workers went past their memory limit with the same task, again and again."""


class NoSchedulerError(ClusterError, ParameterError):
    """No scheduler answers where one should be."""


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """What a task gave, and what it cost."""

    receipt: Any
    """What the task returned."""
    error: SporeError | None
    """What it raised on purpose: trying again would give the same."""
    process: str
    """Host and number of the process that did it."""
    peak_nbytes: int
    """Peak resident memory of that process so far."""
    seconds: float
    """Time the task took."""


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
    _prepared.set()
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
        client = stack.enter_context(_connect(client))
    if not isinstance(client, distributed.Client) or client.asynchronous:
        raise ParameterError(
            f"client is {client!r}, but it must be a distributed.Client that is not asynchronous, "
            "the address of a scheduler, or None."
        )
    _wait_for_workers(client, 1)
    workers = client.scheduler_info()["workers"].values()
    shares = [w["memory_limit"] // w["nthreads"] for w in workers if w["memory_limit"]]
    if memory_limit is None:
        memory_limit = min(shares, default=None)
    return Engine(client, _Watch(client), len(workers), memory_limit, progress)


def _connect(address: str) -> Any:
    """Return a client of the scheduler at an address."""
    import distributed

    class Connection(distributed.Client):
        def start(self, **options: Any) -> None:
            start, close = super().start, super().close  # type: Any, Any
            try:
                start(**options)
            except BaseException:
                close()  # left to the garbage collector, it could block the start of another
                raise

    connect: Any = Connection
    try:
        return connect(address, set_as_default=False)
    except (OSError, ValueError) as error:
        raise (NoSchedulerError if isinstance(error, OSError) else ParameterError)(
            f"client is {address!r}, but no Dask scheduler answers there ({error}); start one, or "
            "give its address as it prints it, like 'tcp://10.0.0.1:8786'."
        ) from error


def _local_engine(
    stack: contextlib.ExitStack, n_workers: int, memory_limit: int | None, progress: Consumer
) -> Engine:
    """Start a scheduler in this process and workers in others, and return an engine on them."""
    import dask
    import distributed

    start: Any = distributed.SpecCluster
    connect: Any = distributed.Client
    options = {"host": "127.0.0.1", "port": 0, "dashboard_address": "127.0.0.1:0"}
    scheduler = {"cls": distributed.Scheduler, "options": {**options, "dashboard": False}}
    # Workers end before their scheduler has sent them all: no news to anyone.
    logging.getLogger("distributed.batched").setLevel(logging.WARNING)
    with dask.config.set(_SCHEDULER_CONFIG):
        cluster = stack.enter_context(start(scheduler=scheduler, silence_logs=logging.CRITICAL))
    workers = _LocalWorkers(n_workers, cluster.scheduler_address, memory_limit)
    stack.callback(workers.close)
    client = stack.enter_context(connect(cluster, set_as_default=False))
    _wait_for_workers(client, n_workers, workers)
    return Engine(client, _Watch(client, workers), n_workers, memory_limit, progress)


def _wait_for_workers(client: Any, n_workers: int, local: _LocalWorkers | None = None) -> None:
    """Return when there are workers enough, or raise `WorkerLostError`."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and not (local and len(local.causes) >= 3 * n_workers):
        with contextlib.suppress(TimeoutError):
            client.wait_for_workers(n_workers, timeout=LOOK_INTERVAL)
            return
    why = f" The last one {list(local.causes.values())[-1]}." if local and local.causes else ""
    raise WorkerLostError(
        f"{len(client.scheduler_info()['workers'])} workers came up, but at least {n_workers} "
        f"must.{why} Look at what they write to their standard error, raise memory_limit, or use "
        "n_workers=0 to run in this process."
    )


class Engine:
    """Runs stages: lists of independent tasks. Made by `open_engine`."""

    def __init__(
        self,
        client: Any = None,
        watch: _Watch | None = None,
        n_workers: int = 0,
        memory_limit: int | None = None,
        progress: Consumer = ignore,
    ) -> None:
        self.n_workers = n_workers
        """Worker processes when the engine was opened; 0 means that this process does it all."""
        self.memory_limit = memory_limit
        """Bytes that each process may use, or None."""
        self.progress = progress
        """Who hears what happens."""
        self._client = client
        self._watch = watch
        self._peaks: dict[str, int] = {}

    def run(
        self,
        stage: str,
        task: Callable[[Item], Receipt],
        items: Sequence[Item],
        *,
        needs_nbytes: int,
        on_done: Callable[[Item, Receipt], None] | None = None,
    ) -> list[Receipt]:
        """Run a task for every item of a stage.

        Parameters
        ----------
        stage
            Name of the stage.
        task
            A top-level function, or a `functools.partial` of one; safe to run more than once.
        items
            What each task is given: small and picklable.
        needs_nbytes
            Memory that one task is projected to need, for the error that says it was too much.
        on_done
            Called here with an item and its receipt as each task is done.

        Returns
        -------
        list
            The receipts, in the order of `items`.

        Raises
        ------
        WorkerLostError
            If a task's worker died `N_DEATHS` times, or no worker is left.
        Exception
            What a task raised: a `SporeError` at once, others after `N_RETRIES` retries. Tasks in
            flight are cancelled; those already running on a cluster run to their end unheard.
        """
        steps = _Steps(stage, len(items), self.progress)
        receipts: list[Any] = [None] * len(items)
        steps.tell("stage-start")
        try:
            with contextlib.closing(self._outcomes(steps, task, items, needs_nbytes)) as outcomes:
                for number, outcome in outcomes:
                    self._peaks[outcome.process] = outcome.peak_nbytes
                    if outcome.error is not None:
                        raise outcome.error
                    receipts[number] = outcome.receipt
                    if on_done is not None:
                        on_done(items[number], outcome.receipt)
                    steps.done(outcome)
        except BaseException as error:
            steps.tell("stage-failed", text=_reason(error))
            raise
        steps.tell("stage-end")
        return receipts

    @contextlib.contextmanager
    def here(self, stage: str, n_steps: int) -> Iterator[Callable[..., None]]:
        """Tell about a stage that the calling process does itself, in steps.

        Yields what is to be called after each step, with the number of steps if it has changed.
        """
        steps = _Steps(stage, n_steps, self.progress)
        started = time.perf_counter()

        def done(n_steps: int | None = None) -> None:
            nonlocal started
            steps.n_tasks = steps.n_tasks if n_steps is None else n_steps
            seconds, started = time.perf_counter() - started, time.perf_counter()
            steps.done(_Outcome(None, None, process_name(), peak_nbytes(), seconds))

        steps.tell("stage-start")
        try:
            yield done
        except BaseException as error:
            steps.tell("stage-failed", text=_reason(error))
            raise
        steps.tell("stage-end")

    def everywhere(self, action: Callable[[], None]) -> None:
        """Call a top-level function in this process and in every worker that answers."""
        action()
        if self._client is not None and self._client.status == "running":
            with contextlib.suppress(OSError, TimeoutError):
                self._client.run(action, on_error="ignore")

    def peaks(self) -> dict[str, int]:
        """Return the peak resident memory in bytes of each process, as of its last task."""
        return {**self._peaks, process_name(): peak_nbytes()}

    def _outcomes(
        self, steps: _Steps, task: Callable[[Any], Any], items: Sequence[Any], needs_nbytes: int
    ) -> Generator[tuple[int, _Outcome]]:
        """Yield the number and the outcome of each item, as they come."""
        if self._client is not None and self._watch is not None:
            flight = _Flight(self._client, self._watch, steps, task, items)
            yield from flight.outcomes(needs_nbytes, self.memory_limit)
            return
        for number, item in enumerate(items):
            try:
                yield number, _measure(task, item)
            except Exception as error:
                error.add_note(steps.name(number, item))
                raise


def _reason(error: BaseException) -> str:
    """Return why a stage has failed, in words."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) or type(error).__name__


class _Steps:
    """How far a stage is."""

    def __init__(self, stage: str, n_tasks: int, progress: Consumer) -> None:
        self.stage = stage
        self.n_tasks = n_tasks
        self._progress = progress
        self._n_done = 0
        self._start = time.monotonic()

    def tell(self, kind: str, **more: Any) -> None:
        """Send an event."""
        seconds = time.monotonic() - self._start
        self._progress(Event(kind, self.stage, self._n_done, self.n_tasks, seconds, **more))

    def done(self, outcome: _Outcome) -> None:
        """Count a task and tell about it."""
        self._n_done += 1
        self.tell(
            "task-done",
            process=outcome.process,
            task_seconds=outcome.seconds,
            peak_nbytes=outcome.peak_nbytes,
        )

    def name(self, number: int, item: Any) -> str:
        """Return words for a task."""
        text = repr(item)
        text = text if len(text) <= 200 else text[:200] + "..."
        return f"In stage {self.stage!r}, task {number + 1} of {self.n_tasks}: {text}"


class _Flight:
    """The tasks of one stage on a cluster, a window of them in flight."""

    def __init__(
        self,
        client: Any,
        watch: _Watch,
        steps: _Steps,
        task: Callable[[Any], Any],
        items: Sequence[Any],
    ) -> None:
        self._client = client
        self._watch = watch
        self._steps = steps
        self._task = task
        self._items = items
        self._run = uuid.uuid4().hex[:12]
        self._waiting = iter(range(len(items)))
        self._flying: dict[str, tuple[int, Any]] = {}
        self._landed: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def outcomes(
        self, needs_nbytes: int, memory_limit: int | None
    ) -> Iterator[tuple[int, _Outcome]]:
        """Yield numbers and outcomes as they come; leave nothing on the cluster."""
        from distributed import KilledWorker

        self._watch.reset()
        try:
            self._top_up()
            while self._flying:
                self._tell_losses()
                landed = self._next()
                outcomes = self._fetch(landed)
                for future in landed:
                    number, _ = self._flying[future.key]
                    if future.key in outcomes:
                        del self._flying[future.key]
                        future.release()
                        yield number, outcomes[future.key]
                        continue
                    try:
                        self._raise_from(future)
                    except KilledWorker as error:
                        cause = self._watch.cause(str(error.last_worker.name))
                        text = self._too_big(number, error, cause, needs_nbytes, memory_limit)
                        self._tell_losses()
                        too_big = cause == _cause(_LIMIT_EXIT)
                        raise (TaskTooBigError if too_big else WorkerLostError)(text) from None
                    except Exception as error:
                        error.add_note(self._steps.name(number, self._items[number]))
                        raise
                self._top_up()
            self._tell_losses()
        finally:
            self._cancel()

    def _top_up(self) -> None:
        """Submit tasks until the window is full.

        A task that waits on a worker is blamed for that worker's death too. So the first window
        goes as one batch, since the scheduler keeps a group much larger than the cluster in its
        own queue; and a smaller group goes one task a thread.
        """
        from distributed.protocol import pickle

        dumps: Any = pickle.dumps
        n_threads = self._watch.n_threads
        window = n_threads * (WINDOW if len(self._items) > 2 * n_threads else 1)
        numbers = list(itertools.islice(self._waiting, max(0, window - len(self._flying))))
        if not numbers:
            return
        # Pickled here so that the worker prepares itself before it imports the task's module.
        pickles = [dumps((self._task, self._items[number])) for number in numbers]
        keys = [f"{self._steps.stage}-{self._run}-{number}" for number in numbers]
        futures = self._client.map(_work, pickles, key=keys, retries=N_RETRIES, pure=False)
        for number, future in zip(numbers, futures, strict=True):
            self._flying[future.key] = number, future
            future.add_done_callback(self._landed.put)

    def _next(self) -> list[Any]:
        """Return the futures that have landed; wait a while for the first."""
        try:
            first = self._landed.get(timeout=LOOK_INTERVAL)
        except queue.Empty:
            return []
        return [first, *(self._landed.get() for _ in range(self._landed.qsize()))]

    def _fetch(self, futures: list[Any]) -> dict[str, _Outcome]:
        """Return what futures hold, all in one go, as far as it can be had at once."""
        whole = {future.key: future for future in futures if future.status == "finished"}
        gather = functools.partial(self._client.gather, whole, "skip", asynchronous=True)
        outcomes: dict[str, _Outcome] = {}
        with contextlib.suppress(TimeoutError, OSError):
            outcomes = self._client.sync(gather, callback_timeout=FETCH_TIMEOUT) if whole else {}
        return outcomes

    def _raise_from(self, future: Any) -> None:
        """Raise what a future raises; if it was only lost with its worker, wait for it again."""
        if future.status == "error":
            future.result()
        elif future.status == "cancelled":
            raise WorkerLostError(
                "The scheduler no longer knows the task: the connection to it broke, or the task "
                "was cancelled from elsewhere. Call again to continue with what is done."
            )
        else:
            future.add_done_callback(self._landed.put)

    def _tell_losses(self) -> None:
        for text in self._watch.look():
            self._steps.tell("worker-lost", text=text)

    def _too_big(
        self, number: int, error: Any, cause: str, needs_nbytes: int, memory_limit: int | None
    ) -> str:
        from dask.utils import format_bytes

        limit = "no memory limit" if memory_limit is None else format_bytes(memory_limit)
        each = "is set" if memory_limit is None else "is the memory limit of each process"
        return (
            f"Stage {self._steps.stage!r}: task {number + 1} of {self._steps.n_tasks} was given "
            f"up because {error.allowed_failures + 1} worker processes died while running it"
            f"{f' (the last one {cause})' if cause else ''}. It is projected to need "
            f"{format_bytes(needs_nbytes)}, and {limit} {each}: raise memory_limit or use larger "
            "workers, or give each task less with more partitions or smaller chunks."
        )

    def _cancel(self) -> None:
        """Take back what is in flight."""
        futures = [future for _, future in self._flying.values()]
        self._flying.clear()
        if futures and self._client.status == "running":
            with contextlib.suppress(OSError, TimeoutError):
                self._client.cancel(futures, force=True)


class _Watch:
    """Which workers are there, and which were lost."""

    def __init__(self, client: Any, local: _LocalWorkers | None = None) -> None:
        self._client = client
        self._local = local
        self.n_threads = 1
        """Threads of all workers when last looked at."""
        self._known: set[str] = set()
        self.reset()

    def reset(self) -> None:
        """Start anew to wait for workers."""
        self._seen = time.monotonic()
        self._next = 0.0
        self.look()

    def look(self) -> list[str]:
        """Return a sentence for each worker lost since the last look.

        Raises `WorkerLostError` when there has been no worker for `START_TIMEOUT`.
        """
        lost = self._look_at_cluster() if time.monotonic() >= self._next else []
        return lost if self._local is None else self._local.new_losses()

    def _look_at_cluster(self) -> list[str]:
        workers: dict[str, Any] = {}
        if self._client.status in ("closing", "closed"):
            raise WorkerLostError(
                "The connection to the scheduler broke for good. Start it again, and call again "
                "to continue with what is done."
            )
        with contextlib.suppress(OSError):  # the client may be about to connect again
            workers = self._client.scheduler_info().get("workers", {})
        now = time.monotonic()
        self._next = now + LOOK_INTERVAL
        if workers:
            self._seen = now
            self.n_threads = sum(worker["nthreads"] for worker in workers.values())
        elif not self._known and now - self._seen > START_TIMEOUT:
            raise WorkerLostError(
                f"There has been no worker for {START_TIMEOUT:.0f} s. Start workers, or look at "
                "why they end, and call again to continue with what is done."
            )
        lost = self._known - set(workers)
        self._known = set(workers)
        return [f"The worker at {address} is gone." for address in sorted(lost)]

    def cause(self, name: str) -> str:
        """Return how the worker of this name ended, or "" if that is not known."""
        return "" if self._local is None else self._local.cause(name)


class _LocalWorkers:
    """Worker processes on this machine, each kept alive by a thread until `close`."""

    def __init__(self, n_workers: int, scheduler: str, memory_limit: int | None) -> None:
        self.causes: dict[str, str] = {}
        """How each worker that died, by its name, ended."""
        self._losses: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._folder = tempfile.mkdtemp(prefix="spore_dask-")
        self._settings = {
            "path": [str(path) for path in sys.path],
            "scheduler": scheduler,
            "memory_limit": memory_limit,
            "config": _WORKER_CONFIG,
            "parent": os.getpid(),
        }
        self._threads = [
            threading.Thread(target=self._keep, args=(place,), daemon=True)
            for place in range(n_workers)
        ]
        for thread in self._threads:
            thread.start()

    def new_losses(self) -> list[str]:
        """Return a sentence for each worker that died since the last call."""
        return [self._losses.get() for _ in range(self._losses.qsize())]

    def cause(self, name: str) -> str:
        """Return how a worker ended, which the scheduler may have noticed a moment before us."""
        deadline = time.monotonic() + 2
        while name not in self.causes and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.causes.get(name, "")

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            self._closing.set()
        for process in self._processes.values():
            process.kill()
        for thread in self._threads:
            thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _keep(self, place: int) -> None:
        """Have one worker at a time, until the end."""
        n_short_lives = 0
        for life in itertools.count():
            start = time.monotonic()
            name = f"{place}-{life}"
            process = self._start(place, name)
            if process is None:
                return
            status = process.wait()
            if self._closing.is_set():
                return
            shutil.rmtree(os.path.join(self._folder, name), ignore_errors=True)
            self._losses.put(f"Worker process {process.pid} {_cause(status)}.")
            self.causes[name] = _cause(status)
            n_short_lives = n_short_lives + 1 if time.monotonic() - start < 5 else 0
            if n_short_lives > N_DEATHS and self._closing.wait(min(2 ** (n_short_lives - 4), 10)):
                return

    def _start(self, place: int, name: str) -> subprocess.Popen[bytes] | None:
        """Start a worker, unless it is time to close."""
        folder = os.path.join(self._folder, name)
        settings = json.dumps({**self._settings, "name": name, "folder": folder}).encode()
        boot = (
            "import json, sys; settings = json.load(sys.stdin); sys.path[:] = settings.pop('path');"
            "from spore_dask.engine import _serve; _serve(**settings)"
        )
        with self._lock:
            if self._closing.is_set():
                return None
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", boot],
                stdin=subprocess.PIPE,
                env={**os.environ, **_WORKER_ENVIRON},
                start_new_session=True,  # Ctrl-C is for the process that started us
            )
            self._processes[place] = process
        assert process.stdin is not None
        with contextlib.suppress(OSError), process.stdin as pipe:
            pipe.write(settings)
        return process


def _cause(status: int) -> str:
    """Return how a process with this exit status ended."""
    if status == _LIMIT_EXIT:
        return "went past its memory limit"
    if status < 0:
        return f"was ended by signal {-status}"
    return f"ended with exit status {status}"


def _serve(
    scheduler: str,
    name: str,
    memory_limit: int | None,
    folder: str,
    config: dict[str, Any],
    parent: int,
) -> None:
    """Be a local worker, in a process of its own."""
    threading.Thread(target=_guard, args=(parent, memory_limit, folder), daemon=True).start()
    import dask

    dask.config.set(config)
    from distributed import Worker

    async def work() -> None:
        async with Worker(
            scheduler,
            name=name,
            nthreads=1,
            memory_limit=memory_limit or 0,
            local_directory=folder,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as worker:
            await worker.finished()

    asyncio.run(work())


def _guard(parent: int, memory_limit: int | None, folder: str) -> None:
    """End this process when its parent is gone or its memory goes past the limit."""
    while os.getppid() == parent:
        if memory_limit is not None and _status_nbytes("VmRSS") > memory_limit:
            os._exit(_LIMIT_EXIT)
        time.sleep(0.2)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # the last one takes the folder of all of them along
        os.rmdir(os.path.dirname(folder))
    os._exit(1)


def _work(pickled: bytes) -> _Outcome:
    """Do a task on a worker."""
    from distributed.protocol import pickle

    prepare_process()
    loads: Any = pickle.loads
    task, item = loads(pickled)
    return _measure(task, item)


def _measure(task: Callable[[Any], Any], item: Any) -> _Outcome:
    """Do a task and note what it cost."""
    start = time.perf_counter()
    receipt, error = None, None
    try:
        receipt = task(item)
    except SporeError as raised:
        error = raised
    seconds = time.perf_counter() - start
    return _Outcome(receipt, error, process_name(), peak_nbytes(), seconds)


def process_name() -> str:
    """Return a name for this process that no other process of a cluster has."""
    return f"{socket.gethostname()}:{os.getpid()}"


def peak_nbytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    peak = _status_nbytes("VmHWM")
    if peak:  # getrusage would count what the parent had when it started this process
        return peak
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _status_nbytes(name: str) -> int:
    """Return one of Linux's figures about this process, or 0 elsewhere."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return 0


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


def _use_one_thread() -> None:
    from threadpoolctl import threadpool_limits

    names = {name for name in _WORKER_ENVIRON if name.endswith("_NUM_THREADS")}
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
