"""One identity for each call: labels belong to the data that they were computed from, or to none.

The source is replaced, by other data of the same shape, at every event of a call. Whatever says
afterwards that it is done must be what its own data gives; every other call must have raised.
"""

import contextlib
import functools
import http.server
import json
import os
import shutil
import threading

import numpy as np
import pytest
import zarr

import spore_dask
from spore_dask import DamagedError, InputError, build_graph, predict, tune
from spore_dask.progress import Event
from spore_dask.store import OWNER, open_source
from spore_dask.store.sources import identity_of
from tests.paper import fit
from tests.test_jobs import invoke

OPTIONS = {"n_workers": 0, "n_partitions": 1, "min_cluster_size": 20}


def town(seed):
    """Return points in clusters of three densities."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(-6, 6, size=(3, 2))[np.repeat(np.arange(3), 100)]
    return centres + rng.normal(size=(300, 2)) * np.repeat([0.1, 0.3, 0.6], 100)[:, None]


OLD, NEW, SAMPLE = town(1), town(2), town(3)


def write(path, data):
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
    zarr.create_array(path, shape=data.shape, dtype=data.dtype, chunks=(200, 2))[:] = data
    return path


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """What either data gives, and a run that predictions start from."""
    base, found = tmp_path_factory.mktemp("known"), {"fitted": fit(SAMPLE, **OPTIONS)}
    for name, data in (("old", OLD), ("new", NEW)):
        source = write(base / f"{name}.zarr", data)
        tuned = tune(source, base / f"{name}.tuned", n_trials=3, **OPTIONS)
        found[name] = {
            "fit": fit(source, **OPTIONS).labels[...],
            "build_graph": build_graph(source, base / f"{name}.graph", 40, n_workers=0).to_memory(),
            "tune": tuned.run.labels[...],
            "predict": predict(found["fitted"], source, n_workers=0).labels[...],
        }
    assert all((found["old"][name] != found["new"][name]).any() for name in ("fit", "predict"))
    return found


def call(name, source, out, known, progress=None):
    """Make a call; return what it says it has found."""
    options = {"progress": progress, "n_workers": 0}
    if name == "build_graph":
        return build_graph(source, out, 40, **options).to_memory()
    if name == "predict":
        return predict(known["fitted"], source, out, **options).labels[...]
    if name == "tune":
        return tune(source, out, n_trials=3, **{**OPTIONS, **options}).run.labels[...]
    return fit(source, out, **{**OPTIONS, **options}).labels[...]


def equal(found, wanted):
    return (
        all(map(np.array_equal, found, wanted))
        if isinstance(found, tuple)
        else (np.array_equal(found, wanted))
    )


def claimed(name, out, known):
    """Return what a folder says is done."""
    with contextlib.suppress(InputError):
        if name == "build_graph":
            return spore_dask.Graph(out).to_memory()
        if name == "predict":
            return spore_dask.Prediction(out).labels[...]
        if name == "tune":
            return spore_dask.open_tuning(out).run.labels[...]
        return spore_dask.open_run(out).labels[...]
    return None


@pytest.mark.parametrize("name", ["fit", "build_graph", "tune", "predict"])
def test_a_source_that_is_replaced_while_a_call_works(tmp_path, known, name):
    events: list[Event] = []
    source = write(tmp_path / "x.zarr", OLD)
    call(name, source, tmp_path / "whole", known, events.append)
    n_raised = 0
    for number in range(len(events)):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        write(source, OLD)
        left = iter(range(number, -1, -1))

        def replace(event, left=left):
            if next(left, None) == 0:
                write(source, NEW)

        try:
            found = call(name, source, tmp_path / "out", known, replace)
        except InputError:
            n_raised += 1
            assert claimed(name, tmp_path / "out", known) is None
        else:
            assert equal(found, known["old"][name]), events[number]
        # The next call either has the labels of what is there now, or refuses to mix.
        with contextlib.suppress(InputError):
            assert equal(call(name, source, tmp_path / "out", known), known["new"][name])
        if name == "build_graph":  # a graph of other data is no graph of this
            with contextlib.suppress(InputError):
                run = fit(source, tmp_path / f"of-{number}", graph=tmp_path / "out", **OPTIONS)
                np.testing.assert_array_equal(run.labels[...], known["new"]["fit"])
    assert n_raised >= len(events) - 1  # after the last event there may be nothing left to claim


def test_refresh_publishes_nothing_for_rows_that_are_gone(tmp_path, known, monkeypatch):
    job = {
        "input": str(tmp_path / "{date}.zarr"),
        "output": str(tmp_path / "out"),
        "parameters": OPTIONS,
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    write(tmp_path / "2026-11-01.zarr", SAMPLE)

    def refresh(day):
        return invoke("refresh", tmp_path / "job.yaml", "--date", f"2026-11-0{day}").exit_code

    assert refresh(1) == 0
    events, out = [], tmp_path / "out"
    shutil.copytree(out, tmp_path / "first", symlinks=True)
    source = tmp_path / "2026-11-02.zarr"
    listen = {"now": events.append}
    monkeypatch.setattr(
        "pipelines.jobs.records.consumer_of", lambda *_: lambda event: listen["now"](event)
    )
    write(source, OLD)
    assert refresh(2) == 0
    before = json.loads((tmp_path / "first" / "latest.json").read_text())
    wanted = labels_published(out)
    for number in range(len(events)):
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "first", out, symlinks=True)
        write(source, OLD)
        left = iter(range(number, -1, -1))
        listen["now"] = lambda event, left=left: next(left, None) == 0 and write(source, NEW)
        if refresh(2) != 0:
            assert json.loads((out / "latest.json").read_text()) == before
        else:
            np.testing.assert_array_equal(labels_published(out), wanted)
            assert open_source(source).identity == published_identity(out)


def labels_published(out):
    latest = json.loads((out / "latest.json").read_text())
    return zarr.open_array(out / latest["labels"], mode="r")[...]


def published_identity(out):
    latest = json.loads((out / "latest.json").read_text())
    return json.loads((out / "published" / latest["run"] / "published.json").read_text())[
        "identity"
    ]


def test_an_array_that_changes_while_a_fit_works(tmp_path):
    for number in range(2):
        data, left = OLD.copy(), iter(range(number, -1, -1))

        def change(event, data=data, left=left):
            if next(left, None) == 0:
                data[...] = NEW

        with contextlib.suppress(InputError):
            run = fit(data, tmp_path / f"out-{number}", progress=change, **OPTIONS)
            np.testing.assert_array_equal(run.labels[...], fit(OLD, **OPTIONS).labels[...])


def test_an_array_that_changes_before_it_is_written(tmp_path, monkeypatch):
    data = OLD.copy()
    plan = spore_dask.jobs.Job.plan
    monkeypatch.setattr(
        spore_dask.jobs.Job, "plan", lambda *args: (data.__setitem__(..., NEW), plan(*args))[1]
    )
    with pytest.raises(InputError, match="array changed while"):
        fit(data, tmp_path / "out", **OPTIONS)


class Silent(http.server.SimpleHTTPRequestHandler):
    """Serves files, lists none, and says of a file what `headers` has."""

    headers_left_out: tuple[str, ...] = ()

    def list_directory(self, path):
        self.send_error(404)

    def send_header(self, keyword, value):
        if keyword not in self.headers_left_out:
            super().send_header(keyword, value)

    def log_message(self, *_):
        pass


@pytest.fixture(params=[(), ("Last-Modified",)], ids=["with times", "without times"])
def served(request, tmp_path):
    """The address of a folder on a server that does not list."""
    kind = type("Handler", (Silent,), {"headers_left_out": request.param})
    handler = functools.partial(kind, directory=str(tmp_path / "served"))
    (tmp_path / "served").mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_that_does_not_list(tmp_path, served, known):
    write(tmp_path / "served" / "x.zarr", OLD)
    url = f"{served}/x.zarr"
    first = identity_of(url)
    assert identity_of(url) == first
    run = fit(url, tmp_path / "out", **OPTIONS)
    np.testing.assert_array_equal(run.labels[...], known["old"]["fit"])
    assert fit(url, tmp_path / "out", **OPTIONS).id == run.id
    predicted = predict(known["fitted"], url, tmp_path / "p", n_workers=0)
    np.testing.assert_array_equal(predicted.labels[...], known["old"]["predict"])
    for path in write(tmp_path / "served" / "x.zarr", NEW).rglob("*"):
        os.utime(path, (1, 1))  # the server's times are whole seconds
    assert identity_of(url) != first
    with pytest.raises(InputError, match="has changed since the run"):
        fit(url, tmp_path / "out", **OPTIONS)
    predicted = predict(known["fitted"], url, tmp_path / "p", n_workers=0)
    np.testing.assert_array_equal(predicted.labels[...], known["new"]["predict"])


@pytest.mark.parametrize("damage", ["damaged", "missing"])
def test_what_remembers_a_source_is_not_made_again(tmp_path, damage):
    source, out = write(tmp_path / "x.zarr", OLD), tmp_path / "out"
    fit(source, out, **OPTIONS)
    if damage == "missing":
        (out / OWNER).unlink()
    else:
        (out / OWNER).write_text((out / OWNER).read_text().replace('"sources"', '"sauces"'))
    write(source, NEW)
    before = sorted(out.rglob("*"))
    for _ in range(2):
        with pytest.raises((DamagedError, InputError), match=OWNER):
            fit(source, out, **OPTIONS)
    assert sorted(out.rglob("*")) == before


@pytest.mark.parametrize("linked", ["chunk", "folder"])
def test_chunks_that_are_links(tmp_path, known, linked):
    source = write(tmp_path / "x.zarr", OLD)
    there = source / "c" if linked == "folder" else source / "c" / "0" / "0"
    shutil.move(there, tmp_path / "there")
    there.symlink_to(tmp_path / "there")
    fit(source, tmp_path / "out", **OPTIONS)
    other = write(tmp_path / "y.zarr", NEW) / there.relative_to(source)
    for path in [other] if other.is_file() else other.rglob("*/*"):
        if path.is_file():
            shutil.copyfile(path, there / path.relative_to(other) if there.is_dir() else there)
    with pytest.raises(InputError, match="has changed since"):
        fit(source, tmp_path / "out", **OPTIONS)


@pytest.mark.parametrize(
    "mark", ["null", "{}", "[1]", '{"my": "settings"}', '{"sources": {"a": 3}}']
)
def test_a_mark_that_is_not_ours_is_damage(tmp_path, mark):
    (tmp_path / OWNER).write_text(mark)
    for call in (
        lambda: fit(OLD, tmp_path, **OPTIONS),
        lambda: spore_dask.remove_run(tmp_path),
        lambda: spore_dask.hold(tmp_path).__enter__(),
    ):
        with pytest.raises(DamagedError, match="not the mark"):
            call()
    assert [path.name for path in tmp_path.iterdir()] == [OWNER]
    assert (tmp_path / OWNER).read_text() == mark


def test_a_graph_of_another_array_with_the_same_times_is_refused(tmp_path):
    for name, data in (("a", OLD), ("b", NEW)):
        array = zarr.create_array(
            str(tmp_path / name),
            shape=data.shape,
            dtype=data.dtype,
            chunks=data.shape,
            compressors=None,
        )
        array[...] = data
        for path in (tmp_path / name).rglob("*"):
            os.utime(path, (1, 1))
    graph = build_graph(tmp_path / "a", tmp_path / "graph", 40, n_workers=0)
    with pytest.raises(InputError, match="build the graph of this source"):
        fit(tmp_path / "b", tmp_path / "out", graph=graph, **OPTIONS)
