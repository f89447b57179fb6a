"""What became of a job: a small document beside its result, `job-NAME.json`.

Written when a job begins and when it ends, by whoever holds the lock of the output. It has no
credentials: of the cluster only the kind. One that says "running" though its process is gone was
killed; the same command continues the job.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import click

import spore_dask
from pipelines.jobs.documents import Job
from pipelines.jobs.places import Place, without_secrets
from spore_dask.cli import TIME_FORMAT, Voice, consumer_of, exit_code

RUNNING, DONE, FAILED = "running", "done", "failed"


class Work:
    """A job under way: where it stands, and who hears of it."""

    def __init__(self, job: Job, voice: Voice, name: str) -> None:
        self.job = job
        self.output = Place.at(job.output)
        self.progress = consumer_of(job.progress, voice.quiet)
        self._quiet = voice.quiet
        self._file = f"job-{name}.json"
        self._started = time.monotonic()
        self._facts: dict[str, Any] = {}
        self.lock: Any = None
        """The lock of the output, while it is held."""

    @property
    def seconds(self) -> float:
        """Time since the job began."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """Write a line of the log."""
        if not self._quiet:
            click.echo(f"{time.strftime(TIME_FORMAT)}{self.job.kind}: {text}", err=True)

    def finished(self) -> dict[str, Any] | None:
        """Return what an earlier start has noted, if it came to the end with this version.

        None as well if the result was removed since, or if it is not known which one it is.
        """
        known = self.output.read(self._file)
        same = {"state": DONE, "version": spore_dask.__version__}
        if not isinstance(known, dict) or not same.items() <= known.items():
            return None
        run: Any = known.get("run")
        try:
            spore_dask.open_run(run["path"], run["id"])
        except (spore_dask.InputError, TypeError, KeyError):
            return None
        return known

    def note(self, **facts: Any) -> None:
        """Add to what is kept of the job when it is done."""
        self._facts |= facts

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Hold the output alone, and keep how the job ends; raise `BusyError` if another has it."""
        with spore_dask.hold(self.output.url, f"job {self.job.kind}") as lock:
            self.lock = lock
            began = _now()
            self._write(state=RUNNING, started=began)
            try:
                yield
            except BaseException as error:
                text = without_secrets(" ".join(str(error).split()))
                ended = {"exit": exit_code(error), "error": text, "finished": _now()}
                # What happened first is what counts.
                with contextlib.suppress(OSError, spore_dask.SporeError):
                    self._write(state=FAILED, started=began, **ended)
                raise
            self._write(
                state=DONE,
                started=began,
                finished=_now(),
                exit=0,
                seconds=round(self.seconds, 3),
                **self._facts,
            )

    def _write(self, **facts: Any) -> None:
        where = {"host": socket.gethostname(), "pid": os.getpid()}
        about = {"id": self.job.id, "version": spore_dask.__version__, **where}
        self.output.write(self._file, {**about, **facts, "asked": self.job.asked()})


def _now() -> str:
    """Return the time in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def workers(job: Job) -> Iterator[dict[str, Any]]:
    """Make or reach the cluster that a job asks for; yield the keywords that stand for it."""
    if job.cluster is None:
        yield job.workers
        return
    with spore_dask.connect(job.cluster) as client:
        yield job.workers | {"client": client}
