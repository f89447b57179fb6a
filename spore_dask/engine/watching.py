"""Which workers of a cluster are there, and which were lost."""

from __future__ import annotations

import functools
import time
from typing import Any

from spore_dask.engine import settings
from spore_dask.engine.failures import WorkerLostError
from spore_dask.engine.settings import LOOK_INTERVAL, LOOK_TIMEOUT
from spore_dask.engine.workers import LocalWorkers
from spore_dask.errors import PreflightError

WAIT_INTERVAL = 0.02
"""Seconds between two looks while workers start."""


def workers_of(client: Any) -> dict[str, Any] | None:
    """Return the workers of a client's cluster by address; None if the scheduler does not say."""
    ask = functools.partial(client.scheduler.identity, n_workers=-1)
    try:
        workers: dict[str, Any] = client.sync(ask, callback_timeout=LOOK_TIMEOUT)["workers"]
    except (OSError, AttributeError):  # no answer in time, or about to connect again
        return None
    return workers


class Watch:
    """Which workers are there, which were lost, and which are not fit for the run."""

    def __init__(self, client: Any, local: LocalWorkers | None = None) -> None:
        self._client = client
        self._local = local
        self.n_threads = 1
        """Threads of all workers when last looked at."""
        self.unfit: dict[str, str] = {}
        """What is wrong with workers, by address."""
        self._known: set[str] = set()
        self._untold: list[str] = []
        self.reset()
        self._untold.clear()  # what was lost before is nobody's news

    def reset(self) -> None:
        """Start anew to wait for workers."""
        self._seen = self._answered = time.monotonic()
        self._next = 0.0
        self._untold = self.look()

    @property
    def fit(self) -> list[str] | None:
        """The addresses of the workers that are fit, or None if all are."""
        return sorted(self._known - set(self.unfit)) if self._known & set(self.unfit) else None

    def look(self) -> list[str]:
        """Return a sentence for each worker lost since the last look.

        Raises `WorkerLostError` when there has been no worker for `START_TIMEOUT`, or no word from
        the scheduler, and `PreflightError` when there has been none that is fit.
        """
        lost = self._look_at_cluster() if time.monotonic() >= self._next else []
        untold, self._untold = self._untold, []
        return [*untold, *(lost if self._local is None else self._local.new_losses())]

    def _look_at_cluster(self) -> list[str]:
        if self._client.status in ("closing", "closed"):
            raise WorkerLostError(
                "The connection to the scheduler broke for good. Start it again, and call again "
                "to continue with what is done."
            )
        workers = workers_of(self._client)
        now = time.monotonic()
        self._next = now + LOOK_INTERVAL
        if workers is None:
            self._refuse_silence(now - self._answered)
            return []
        self._answered = now
        lost, had = self._known - set(workers), bool(self._known - set(self.unfit))
        self._known = set(workers)
        self.n_threads = sum(worker["nthreads"] for worker in workers.values()) or self.n_threads
        if self._known - set(self.unfit):
            self._seen = now
        elif not had:
            self._refuse_absence(now - self._seen)
        return [f"The worker at {address} is gone." for address in sorted(lost)]

    def _refuse_silence(self, seconds: float) -> None:
        """Raise if the scheduler has said nothing for too long."""
        if seconds > settings.START_TIMEOUT:
            raise WorkerLostError(
                f"The scheduler has not answered for {seconds:.0f} s. See whether it still runs, "
                "and call again to continue with what is done."
            )

    def _refuse_absence(self, seconds: float) -> None:
        """Raise if there has been no worker to work with for too long."""
        if seconds <= settings.START_TIMEOUT:
            return
        if self._known:
            raise PreflightError(self.unfit[min(self._known)])
        raise WorkerLostError(
            f"There has been no worker for {settings.START_TIMEOUT:.0f} s. Start workers, or look "
            "at why they end, and call again to continue with what is done."
        )

    def cause(self, name: str) -> str:
        """Return how the worker of this name ended, or "" if that is not known."""
        return "" if self._local is None else self._local.cause(name)


def wait_for_workers(
    client: Any, n_workers: int, local: LocalWorkers | None = None, seconds: float | None = None
) -> None:
    """Return when there are workers enough, or raise `WorkerLostError`."""
    seconds = settings.START_TIMEOUT if seconds is None else seconds
    deadline = time.monotonic() + seconds
    n_there = 0
    while time.monotonic() < deadline and not (local and len(local.causes) >= 3 * n_workers):
        workers = (workers_of(client) or {}).values()
        n_there = sum(worker["status"] == "running" for worker in workers)
        if n_there >= n_workers:
            return
        time.sleep(WAIT_INTERVAL)
    if local is None:
        raise WorkerLostError(
            f"{n_there} workers came up within {seconds:.0f} s, but at least {n_workers} must: "
            "start workers, look at why they end or still wait in a queue, or wait for longer "
            "(wait, in seconds)."
        )
    why = f" The last one {list(local.causes.values())[-1]}." if local.causes else ""
    raise WorkerLostError(
        f"{n_there} workers came up, but at least {n_workers} must.{why} Look at what they write "
        "to their standard error, raise memory_limit, or use n_workers=0 to run in this process."
    )
