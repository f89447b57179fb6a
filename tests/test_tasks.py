"""Stages as lists of tasks with receipts."""

import functools
import os

import pytest

from spore_dask.engine import open_engine
from spore_dask.store import Folder
from spore_dask.tasks import MARKER, MOST_IN_BATCH, Work, _batches, run_stage, run_work


def square(fail_at, item):
    if item == fail_at:
        raise RuntimeError(f"item {item}")
    return {"square": item * item}


@pytest.mark.parametrize("light", [False, True])
def test_receipts_come_in_order_and_survive_a_failure(tmp_path, light):
    folder = Folder(str(tmp_path))
    items = range(100, 130)
    with open_engine(n_workers=0) as engine:
        failing = Work("squares", functools.partial(square, 117), items, 1, light)
        with pytest.raises(RuntimeError, match="item 117"):
            run_work(engine, folder, failing)
        assert len(folder.child("receipts-squares").names()) == 17
        done = []
        work = Work("squares", functools.partial(square, None), items, 1, light)
        engine.progress = lambda event: done.append(event.kind == "task-done")
        receipts = run_work(engine, folder, work)
    assert [receipt["square"] for receipt in receipts] == [item**2 for item in items]
    assert sum(done) == (1 if light else 13)


@pytest.mark.parametrize(
    ("n_tasks", "n_threads", "size"),
    [(19, 2, 10), (3, 2, 2), (40, 2, 10), (9000, 2, 16), (0, 2, 0), (7, 1, 7)],
)
def test_batches_keep_every_worker_busy(n_tasks, n_threads, size):
    numbers = list(range(n_tasks))
    batches = _batches(numbers, n_threads)
    assert [number for batch in batches for number in batch] == numbers
    assert max(map(len, batches), default=0) == size <= MOST_IN_BATCH
    assert len(batches) == n_tasks or len(batches) % n_threads == 0
    assert size - min(map(len, batches), default=0) <= 1


def process_of(item):
    return {"process": os.getpid()}


def test_one_light_task_stays(tmp_path):
    with open_engine(n_workers=1) as engine:
        for light, items in ((True, [0]), (False, [0]), (True, [0, 1])):
            work = Work("processes", process_of, items, 1, light)
            receipts = run_work(engine, Folder(str(tmp_path / f"{light}{len(items)}")), work)
            here = [receipt["process"] == os.getpid() for receipt in receipts]
            assert here == [light and len(items) == 1] * len(items)


def hold(n_nbytes, item):
    data = bytearray(n_nbytes)
    data[::4096] = b"x" * len(data[::4096])
    return {"nbytes": len(data)}


def test_stages_know_their_time_and_their_own_peak(tmp_path):
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("high-water marks cannot be set back")
    found = []
    with open_engine(n_workers=0) as engine:
        for i, nbytes in enumerate((1 << 20, 200 << 20, 1 << 20)):

            def build(folder, nbytes=nbytes):
                task = functools.partial(hold, nbytes)
                return run_work(engine, folder, Work("hold", task, [0], 1))[0]

            folder = Folder(str(tmp_path / str(i)))
            found.append(run_stage(engine, folder, build))
            assert folder.read_json(MARKER) == found[i]
            assert run_stage(engine, folder, None) == found[i]  # nothing is built again
        assert max(engine.peaks().values()) >= found[1]["peak_nbytes"]
    assert [stage["nbytes"] >> 20 for stage in found] == [1, 200, 1]
    assert all(stage["seconds"] > 0 for stage in found)
    before, large, after = (stage["peak_nbytes"] for stage in found)
    assert large - max(before, after) > 180 << 20
