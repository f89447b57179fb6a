"""Choices on excerpts of large data: what is in them, which of them is used, and what repeats."""

import subprocess
import sys

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from pipelines.scale.generating import generated
from spore_dask import (
    SPORE,
    InputError,
    LimitError,
    Params,
    build_graph,
    fit,
    memory,
    open_run,
    report,
    stages,
    tune,
)
from spore_dask.choosing import Choice, similarity
from spore_dask.engine import Engine
from spore_dask.excerpts import (
    DENSE,
    N_PLACES,
    READ,
    THIN,
    Asked,
    Excerpt,
    ExcerptSpec,
    _gather,
    at_share,
    best_excerpt,
    try_on_excerpts,
)
from spore_dask.memory import shape_of
from spore_dask.runs import run_ids
from spore_dask.spaces import find_trials
from spore_dask.stages.scan import ScanSpec, scan
from spore_dask.store import Folder, open_source
from spore_dask.trials import read_labels
from tests import naive
from tests.test_fit import write_zarr

SIZE = 1200


@pytest.fixture(autouse=True)
def small_excerpts(monkeypatch):
    monkeypatch.setattr(memory, "EXCERPT_POINTS", SIZE)


def shapes(n_points=6000, n_columns=2):
    return generated("shapes", n_columns, n_points).rows(0, n_points)


def tails(n_points=6000):
    return generated("tails", 2, n_points).rows(0, n_points)


def read(folder, x, chunk_rows, rows_per_task, size):
    """Take the excerpts of an array; return what is in them."""
    source = open_source(write_zarr(folder / "x.zarr", x, chunk_rows))
    engine, nbytes = Engine(), 1 << 30
    asked = ScanSpec(source, rows_per_task, 500, None, "euclidean", 42, nbytes)
    scanned = scan(engine, Folder.at(folder / "scan"), asked)
    space = {"z_percentile": [30, 60, 90]}
    trials = tuple(find_trials(space, len(x), 3, 42, {}))
    asked = Asked(len(x), size, trials, space, {}, n_compared=100, seed=42)
    folder, n_parts = Folder.at(folder / "excerpts"), len(scanned.ranges)
    spec = ExcerptSpec(asked, folder, source, scanned.transform, n_parts, nbytes, nbytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folder, "remove", lambda *_: None)
        found = try_on_excerpts(engine, spec, scanned)
    assert spec.folder.child(DENSE).child(READ).names()
    return spec, found, {name: _gather(spec, name) for name in (DENSE, THIN)}


class TestExcerpts:
    @given(data=st.data())
    @settings(max_examples=15)
    def test_have_the_points_that_they_should(self, tmp_path_factory, data):
        n_points = data.draw(st.integers(60, 400))
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        x = rng.integers(0, data.draw(st.sampled_from([3, 50, 10**6])), (n_points, 2))
        x = x.astype(np.float32)
        size = data.draw(st.integers(4 * N_PLACES, n_points - 1))
        rows = data.draw(st.integers(20, n_points))
        spec, _, found = read(tmp_path_factory.mktemp("x"), x, 16, rows, size)
        receipts = spec.folder.child("receipts-places")
        centres = [receipts.read_json(f"{i}.json")["point"] for i in range(N_PLACES)]
        near = naive.near_places(x, centres, size // N_PLACES)
        for name, wanted in ((DENSE, near), (THIN, spec.asked.thin_rows().tolist())):
            taken, points = found[name]
            assert taken.tolist() == wanted
            np.testing.assert_array_equal(points, x[wanted])

    def test_have_the_labels_of_the_plain_algorithm(self, tmp_path):
        x, _ = shapes(700)
        spec, found, taken = read(tmp_path, x, 100, 300, 240)
        for name, share in ((DENSE, 1.0), (THIN, len(taken[THIN][0]) / len(x))):
            rows, points = taken[name]
            places = np.searchsorted(rows, found[name].rows)
            np.testing.assert_array_equal(rows[places], found[name].rows)
            for trial, labels in zip(spec.asked.trials, found[name].labels, strict=True):
                counts = trial.params.resolve(len(x))
                size = counts.min_cluster_size
                expected = naive.cluster(
                    points,
                    min_cluster_size=max(min(size, 2), round(size * share)),
                    density_neighbors=counts.density_neighbors,
                    expansion_neighbors=counts.expansion_neighbors,
                    reassignment_neighbors=counts.reassignment_neighbors,
                    z_percentile=trial.params.z_percentile,
                )
                np.testing.assert_array_equal(labels, expected[places])

    def test_do_not_depend_on_chunks_partitions_or_workers(self, tmp_path):
        x, _ = shapes()
        plain = fit(x, tmp_path / "a", n_workers=0)
        source = write_zarr(tmp_path / "x.zarr", x, 701)
        found = fit(source, n_workers=2, n_partitions=3)
        assert plain.choice["excerpt"][1] < len(x)
        for name in ("params", "score", "levels", "excerpt"):
            assert plain.choice[name] == found.choice[name]
        np.testing.assert_array_equal(plain.labels[...], found.labels[...])

    def test_are_the_same_in_memory(self, tmp_path):
        x, _ = shapes()
        for options in ({}, {"scale": "standard"}, {"metric": "cosine"}):
            inside = SPORE(**options).fit(x + 1)
            run = fit(x + 1, n_workers=0, **options)
            assert inside.choice_ == {k: v for k, v in run.choice.items() if k != "tuning"}
            np.testing.assert_array_equal(inside.labels_, run.labels[...])

    def test_are_of_scaled_points(self, tmp_path):
        x, _ = shapes()
        x[:, 1] *= 1e4
        wanted = fit(x, tmp_path / "a", scale="standard", n_workers=0)
        by_hand = (x - x.mean(axis=0, dtype="f8")) / x.std(axis=0, dtype="f8")
        found = fit(by_hand.astype("f4"), tmp_path / "b", n_workers=0)
        assert found.choice["params"] == wanted.choice["params"]


def test_a_share_of_a_cluster_is_as_large_as_that():
    params = Params(min_cluster_size=400, z_percentile=80)
    there = at_share(params, 10**6, 0.1)
    whole, part = params.resolve(10**6), there.resolve(10**5)
    assert part.min_cluster_size == 40
    for name in ("density_neighbors", "expansion_neighbors", "reassignment_neighbors"):
        assert getattr(part, name) == min(getattr(whole, name), 10**5 - 1)
    assert at_share(params, 10**6, 1e-6).min_cluster_size == 2
    assert at_share(Params(min_cluster_size=1), 10**6, 1e-6).min_cluster_size == 1


def excerpt(name, scores, large):
    choice = Choice(0, np.array(scores), ())
    rows = np.zeros(1, np.int64)
    return Excerpt(name, 10, choice, [], large, rows, np.zeros((1, 1), np.int32), rows)


@pytest.mark.parametrize(
    ("scores", "large", "wanted"),
    [
        ([0.5], 0.95, THIN),
        ([0.5], 0.6, DENSE),
        ([-np.inf], 0.6, THIN),
    ],
    ids=["large clusters", "small clusters", "nothing near the places"],
)
def test_the_excerpt_that_shows_the_clusters_is_used(scores, large, wanted):
    excerpts = {DENSE: excerpt(DENSE, scores, large), THIN: excerpt(THIN, [0.1], 1.0)}
    assert best_excerpt(excerpts).name == wanted


def test_small_clusters_are_found_by_the_dense_excerpt(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "EXCERPT_POINTS", 12_000)
    x, y = tails(60_000)
    run = fit(x, tmp_path / "tails", n_workers=0)
    inside = y >= 0
    assert run.choice["excerpt"][0] == DENSE
    assert adjusted_rand_score(y[inside], run.labels[...][inside]) > 0.95
    x, y = shapes(60_000)
    run = fit(x, tmp_path / "shapes", n_workers=0)
    inside = y >= 0
    assert run.choice["excerpt"][0] == THIN
    assert adjusted_rand_score(y[inside], run.labels[...][inside]) > 0.95


def test_known_labels_choose_by_both_excerpts(tmp_path):
    x, y = shapes()
    found = tune(x, tmp_path / "out", y=y, n_workers=0)
    aris = []
    for name in (DENSE, THIN):
        folder = Folder(found.path).child(found.name).child(name)
        rows = folder.read_array("rows")
        labels = read_labels(folder, len(found.trials), len(rows))
        aris.append([adjusted_rand_score(y[rows], each) for each in labels])
    np.testing.assert_allclose(found.trials["ari"], np.mean(aris, axis=0))
    assert found.best == np.argmax(np.mean(aris, axis=0))


def test_a_choice_that_was_stopped_goes_on(tmp_path, monkeypatch):
    x, _ = shapes()
    source = write_zarr(tmp_path / "x.zarr", x, 1000)
    whole = fit(source, tmp_path / "whole", n_workers=0)
    with monkeypatch.context() as patch:
        patch.setattr("spore_dask.fitting.publish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit(source, n_workers=0)
    events = []
    found = fit(source, n_workers=0, progress=events.append)
    done = {event.stage for event in events if event.kind == "task-done"}
    assert not done & {"scan", "excerpts", "trials", "neighbors"}
    assert found.choice["params"] == whole.choice["params"]
    np.testing.assert_array_equal(found.labels[...], whole.labels[...])
    again = fit(source, n_workers=0, resume=False)
    np.testing.assert_array_equal(again.labels[...], whole.labels[...])


def test_a_source_that_is_replaced_while_excerpts_are_taken(tmp_path):
    old = shapes()[0]
    source = write_zarr(tmp_path / "x.zarr", old, 1000)
    for stage in ("places", "excerpts", "trials"):
        zarr.open_array(source)[...] = old

        def replace(event, stage=stage):
            if event.stage == stage and event.kind == "stage-start":
                zarr.open_array(source)[...] = old[::-1]

        with pytest.raises(InputError):
            fit(source, tmp_path / stage, n_workers=0, progress=replace)
        assert not (tmp_path / stage / "run.json").exists()


def test_the_one_call_that_repeats_a_choice_finds_it_done(tmp_path):
    x, _ = shapes()
    source = write_zarr(tmp_path / "x.zarr", x, 1000)
    run = fit(source, n_workers=0)
    given = {name: value for name, value in run.choice["params"].items() if value is not None}
    events = []
    assert fit(source, params="paper", n_workers=0, progress=events.append, **given).id == run.id
    assert not [event for event in events if event.kind == "task-done"]


def test_the_report_shows_the_levels_of_an_excerpt(tmp_path):
    x, _ = shapes()
    run = fit(write_zarr(tmp_path / "x.zarr", x, 1000), n_workers=0)
    report(run, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert f"excerpt of {run.choice['excerpt'][1]:,} points" in page
    assert page.count("data:image/png;base64,") >= len(run.choice["levels"])


def test_a_limit_without_room_for_a_choice_is_refused(tmp_path):
    x, _ = shapes(2000, 8)
    needed = memory.excerpt_nbytes(shape_of(len(x), 8, 4, 30))
    with pytest.raises(LimitError, match=r'choosing parameters needs .* give params="paper"'):
        fit(x, tmp_path / "out", n_workers=0, memory_limit=needed - 1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("n_columns", [2, 64])
def test_peak_memory_is_as_projected(n_columns):
    code = f"""
from pipelines.scale.generating import generated
from spore_dask.engine import peak_nbytes
from spore_dask import memory
from spore_dask.excerpts import Asked, try_on
from spore_dask.spaces import find_trials
from spore_dask.threads import one_thread

trials = tuple(find_trials(None, 10**6, 31, 42, {{}}))
k = max(trial.params.resolve(10**6).k for trial in trials)
shape = memory.shape_of(10**6, {n_columns}, 4, k)
size = memory.excerpt_points(shape)
x, _ = generated("shapes", {n_columns}, 10**6).rows(0, size)
with one_thread():
    try_on("thin", x, Asked(10**6, size, trials, None, {{}}, 20_000, 42))
print(size, peak_nbytes(), memory.excerpt_nbytes(shape))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    size, peak, projected = map(int, done.stdout.split())
    assert size == 1 << 17
    assert peak <= projected


class TestFinalists:
    """Trials that are run on all points, where an excerpt is a small part of the data."""

    @pytest.fixture(autouse=True)
    def much_data(self, monkeypatch):
        monkeypatch.setattr("spore_dask.excerpts.FINAL_RATIO", 2)
        monkeypatch.setattr("spore_dask.excerpts.FINAL_SCORE", 0.5)

    def test_agree_most_with_the_trials_of_the_excerpt(self, tmp_path):
        x, _ = shapes()
        found = tune(x, tmp_path / "out", n_workers=0)
        compared = find_trials(None, len(x), 31, 42, {})
        excerpt = Folder(found.path).child(found.name).child(found.run.choice["excerpt"][0])
        rows = excerpt.read_array("rows")
        voters = read_labels(excerpt, len(compared), len(rows))
        weights = np.array([trial.weight for trial in compared])
        agreement = {}
        for id in run_ids(Folder(found.path)):
            run = open_run(found.path, id)
            asked = {name: run.summary["asked"][name] for name in found.best_params}
            number = found.summary["params"].index(asked)
            alike = similarity(run.labels[...][rows][None], voters)[0] ** 1.5
            agreement[number] = (alike @ weights) * compared[number].factor
        assert len(agreement) > 1
        assert found.best == max(agreement, key=agreement.get)
        assert open_run(found.path).id == found.run.id

    def test_go_on_after_a_stop(self, tmp_path, monkeypatch):
        x, _ = shapes()
        source = write_zarr(tmp_path / "x.zarr", x, 1000)
        whole = fit(source, tmp_path / "whole", n_workers=0, keep="labels")
        assert not list((tmp_path / "whole").glob("graph-*"))
        calls = []

        def publish(*arguments):
            calls.append(1)
            return 1 / 0 if len(calls) == 2 else real(*arguments)

        real = stages.publish.publish
        with monkeypatch.context() as patch:
            patch.setattr("spore_dask.fitting.publish", publish)
            with pytest.raises(ZeroDivisionError):
                fit(source, n_workers=0)
        for options in ({}, {}, {"resume": False}):
            found = fit(source, n_workers=0, **options)
            assert found.choice["params"] == whole.choice["params"]
            np.testing.assert_array_equal(found.labels[...], whole.labels[...])

    def test_are_not_run_for_a_level_or_known_labels(self, tmp_path):
        x, y = shapes()
        for options in ({"detail": "coarse"}, {"y": y}):
            found = tune(x, tmp_path / next(iter(options)), n_workers=0, **options)
            assert len(run_ids(Folder(found.path))) == 1

    def test_are_those_of_other_sources_too(self, tmp_path):
        x, _ = shapes()
        wanted = fit(x, tmp_path / "array", n_workers=0).labels[...]
        calls = []

        def count(block):
            calls.append(len(block))
            return block

        lazy = da.from_array(x, chunks=(len(x), 2)).map_blocks(count, meta=x[:0])
        found = fit(lazy, tmp_path / "dask", n_workers=0)
        np.testing.assert_array_equal(found.labels[...], wanted)
        assert calls == [len(x)]
        graph = build_graph(x, tmp_path / "graph", 100, n_workers=0)
        found = fit(x, tmp_path / "given", graph=graph, n_workers=0)
        np.testing.assert_array_equal(found.labels[...], wanted)
        np.testing.assert_array_equal(SPORE().fit(x).labels_, wanted)
        whole = (1000 * x).astype(np.int64)
        found = fit(whole, tmp_path / "integers", n_workers=0)
        np.testing.assert_array_equal(SPORE().fit(whole).labels_, found.labels[...])

    def test_are_forgotten_where_nothing_is_resumed(self, tmp_path):
        x, _ = shapes()
        source, events = write_zarr(tmp_path / "x.zarr", x, 1000), []
        first = fit(source, n_workers=0)
        again = fit(source, n_workers=0, resume=False, progress=events.append)
        np.testing.assert_array_equal(again.labels[...], first.labels[...])
        ended = [event.stage for event in events if event.kind == "stage-end"]
        assert ended.count("neighbors") == ended.count("excerpts") == 1
        assert set(run_ids(Folder(again.path))) >= {first.id}
