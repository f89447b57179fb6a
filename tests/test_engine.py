import contextlib
import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from threadpoolctl import threadpool_info

from spore_dask import engine as engine_module
from spore_dask.engine import WINDOW, Engine, WorkerLostError, open_engine, settings
from spore_dask.engine import peaks as peaks_module
from spore_dask.engine.flights import Flight
from spore_dask.engine.peaks import peak_nbytes, peak_since_now
from spore_dask.engine.watching import Watch
from spore_dask.errors import InputError, ParameterError
from spore_dask.progress import ignore
from tests.clusters import MIB, ROOT, wait_until


@pytest.fixture(scope="module", autouse=True)
def caches(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPORE_CACHE_DIR", str(tmp_path_factory.mktemp("caches")))
        yield


@pytest.fixture(scope="module")
def two_workers():
    with open_engine(n_workers=2, memory_limit=600 * MIB) as opened:
        yield opened


@pytest.fixture
def local(two_workers):
    """An engine of two processes, and the events it sends during the test."""
    wait_until(lambda: n_there(two_workers) == 2)
    two_workers.progress = ignore
    two_workers.run("before", square, [], needs_nbytes=1)  # tells what earlier tests have lost
    two_workers.events = []
    two_workers.progress = two_workers.events.append
    return two_workers


def n_there(engine):
    return len(engine._client.scheduler_info()["workers"])


def kinds(events):
    return [event.kind for event in events]


def losses(engine, n_lost):
    """Return what is told of lost workers, of which a later stage may be the first to know."""

    def texts():
        engine.run("after", square, [], needs_nbytes=1)
        return [event.text for event in engine.events if event.kind == "worker-lost"]

    return wait_until(lambda: len(found := texts()) >= n_lost and found)


def square(item):
    return item * item


def slow_square(item):
    time.sleep(0.02 * (5 - item % 5))
    return item * item


def environment(item):
    time.sleep(0.05)
    names = ["NUMBA_CACHE_DIR", *settings.WORKER_ENVIRON]
    import numba

    assert os.environ["NUMBA_CACHE_DIR"] == numba.config.CACHE_DIR
    return os.getpid(), {name: os.environ[name] for name in names}, numba.get_num_threads()


def leave_name(folder):
    (folder / str(os.getpid())).touch()


def leave_mark(folder, item):
    """Leave one more byte for each time that an item is tried; return how many there are."""
    with (folder / f"tried-{item}").open("ab") as file:
        file.write(b"x")
    return (folder / f"tried-{item}").stat().st_size


def n_tried(folder, item):
    return (folder / f"tried-{item}").stat().st_size


def square_but_wait_once(folder, item):
    """Wait for long if this is the first task that runs, having told which process it is."""
    with contextlib.suppress(FileExistsError):
        (folder / "first").mkdir()
        (folder / "pid.new").write_text(str(os.getpid()))
        (folder / "pid.new").rename(folder / "pid")
        time.sleep(600)
    return item * item


def die_on_seven(folder, item):
    leave_mark(folder, item)
    if item == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return item


def raise_on_seven(folder, error, item):
    leave_mark(folder, item)
    if item == 7:
        raise error
    return item


def fail_twice(folder, item):
    if leave_mark(folder, item) <= 2:
        raise OSError(f"item {item} is shy")
    return item


def grow(n_nbytes, seconds, item):
    data = bytearray(n_nbytes)
    data[::4096] = b"x" * len(data[::4096])
    time.sleep(seconds)
    return len(data)


# Peaks

resets = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="high-water marks cannot be set back"
)


@resets
def test_each_has_a_peak_of_its_own_and_the_life_keeps_the_largest():
    with peak_since_now() as outer:  # as tasks in threads, and stages in tasks
        grow(200 * MIB, 0, 0)
        with peak_since_now() as inner:
            grow(50 * MIB, 0, 0)
        with peak_since_now() as last:
            pass
    after = peak_nbytes()
    assert outer.nbytes - last.nbytes > 180 * MIB
    assert 40 * MIB < inner.nbytes - last.nbytes < 100 * MIB
    assert after >= outer.nbytes


def test_peaks_where_marks_cannot_be_set_back(monkeypatch):
    def refuse(path, *options):
        if "clear_refs" in path:
            raise PermissionError(path)
        return open(path, *options)

    monkeypatch.setattr(peaks_module, "open", refuse, raising=False)
    grow(200 * MIB, 0, 0)
    with peak_since_now() as peak:
        pass
    assert peak.nbytes >= peaks_module.status_nbytes("VmRSS")
    assert peak.nbytes == peaks_module.status_nbytes("VmHWM")  # which has gone on


def test_peaks_without_files_about_processes(monkeypatch):
    def refuse(path, *options):
        raise FileNotFoundError(path)

    monkeypatch.setattr(peaks_module, "open", refuse, raising=False)
    assert peaks_module.status_nbytes("VmHWM") == 0
    with peak_since_now() as peak:
        pass
    assert 10 * MIB < peak.nbytes <= peak_nbytes()


@resets
@pytest.mark.parametrize("here", [True, False])
def test_a_stage_has_the_peak_of_its_tasks(local, here):
    task = functools.partial(grow, 200 * MIB, 0)
    found = []
    for name, each in (("modest", square), ("greedy", task), ("later", square)):
        with local.measured() as peaks:
            local.run(name, each, [0, 1, 2, 3], needs_nbytes=1, here=here)
        found.append(peaks["peak_nbytes"])
        assert (peaks["coordinator_nbytes"] >= found[-1]) or not here
    assert found[1] - found[0] > 180 * MIB
    assert found[1] - found[2] > 150 * MIB
    of_here = {name: n for name, n in local.peaks().items() if name.endswith(f":{os.getpid()}")}
    others = {name: n for name, n in local.peaks().items() if name not in of_here}
    assert max((of_here if here else others).values()) >= found[1]


@resets
def test_a_stage_without_tasks_has_the_peak_of_this_process(local):
    found = []
    for nbytes in (MIB, 200 * MIB, MIB):
        with local.measured() as peaks:
            grow(nbytes, 0, 0)
        found.append(peaks["peak_nbytes"])
        assert peaks["coordinator_nbytes"] == found[-1]
    assert found[1] - max(found[0], found[2]) > 180 * MIB


@resets
def test_a_stage_within_another_keeps_its_tasks_to_itself(local):
    with local.measured() as outer:
        local.run("outer", functools.partial(grow, 200 * MIB, 0), [0], needs_nbytes=1, here=True)
        with local.measured() as inner:
            local.run("inner", functools.partial(grow, MIB, 0), [0], needs_nbytes=1, here=True)
    assert outer["peak_nbytes"] - inner["peak_nbytes"] > 150 * MIB


# In this process


def n_product_threads(item):
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_products_in_this_process_have_one_thread_as_in_workers():
    with open_engine(n_workers=0) as here:
        assert here.run("products", n_product_threads, [0], needs_nbytes=1) == [{1}]


def test_in_this_process():
    events, done = [], []
    with open_engine(n_workers=0, memory_limit=5, progress=events.append) as here:
        assert (here.n_workers, here.memory_limit) == (0, 5)
        assert here.run("squares", square, range(4), needs_nbytes=1, on_done=_pairs(done)) == [
            0,
            1,
            4,
            9,
        ]
        assert list(here.peaks()) == [engine_module.process_name()]
    assert done == [(0, 0), (1, 1), (2, 4), (3, 9)]
    assert kinds(events) == ["stage-start", *["task-done"] * 4, "stage-end"]
    assert [event.n_done for event in events] == [0, 1, 2, 3, 4, 4]


def _pairs(done):
    return lambda item, receipt: done.append((item, receipt))


def test_in_this_process_distributed_is_not_imported():
    code = """
    import sys
    from spore_dask.engine import open_engine
    with open_engine(n_workers=0) as here:
        assert here.run("lengths", len, ["a", "bc"], needs_nbytes=1) == [1, 2]
    assert "distributed" not in sys.modules
    assert "dask" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=ROOT)


def test_in_this_process_errors_come_as_they_are(tmp_path):
    events = []
    here = Engine(progress=events.append)
    task = functools.partial(raise_on_seven, tmp_path, InputError("too small"))
    with pytest.raises(InputError, match=r"^too small$"):
        here.run("checks", task, [6, 7, 8], needs_nbytes=1)
    assert kinds(events) == ["stage-start", "task-done", "stage-failed"]
    task = functools.partial(raise_on_seven, tmp_path, KeyError())
    with pytest.raises(KeyError) as caught:
        here.run("checks", task, [7], needs_nbytes=1)
    assert caught.value.__notes__ == ["In stage 'checks', task 1 of 1: 7"]
    assert n_tried(tmp_path, 7) == 2
    assert not (tmp_path / "tried-8").exists()


# Parameters


@pytest.mark.parametrize("n_workers", [-1, 1.5, True, "2"])
def test_number_of_workers_is_checked(n_workers):
    with pytest.raises(ParameterError, match="n_workers is"), open_engine(n_workers=n_workers):
        pass


def test_client_and_number_of_workers_exclude_each_other():
    with (
        pytest.raises(ParameterError, match="n_workers is 2 although client is given"),
        open_engine("tcp://127.0.0.1:1", n_workers=2),
    ):
        pass


def test_client_must_be_one():
    with pytest.raises(ParameterError, match="client is 3, but it must be"), open_engine(3):
        pass


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere at all"])
def test_address_without_a_scheduler(address):
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "300ms"}),
        pytest.raises(ParameterError, match="no Dask scheduler answers there"),
        open_engine(address),
    ):
        pass


def test_a_scheduler_that_is_gone_is_told():
    client = SimpleNamespace(status="closed", scheduler_info=dict)
    with pytest.raises(WorkerLostError, match="connection to the scheduler broke"):
        Watch(client)


# Two processes


def test_receipts_come_in_order_and_events_tell_the_story(local):
    done = []
    items = list(range(50))
    receipts = local.run("squares", slow_square, items, needs_nbytes=1, on_done=_pairs(done))
    assert receipts == [item * item for item in items]
    assert sorted(done) == [(item, item * item) for item in items]
    assert kinds(local.events) == ["stage-start", *["task-done"] * 50, "stage-end"]
    assert [event.n_done for event in local.events] == [*range(51), 50]
    assert {(event.stage, event.n_tasks) for event in local.events} == {("squares", 50)}
    seconds = [event.seconds for event in local.events]
    assert seconds == sorted(seconds)
    tasks = local.events[1:-1]
    assert len({event.process for event in tasks}) == 2
    assert all(0.02 <= event.task_seconds <= event.seconds for event in tasks)
    assert all(10 * MIB < event.peak_nbytes < 600 * MIB for event in tasks)
    assert {event.process for event in tasks} < set(local.peaks())
    assert engine_module.process_name() in local.peaks()


def test_stage_without_items(local):
    assert local.run("nothing", square, [], needs_nbytes=1) == []
    assert kinds(local.events) == ["stage-start", "stage-end"]


def test_each_process_has_its_own_cache_and_one_thread(local):
    receipts = local.run("look", environment, range(20), needs_nbytes=1)
    found = {pid: variables for pid, variables, _ in receipts}
    caches = {variables["NUMBA_CACHE_DIR"] for variables in found.values()}
    assert len(found) == len(caches) == 2
    assert all(Path(cache).is_relative_to(os.environ["SPORE_CACHE_DIR"]) for cache in caches)
    for variables in found.values():
        threads = {n for name, n in variables.items() if name.endswith("_NUM_THREADS")}
        assert threads == {"1"}
    assert {n for _, _, n in receipts} == {1}


def test_window_is_never_exceeded(local, monkeypatch):
    in_flight, sizes = 0, []
    submit = local._client.map

    def counting(function, pickles, **options):
        nonlocal in_flight
        in_flight += len(pickles)
        sizes.append(in_flight)
        return submit(function, pickles, **options)

    def landed(item, receipt):
        nonlocal in_flight
        in_flight -= 1

    monkeypatch.setattr(local._client, "map", counting)
    items = range(WINDOW * 2 * 3)
    local.run("squares", square, items, needs_nbytes=1, on_done=landed)
    assert in_flight == 0
    assert sizes[0] == max(sizes) == WINDOW * 2


def test_error_on_purpose_is_not_tried_again(local, tmp_path):
    task = functools.partial(raise_on_seven, tmp_path, InputError("seven is too many"))
    with pytest.raises(InputError, match=r"^seven is too many$") as caught:
        local.run("checks", task, range(40), needs_nbytes=1)
    assert type(caught.value) is InputError
    assert n_tried(tmp_path, 7) == 1
    assert local.events[-1].kind == "stage-failed"
    assert local.events[-1].text == "seven is too many"
    assert_nothing_left(local)


def test_other_errors_come_after_two_retries_as_they_are(local, tmp_path):
    task = functools.partial(raise_on_seven, tmp_path, ZeroDivisionError("seven"))
    with pytest.raises(ZeroDivisionError, match=r"^seven") as caught:
        local.run("checks", task, range(40), needs_nbytes=1)
    assert caught.value.__notes__ == ["In stage 'checks', task 8 of 40: 7"]
    assert n_tried(tmp_path, 7) == 3
    assert_nothing_left(local)


def test_own_timeout_of_a_task_is_an_error(local, tmp_path):
    task = functools.partial(raise_on_seven, tmp_path, TimeoutError("too slow"))
    with pytest.raises(TimeoutError, match=r"^too slow"):
        local.run("checks", task, [7], needs_nbytes=1)


def test_passing_errors_are_tried_again(local, tmp_path):
    task = functools.partial(fail_twice, tmp_path)
    assert local.run("shy", task, range(5), needs_nbytes=1) == list(range(5))
    assert [n_tried(tmp_path, item) for item in range(5)] == [3] * 5


def test_interrupt_takes_back_what_is_in_flight(local):
    def interrupt(item, receipt):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local.run("squares", slow_square, range(100), needs_nbytes=1, on_done=interrupt)
    assert kinds(local.events) == ["stage-start", "stage-failed"]
    assert_nothing_left(local)
    assert local.run("squares", square, range(5), needs_nbytes=1) == [0, 1, 4, 9, 16]


def assert_nothing_left(engine):
    wait_until(lambda: not engine._client.futures)
    wait_until(lambda: not engine._client.cluster.scheduler.tasks)


def test_a_stage_that_begins_while_the_connection_is_broken_waits(local, monkeypatch):
    monkeypatch.setattr(local._client, "status", "connecting")
    monkeypatch.setattr(Flight, "_next", lambda flight: monkeypatch.undo() or flight._next())
    assert local.run("squares", square, range(5), needs_nbytes=1) == [0, 1, 4, 9, 16]


# Deaths


def test_killed_worker_changes_nothing(local, tmp_path):
    def kill():
        wait_until((tmp_path / "pid").exists)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    task = functools.partial(square_but_wait_once, tmp_path)
    receipts = local.run("squares", task, range(30), needs_nbytes=1)
    killer.join()
    assert receipts == [item * item for item in range(30)]
    pid = (tmp_path / "pid").read_text()
    assert losses(local, 1) == [f"Worker process {pid} was ended by signal 9."]


def test_three_deaths_of_a_task_end_in_a_sentence(local, tmp_path):
    task = functools.partial(die_on_seven, tmp_path)
    with pytest.raises(WorkerLostError) as caught:
        local.run("deadly", task, range(40), needs_nbytes=3 * 2**30)
    assert isinstance(caught.value, RuntimeError)
    assert str(caught.value) == (
        "Stage 'deadly': task 8 of 40 was given up because 3 worker processes died while running "
        "it (the last one was ended by signal 9). It is projected to need 3.00 GiB, and 600.00 MiB "
        "is the memory limit of each process: raise memory_limit or use larger workers, or give "
        "each task less with more partitions or smaller chunks."
    )
    assert n_tried(tmp_path, 7) == 3
    assert len(losses(local, 3)) == 3
    assert_nothing_left(local)


def test_worker_past_its_limit_ends_and_the_error_says_so(local):
    with pytest.raises(WorkerLostError, match=r"\(the last one went past its memory limit\)"):
        local.run("greedy", functools.partial(grow, 700 * MIB, 600), [0], needs_nbytes=700 * MIB)


def test_worker_within_its_limit_lives(local):
    task = functools.partial(grow, 400 * MIB, 2)
    assert local.run("modest", task, [0], needs_nbytes=1) == [400 * MIB]
    assert "worker-lost" not in kinds(local.events)
    peaks = [n for name, n in local.peaks().items() if not name.endswith(f":{os.getpid()}")]
    assert 400 * MIB < max(peaks) < 600 * MIB


def test_few_tasks_are_not_blamed_for_each_other(local, tmp_path):
    with pytest.raises(WorkerLostError, match="task 3 of 4 was given up because 3 worker"):
        local.run("deadly", functools.partial(die_on_seven, tmp_path), [5, 6, 7, 8], needs_nbytes=1)
    assert n_tried(tmp_path, 7) == 3


def test_limit_too_small_for_a_worker_to_start():
    with (
        pytest.raises(WorkerLostError, match="The last one went past its memory limit"),
        open_engine(n_workers=1, memory_limit=MIB),
    ):
        pass


def test_no_worker_left_is_an_error_not_a_wait(monkeypatch):
    from distributed import Client

    events = []
    with (
        outside_cluster() as cluster,
        Client(cluster, set_as_default=False) as client,
        open_engine(client, progress=events.append) as outside,
    ):
        monkeypatch.setattr(settings, "START_TIMEOUT", 2.0)
        threading.Timer(0.5, cluster.scale, [0]).start()
        with pytest.raises(WorkerLostError, match="There has been no worker for 2 s"):
            outside.run("squares", slow_square, range(100_000), needs_nbytes=1)
    assert "worker-lost" in kinds(events)


# Clusters of others


def outside_cluster():
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        memory_limit=5 * 2**30,
        dashboard_address="127.0.0.1:0",
    )


def test_client_and_address_are_used_and_left_open():
    from distributed import Client

    with outside_cluster() as cluster, Client(cluster, set_as_default=False) as client:
        with open_engine(client) as outside:
            assert (outside.n_workers, outside.memory_limit) == (2, 5 * 2**30)
            assert outside.run("squares", square, range(5), needs_nbytes=1) == [0, 1, 4, 9, 16]
        with open_engine(client, memory_limit=7) as outside:
            assert outside.memory_limit == 7
        with open_engine(cluster.scheduler_address) as outside:
            assert outside.run("squares", square, range(5), needs_nbytes=1) == [0, 1, 4, 9, 16]
            assert outside._client is not client
        assert outside._client.status == "closed"
        assert client.submit(square, 3).result() == 9


def test_workers_started_by_others_are_prepared_too(local):
    from distributed import Client

    with (
        Client(local._client.cluster, set_as_default=False) as client,
        open_engine(client) as outside,
    ):
        assert (outside.n_workers, outside.memory_limit) == (2, 600 * MIB)
        receipts = outside.run("look", environment, range(20), needs_nbytes=1)
    assert len({variables["NUMBA_CACHE_DIR"] for _, variables, _ in receipts}) == 2
    assert local.run("squares", square, [3], needs_nbytes=1) == [9]


def test_threads_of_this_process_leave_it_as_it_is():
    before = dict(os.environ)
    with outside_cluster() as cluster, open_engine(cluster.scheduler_address) as outside:
        assert outside.run("squares", square, [3], needs_nbytes=1) == [9]
    assert dict(os.environ) == before


def test_configuration_of_the_user_is_left_alone(two_workers):
    import dask

    assert dask.config.get("distributed.scheduler.allowed-failures") == 3
    assert dask.config.get("distributed.worker.memory.pause") == 0.8
    assert dask.config.get("scheduler", None) is None
    assert "MALLOC_ARENA_MAX" not in os.environ


# Scripts

SCRIPT = """
import functools, os, sys, time
from spore_dask.engine import open_engine

print("started", flush=True)

def double(item):
    return 2 * item

def wait(folder, item):
    open(os.path.join(folder, str(os.getpid())), "x").close()
    time.sleep(600)

with open_engine(n_workers=2) as engine:
    for folder in sys.argv[1:]:
        engine.run("wait", functools.partial(wait, folder), [1, 2], needs_nbytes=1)
    print(sum(engine.run("double", double, range(10), needs_nbytes=1)))
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return [sys.executable, "-W", "error", str(path)], {**os.environ, "PYTHONPATH": str(ROOT)}


def test_script_without_a_guard(script, tmp_path):
    command, environ = script
    found = subprocess.run(
        command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (found.stdout, found.stderr) == ("started\n90\n", "")
    assert found.returncode == 0


def test_workers_do_not_outlive_a_killed_driver(script, tmp_path):
    command, environ = script
    marks = tmp_path / "marks"
    temporary = tmp_path / "temporary"
    marks.mkdir()
    temporary.mkdir()
    environ["TMPDIR"] = str(temporary)
    driver = subprocess.Popen([*command, str(marks)], env=environ, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(list(marks.iterdir())) == 2)
        children = psutil.Process(driver.pid).children(recursive=True)
        assert {str(child.pid) for child in children} >= {path.name for path in marks.iterdir()}
    finally:
        driver.kill()
        driver.wait()
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    assert len(gone) == 2
    assert not list(temporary.glob("spore_dask-*"))


# Caches of compiled kernels


def test_home_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPORE_CACHE_DIR", str(tmp_path / "file" / "below"))
    with open_engine(n_workers=1) as engine:
        [(_, variables, _)] = engine.run("look", environment, [0], needs_nbytes=1)
    assert "numba-" in variables["NUMBA_CACHE_DIR"]
    assert not Path(variables["NUMBA_CACHE_DIR"]).exists()


def test_everywhere_is_here_and_on_every_worker(local, tmp_path):
    local.everywhere(functools.partial(leave_name, tmp_path))
    assert (tmp_path / str(os.getpid())).exists()
    wait_until(lambda: len(list(tmp_path.iterdir())) == 3)  # slow workers are not waited for
