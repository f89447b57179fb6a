"""Clusters for tests, of the processes that users start: `dask scheduler` and `dask worker`."""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
MIB = 2**20


def wait_until(true, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
    return found


def is_alive(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


class Processes:
    """Schedulers and workers, each with a log of its own, that end with the test."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.started = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def start(self, kind, *options, before=(), environ=None, code=None):
        """Start a `dask` process; `before` is the command that runs it, `code` what it does first.

        Returns the process, and the file with what it says.
        """
        log = self.folder / f"{kind}-{len(self.started)}.log"
        body = f"{code or ''}\nfrom distributed.cli.dask_{kind} import main\nmain()"
        alone = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*before, sys.executable, "-c", body, *map(str, options), *alone],
                env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
                cwd=self.folder,
                stdout=file,
                stderr=file,
            )
        self.started.append(process)
        return process, log

    def scheduler(self, *options, host="127.0.0.1", port=0, **settings):
        """Start a scheduler; return its process and its address."""
        process, log = self.start("scheduler", "--host", host, "--port", port, *options, **settings)
        found = wait_until(lambda: re.search(r"Scheduler at:\s*(\S+)", log.read_text()))
        return process, found[1]

    def worker(self, address, *options, memory="1GiB", **settings):
        """Start a worker of one thread; return its process."""
        common = ["--nthreads", 1, "--memory-limit", memory, "--local-directory", self.folder]
        process, _ = self.start("worker", address, "--no-nanny", *common, *options, **settings)
        return process
