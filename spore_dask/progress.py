"""What happens during a run, as events, and who listens: a bar, a log, a file.

Pure Python: knows nothing of Dask. A consumer is any callable that takes an `Event`; it is called
in the thread that runs the stages, one event at a time. Holds a few numbers.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from spore_dask.errors import ParameterError

KINDS = ("stage-start", "task-done", "stage-end", "stage-failed", "worker-lost", "message")


@dataclasses.dataclass(frozen=True)
class Event:
    """One thing that happened in a stage."""

    kind: str
    """One of `KINDS`; each stage has one start and then one end or failure."""
    stage: str
    """Name of the stage."""
    n_done: int = 0
    """Tasks of the stage that are done."""
    n_tasks: int = 0
    """Tasks of the stage."""
    seconds: float = 0.0
    """Time since the stage started."""
    text: str = ""
    """A sentence, for failures, lost workers and messages."""
    process: str = ""
    """The process that did the task, for "task-done"."""
    task_seconds: float = 0.0
    """Time that the task took, for "task-done"."""
    peak_nbytes: int = 0
    """Peak resident memory of that process so far, for "task-done"."""


Consumer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Do nothing with an event."""


def as_consumer(progress: Any) -> Consumer:
    """Return the consumer that a user's `progress` argument means.

    Parameters
    ----------
    progress
        None or False: nobody listens. True or "bar": a `Bar` on standard error. "log": the logger
        "spore_dask". A `pathlib.Path`: a `FileLog` there. A callable: itself. A list or tuple of
        these: all of them, in order.
    """
    if progress is None or progress is False:
        return ignore
    if progress is True or (isinstance(progress, str) and progress == "bar"):
        return Bar()
    if isinstance(progress, str) and progress == "log":
        return log_events(logging.getLogger("spore_dask"))
    if isinstance(progress, os.PathLike):
        return FileLog(progress)
    if isinstance(progress, (list, tuple)):
        return _all_of([as_consumer(each) for each in progress])
    if callable(progress):
        return progress  # type: ignore[no-any-return]
    raise ParameterError(
        f"progress is {progress!r}, but it must be None, True, 'bar', 'log', a pathlib.Path, "
        "a function of one event, or a list of these."
    )


def _all_of(consumers: Sequence[Consumer]) -> Consumer:
    def consume(event: Event) -> None:
        for consumer in consumers:
            consumer(event)

    return consume


def log_events(logger: logging.Logger) -> Consumer:
    """Return a consumer that logs: tasks as debug, stages as info, what goes wrong as warning."""
    levels = {
        "task-done": logging.DEBUG,
        "worker-lost": logging.WARNING,
        "stage-failed": logging.WARNING,
    }

    def consume(event: Event) -> None:
        logger.log(levels.get(event.kind, logging.INFO), "%s", describe(event))

    return consume


def describe(event: Event) -> str:
    """Return an event as one line of text."""
    if event.kind == "stage-start":
        return f"{event.stage}: {event.n_tasks} tasks"
    if event.kind == "stage-end":
        return f"{event.stage}: done, {event.n_done} tasks in {_duration(event.seconds)}"
    if event.kind == "stage-failed":
        return f"{event.stage}: failed after {event.n_done} of {event.n_tasks} tasks: {event.text}"
    if event.kind == "task-done":
        return f"{event.stage}: {_share(event)}"
    return f"{event.stage}: {event.text}" if event.stage else event.text


def _share(event: Event) -> str:
    """Return how far a stage is, how fast it goes and how long it will take."""
    share = event.n_done / event.n_tasks if event.n_tasks else 1.0
    text = f"{share:4.0%}  {event.n_done}/{event.n_tasks}"
    if not event.n_done or event.seconds <= 0:
        return text
    rate = event.n_done / event.seconds
    left = _duration((event.n_tasks - event.n_done) / rate)
    speed = f"{rate:.1f} tasks/s" if rate >= 1 else f"{1 / rate:.1f} s/task"
    return f"{text}  {speed}  {left} left"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


class FileLog:
    """Append each event to a file, as one line of JSON with the time (seconds since 1970).

    The file is opened for each event, so that what has happened is on disk and nothing is left to
    close.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __call__(self, event: Event) -> None:
        """Append an event."""
        record = {"time": round(time.time(), 3), **dataclasses.asdict(event)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


class Bar:
    """Show the current stage on one line of a terminal, or now and then a line elsewhere.

    Parameters
    ----------
    stream
        Where to write; None means standard error at the time of each event.
    every
        Seconds between two updates; None means 0.1 on a terminal and 10 elsewhere. The start and
        the end of a stage, and what goes wrong, are always shown.
    """

    def __init__(self, stream: TextIO | None = None, every: float | None = None) -> None:
        self._stream = stream
        self._every = every
        self._next = 0.0
        self._open = False

    def __call__(self, event: Event) -> None:
        """Show an event, unless the last update was a moment ago."""
        stream = self._stream or sys.stderr
        if stream is None:  # a process without a console
            return
        terminal = stream.isatty()
        passing = event.kind == "task-done" or (terminal and event.kind == "stage-start")
        now = time.monotonic()
        if event.kind == "task-done" and now < self._next:
            return
        every = self._every if self._every is not None else (0.1 if terminal else 10.0)
        self._next = now + every if passing or event.kind == "stage-start" else self._next
        stream.write(self._line(describe(event), terminal, passing))
        stream.flush()

    def _line(self, text: str, terminal: bool, passing: bool) -> str:
        """Return what to write so that a passing line is overwritten by the next one."""
        if not terminal:
            return text + "\n"
        start = "\r" if self._open else ""
        self._open = passing
        return f"{start}{text}\x1b[K" + ("" if passing else "\n")
