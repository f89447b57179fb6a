import os
import time

import numpy as np
import pytest
import zarr

from spore_dask import InputError, build_graph, tracking
from spore_dask.datasets import blobs_and_shapes
from spore_dask.errors import DamagedError
from spore_dask.progress import Event
from spore_dask.store import Folder, claim
from spore_dask.tracking import MOST_STAGES, Tracker, read_records
from tests.paper import fit

SCAN = "scan-0123456789ab"


@pytest.fixture
def folder(tmp_path):
    return Folder(str(tmp_path / "run"))


def listen(event):
    pass


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_record_is_there_while_a_run_goes_on(folder, monkeypatch):
    monkeypatch.setattr(tracking, "EVERY_SECONDS", 0.01)
    heard = []
    with Tracker(folder, "fit-abc", heard.append) as tracker:
        tracker(Event("task-done", "scan", 1, 4, 0.5, peak_nbytes=77))
        wait_for(lambda: read_records(folder))
        [record] = read_records(folder)
        assert (record["state"], record["pid"]) == ("running", os.getpid())
        assert Event(**record["now"]).n_done == 1
        assert record["peak_nbytes"] == 77
        tracker(Event("stage-end", "scan", 4, 4, 2.0))
        wait_for(lambda: read_records(folder)[0]["done"])
        assert read_records(folder)[0]["now"] is None
    assert [event.kind for event in heard] == ["task-done", "stage-end"]
    assert read_records(folder) == []


def test_writes_do_not_follow_events(folder, monkeypatch):
    monkeypatch.setattr(tracking, "EVERY_SECONDS", 0.05)
    n_written = 0

    def write_json(self, name, value):
        nonlocal n_written
        n_written += 1

    monkeypatch.setattr(Folder, "write_json", write_json)
    started = time.monotonic()
    with Tracker(folder, "fit-abc", listen) as tracker:
        for n in range(100_000):
            tracker(Event("task-done", "scan", n, 100_000))
        wait_for(lambda: n_written)
    assert n_written <= 1 + (time.monotonic() - started) / 0.05


def test_a_silent_run_is_heard_of(folder, monkeypatch):
    monkeypatch.setattr(tracking, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(tracking, "HEARTBEAT_SECONDS", 0.05)
    with Tracker(folder, "fit-abc", listen):
        wait_for(lambda: read_records(folder))
        first = read_records(folder)[0]["updated"]
        wait_for(lambda: read_records(folder)[0]["updated"] > first)


def test_records_are_bounded(folder):
    tracker = Tracker(folder, "fit-abc", listen)
    for n in range(3 * MOST_STAGES):
        tracker(Event("stage-end", f"stage-{n}", 1, 1))
    tracker._write()
    assert len(read_records(folder)[0]["done"]) == MOST_STAGES
    assert folder.nbytes() < 300 * MOST_STAGES


def end_with(folder, error, document):
    """Write a document in a stage of a run, and end the run with an error."""
    with Tracker(folder, "fit-abc", listen) as tracker:
        tracker(Event("stage-start", "scan", 0, 4))
        claim(folder)
        folder.child(SCAN).write_json(document, {})
        raise error


@pytest.mark.parametrize(
    ("error", "state"),
    [(KeyboardInterrupt(), "stopped"), (RuntimeError("so it went"), "failed")],
)
def test_what_ended_a_run_is_kept(folder, error, state):
    with pytest.raises(type(error)):
        end_with(folder, error, "receipt.json")
    [record] = read_records(folder)
    assert record["state"] == state
    assert record["text"] == (str(error) or "KeyboardInterrupt")


def test_a_new_folder_goes_when_its_data_is_refused(folder):
    with pytest.raises(InputError):
        end_with(folder, InputError("bad"), "receipt.json")
    assert not folder.exists()


def test_finished_stages_stay_when_something_is_refused(folder):
    with pytest.raises(InputError):
        end_with(folder, InputError("bad"), "done.json")
    assert folder.child(SCAN).exists()
    assert read_records(folder)[0]["text"] == "bad"


def test_what_cannot_be_written_does_no_harm(folder, monkeypatch):
    tried = []

    def write_json(self, name, value):
        tried.append(name)
        raise OSError("no room")

    monkeypatch.setattr(Folder, "write_json", write_json)
    monkeypatch.setattr(tracking, "EVERY_SECONDS", 0.01)
    with Tracker(folder, "fit-abc", listen) as tracker:
        tracker(Event("stage-start", "scan", 0, 4))
        wait_for(lambda: tried)


def test_fits_and_graphs_are_tracked(tmp_path, monkeypatch):
    x = blobs_and_shapes(600, 2, 0)[0]
    seen = set()

    def names():
        return tuple(record["name"] for record in read_records(Folder(str(tmp_path / "out"))))

    def note_and_write(self, event):
        note(self, event)
        self._folder.write_json(self._file, {**self._record, "updated": time.time()})

    note = Tracker._note
    monkeypatch.setattr(Tracker, "_note", note_and_write)  # as if each event took long
    run = fit(x, tmp_path / "out", n_workers=0, progress=lambda event: seen.add(names()))
    assert seen == {(f"fit-{run.id}",)}
    seen.clear()
    build_graph(x, tmp_path / "out", 7, n_workers=0, progress=lambda event: seen.add(names()))
    assert seen == {("graph",)}
    assert names() == ()


def test_bad_data_leaves_nothing_and_may_be_mended(tmp_path):
    x = blobs_and_shapes(600, 2, 0)[0]
    array = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=x.shape, dtype=x.dtype, chunks=(99, 2)
    )
    array[...] = x
    array[300] = np.inf
    for out in (tmp_path / "new", tmp_path):
        with pytest.raises(InputError, match="Row 300"):
            fit(tmp_path / "x.zarr", out, n_workers=0)
    left = {name for name in os.listdir(tmp_path) if not name.startswith("progress-")}
    assert left == {"x.zarr"}
    array[300] = 0
    assert fit(tmp_path / "x.zarr", tmp_path, n_workers=0).n_clusters > 0
    assert not list(tmp_path.glob("progress-*"))


def test_half_a_document_is_damage(folder):
    folder.write_bytes("x.json", b'{"a": ')
    with pytest.raises(DamagedError, match=r"'x.json' in .* is damaged"):
        folder.read_json("x.json")
