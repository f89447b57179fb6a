"""Run configurations in a child process, and stop it when time or memory runs out.

Limits hold for compiled code too, which no signal or exception would end. Writes a job into a
folder that has the dataset, reads the lines that the child writes there. Memory: the lines.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from pipelines.benchmark.child import BEGIN, BROKEN, END, SHARE, SHARED, TRIAL, Job
from pipelines.benchmark.records import FAILED, OVER_MEMORY, OVER_TIME, Trial

POLL_SECONDS = 0.1
START_SECONDS = 300.0
"""To import and to compile, before any clock of the protocol starts."""
START = "start"
ROOT = Path(__file__).parents[2]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a child may use."""

    item_seconds: float
    """For one configuration."""
    total_seconds: float
    """For what they share, and all of them."""
    memory_nbytes: int
    """With the child's own children."""
    n_threads: int


@dataclasses.dataclass
class Report:
    """What a child did."""

    todo: list[tuple[int, dict[str, Any]]]
    trials: list[Trial] = dataclasses.field(default_factory=list)
    """In the order of what was to do; the last one may be what was stopped."""
    shared_seconds: float = 0.0
    seconds: float = 0.0
    """Of the budget, spent."""
    stopped: bool = False
    """Whether the last trial was ended from outside, or ended the child."""
    got_on: bool = False
    """Whether what configurations share was finished."""
    ended: bool = False


def run_child(
    folder: Path, job: Job, limits: Limits, enough: Callable[[Trial], bool] = lambda trial: False
) -> Report:
    """Run a job in a child process, up to the first trial that is enough.

    Parameters
    ----------
    folder : Path
        Has the dataset.
    job : Job
    limits : Limits
    enough : callable
        Whether nothing more is needed after a trial.
    """
    watch = _Watch(folder, job, limits)
    try:
        while not watch.is_over(enough):
            time.sleep(POLL_SECONDS)
    finally:
        watch.end()
    return watch.report


class _Watch:
    """A child process, and what is known of it."""

    def __init__(self, folder: Path, job: Job, limits: Limits) -> None:
        self.limits, self.report = limits, Report(job.todo)
        name = f"child-{len(list(folder.glob('*.job')))}"
        (folder / f"{name}.job").write_bytes(cloudpickle.dumps(job))
        self.errors = folder / f"{name}.errors"
        self.lines = folder / f"{name}.lines"
        self.lines.touch()
        self.n_read = 0
        self.item: Any = START
        self.since = self.began = time.monotonic()
        module = [sys.executable, "-m", "pipelines.benchmark.child"]
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*module, str(folder), name, str(os.getpid())],
                env=_environment(limits.n_threads),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def is_over(self, enough: Callable[[Trial], bool]) -> bool:
        """Read what is new, and stop the child if it must be."""
        code = self.process.poll()  # before the lines, so that none is missed
        for line in self._new_lines():
            self._take(line)
            if self.report.trials and enough(self.report.trials[-1]):
                return True
        if self.report.ended:
            return True
        if code is not None:
            self._stop(FAILED, f"The process {_ending(code)}{self._last_words()}.")
        elif self._overtime() is not None:
            self._stop(OVER_TIME, str(self._overtime()))
        elif (used := _used_nbytes(self.process.pid)) > self.limits.memory_nbytes:
            limit = self.limits.memory_nbytes
            self._stop(OVER_MEMORY, f"{used / 1e9:.2f} GB in use, of {limit / 1e9:.2f} GB.")
        return self.report.stopped

    def end(self) -> None:
        """End the child with its own children, and wait for it."""
        self._spend()
        _kill(self.process)

    def _new_lines(self) -> list[dict[str, Any]]:
        with self.lines.open("rb") as file:
            file.seek(self.n_read)
            found = file.read()
        whole = found[: found.rfind(b"\n") + 1]
        self.n_read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def _take(self, line: dict[str, Any]) -> None:
        what = line["what"]
        if what == BEGIN:
            if self.item == START:
                self.began = time.monotonic()
            self.item, self.since = line["item"], time.monotonic()
        elif what == SHARED:
            self.report.shared_seconds, self.report.got_on = line["seconds"], True
        elif what == TRIAL:
            self.report.got_on = True
            self.report.trials.append(self._judged(Trial(**line["trial"])))
        elif what == BROKEN:
            self._stop(line["outcome"], line["reason"])
        elif what == END:
            self.report.ended = True

    def _judged(self, trial: Trial) -> Trial:
        """Return a trial that ended by itself, over time if it was only just too slow."""
        limit = self.limits.item_seconds
        if trial.seconds is None or trial.seconds <= limit:
            return trial
        reason = f"{trial.seconds:.1f} s, of {limit:g} s."
        return Trial(trial.number, trial.config, OVER_TIME, reason, trial.seconds)

    def _overtime(self) -> str | None:
        """Say which limit has passed, if one has."""
        now = time.monotonic()
        if self.item == START:
            slow = now - self.began > START_SECONDS
            return f"Not loaded after {START_SECONDS:g} s." if slow else None
        if self.item != SHARE and now - self.since > self.limits.item_seconds:
            return f"More than {self.limits.item_seconds:g} s."
        if now - self.began > self.limits.total_seconds:
            return f"After {now - self.since:.1f} s, the time for the whole search was over."
        return None

    def _stop(self, outcome: str, reason: str) -> None:
        """Note what the next trial came to."""
        if self.item == SHARE:
            self.report.shared_seconds = time.monotonic() - self.since
            reason = f"In what configurations share: {reason}"
        elif self.item == START:
            reason = f"Before the first configuration: {reason}"
        number, config = self.report.todo[len(self.report.trials)]
        self.report.trials.append(Trial(number, config, outcome, reason))
        self.report.stopped = True

    def _spend(self) -> None:
        if self.item != START:
            self.report.seconds = time.monotonic() - self.began

    def _last_words(self) -> str:
        said = self.errors.read_text(errors="replace").strip().splitlines()
        return f": {said[-1].rstrip('.')}" if said else ""


def _environment(n_threads: int) -> dict[str, str]:
    """Return the environment of a child: threads, and where to import from."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **dict.fromkeys(THREADS, str(n_threads)), "PYTHONPATH": path}


def _ending(code: int) -> str:
    """Say how a process ended."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _used_nbytes(pid: int) -> int:
    """Return the memory of a process and its children, 0 if it has just ended."""
    try:
        process = psutil.Process(pid)
        return sum(one.memory_info().rss for one in [process, *process.children(recursive=True)])
    except psutil.Error:
        return 0


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a child of this process and its own children."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        family = []
    if process.poll() is None:
        process.kill()
    process.wait()
    for one in family:
        try:
            one.kill()
        except psutil.Error:
            continue
