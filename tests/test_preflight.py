"""Workers prove that they are fit: checked with the processes that users start."""

import contextlib
import dataclasses
import functools
import os
import shutil
import subprocess
import threading
import time

import distributed
import numpy as np
import pytest
import zarr

import spore_dask
from spore_dask.cli.running import exit_code
from spore_dask.engine import open_engine, settings
from spore_dask.errors import ClusterError, PreflightError
from spore_dask.preflight import Expected, _versions, examine, preflight
from spore_dask.store import Folder, open_source
from tests.clusters import MIB, ROOT, Processes, wait_until

LIMIT = 400 * MIB
PLACE = "preflight-"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rows = np.random.default_rng(0).normal(size=(3000, 2)).astype("f4")
    path = folder / "below" / "x.zarr"
    zarr.create_array(path, shape=rows.shape, chunks=(1000, 2), dtype="f4")[:] = rows
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A scheduler for all tests; each starts its workers."""
    with Processes(tmp_path_factory.mktemp("cluster")) as processes:
        _, processes.address = processes.scheduler()
        with distributed.Client(processes.address, set_as_default=False) as client:
            processes.client = client
            yield processes


@pytest.fixture
def start(cluster):
    """Start workers, and end them after the test."""
    started = []

    def start(**options):
        started.append(cluster.worker(cluster.address, **options))
        wait_until(lambda: n_there(cluster) == len(started))
        return started[-1]

    wait_until(lambda: n_there(cluster) == 0)  # the scheduler may still hear of an earlier one
    yield start
    for process in started:
        process.kill()
    wait_until(lambda: n_there(cluster) == 0)


def n_there(cluster):
    return len(cluster.client.scheduler_info()["workers"])


def refused(cluster, source, out, **options):
    """Return the sentence with which a graph is refused; nothing must be left behind."""
    with pytest.raises(PreflightError) as caught:
        spore_dask.build_graph(source, out, k=5, client=cluster.client, **options)
    assert not out.exists()
    assert exit_code(caught.value) == 6
    return str(caught.value)


# What a worker finds wrong with itself


@pytest.fixture
def expected(source, tmp_path):
    folder = Folder(str(tmp_path / PLACE))
    folder.write_bytes("driver", b"word")
    first_row = _first_row(source)
    return Expected(_versions(), folder, "word", open_source(source), first_row, (), LIMIT)


def _first_row(source):
    from spore_dask.preflight import _first_row

    return _first_row(open_source(source))


def test_a_fit_worker_says_nothing(expected):
    assert examine(expected, "tcp://x:1", LIMIT) is None
    assert examine(expected, "tcp://x:1", int(0.995 * LIMIT)) is None


@pytest.mark.parametrize("name", ["Python", "numpy", "distributed", "zarr", "spore_dask of source"])
def test_each_version_counts(expected, name):
    other = dataclasses.replace(expected, versions={**expected.versions, name: "0.0"})
    found = examine(other, "tcp://x:1", LIMIT)
    assert found == (
        f"has {name} {expected.versions[name]}, but the driver has 0.0: install the same there"
    )


def test_another_word_is_another_file_system(expected, tmp_path):
    other = dataclasses.replace(expected, word="other")
    found = examine(other, "tcp://x:1", LIMIT)
    assert found.startswith(f"does not see what the driver wrote to '{tmp_path}/{PLACE}'")
    gone = dataclasses.replace(expected, folder=Folder(str(tmp_path / "gone")))
    assert "a file system that all machines share" in examine(gone, "tcp://x:1", LIMIT)
    assert not (tmp_path / "gone").exists()
    assert os.listdir(tmp_path / PLACE) == ["driver"]


def test_out_that_cannot_be_written(expected, tmp_path):
    from spore_dask.store import hash_of

    (tmp_path / PLACE / hash_of("tcp://x:1")).mkdir()  # in the way of the file
    found = examine(expected, "tcp://x:1", LIMIT)
    assert found.startswith(f"cannot write to '{tmp_path}/{PLACE}' (IsADirectoryError")


def test_another_source_is_not_the_source(expected, source, tmp_path):
    zarr.create_array(tmp_path / "y.zarr", shape=(3000, 2), dtype="f4", fill_value=1)
    other = dataclasses.replace(expected.source, url=str(tmp_path / "y.zarr"))
    found = examine(dataclasses.replace(expected, source=other), "tcp://x:1", LIMIT)
    assert found.startswith(f"sees other data at the source '{tmp_path}/y.zarr'")


def test_further_folders_must_be_there(expected, tmp_path):
    wanted = dataclasses.replace(expected, reads=(Folder(str(tmp_path / "run")),))
    assert examine(wanted, "tcp://x:1", LIMIT).startswith(f"does not see '{tmp_path}/run'")
    (tmp_path / "run").mkdir()
    assert examine(wanted, "tcp://x:1", LIMIT) is None


# Workers that are there


def can_unshare():
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


def on_another_disk(folder):
    """Return the start of a command that finds an empty disk in a folder."""
    if shutil.which("unshare") is None or not can_unshare():
        pytest.skip("this user may not have mounts of its own (unshare --mount)")
    return ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs x "{folder}" && exec "$@"', "sh"]


def test_out_on_another_disk(cluster, start, source, tmp_path):
    (tmp_path / "here").mkdir()
    start()
    start(before=on_another_disk(tmp_path / "here"))
    out = tmp_path / "here" / "out"
    text = refused(cluster, source, out, memory_limit=LIMIT)
    addresses = cluster.client.scheduler_info()["workers"]
    assert sum(text.startswith(f"The worker at {address} on ") for address in addresses) == 1
    assert f"does not see what the driver wrote to '{out}/{PLACE}" in text
    assert "mount it on each, or use an object store" in text


def test_source_on_another_disk(cluster, start, source, tmp_path):
    start(before=on_another_disk(source.parent))
    text = refused(cluster, source, tmp_path / "out", memory_limit=LIMIT)
    assert f"does not see the source '{source}', but a path must be on a file system" in text


def test_less_memory_than_promised(cluster, start, source, tmp_path):
    start(memory="100MiB")
    text = refused(cluster, source, tmp_path / "out", memory_limit=LIMIT)
    assert "has 100.00 MiB of memory for each of its threads, but the memory limit is" in text


def test_other_code(cluster, start, source, tmp_path):
    shutil.copytree(ROOT / "spore_dask", tmp_path / "other" / "spore_dask")
    with (tmp_path / "other" / "spore_dask" / "params.py").open("a") as file:
        file.write("# changed\n")
    start(environ={"PYTHONPATH": str(tmp_path / "other")})
    text = refused(cluster, source, tmp_path / "out", memory_limit=LIMIT)
    assert " has spore_dask of source " in text


def test_no_code(cluster, start, source, tmp_path):
    start(code="import sys; sys.modules['spore_dask'] = None")
    start(code="import sys; sys.modules['spore_dask'] = None")
    text = refused(cluster, source, tmp_path / "out", memory_limit=LIMIT)
    assert "cannot run spore_dask (" in text
    assert "ModuleNotFoundError" in text
    assert text.endswith("So it is with 2 workers.")


def test_a_worker_that_hangs(cluster, start, source, tmp_path, monkeypatch):
    import signal

    monkeypatch.setattr(settings, "START_TIMEOUT", 2.0)
    start().send_signal(signal.SIGSTOP)
    text = refused(cluster, source, tmp_path / "out", memory_limit=LIMIT)
    assert "does not answer (TimeoutError)" in text


def test_fit_workers_leave_nothing_behind(cluster, start, source, tmp_path):
    start()
    out = tmp_path / "out"
    graph = spore_dask.build_graph(source, out, k=5, client=cluster.client, memory_limit=LIMIT)
    assert not list(out.glob(f"{PLACE}*"))
    alone = spore_dask.build_graph(source, tmp_path / "alone", k=5, n_workers=0)
    assert graph.name == alone.name
    np.testing.assert_array_equal(graph.neighbors[:], alone.neighbors[:])


# Workers that come later


def square_when_joined(folder, item):
    """Square a number; the first one waits until another worker has come."""
    if item == 0:
        (folder / "begun").touch()
        wait_until((folder / "joined").exists)
    time.sleep(0.1)
    return item * item


@pytest.fixture
def joined(cluster, start, source, tmp_path):
    """Run tasks on one worker, which another one joins; return the events."""

    @contextlib.contextmanager
    def running(leave=False, **options):
        first, events = start(), []

        def join():
            wait_until((tmp_path / "begun").exists)
            start(**options)
            (tmp_path / "joined").touch()
            if leave:
                first.kill()

        thread = threading.Thread(target=join)
        task = functools.partial(square_when_joined, tmp_path)
        out, data = Folder(str(tmp_path / "out")), open_source(source)
        with (
            open_engine(cluster.client, progress=events.append) as engine,
            preflight(engine, out, data, LIMIT),
        ):
            thread.start()
            run = functools.partial(engine.run, "squares", task, needs_nbytes=1)
            yield run, events
            thread.join()
        assert not list((tmp_path / "out").glob(f"{PLACE}*"))

    return running


def test_a_later_worker_that_is_not_fit_is_told_and_left_out(joined):
    with joined(memory="100MiB") as (run, events):
        assert run(range(30)) == [item * item for item in range(30)]
        assert run(range(1, 4)) == [1, 4, 9]
    assert len({event.process for event in events if event.kind == "task-done"}) == 1
    [lost] = [event.text for event in events if event.kind == "worker-lost"]
    assert lost.startswith("The worker at tcp://127.0.0.1:")
    assert "has 100.00 MiB of memory" in lost
    assert lost.endswith("It is left out.")


def test_a_later_worker_that_is_fit_works(joined):
    with joined() as (run, events):
        assert run(range(30)) == [item * item for item in range(30)]
    assert len({event.process for event in events if event.kind == "task-done"}) == 2
    assert "worker-lost" not in {event.kind for event in events}


def test_only_workers_that_are_not_fit_are_left(joined, monkeypatch):
    with joined(memory="100MiB", leave=True) as (run, _):
        monkeypatch.setattr(settings, "START_TIMEOUT", 5.0)  # now that the first one is proved
        with pytest.raises(PreflightError, match=r"has 100.00 MiB of memory"):
            run(range(200))


def test_preflight_errors_are_errors_of_clusters():
    assert issubclass(PreflightError, ClusterError)
