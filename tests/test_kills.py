"""Fits that are killed anywhere: the same call continues, ends as if nothing had been, and tidies.

Drivers are processes that die by SIGKILL; what a kill leaves between two calls of the store is made
by an interrupt in this process.
"""

import collections
import contextlib
import functools
import json
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from spore_dask import checkpoints, hold, open_run, predict, tune, verify
from spore_dask.inputs import Input
from spore_dask.locks import is_lock
from spore_dask.runs import SUMMARY
from spore_dask.stages import expand as expansion
from spore_dask.store import PARTIAL, Folder
from spore_dask.tracking import Tracker
from tests.paper import fit
from tests.test_fit import assert_labels, labels_of, town, town_labels, write_zarr
from tests.test_graph import wide

DRIVER = """
import json, os, signal, sys
from spore_dask import checkpoints, fit
from spore_dask.stages import expand
checkpoints.EVERY_SECONDS = 0
expand.STEPS_PER_CALL = 500
source, out, options, stage, n_done = sys.argv[1:]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def watch(event):
    if event.stage == stage and event.n_done >= int(n_done):
        os.replace = die
fit(source, out, progress=watch, params="paper", **json.loads(options))
"""
"""Dies with the next file half there, as soon as so many tasks of a stage are done."""

WIDE = functools.partial(wide, 5000, 60)
EXACT = {"n_partitions": 6, "n_workers": 0, "keep": "all"}
APPROXIMATE = {**EXACT, "n_partitions": 4, "knn": "approximate", "recall_target": 0.999}
FEW_FRAGMENTS = {"min_cluster_size": 2, "expansion_neighbors": 24, "reassignment_neighbors": 48}
KILLS = {
    "a small cache": (town, EXACT | {"n_partitions": 20, "cache_limit": "200kB"}, [
        ("scan", 0), ("pilot", 0), ("exchange", 0), ("partition", 3), ("copies", 0),
        ("neighbors", 3), ("density", 1), ("ranges", 1), ("order", 1), ("percentiles-0", 0),
        ("percentiles-1", 1), ("expand", 1), ("expand", 3), ("fragments", 2), ("gather", 1),
        ("reassign", 1), ("publish", 1),
    ]),
    "a large cache": (town, EXACT | {"cache_limit": "100MB"}, [
        ("expand", 3), ("fragments", 2), ("reassign", 1), ("publish", 1),
    ]),
    "random seeds": (town, EXACT | {"seeding_order": "random", "scale": "standard"}, [
        ("scan-deviations", 0), ("seeds", 0), ("seeds", 8),
    ]),
    "seeds by row": (town, EXACT | {"seeding_order": "none"}, [("seeds", 0), ("seeds", 8)]),
    "an approximate search": (WIDE, APPROXIMATE, [
        ("draw", 2), ("truth", 2), ("probe", 2), ("edges-0", 2), ("merge-0", 2),
        ("join-1", 2), ("edges-1", 2), ("merge-1", 2),
        ("join-2", 2), ("edges-2", 2), ("merge-2", 2), ("finish", 2),
    ]),
    "extended rows": (WIDE, APPROXIMATE | FEW_FRAGMENTS, [
        ("finish", 2), ("longer", 2), ("fragments", 2), ("gather", 0), ("publish", 1),
    ]),
}  # fmt: skip
"""For each fit its data and options, and where it is killed, one after another: the stage, and its
tasks that are done by then."""
ALONE = {"seeds", "expand", "reassign", "publish"}
"""Stages of the coordinator, without receipts."""
PASSING = (
    *("*.partial*", "checkpoint*", "buckets", "samples"),
    *("drawn", "truths", "lists-*", "edges-*", "merged-*"),
)
"""What is removed as soon as it has served."""


def standing(out):
    """Return the markers of stages that are done and the receipts of tasks, with their times."""
    paths = [*out.glob("*/done.json"), *out.rglob("receipts-*/*.json")]
    return {path: path.stat().st_mtime_ns for path in paths}


def files(out):
    """Return what is in a folder, in which nothing is left that is needed for a while only."""
    assert not [path for pattern in PASSING for path in out.rglob(pattern)]
    return {path.relative_to(out) for path in out.rglob("*")}


@pytest.mark.parametrize(("data", "options", "kills"), KILLS.values(), ids=KILLS)
def test_a_killed_driver_continues(tmp_path, data, options, kills):
    source, events = write_zarr(tmp_path / "x.zarr", data(), 5000), []
    labels = labels_of(fit(source, tmp_path / "whole", progress=events.append, **options))
    killed = {stage for _, _, kills in KILLS.values() for stage, _ in kills}
    assert {event.stage for event in events} <= killed
    out, known = tmp_path / "out", {}

    def assert_nothing_is_redone():
        now = standing(out)
        assert not [path for path, time in known.items() if now.get(path, time) != time]
        known.update(now)

    for stage, n_done in kills:
        arguments = [source, str(out), json.dumps(options), stage, str(n_done)]
        done = subprocess.run([sys.executable, "-c", DRIVER, *arguments])
        assert done.returncode == -signal.SIGKILL, stage
        assert list(out.rglob("*.partial"))
        assert_nothing_is_redone()
        receipts = [path for path in known if path.parent.name == f"receipts-{stage}"]
        assert stage in ALONE or len(receipts) >= n_done
    run = fit(source, out, **options)
    assert_nothing_is_redone()
    assert_labels(run, labels)
    verify(run)
    assert files(out) == files(tmp_path / "whole")


@pytest.mark.parametrize("steps", [3000, 10**9], ids=["in pieces", "between pieces"])
def test_expansion_goes_on_from_its_checkpoint(tmp_path, monkeypatch, steps):
    """Interrupt at every checkpoint: each call gets a little further."""
    source = write_zarr(tmp_path / "x.zarr", town(), 5000)
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0)
    monkeypatch.setattr(expansion, "STEPS_PER_CALL", steps)
    save = checkpoints.Checkpoints.save
    n_kills = 0

    def stop(self, arrays, facts):
        nonlocal n_kills
        save(self, arrays, facts)
        n_kills += 1
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.Checkpoints, "save", stop)
    while True:
        try:
            run = fit(source, tmp_path / "out", n_workers=0, keep="all", n_partitions=8)
            break
        except KeyboardInterrupt:
            assert n_kills < 100
    assert n_kills >= 6
    assert_labels(run, town_labels())
    expand = run.summary["stages"]["expand"]
    assert expand["read_nbytes"] <= (n_kills + 1) * expand["graph_nbytes"]


@pytest.mark.parametrize(
    ("action", "data", "options"),
    [
        ("write_bytes", town, EXACT),
        ("remove", town, EXACT | {"keep": "predict", "seeding_order": "random"}),
        ("remove", WIDE, APPROXIMATE),
    ],
    ids=["documents", "removals", "removals of an approximate search"],
)
def test_a_kill_before_any_document_or_removal_is_survived(
    tmp_path, monkeypatch, action, data, options
):
    x, out = data()[:5000], tmp_path / "out"
    labels, left = labels_of(fit(x, out, **options)), files(out)
    shutil.rmtree(out)
    write, act, seen = Folder.write_bytes, getattr(Folder, action), set()
    here = collections.Counter()

    def stop(folder, name="", *content):
        kind = "lock" if is_lock(name) else name  # each lock has a name of its own
        wanted = name.endswith(".json") if action == "write_bytes" else kind != "lock"
        here[folder.url, kind] += 1
        key = folder.url, kind, kind == SUMMARY and here[folder.url, kind]  # written twice
        if wanted and key not in seen:
            seen.add(key)
            if action == "write_bytes" and not is_lock(name):
                write(folder, f"{name}.{'0' * 32}{PARTIAL}", b"")
            raise KeyboardInterrupt
        act(folder, name, *content)

    monkeypatch.setattr(Folder, action, stop)
    while True:
        here.clear()
        with contextlib.suppress(KeyboardInterrupt):
            run = fit(x, out, **options)
            break
        assert len(seen) < 200
    assert len(seen) > 20
    assert_labels(run, labels)
    assert files(out) == left


def test_a_tune_that_was_killed_before_it_named_its_run_names_it(tmp_path):
    x, out = town()[:2000], tmp_path / "out"
    call = functools.partial(tune, x, out, y=np.arange(2000) % 3, n_trials=1, n_workers=0)
    id = call().run.id
    (out / "run.json").unlink()
    call()
    assert open_run(out).id == id


@pytest.mark.parametrize("name", ["fit", "tune", "predict"])
def test_what_a_kill_at_the_end_has_left_goes_with_the_next_call(tmp_path, monkeypatch, name):
    x, out = town()[:2000], tmp_path / "out"
    calls = {
        "fit": functools.partial(fit, x, out, n_workers=0),
        "tune": functools.partial(tune, x, out, y=np.arange(2000) % 3, n_trials=1, n_workers=0),
        "predict": functools.partial(predict, fit(x, n_workers=0), x, out, n_workers=0),
    }
    with monkeypatch.context() as patch:
        patch.setattr(Tracker, "_leave", lambda tracker, error: tracker._write())
        patch.setattr(Input, "remove", lambda data: None)
        calls[name]()
    left = files(out)
    with ThreadPoolExecutor(1) as pool:
        other = hold(out)
        pool.submit(other.__enter__).result()
        calls[name]()
        pool.submit(other.__exit__, None, None, None).result()
    assert files(out) == left  # which another one may be using
    calls[name]()
    gone = {path.parts[0].split("-")[0] for path in left - files(out)}
    assert gone == {"input", "progress"}
