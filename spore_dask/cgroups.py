"""What this process may use of its machine: control groups can limit memory and processors.

Reads /proc and the mounted control groups, of version 1 or 2. A process is bound by its own group
and by all groups above it. Dask looks only at the outermost group for memory, and only at the
innermost for processors, which is not what batch systems and systemd set.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path("/")


def usable_nbytes(root: Path = ROOT) -> int:
    """Return the bytes of memory that all processes like this one may use together."""
    limits = [int(psutil.virtual_memory().total)]
    for group in _groups("memory", root):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            limits += _numbers(group / name)
    return min(limits)


@functools.cache
def cpu_quota(root: Path = ROOT) -> int | None:
    """Return how many processors the time allowed to this process comes to; None: all of them."""
    shares = []
    for group in _groups("cpu", root):
        numbers = _numbers(group / "cpu.max") or [
            *_numbers(group / "cpu.cfs_quota_us"),
            *_numbers(group / "cpu.cfs_period_us"),
        ]
        if len(numbers) == 2 and numbers[0] > 0:  # with -1, or only a period, there is no quota
            shares.append(numbers[0] / numbers[1])
    return math.ceil(min(shares)) if shares else None


def _numbers(file: Path) -> list[int]:
    """Return the numbers in a file; none if it is not there, and none for "max"."""
    try:
        return [int(word) for word in file.read_text().split() if word != "max"]
    except (OSError, ValueError):
        return []


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Go through the folders of the groups that bind this process: its own, and all above it."""
    try:
        own = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:  # not Linux
        return
    paths = {names: path for _, names, path in (line.split(":", 2) for line in own)}
    for line in mounts:
        where, _, what = line.partition(" - ")
        top, place = (Path(name) for name in where.split()[3:5])
        kind, _, options = what.split()[:3]
        if kind == "cgroup2":
            path = paths.get("")
        elif kind == "cgroup" and controller in options.split(","):
            path = next((paths[names] for names in paths if controller in names.split(",")), None)
        else:
            continue
        inner = Path()  # a group that is not below what is mounted does not show
        if path is not None and ".." not in path and Path(path).is_relative_to(top):
            inner = Path(path).relative_to(top)
        for group in (inner, *inner.parents):
            yield root / place.relative_to("/") / group
