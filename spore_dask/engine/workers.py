"""Worker processes on this machine, started and replaced here.

They are plain Python processes with one thread each. They never import the user's main module, are
replaced when they die, end themselves when their memory goes past the limit, and do not outlive the
process that started them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import psutil

from spore_dask.engine import settings
from spore_dask.engine.peaks import status_nbytes
from spore_dask.engine.securing import security_of
from spore_dask.engine.settings import LIMIT_EXIT, N_DEATHS, WORKER_CONFIG, WORKER_ENVIRON

CAUSE_SECONDS = 10.0
"""Time that may pass between a worker's end and our knowing how it ended."""


class LocalWorkers:
    """Worker processes on this machine, each kept alive by a thread until `close`.

    They start at once, and import what they need while their scheduler starts.
    """

    def __init__(self, n_workers: int, memory_limit: int | None) -> None:
        self.causes: dict[str, str] = {}
        """How each worker that died, by its name, ended."""
        self._reasons: dict[str, str] = {}
        self._losses: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = tempfile.mkdtemp(prefix="spore_dask-")
        self._invited = threading.Event()
        self._invitation: dict[str, Any] = {}
        self._settings = {
            "path": [str(path) for path in sys.path],
            "memory_limit": memory_limit,
            "config": WORKER_CONFIG,
            "parent": os.getpid(),
        }
        self._threads = [
            threading.Thread(target=self._keep, args=(place,), daemon=True)
            for place in range(n_workers)
        ]
        for thread in self._threads:
            thread.start()

    def invite(self, scheduler: str, certificate: dict[str, str]) -> None:
        """Have the workers join a scheduler, with a certificate that nobody else must see."""
        self._invitation = {"scheduler": scheduler, "certificate": certificate}
        self._invited.set()

    def new_losses(self) -> list[str]:
        """Return a sentence for each worker that died since the last call."""
        return [self._losses.get() for _ in range(self._losses.qsize())]

    def cause(self, name: str) -> str:
        """Return how a worker ended, which the scheduler may have noticed a moment before us."""
        deadline = time.monotonic() + CAUSE_SECONDS
        while name not in self.causes and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.causes.get(name, "")

    def end_silent(self, name: str, seconds: float) -> str:
        """End a worker that has been silent for so long if it is stopped, or silent for too long.

        Returns which process is silent, as a sentence. Others may hold the interpreter for a while.
        """
        process = self._processes.get(name)
        if process is None:  # it has ended meanwhile
            return ""
        stopped = _is_stopped(process.pid)
        next_step = f"it is replaced after {settings.WORKER_TTL:.0f} s"
        if stopped or seconds > settings.WORKER_TTL:
            next_step = "it is stopped, and is replaced" if stopped else "it is replaced"
            why = ", because it was stopped" if stopped else ""
            self._reasons[name] = f"was ended after {seconds:.0f} s of silence{why}"
            process.kill()
        return (
            f"Worker process {process.pid} has given no sign of life for {seconds:.0f} s: "
            f"{next_step}."
        )

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            self._closing.set()
        for process in list(self._processes.values()):
            process.kill()
        self._invited.set()
        for thread in self._threads:
            thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _keep(self, place: int) -> None:
        """Have one worker at a time, until the end."""
        n_short_lives = 0
        for life in itertools.count():
            start = time.monotonic()
            name = f"{place}-{life}"
            process = self._start(name)
            if process is None:
                return
            status = process.wait()
            if self._closing.is_set():
                return
            del self._processes[name]
            cause = self._reasons.get(name, cause_of(status))
            self._losses.put(f"Worker process {process.pid} {cause}.")
            self.causes[name] = cause
            shutil.rmtree(os.path.join(self._folder, name), ignore_errors=True)
            n_short_lives = n_short_lives + 1 if time.monotonic() - start < 5 else 0
            if n_short_lives > N_DEATHS and self._closing.wait(min(2 ** (n_short_lives - 4), 10)):
                return

    def _start(self, name: str) -> subprocess.Popen[bytes] | None:
        """Start a worker, unless it is time to close."""
        folder = os.path.join(self._folder, name)
        first = {**self._settings, "name": name, "folder": folder}
        boot = (
            "import json, sys; settings = json.loads(input()); sys.path[:] = settings.pop('path');"
            "from spore_dask.engine.workers import serve; serve(**settings)"
        )
        with self._lock:
            if self._closing.is_set():
                return None
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", boot],
                stdin=subprocess.PIPE,
                env={**os.environ, **WORKER_ENVIRON},
                start_new_session=True,  # Ctrl-C is for the process that started us
            )
            self._processes[name] = process
        assert process.stdin is not None
        # Through a pipe, since other users can read a command line.
        with contextlib.suppress(OSError), process.stdin as pipe:
            pipe.write(json.dumps(first).encode() + b"\n")
            pipe.flush()
            self._invited.wait()
            pipe.write(json.dumps(self._invitation).encode() + b"\n")
        return process


def _is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def cause_of(status: int) -> str:
    """Return how a process with this exit status ended."""
    if status == LIMIT_EXIT:
        return "went past its memory limit"
    if status < 0:
        return f"was ended by signal {-status}"
    return f"ended with exit status {status}"


def serve(
    name: str,
    memory_limit: int | None,
    folder: str,
    config: dict[str, Any],
    parent: int,
) -> None:
    """Be a local worker, in a process of its own."""
    threading.Thread(target=_guard, args=(parent, memory_limit, folder), daemon=True).start()
    import dask

    dask.config.set(config)
    from distributed import Worker

    line = sys.stdin.readline()
    if not line:  # who started us is gone
        return
    invitation = json.loads(line)

    async def work() -> None:
        async with Worker(
            invitation["scheduler"],
            name=name,
            nthreads=1,
            memory_limit=memory_limit or 0,
            local_directory=folder,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            security=security_of(**invitation["certificate"]),
        ) as worker:
            await worker.finished()

    asyncio.run(work())


def _guard(parent: int, memory_limit: int | None, folder: str) -> None:
    """End this process when its parent is gone or its memory goes past the limit."""
    while os.getppid() == parent:
        if memory_limit is not None and status_nbytes("VmRSS") > memory_limit:
            os._exit(LIMIT_EXIT)
        time.sleep(0.2)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # the last one takes the folder of all of them along
        os.rmdir(os.path.dirname(folder))
    os._exit(1)
