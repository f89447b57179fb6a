"""The engine: runs the tasks of stages, here or on a cluster."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

from spore_dask.engine.flights import Flight
from spore_dask.engine.peaks import Peak, peak_nbytes, peak_since_now
from spore_dask.engine.processes import Outcome, measure, process_name
from spore_dask.engine.proving import Check, Proof, prove_all
from spore_dask.engine.settings import FETCH_TIMEOUT
from spore_dask.engine.steps import Steps
from spore_dask.engine.watching import Watch
from spore_dask.progress import Consumer, ignore
from spore_dask.threads import one_product_thread

Item = TypeVar("Item")
Receipt = TypeVar("Receipt")


class Engine:
    """Runs stages: lists of independent tasks. Made by `open_engine`."""

    def __init__(
        self,
        client: Any = None,
        watch: Watch | None = None,
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
        self._proof: Proof | None = None
        self._peaks: dict[str, int] = {}
        self._tasks = Peak()

    @property
    def n_threads(self) -> int:
        """Tasks that are done at once: the threads of all workers when last looked at."""
        return 1 if self._watch is None else self._watch.n_threads

    def run(
        self,
        stage: str,
        task: Callable[[Item], Receipt],
        items: Sequence[Item],
        *,
        needs_nbytes: int,
        here: bool = False,
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
        here
            Whether to do the tasks in this process, though there may be others; without retries.
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
        steps = Steps(stage, len(items), self.progress)
        receipts: list[Any] = [None] * len(items)
        steps.tell("stage-start")
        try:
            if here or self._client is None or self._watch is None:
                found = self._here(steps, task, items)
            else:
                flight = Flight(self._client, self._watch, steps, task, items, self._proof)
                found = flight.outcomes(needs_nbytes, self.memory_limit)
            with contextlib.closing(found) as outcomes:
                for number, outcome in outcomes:
                    self._peaks[outcome.process] = outcome.peak_nbytes
                    self._tasks.note(outcome.task_nbytes)
                    if outcome.error is not None:
                        raise outcome.error
                    receipts[number] = outcome.receipt
                    if on_done is not None:
                        on_done(items[number], outcome.receipt)
                    steps.done(outcome)
        except BaseException as error:
            steps.tell("stage-failed", text=reason_of(error))
            raise
        steps.tell("stage-end")
        return receipts

    @contextlib.contextmanager
    def here(self, stage: str, n_steps: int) -> Iterator[Callable[..., None]]:
        """Tell about a stage that the calling process does itself, in steps.

        Yields what is to be called after each step, with the number of steps if it has changed.
        """
        steps = Steps(stage, n_steps, self.progress)
        started = time.perf_counter()

        def done(n_steps: int | None = None) -> None:
            nonlocal started
            steps.n_tasks = steps.n_tasks if n_steps is None else n_steps
            seconds, started = time.perf_counter() - started, time.perf_counter()
            steps.done(Outcome(None, None, process_name(), peak_nbytes(), 0, seconds))

        steps.tell("stage-start")
        try:
            yield done
        except BaseException as error:
            steps.tell("stage-failed", text=reason_of(error))
            raise
        steps.tell("stage-end")

    @contextlib.contextmanager
    def measured(self) -> Iterator[dict[str, int]]:
        """Measure the peaks of a stage, known when the context is closed.

        `peak_nbytes` is that of the largest process that did tasks, while it did them; without
        tasks, that of the calling process. `coordinator_nbytes` is that of the latter in any case,
        with all that it does between tasks, and whatever its user holds.
        """
        found: dict[str, int] = {}
        before, self._tasks = self._tasks, Peak()
        try:
            with peak_since_now() as own:
                yield found
            found["peak_nbytes"] = self._tasks.nbytes or own.nbytes
            found["coordinator_nbytes"] = own.nbytes
        finally:
            self._tasks = before

    def prove(self, check: Check) -> list[str]:
        """Have every worker prove that it is fit, now or, if it comes later, before its first task.

        Parameters
        ----------
        check
            A top-level function, or a partial of one, that each worker calls with its address and
            the bytes that a task may use there; it returns what is wrong, such as "has no disk",
            or None.

        Returns
        -------
        list
            The addresses of the workers that are there; none where this process does it all.

        Raises
        ------
        PreflightError
            If a worker that is there is not fit. Later ones that are not are told and left out.
        """
        if self._client is None:
            return []
        proof = Proof.of(check)
        addresses = prove_all(self._client, proof)
        self._proof = proof
        return addresses

    def everywhere(self, action: Callable[[], None]) -> None:
        """Call a top-level function in this process and in every worker that answers."""
        action()
        if self._client is not None and self._client.status == "running":
            run = functools.partial(self._client.run, action, on_error="ignore")
            with contextlib.suppress(OSError, TimeoutError):
                self._client.sync(_awaited, run, callback_timeout=FETCH_TIMEOUT)

    def peaks(self) -> dict[str, int]:
        """Return the peak resident memory in bytes of each process, as of its last task."""
        return {**self._peaks, process_name(): peak_nbytes()}

    def _here(
        self, steps: Steps, task: Callable[[Any], Any], items: Sequence[Any]
    ) -> Generator[tuple[int, Outcome]]:
        """Yield the number and the outcome of each item, done in this process."""
        for number, item in enumerate(items):
            try:
                with one_product_thread():
                    outcome = measure(task, item)
            except Exception as error:
                error.add_note(steps.name(number, item))
                raise
            yield number, outcome


async def _awaited(call: Callable[[], Any]) -> Any:
    """Call, in the client's own thread, what returns there something to wait for."""
    return await call()


def reason_of(error: BaseException) -> str:
    """Return why a stage has failed, in words."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) or type(error).__name__
