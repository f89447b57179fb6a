"""Who a process is, so that another one can tell whether it still lives; no clock is asked.

Reads what the operating system says of processes. Memory: nothing.
"""

from __future__ import annotations

import functools
import os
import socket
import uuid
from pathlib import Path
from typing import Any

import psutil


def this_process() -> dict[str, Any]:
    """Return what tells this process from all others, now and later, here and elsewhere."""
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "process_started": _started(os.getpid()),
    }


def is_alive(process: dict[str, Any]) -> bool | None:
    """Tell whether a process still runs; None if that cannot be seen from this machine."""
    if process["machine"] != _machine():
        return None
    return process["process_started"] is not None and (
        _started(process["pid"]) == process["process_started"]
    )


@functools.cache
def _machine() -> str:
    """Return a name for the processes that can be seen here: this boot, and this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"{socket.gethostname()}-{uuid.getnode()}"


def _started(pid: int) -> float | None:
    """Return when a process was started, counted from the boot where that is known."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if status[0] in "ZX" else float(status[19])  # dead, but not yet buried
    except (OSError, IndexError):
        pass
    try:
        return None if Path("/proc/self/stat").exists() else psutil.Process(pid).create_time()
    except psutil.Error:
        return None
