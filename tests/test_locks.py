"""One driver at a time."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import zarr

from spore_dask import BusyError, clean, locks, processes, verify
from spore_dask.datasets import blobs_and_shapes
from spore_dask.locks import locked
from spore_dask.store import Folder, claim
from tests.clusters import wait_until
from tests.paper import fit

HOLD = """
import sys, time
from spore_dask.locks import locked
from spore_dask.store import Folder
with locked(Folder(sys.argv[1]), "other"):
    print("held", flush=True)
    time.sleep(600)
"""

LOCKS = {
    name: f"lock-{digit * 32}.json"
    for name, digit in zip(("foreign", "old", "empty", "rival", "x"), "01234", strict=True)
}


@pytest.fixture
def folder(tmp_path):
    return Folder(str(tmp_path / "run"))


@pytest.fixture
def holder(folder):
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder.url], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(locks, "SILENT_SECONDS", 0.6)


def lock_files(folder):
    return [name for name in folder.names() if locks.is_lock(name)]


def write_foreign_lock(folder, **facts):
    record = {"name": "x", **processes.this_process(), "machine": "elsewhere", "beat": 0}
    folder.write_json(LOCKS["foreign"], {**record, **facts})


def is_lost(lock):
    try:
        lock.check()
    except BusyError:
        return True
    return False


def rob(lock):
    """Remove a lock until its owner notices, who may be about to write it anew."""

    def robbed():
        lock._folder.remove(lock._file)
        return is_lost(lock)

    wait_until(robbed)


@pytest.mark.parametrize("url", ["", "memory://locks"])
def test_one_at_a_time(tmp_path, url):
    folder = Folder(f"{url or tmp_path}/run")
    with locked(folder, "first") as lock, locked(folder, "again") as same:
        assert lock is same
        refused = []

        def try_it():
            try:
                with locked(folder, "second"):
                    pass
            except BusyError as error:
                refused.append(str(error))

        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
        assert len(refused) == 1
        assert str(os.getpid()) in refused[0]
        assert "first" in refused[0]
    assert lock_files(folder) == []
    with locked(folder, "third"):
        pass
    folder.remove()


def test_of_many_at_once_only_one_gets_it(folder):
    n_holding, most, n_refused = 0, 0, 0
    count = threading.Lock()
    start = threading.Barrier(12)

    def work():
        nonlocal n_holding, most, n_refused
        start.wait()
        for _ in range(15):
            try:
                with locked(folder, "work"):
                    with count:
                        n_holding += 1
                        most = max(most, n_holding)
                    time.sleep(0.001)
                    with count:
                        n_holding -= 1
            except BusyError:
                with count:
                    n_refused += 1

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert n_refused > 0
    assert lock_files(folder) == []


def test_living_process_is_not_robbed_and_a_killed_one_is(folder, holder):
    who = f"Process {holder.pid} on .* is at work on"
    with pytest.raises(BusyError, match=who), locked(folder, "mine"):
        pass
    holder.kill()
    holder.wait()
    assert len(lock_files(folder)) == 1
    with locked(folder, "mine"):
        assert len(lock_files(folder)) == 1
    assert lock_files(folder) == []


def test_a_stopped_process_of_this_machine_keeps_its_lock(folder, holder, quick):
    holder.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    with pytest.raises(BusyError), locked(folder, "mine"):
        pass


def test_another_process_with_the_same_number_is_not_the_owner(folder):
    with locked(folder, "mine"):
        record = folder.read_json(lock_files(folder)[0])
    folder.write_json(LOCKS["old"], {**record, "process_started": 1.0})
    with locked(folder, "mine"):
        assert LOCKS["old"] not in lock_files(folder)


def test_another_machine_that_beats_is_alive(folder, monkeypatch):
    monkeypatch.setattr(locks, "SILENT_SECONDS", 30.0)
    write_foreign_lock(folder)
    ended = threading.Event()

    def beat():
        for number in itertools.count():
            if ended.wait(0.1):
                return
            write_foreign_lock(folder, beat=number)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(BusyError), locked(folder, "mine"):
            pass
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("seconds", [-1e9, 0, 1e9])
def test_silent_machine_is_gone_whatever_the_clocks_say(folder, quick, monkeypatch, seconds):
    write_foreign_lock(folder)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    with locked(folder, "mine"):
        assert LOCKS["foreign"] not in lock_files(folder)


def test_halves_of_a_killed_driver_go(tmp_path):
    x = blobs_and_shapes(2000)[0]
    folder = Folder(str(tmp_path / "run"))
    claim(folder)
    for name in ("progress-graph.json", "run.json", LOCKS["x"]):
        folder.write_bytes(f"{name}.{'a' * 32}.partial", b"{")
    folder.write_bytes(f"lock-{4:032x}.json.{5:032x}.partial", b"{")
    fit(x, folder.url, n_workers=0)
    assert not [name for name in folder.names() if "partial" in name or locks.is_lock(name)]


def test_one_whose_half_lock_was_swept_tries_again(folder, monkeypatch):
    replace, swept = os.replace, []

    def sweep(half, name):
        if not swept:
            swept.append(name)
            os.remove(half)  # as the owner of another lock does
        replace(half, name)

    monkeypatch.setattr(os, "replace", sweep)
    with locked(folder, "mine"):
        assert len(lock_files(folder)) == len(swept) == 1


def test_a_lock_that_is_no_document_is_passed_over(folder):
    folder.write_bytes(LOCKS["empty"], b"")
    with locked(folder, "mine"):
        assert len(lock_files(folder)) == 2
    assert lock_files(folder) == [LOCKS["empty"]]


@pytest.mark.parametrize("removed", [True, False])
def test_owner_notices_that_it_was_robbed(folder, quick, removed):
    with locked(folder, "mine") as lock:
        lock.check()
        write_foreign_lock(folder)
        if removed:
            rob(lock)
        else:
            wait_until(lambda: is_lost(lock))
        with pytest.raises(BusyError, match="taken over"):
            lock.check()
    assert lock_files(folder) == [LOCKS["foreign"]]


def test_owner_survives_a_rival_that_gives_way(folder, quick, monkeypatch):
    look, seen = locks.Lock._others, []

    def look_as_it_gives_way(lock):
        found = look(lock)
        seen.extend(found)
        if len(seen) == locks.MOST_RIVALS:
            folder.remove(LOCKS["foreign"])
        return found

    with locked(folder, "mine") as lock:
        monkeypatch.setattr(locks.Lock, "_others", look_as_it_gives_way)
        write_foreign_lock(folder)
        wait_until(lambda: len(seen) == locks.MOST_RIVALS)
        n_beats = lock._record["beat"] + 2 * locks.MOST_RIVALS
        wait_until(lambda: lock._record["beat"] > n_beats or is_lost(lock))
        lock.check()
    assert seen == [LOCKS["foreign"]] * locks.MOST_RIVALS


def test_one_that_gave_way_comes_back_under_another_name(folder, monkeypatch):
    """Whoever saw the old one go may still be about to remove it."""
    write, names = Folder.write_json, []

    def meet(self, name, value):
        write(self, name, value)
        names.append(name)
        if len(names) == 1:
            write(self, LOCKS["rival"], value | {"process_started": 1.0})

    monkeypatch.setattr(Folder, "write_json", meet)
    with locked(folder, "mine"):
        folder.remove(names[0])
        assert lock_files(folder) == names[1:]
        assert len(names) == 2


def test_a_robbed_fit_stops(tmp_path, quick):
    x = blobs_and_shapes(3000)[0]
    folder = Folder(str(tmp_path / "run"))

    def hear(event):
        if event.kind == "stage-start" and event.stage == "neighbors":
            rob(locks._held[folder.url][1])

    with pytest.raises(BusyError, match="taken over"):
        fit(x, folder.url, n_workers=0, progress=hear)
    expected = fit(x, n_workers=0).labels[:]
    np.testing.assert_array_equal(fit(x, folder.url, n_workers=0).labels[:], expected)


FIT = """
import pathlib, sys, time
import spore_dask
def wait(event):
    while event.stage == "neighbors" and not pathlib.Path(sys.argv[3]).exists():
        time.sleep(0.05)
try:
    run = spore_dask.fit(sys.argv[1], sys.argv[2], params="paper", n_workers=1, progress=wait)
except spore_dask.BusyError as error:
    print(error)
    sys.exit(7)
"""


def test_of_two_drivers_one_is_refused_and_nothing_is_damaged(tmp_path):
    x = blobs_and_shapes(5000)[0]
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(1000, 2))
    places = [str(tmp_path / name) for name in ("x.zarr", "out", "go")]
    drivers = [
        subprocess.Popen([sys.executable, "-c", FIT, *places], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    while all(driver.poll() is None for driver in drivers):  # whoever is first waits for the other
        time.sleep(0.05)
    (tmp_path / "go").touch()
    texts = [driver.communicate(timeout=300)[0] for driver in drivers]
    assert sorted(driver.returncode for driver in drivers) == [0, 7], texts
    [refusal] = [text for text in texts if text]
    assert "is at work on" in refusal
    run = fit(str(tmp_path / "x.zarr"), tmp_path / "out", n_workers=0)
    verify(run)
    np.testing.assert_array_equal(run.labels[:], fit(x, n_workers=0).labels[:])
    assert not lock_files(Folder(str(tmp_path / "out")))


def test_an_interrupt_while_it_is_taken_leaves_no_lock(folder, monkeypatch):
    write = Folder.write_json

    def interrupted(self, name, value):
        write(self, name, value)
        raise KeyboardInterrupt

    monkeypatch.setattr(Folder, "write_json", interrupted)
    with pytest.raises(KeyboardInterrupt), locked(folder, "mine"):
        pass
    monkeypatch.undo()
    assert lock_files(folder) == []
    with locked(folder, "mine"):
        pass


def test_clean_waits_for_nobody(tmp_path, holder, folder):
    x = blobs_and_shapes(2000)[0]
    run = fit(x, tmp_path / "mine", n_workers=0)
    folder_of_run = Folder(str(tmp_path / "mine"))
    for name in lock_files(folder):
        folder_of_run.write_json(name, folder.read_json(name))
    with pytest.raises(BusyError):
        clean(run)
    verify(run)
    assert fit(x, tmp_path / "mine", n_workers=0).id == run.id  # nothing to do, nothing refused


def test_command_says_so(tmp_path, holder, folder):
    x = blobs_and_shapes(2000)[0]
    zarr.create_array(str(tmp_path / "x.zarr"), data=x)
    command = [sys.executable, "-c", "from spore_dask.cli import main; main()"]
    arguments = ["fit", str(tmp_path / "x.zarr"), folder.url, "--json"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert done.returncode == 7
    assert "is at work on" in json.loads(done.stdout)["error"]
    assert lock_files(folder)
