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

News = tuple[str, str]
"""The kind of an event, and a sentence."""
SILENT, LOST = "worker-silent", "worker-lost"
WAIT_INTERVAL = 0.02
"""Seconds between two looks while workers start."""
LONGEST_LOOK = LOOK_TIMEOUT + 2 * LOOK_INTERVAL
"""Seconds that count from one look to the next: if more pass, this process was stopped or busy."""


def workers_of(client: Any) -> dict[str, Any] | None:
    """Return the workers of a client's cluster by address; None if the scheduler does not say."""
    ask = functools.partial(client.scheduler.identity, n_workers=-1)
    try:
        workers: dict[str, Any] = client.sync(ask, callback_timeout=LOOK_TIMEOUT)["workers"]
    except (OSError, AttributeError):  # no answer in time, or about to connect again
        return None
    return workers


class Watch:
    """Which workers are there, which are silent or lost, and which are not fit for the run.

    Only time in which it looks counts, so that nobody is given up because this process was stopped.
    """

    def __init__(self, client: Any, local: LocalWorkers | None = None) -> None:
        self._client = client
        self._local = local
        self.n_threads = 1
        """Threads of all workers when last looked at."""
        self.unfit: dict[str, str] = {}
        """What is wrong with workers, by address."""
        self._known: set[str] = set()
        self._heard: dict[str, tuple[float, float]] = {}
        self._untold: list[News] = []
        self.reset()
        self._untold.clear()  # what was lost before is nobody's news

    def reset(self) -> None:
        """Start anew to wait for workers."""
        self._seen = self._answered = self._looked = time.monotonic()
        self._next = 0.0
        self._untold = self.look()

    @property
    def fit(self) -> list[str] | None:
        """The addresses of the workers that are fit, or None if all are."""
        return sorted(self._known - set(self.unfit)) if self._known & set(self.unfit) else None

    def look(self) -> list[News]:
        """Return the kind of an event, and a sentence, for each worker that is silent or lost.

        Raises `WorkerLostError` when there has been no worker for `START_TIMEOUT`, or no word from
        the scheduler, and `PreflightError` when there has been none that is fit.
        """
        news = self._look_at_cluster() if time.monotonic() >= self._next else []
        untold, self._untold = self._untold, []
        ended = [] if self._local is None else self._local.new_losses()
        return [*untold, *news, *((LOST, text) for text in ended)]

    def _look_at_cluster(self) -> list[News]:
        if self._client.status in ("closing", "closed"):
            raise WorkerLostError(
                "The connection to the scheduler broke for good. Start it again, and call again "
                "to continue with what is done."
            )
        workers = workers_of(self._client)
        now = time.monotonic()
        gap, self._looked = now - self._looked, now
        passed = min(gap, LONGEST_LOOK)
        self._seen += gap - passed
        self._answered += gap - passed
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
        silent = self._listen(workers, passed)
        if self._local is not None:  # which says itself how each ended
            return silent
        return [*silent, *((LOST, f"The worker at {address} is gone.") for address in sorted(lost))]

    def _listen(self, workers: dict[str, Any], passed: float) -> list[News]:
        """Return which workers have just been silent for too long; end those of ours that hang."""
        heard, self._heard = self._heard, {}
        news = []
        for address, worker in workers.items():
            last_seen, seconds = heard.get(address, (None, 0.0))
            seconds = seconds + passed if last_seen == worker["last_seen"] else 0.0
            self._heard[address] = worker["last_seen"], seconds
            if seconds <= settings.SILENT_TIMEOUT:
                continue
            if self._local is not None:
                text = self._local.end_silent(str(worker["name"]), seconds)
            else:
                text = (
                    f"The worker at {address} has given no sign of life for {seconds:.0f} s. Its "
                    "tasks are done elsewhere when its scheduler gives it up, after its worker-ttl."
                )
            if text and seconds - passed <= settings.SILENT_TIMEOUT:
                news.append((SILENT, text))
        return news

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
