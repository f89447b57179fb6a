"""Run configurations in a child process, and stop it when time or memory runs out.

Limits hold for compiled code too, which no exception would end. Writes jobs into a temporary folder
that has the dataset, reads the lines that the child writes there. Memory: the lines.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from pipelines.benchmark.child import BEGIN, BROKEN, END, SHARE, SHARED, TRIAL, Job, job_path
from pipelines.benchmark.methods import Config
from pipelines.benchmark.records import FAILED, OVER_MEMORY, OVER_TIME, Trial

POLL_SECONDS = 0.05
MEMORY_SECONDS = 0.2
"""How often a child is looked at."""
START_SECONDS = 300.0
"""To import and to compile, before any clock of the protocol starts."""
START = "start"
KEPT_NBYTES = 1 << 30
"""A child that has more than this at the end of a search is not used for another one."""
ROOT = Path(__file__).parents[2]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a job may use."""

    item_seconds: float
    """For one configuration."""
    total_seconds: float
    """For what they share, and all of them."""
    memory_nbytes: int
    """With the child's own children."""


@dataclasses.dataclass
class Report:
    """What came of a job."""

    trials: list[Trial] = dataclasses.field(default_factory=list)
    """In the order of what was to do; the last one may be what was stopped."""
    shared_seconds: float = 0.0
    seconds: float = 0.0
    """Of the total, spent."""
    stopped: bool = False
    """Whether the last trial was ended from outside, or ended the child."""
    got_on: bool = False
    """Whether what configurations share was finished."""


class Child:
    """Runs jobs on one dataset after another, in one process until that must be stopped."""

    def __init__(self, n_threads: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="spore-benchmark-"))
        self._n_threads, self._n_started = n_threads, 0
        self._process: _Process | None = None

    def run(
        self, job: Job, limits: Limits, enough: Callable[[Trial], bool] = lambda trial: False
    ) -> Report:
        """Run a job, up to the first trial that is enough, or that must be stopped."""
        if self._process is None:
            self._process = _Process(self.folder, f"child-{self._n_started}", self._n_threads)
            self._n_started += 1
        self._process.give(job)
        watch = _Watch(self._process, job.todo, limits)
        while not watch.is_over(enough):
            time.sleep(POLL_SECONDS)
        if not watch.ended:
            self.stop()
        return watch.spent()

    def is_small(self) -> bool:
        """Tell whether what earlier jobs have left in memory is little."""
        return self._process is None or self._process.used_nbytes() < KEPT_NBYTES

    def stop(self) -> None:
        """End the process; the next job starts another one."""
        if self._process is not None:
            self._process.end()
        self._process = None

    def end(self) -> None:
        """End the process, and remove the folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


_idle: dict[tuple[int, ...], Child] = {}
"""Children that are done, by their threads and processors: to load everything takes seconds."""


@contextlib.contextmanager
def child_with(n_threads: int) -> Iterator[Child]:
    """Borrow a child, an idle one if there is one."""
    kind = (n_threads, *(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()))
    child = _idle.pop(kind, None) or Child(n_threads)
    try:
        yield child
    except BaseException:
        child.end()
        raise
    if not child.is_small():
        child.stop()
    _idle[kind] = child


@atexit.register
def _end_idle() -> None:
    while _idle:
        _idle.popitem()[1].end()


class _Process:
    """A child process, what it says, and how to end it."""

    def __init__(self, folder: Path, name: str, n_threads: int) -> None:
        self._folder, self._name, self._n_jobs, self._n_read = folder, name, 0, 0
        self._lines, self._errors = folder / f"{name}.lines", folder / f"{name}.errors"
        self._lines.touch()
        arguments = [str(folder), name, str(os.getpid())]
        with self._errors.open("wb") as errors:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "pipelines.benchmark.child", *arguments],
                env=_environment(n_threads),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # a signal to the group would end it before it tidies up
            )

    def give(self, job: Job) -> None:
        """Hand over a job, whole."""
        path = job_path(self._folder, self._name, self._n_jobs)
        part = path.with_suffix(".part")
        part.write_bytes(cloudpickle.dumps(job))
        os.replace(part, path)
        self._n_jobs += 1

    def new_lines(self) -> list[dict[str, Any]]:
        """Return what it has said since the last call."""
        with self._lines.open("rb") as file:
            file.seek(self._n_read)
            found = file.read()
        whole = found[: found.rfind(b"\n") + 1]
        self._n_read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def how_it_ended(self) -> str | None:
        """Say how it ended, with its last words, if it has."""
        code = self._popen.poll()
        if code is None:
            return None
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        said = self._errors.read_text(errors="replace").strip().splitlines()
        return f"The process {how}{': ' + said[-1] if said else '.'}"

    def used_nbytes(self) -> int:
        """Return the memory of the process and its children, 0 if it has just ended."""
        try:
            own = psutil.Process(self._popen.pid)
            return sum(one.memory_info().rss for one in [own, *own.children(recursive=True)])
        except psutil.Error:
            return 0

    def end(self) -> None:
        """End it with its own children, and wait for it."""
        family = []
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(self._popen.pid).children(recursive=True)
        self._popen.kill()
        self._popen.wait()
        for one in family:
            with contextlib.suppress(psutil.Error):
                one.kill()


class _Watch:
    """What is known of a job that runs."""

    def __init__(self, process: _Process, todo: list[tuple[int, Config]], limits: Limits) -> None:
        self.ended = self._over = False
        self._process, self._todo, self._limits = process, todo, limits
        self._report = Report()
        self._item: Any = START
        self._began = self._since = self._weighed = time.monotonic()

    def is_over(self, enough: Callable[[Trial], bool]) -> bool:
        """Take in what is new, and judge it."""
        death = self._process.how_it_ended()  # before its lines, so that none is missed
        for line in self._process.new_lines():
            self._take(line)
            if self._report.trials and enough(self._report.trials[-1]):
                return True
        if self.ended or self._over:
            return True
        if death is not None:
            self._stop(FAILED, death)
        elif (late := self._late()) is not None:
            self._stop(OVER_TIME, late)
        elif (large := self._large()) is not None:
            self._stop(OVER_MEMORY, large)
        return self._over

    def spent(self) -> Report:
        """Return the report, with the time that counts."""
        if self._item != START:
            self._report.seconds = time.monotonic() - self._began
        return self._report

    def _take(self, line: dict[str, Any]) -> None:
        what = line["what"]
        if what == BEGIN:
            now = time.monotonic()
            self._began = now if self._item == START else self._began
            self._item, self._since = line["item"], now
        elif what == SHARED:
            self._report.shared_seconds, self._report.got_on = line["seconds"], True
        elif what == TRIAL:
            self._report.got_on, self._since = True, time.monotonic()
            self._report.trials.append(self._judged(Trial(**line["trial"])))
        elif what == BROKEN:
            self._stop(line["outcome"], line["reason"])
        elif what == END:
            self.ended = True

    def _judged(self, trial: Trial) -> Trial:
        """Return a trial that ended by itself, over time if it was only just too slow."""
        limit = self._limits.item_seconds
        if trial.seconds is None or trial.seconds <= limit:
            return trial
        reason = f"{trial.seconds:.1f} s, of {limit:g} s."
        return Trial(trial.number, trial.config, OVER_TIME, reason, trial.seconds)

    def _late(self) -> str | None:
        """Say which limit of time has passed, if one has."""
        now, limits = time.monotonic(), self._limits
        if self._item == START:
            slow = now - self._began > START_SECONDS
            return f"Not loaded after {START_SECONDS:g} s." if slow else None
        if self._item != SHARE and now - self._since > limits.item_seconds:
            return f"More than {limits.item_seconds:g} s."
        if now - self._began > limits.total_seconds:
            return f"After {now - self._since:.1f} s, the time for all configurations was over."
        return None

    def _large(self) -> str | None:
        """Say how much memory is in use, if it is too much."""
        now, limit = time.monotonic(), self._limits.memory_nbytes
        if now - self._weighed < MEMORY_SECONDS:
            return None
        self._weighed = now
        used = self._process.used_nbytes()
        return f"{used / 1e9:.2f} GB in use, of {limit / 1e9:.2f} GB." if used > limit else None

    def _stop(self, outcome: str, reason: str) -> None:
        """Note what the next configuration came to, if there is one that was not finished."""
        self._over = True
        if len(self._report.trials) == len(self._todo):
            return
        if self._item == SHARE:
            self._report.shared_seconds = time.monotonic() - self._since
            reason = f"In what configurations share: {reason}"
        elif self._item == START:
            reason = f"Before the first configuration: {reason}"
        number, config = self._todo[len(self._report.trials)]
        self._report.trials.append(Trial(number, config, outcome, reason))
        self._report.stopped = True


def _environment(n_threads: int) -> dict[str, str]:
    """Return the environment of a child: threads, and where to import from."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **dict.fromkeys(THREADS, str(n_threads)), "PYTHONPATH": path}
