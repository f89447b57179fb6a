"""Processes that are stopped, but not gone: a local worker, a worker of others, the driver."""

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import psutil
import pytest

from spore_dask.engine import open_engine, settings
from tests import paper
from tests.clusters import ROOT, Processes

N_PARTITIONS = 12


@pytest.fixture(scope="module")
def points():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(c, 0.4, (1500, 2)) for c in ((0, 0), (4, 0), (0, 4))])


@pytest.fixture(scope="module")
def labels(points, tmp_path_factory):
    """What every fit must come to."""
    out = tmp_path_factory.mktemp("here") / "out"
    return paper.fit(points, out, n_workers=0, n_partitions=N_PARTITIONS).labels[:]


class Stop:
    """Stops the worker that is the first to end a task of a stage; ends it after a while."""

    def __init__(self, stage, seconds=90.0):
        self.events = []
        self.process = None
        self._stage, self._seconds = stage, seconds

    def __call__(self, event):
        self.events.append(event)
        if self.process is None and (event.stage, event.kind) == (self._stage, "task-done"):
            self.process = psutil.Process(int(event.process.rpartition(":")[2]))
            self.process.suspend()
            self._timer = threading.Timer(self._seconds, self._end)  # so that no fit hangs
            self._timer.start()

    def _end(self):
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process is not None:
            self._timer.cancel()
            self._end()

    def texts(self, kind):
        return [event.text for event in self.events if event.kind == kind]


def test_a_stopped_local_worker_is_named_and_replaced(points, labels, tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "SILENT_TIMEOUT", 3.0)
    with Stop("partition") as stop:
        run = paper.fit(
            points, tmp_path / "out", n_workers=2, n_partitions=N_PARTITIONS, progress=stop
        )
        pid = stop.process.pid
        assert not psutil.pid_exists(pid)
    [named] = [text for text in stop.texts("worker-silent") if f" {pid} " in text]
    assert named.startswith(f"Worker process {pid} has given no sign of life for ")
    assert named.endswith(" s: it is stopped, and is replaced.")
    [lost] = stop.texts("worker-lost")
    assert lost.startswith(f"Worker process {pid} was ended after ")
    assert lost.endswith(" s of silence, because it was stopped.")
    np.testing.assert_array_equal(run.labels[:], labels)


def hold_interpreter(folder, seconds, item):
    """Keep all threads of a process from running for a while, as a long kernel might; once."""
    with contextlib.suppress(FileExistsError):
        (folder / "held").mkdir()
        ctypes.PyDLL(None).sleep(seconds)
    return item


def test_a_worker_that_holds_the_interpreter_is_named_but_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "SILENT_TIMEOUT", 2.0)
    events = []
    with open_engine(n_workers=2, progress=events.append) as engine:
        task = functools.partial(hold_interpreter, tmp_path, 8)
        assert engine.run("held", task, range(4), needs_nbytes=1) == [0, 1, 2, 3]
    named = [event.text for event in events if event.kind == "worker-silent"]
    assert named
    assert all(text.endswith(" s: it is replaced after 300 s.") for text in named)
    assert "worker-lost" not in {event.kind for event in events}


def test_a_worker_that_is_silent_for_very_long_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "SILENT_TIMEOUT", 2.0)
    monkeypatch.setattr(settings, "WORKER_TTL", 6.0)
    events = []
    with open_engine(n_workers=2, progress=events.append) as engine:
        task = functools.partial(hold_interpreter, tmp_path, 600)
        assert engine.run("held", task, range(4), needs_nbytes=1) == [0, 1, 2, 3]
    lost = [event.text for event in events if event.kind == "worker-lost"]
    assert lost
    assert all(text.endswith(" s of silence.") for text in lost)


def test_a_stopped_worker_of_others_is_named(points, labels, tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "SILENT_TIMEOUT", 3.0)
    quick = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "12s"}
    with Processes(tmp_path) as processes, Stop("partition") as stop:
        _, address = processes.scheduler(environ=quick)
        for _ in range(2):
            processes.worker(address)
        run = paper.fit(
            points, tmp_path / "out", client=address, n_partitions=N_PARTITIONS, progress=stop
        )
        named = stop.texts("worker-silent")
        assert stop.process.status() == psutil.STATUS_STOPPED  # the scheduler gave it up itself
    assert named[0].startswith("The worker at tcp://127.0.0.1:")
    assert "has given no sign of life for" in named[0]
    np.testing.assert_array_equal(run.labels[:], labels)


DRIVER = """
import time
from pathlib import Path
from spore_dask.engine import open_engine, settings, watching

settings.SILENT_TIMEOUT, watching.LONGEST_LOOK = 5.0, 1.5

def slow_square(item):
    time.sleep(0.25)
    return item * item

def tell(event):
    print(event.kind, event.text, flush=True)

with open_engine(n_workers=2, progress=tell) as engine:
    assert engine.run("squares", slow_square, range(40), needs_nbytes=1)[39] == 39 * 39
"""


def test_workers_live_on_while_the_driver_is_stopped(tmp_path):
    """The driver is stopped for longer than its workers may be silent, and is continued."""
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    driver = subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        while "task-done" not in driver.stdout.readline():
            pass
        driver.send_signal(signal.SIGSTOP)
        time.sleep(10)
        driver.send_signal(signal.SIGCONT)
        said, _ = driver.communicate(timeout=120)
    finally:
        driver.kill()
    assert driver.returncode == 0
    assert said.count("task-done") > 20
    assert "worker-" not in said
