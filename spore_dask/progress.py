"""What happens during a run, as events, and who listens: a bar, a log, a file.

Pure Python: knows nothing of Dask. A consumer is any callable that takes an `Event`; it is called
in the thread that runs the stages, one event at a time. Holds a few numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from spore_dask.errors import ParameterError

NARROW = 80
"""Columns of a terminal that does not say how many it has."""
BAR_LENGTH, TEXT_LENGTH = 24, 52
"""Columns of a drawn bar, and those to leave for what is said beside it."""
BAR_MARKS, BAR_MARKS_ASCII = ("\u2588", "\u2591"), ("#", ".")
KINDS = (
    *("stage-start", "task-done", "stage-end", "stage-failed"),
    *("worker-silent", "worker-lost", "message"),
)


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
    """A sentence, for failures, silent and lost workers, and messages."""
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
        "worker-silent": logging.WARNING,
        "worker-lost": logging.WARNING,
        "stage-failed": logging.WARNING,
    }

    def consume(event: Event) -> None:
        logger.log(levels.get(event.kind, logging.INFO), "%s", describe(event))

    return consume


def describe(event: Event) -> str:
    """Return an event as one line of text."""
    if event.kind == "stage-start":
        return f"{event.stage}: {_tasks(event.n_tasks)}"
    if event.kind == "stage-end":
        return f"{event.stage}: done, {_tasks(event.n_done)} in {duration(event.seconds)}"
    if event.kind == "stage-failed":
        why = f": {event.text}" if event.text else ""
        return f"{event.stage}: failed after {event.n_done} of {_tasks(event.n_tasks)}{why}"
    if event.kind == "task-done":
        return f"{event.stage}: {_share(event)}"
    return f"{event.stage}: {event.text}" if event.stage else event.text


def _tasks(number: int) -> str:
    return f"{number} task" if number == 1 else f"{number} tasks"


def _share(event: Event) -> str:
    """Return how far a stage is, how fast it goes and how long it will take."""
    text = f"{_part_done(event):4.0%}  {event.n_done}/{event.n_tasks}"
    pace, left = speed(event), time_left(event)
    if pace is None or left is None:
        return f"{text}  {duration(event.seconds)} so far" if event.seconds >= 1 else text
    return f"{text}  {pace}  {duration(left)} left"


def _part_done(event: Event) -> float:
    return event.n_done / event.n_tasks if event.n_tasks else 1.0


def speed(event: Event) -> str | None:
    """Return how fast a stage goes, in words; None as long as that is not known."""
    if not event.n_done or event.seconds <= 0:
        return None
    rate = event.n_done / event.seconds
    return f"{rate:.1f} tasks/s" if rate >= 1 else f"{1 / rate:.1f} s/task"


def time_left(event: Event) -> float | None:
    """Return the seconds that the rest of a stage will take; None as long as that is not known."""
    if not event.n_done or event.seconds <= 0:
        return None
    return (event.n_tasks - event.n_done) * event.seconds / event.n_done


def duration(seconds: float) -> str:
    """Return a time in words."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


class FileLog:
    """Append each event to a file, as one line of JSON with the time (seconds since 1970).

    The file is opened for each event, so that what has happened is on disk and nothing is left to
    close. What finds no room on the disk is left out: a run does not depend on it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __call__(self, event: Event) -> None:
        """Append an event."""
        record = {"time": round(time.time(), 3), **dataclasses.asdict(event)}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise


class Bar:
    """Show the current stage on one line of a terminal, or now and then a line elsewhere.

    A line that will be overwritten is cut to the width of the terminal. When nobody reads any
    more, it is silent.

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
        terminal = not stream.closed and stream.isatty()
        passing = event.kind == "task-done" or (terminal and event.kind == "stage-start")
        now = time.monotonic()
        if event.kind == "task-done" and now < self._next:
            return
        every = self._every if self._every is not None else (0.1 if terminal else 10.0)
        self._next = now + every if passing or event.kind == "stage-start" else self._next
        with contextlib.suppress(OSError, ValueError):  # a pipe, or terminal, that was closed
            stream.write(self._line(event, stream, terminal, passing))
            stream.flush()

    def clear(self) -> None:
        """Erase a line that waits to be overwritten."""
        stream = self._stream or sys.stderr
        if self._open and stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.write("\r\x1b[K")
                stream.flush()
        self._open = False

    def _line(self, event: Event, stream: TextIO, terminal: bool, passing: bool) -> str:
        """Return what to write so that a passing line is overwritten by the next one."""
        if event.kind == "stage-failed":  # why, is what the caller hears
            event = dataclasses.replace(event, text="")
        text = describe(event)
        if not terminal:
            return text + "\n"
        start = "\r" if self._open else ""
        self._open = passing
        if passing:
            text = f"{event.stage}: {_drawn(event, stream)} {_share(event)}"[: _width(stream) - 1]
        return f"{start}{text}\x1b[K" + ("" if passing else "\n")


def _drawn(event: Event, stream: TextIO) -> str:
    """Return a bar, as long as there is room for it beside what is said."""
    length = min(BAR_LENGTH, _width(stream) - len(event.stage) - TEXT_LENGTH)
    if length < 5:
        return ""
    full, empty = BAR_MARKS if "utf" in (stream.encoding or "").lower() else BAR_MARKS_ASCII
    n_full = round(length * _part_done(event))
    return full * n_full + empty * (length - n_full)


def _width(stream: TextIO) -> int:
    """Return the columns of a terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or NARROW
    except (OSError, ValueError):
        return NARROW
