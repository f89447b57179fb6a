"""The tasks of one stage on a cluster: a window of them in flight, each landed once."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import queue
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

from spore_dask.engine.failures import TaskTooBigError, WorkerLostError
from spore_dask.engine.processes import Outcome, work
from spore_dask.engine.proving import Proof
from spore_dask.engine.settings import (
    FETCH_TIMEOUT,
    LIMIT_EXIT,
    LOOK_INTERVAL,
    N_DEATHS,
    N_RETRIES,
    WINDOW,
)
from spore_dask.engine.steps import Steps
from spore_dask.engine.watching import Watch
from spore_dask.engine.workers import cause_of
from spore_dask.errors import SporeError


class Flight:
    """The tasks of one stage on a cluster, a window of them in flight."""

    def __init__(
        self,
        client: Any,
        watch: Watch,
        steps: Steps,
        task: Callable[[Any], Any],
        items: Sequence[Any],
        proof: Proof | None = None,
    ) -> None:
        self._client = client
        self._watch = watch
        self._steps = steps
        self._task = task
        self._items = items
        self._proof = proof
        self._run = uuid.uuid4().hex[:12]
        self._waiting: Iterator[int] = iter(range(len(items)))
        self._returned: list[int] = []
        self._n_cancelled: Counter[int] = Counter()
        self._flying: dict[str, tuple[int, Any]] = {}
        self._landed: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def outcomes(
        self, needs_nbytes: int, memory_limit: int | None
    ) -> Generator[tuple[int, Outcome]]:
        """Yield numbers and outcomes as they come; leave nothing on the cluster."""
        from distributed import KilledWorker

        self._watch.reset()
        n_left = len(self._items)
        try:
            self._top_up()
            while n_left:  # also when nothing can be in flight just now
                self._tell_news()
                landed = self._next()
                outcomes = self._fetch(landed)
                for future in landed:
                    number, _ = self._flying[future.key]
                    outcome = outcomes.get(future.key)
                    if outcome is not None:
                        del self._flying[future.key]
                        future.release()
                        if outcome.unfit:
                            self._leave_out(number, outcome)
                        else:
                            n_left -= 1
                            yield number, outcome
                        continue
                    try:
                        self._raise_from(number, future)
                    except KilledWorker as error:
                        cause = self._watch.cause(str(error.last_worker.name))
                        text = self._too_big(number, error, cause, needs_nbytes, memory_limit)
                        self._tell_news()
                        too_big = cause == cause_of(LIMIT_EXIT)
                        raise (TaskTooBigError if too_big else WorkerLostError)(text) from None
                    except Exception as error:
                        error.add_note(self._steps.name(number, self._items[number]))
                        raise
                self._top_up()
            self._tell_news()
        except SporeError:
            raise
        except Exception as error:
            if self._client.status == "running":
                raise
            raise WorkerLostError(
                f"The connection to the scheduler broke ({type(error).__name__}: {error}). See "
                "whether it still runs, and call again to continue with what is done."
            ) from error
        finally:
            self._cancel()

    def _leave_out(self, number: int, outcome: Outcome) -> None:
        """Do a task elsewhere, because its worker came later and is not fit."""
        if outcome.worker not in self._watch.unfit:
            text = f"{outcome.unfit} It is left out."
            logging.getLogger(__name__).warning(text)
            self._steps.tell("worker-lost", text=text)
        self._watch.unfit[outcome.worker] = outcome.unfit
        self._returned.append(number)

    def _top_up(self) -> None:
        """Submit tasks until the window is full.

        A task that waits on a worker is blamed for that worker's death too. So the first window
        goes as one batch, since the scheduler keeps a group much larger than the cluster in its
        own queue; and a smaller group goes one task a thread.
        """
        from distributed.client import ClosedClientError
        from distributed.protocol import pickle

        dumps: Any = pickle.dumps
        if self._client.status != "running":
            return
        fit = self._watch.fit
        n_threads = self._watch.n_threads
        window = n_threads * (WINDOW if len(self._items) > 2 * n_threads else 1)
        n_free = max(0, window - len(self._flying)) if fit is None or fit else 0
        again, self._returned = self._returned[:n_free], self._returned[n_free:]
        numbers = [*again, *itertools.islice(self._waiting, n_free - len(again))]
        if not numbers:
            return
        if again:
            self._run = uuid.uuid4().hex[:12]  # a name that the scheduler does not know yet
        # Pickled here so that the worker prepares itself before it imports the task's module.
        pickles = [dumps((self._task, self._items[number])) for number in numbers]
        keys = [f"{self._steps.stage}-{self._run}-{number}" for number in numbers]
        options: dict[str, Any] = {"key": keys, "retries": N_RETRIES, "pure": False}
        if fit is not None:
            options |= {"workers": fit, "allow_other_workers": True}
        if self._proof is not None:
            options["proof"] = self._proof
        try:
            futures = self._client.map(work, pickles, **options)
        except ClosedClientError:  # just now: whoever watches the connection decides
            self._returned = [*numbers, *self._returned]
            return
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

    def _fetch(self, futures: list[Any]) -> dict[str, Outcome]:
        """Return what futures hold, all in one go, as far as it can be had at once."""
        whole = {future.key: future for future in futures if future.status == "finished"}
        gather = functools.partial(self._client.gather, whole, "skip", asynchronous=True)
        outcomes: dict[str, Outcome] = {}
        # Those that were cancelled meanwhile, with the connection, say so themselves. distributed's
        # `sync` raises UnboundLocalError when what it waits for is cancelled.
        with contextlib.suppress(TimeoutError, OSError, CancelledError, UnboundLocalError):
            outcomes = self._client.sync(gather, callback_timeout=FETCH_TIMEOUT) if whole else {}
        return outcomes

    def _raise_from(self, number: int, future: Any) -> None:
        """Raise what a future raises; if it was only lost with its worker, wait for it again.

        All that flies is cancelled when the connection to the scheduler breaks. If the scheduler
        can be reached again, or another one in its place, what was lost is asked for anew.
        """
        if future.status == "error":
            future.result()
        elif future.status == "cancelled":
            self._n_cancelled[number] += 1
            if self._n_cancelled[number] >= N_DEATHS:
                raise WorkerLostError(
                    "The scheduler no longer knows the task: the connection to it broke, or the "
                    "task was cancelled from elsewhere, again and again. Call again to continue "
                    "with what is done."
                )
            del self._flying[future.key]
            self._returned.append(number)
        else:
            future.add_done_callback(self._landed.put)

    def _tell_news(self) -> None:
        for kind, text in self._watch.look():
            self._steps.tell(kind, text=text)

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
            cancel = functools.partial(self._client.cancel, futures, asynchronous=True, force=True)
            with contextlib.suppress(OSError, TimeoutError):
                self._client.sync(cancel, callback_timeout=FETCH_TIMEOUT)
