"""Run a command in a process of its own, watch its memory and time, and end what goes too far.

Reads /proc; starts one process and ends only that one and its descendants. What counts as memory
is what is private to a process: its resident pages that no file backs (`RssAnon` and `RssShmem`).
Pages of a mapped file, which the system takes back when it needs them, do not count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
import time
from pathlib import Path

import psutil

from pipelines.benchmark.records import DONE, FAILED, OVER_MEMORY, OVER_TIME

POLL_SECONDS = 0.05
LOOK_SECONDS = 0.25
"""How often new descendants are looked for, which takes longer than to ask those at hand."""
WARM_SECONDS = 300.0
"""What imports and compilation may take, before the start is marked."""
GRACE_SECONDS = 5.0
"""What descendants may take to end after their parent has ended."""
MEMORY_ERRORS = ("MemoryError", "KilledWorker", "Unable to allocate")
"""What the last line of an error has when memory was the reason."""
FOLDERS = re.compile(r"(?:/[\w.@+-]+)+/")
"""What is left out of a reason, since it says something about one machine alone."""
COUNTED = ("RssAnon:", "RssShmem:")


@dataclasses.dataclass(frozen=True)
class Limits:
    """How far a command may go."""

    memory_nbytes: int
    """Private memory of each process."""
    seconds: float
    """From the mark of the start."""
    warm_seconds: float = WARM_SECONDS
    """Until the mark of the start."""


@dataclasses.dataclass(frozen=True)
class Watched:
    """How a command ended, and what it took."""

    outcome: str
    reason: str
    seconds: float
    """From the mark of the start; 0 if it was never set."""
    wall_seconds: float
    peak_nbytes: int
    """Private memory of the largest process, seen from outside."""
    n_processes: int
    cpu_seconds: float = 0.0
    """Processor time of all processes from the mark of the start, as last seen."""


def private_nbytes(pid: int) -> int:
    """Return the resident bytes of a process that no file backs; 0 if it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(COUNTED))
    return 0


class Family:
    """A process and its descendants, as many as have been seen."""

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self.known = {self.root}
        self.cpu: dict[psutil.Process, float] = {}
        self.next_look = 0.0

    def look(self) -> None:
        """Look for new descendants, of all that were seen if the first has ended."""
        for parent in (self.root, *self.known):
            with contextlib.suppress(psutil.Error):
                self.known.update(parent.children(recursive=True))
                if parent == self.root:
                    break
        self.next_look = time.perf_counter() + LOOK_SECONDS

    def living(self) -> list[psutil.Process]:
        """Return all that live."""
        if time.perf_counter() >= self.next_look:
            self.look()
        return [process for process in self.known if _lives(process)]

    def cpu_seconds(self) -> float:
        """Return the processor time of all, of those that have ended as last seen."""
        for process in self.living():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self.cpu[process] = times.user + times.system
        return sum(self.cpu.values())

    def end(self) -> None:
        """Kill all, until there are none left."""
        self.look()
        while living := self.living():
            for process in living:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(living, timeout=1)
            self.look()


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def watch(
    command: list[str],
    folder: Path,
    mark: Path,
    limits: Limits,
    environment: dict[str, str] | None = None,
) -> Watched:
    """Run a command within limits.

    Parameters
    ----------
    command : list of str
    folder : Path
        Where what it prints goes, `out.txt` and `err.txt`.
    mark : Path
        The file that the command makes when it starts what is timed.
    limits : Limits
    environment : dict, optional
        This process's own by default.

    Returns
    -------
    Watched
        The outcome is "done", "over memory", "over time" or "failed".
    """
    start = time.perf_counter()
    with (folder / "out.txt").open("wb") as out, (folder / "err.txt").open("wb") as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment,
            start_new_session=True,
        )
    family = Family(process.pid)
    try:
        watched = _until_end(process, family, mark, limits)
        if watched.outcome == DONE:
            _wait_for_rest(family)
    finally:
        family.end()
        process.wait()
    if watched.outcome == FAILED:
        outcome, reason = _why(folder / "err.txt", process.returncode)
        watched = dataclasses.replace(watched, outcome=outcome, reason=reason)
    return dataclasses.replace(watched, wall_seconds=time.perf_counter() - start)


def _until_end(
    process: subprocess.Popen[bytes], family: Family, mark: Path, limits: Limits
) -> Watched:
    """Poll until the command ends or goes too far."""
    begin, marked, peak, cpu = time.perf_counter(), 0.0, 0, 0.0
    outcome, reason = "", ""
    while not outcome:
        ended = process.poll()
        now = time.perf_counter()
        spent = family.cpu_seconds()
        if not marked and mark.exists():
            marked, cpu = now, spent
        used = max((private_nbytes(each.pid) for each in family.living()), default=0)
        peak = max(peak, used)
        over = now - marked > limits.seconds if marked else now - begin > limits.warm_seconds
        if ended is not None:
            outcome = DONE if ended == 0 else FAILED
        elif used > limits.memory_nbytes:
            outcome, reason = OVER_MEMORY, f"a process had {used >> 20} MiB"
        elif over:
            outcome = OVER_TIME
            reason = f"after {limits.seconds:.0f} s" if marked else "before it began to cluster"
        else:
            time.sleep(POLL_SECONDS)
    seconds = time.perf_counter() - marked if marked else 0.0
    cpu = spent - cpu if marked else 0.0
    return Watched(outcome, reason, seconds, now - begin, peak, len(family.known), cpu)


def _wait_for_rest(family: Family) -> None:
    """Give descendants a moment to end by themselves."""
    last = time.perf_counter() + GRACE_SECONDS
    while family.living() and time.perf_counter() < last:
        time.sleep(POLL_SECONDS)


def _why(errors: Path, code: int) -> tuple[str, str]:
    """Return the outcome and the reason of a command that failed."""
    lines = [line for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    reason = FOLDERS.sub("", lines[-1].strip())[:300] if lines else f"it ended with code {code}"
    memory = any(word in reason for word in MEMORY_ERRORS)
    return (OVER_MEMORY if memory else FAILED), reason


def limited_environment(n_threads: int, root: Path) -> dict[str, str]:
    """Return an environment with so many threads, in which this project can be imported."""
    names = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "NUMBA")
    threads = {f"{name}_NUM_THREADS": str(n_threads) for name in names}
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **threads, "PYTHONPATH": path}
