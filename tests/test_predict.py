"""`predict` against the plain vote: chunks, workers, kinds of search, bad input, what is left."""

import functools
import gc
import os
import pickle
import shutil
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

from spore_dask import (
    InputError,
    ParameterError,
    Prediction,
    build_graph,
    clean,
    memory,
    open_run,
    predict,
)
from spore_dask.approximate import search_sample, split_points
from spore_dask.datasets import blobs_and_shapes
from spore_dask.exact import Others, blocks, build_cells
from spore_dask.graph import Graph
from spore_dask.meeting import (
    Aim,
    choose_aim,
    in_blocks,
    meet_by_cells,
    meet_by_probes,
    meet_by_products,
    passes,
)
from spore_dask.stages import approximate
from tests import naive
from tests.paper import SPORE, fit
from tests.strategies import configs, point_sets
from tests.test_fit import write_zarr

HERE = {"n_workers": 0}


@functools.cache
def town(n_points=6000, n_columns=2):
    """Points of varied density, with one large and many small groups of copies, and new ones."""
    x, _ = blobs_and_shapes(2 * n_points, n_columns, seed=3, dtype=np.float32)
    rng = np.random.default_rng(4)
    x[rng.random(len(x)) < 0.05] = x[17]
    x[: n_points // 2 : 40] = x[rng.integers(0, 400, len(x[: n_points // 2 : 40]))]
    order = rng.permutation(len(x))
    return x[order[:n_points]], x[order[n_points:]]


@functools.cache
def town_run():
    """A fit of the town, whose folder goes with it."""
    return fit(town()[0], n_partitions=5, **HERE)


@functools.cache
def town_votes():
    return votes_of(town_run(), town()[0], town()[1])


def votes_of(run, points, new):
    """Return what the points of a run vote for, plainly, given its labels."""
    max_z, k = run.thresholds.max_z, run.summary["params"]["reassignment_neighbors"]
    stats = [(float(c["mean"]), max_z * float(c["std"])) for c in run.clusters]
    return naive.predict_points(points, np.asarray(run.labels[...]), stats, new, k)


def assert_votes(prediction, votes):
    labels, shares = prediction.labels[...], prediction.confidence[...]
    assert (labels.dtype, shares.dtype) == (np.int32, np.float32)
    np.testing.assert_array_equal(labels, votes[0])
    np.testing.assert_array_equal(shares, votes[1])


def stage_ends(events):
    return [event.stage for event in events if event.kind == "stage-end" and event.n_done]


@st.composite
def new_points(draw, x):
    """Draw copies of points, points between two, and points around or outside of all."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    first, second = (x[rng.integers(0, len(x), draw(st.integers(1, 20)))] for _ in range(2))
    n_between = min(len(first), len(second))
    between = (first[:n_between] + second[:n_between]) / 2
    new = np.concatenate([first, between, second * 1.5])
    return new[rng.permutation(len(new))].astype(x.dtype) + 0.0


class TestVotes:
    @given(
        x=point_sets(),
        config=configs(),
        data=st.data(),
        scale=st.sampled_from([None, None, "clip-minmax", "standard"]),
        metric=st.sampled_from(["euclidean", "euclidean", "cosine"]),
    )
    @settings(max_examples=30)
    def test_equal_the_plain_vote(self, tmp_path_factory, x, config, data, scale, metric):
        new, options = data.draw(new_points(x)), {"scale": scale, "metric": metric}
        try:
            expected = naive.predict(x, new, **options, **config)
        except ValueError:  # a zero vector
            assume(False)
        folder = tmp_path_factory.mktemp("predict")
        n_partitions = data.draw(st.integers(1, min(6, len(x))))
        asked = {**options, **config, "knn": "exact"}
        run = fit(x, folder / "out", n_partitions=n_partitions, **asked, **HERE)
        source = write_zarr(folder / "new.zarr", new, data.draw(st.integers(1, len(new))))
        assert_votes(predict(run, source, **HERE), expected)
        model = SPORE(**asked).fit(x)
        np.testing.assert_array_equal(model.predict(new), expected[0])
        np.testing.assert_array_equal(model.predict(x), predict(run, x, **HERE).labels[...])

    @pytest.mark.parametrize(
        ("dtype", "new_dtype"),
        [("i2", "i8"), ("i8", "f4"), ("f4", "f8"), ("f2", "?"), ("f8", "f4"), ("u1", ">f4")],
    )
    def test_have_the_dtype_of_the_run(self, dtype, new_dtype):
        rng = np.random.default_rng(0)
        x = rng.integers(0, 9, (90, 2)).astype(dtype)
        x[:45] += 2**26 if dtype == "i8" else 20
        new = np.concatenate([x, x.astype("f8") * 1.1]).astype(new_dtype)
        run, model = fit(x, **HERE), SPORE().fit(x)
        expected = naive.predict(x, new)
        assert_votes(predict(run, new, **HERE), expected)
        np.testing.assert_array_equal(model.predict(new), expected[0])

    def test_equal_the_plain_vote_on_many_points(self, tmp_path):
        for chunk_rows in (6000, 700, 11):
            source = write_zarr(tmp_path / f"{chunk_rows}.zarr", town()[1], chunk_rows)
            assert_votes(predict(town_run(), source, **HERE), town_votes())
        assert len(set(town_votes()[0])) > 3
        np.testing.assert_array_equal(SPORE().fit(town()[0]).predict(town()[1]), town_votes()[0])

    def test_do_not_depend_on_workers_and_need_what_was_projected(self, tmp_path):
        limit = 1 << 30
        prediction = predict(town_run(), town()[1], memory_limit=limit, n_workers=2)
        assert_votes(prediction, town_votes())
        needs, peaks = prediction.summary["needs_nbytes"], prediction.summary["peak_nbytes"]
        assert len(peaks) == 3
        workers = [n for name, n in peaks.items() if not name.endswith(f":{os.getpid()}")]
        assert 0 < max(workers) <= max(needs.values()) <= prediction.summary["memory_limit"]
        assert needs["predict"] + prediction.summary["cache_nbytes"] <= limit

    def test_do_not_depend_on_partitions(self, tmp_path, monkeypatch):
        monkeypatch.setattr(memory, "LEAST_POINTS", 100)
        monkeypatch.setattr(memory, "LEAST_PARTITIONS", 60)
        run = fit(town()[0], n_partitions=40, **HERE)
        events = []
        assert_votes(predict(run, town()[1], progress=events.append, **HERE), town_votes())
        assert max(event.n_done for event in events if event.stage == "vote") >= 40

    def test_of_fitted_points_are_their_labels(self):
        x = np.unique(town()[0], axis=0)
        crowd = x[0]
        x = np.random.default_rng(0).permutation(np.vstack([x, np.tile(crowd, (500, 1))]))
        for config in ({}, {"post_reassignment_policy": "none"}, {"min_cluster_size": 1}):
            run = fit(x, **config, **HERE)
            prediction = predict(run, x, **HERE)
            labels = np.asarray(run.labels[...])
            copies = (x == crowd).all(axis=1)
            labels[copies] = labels[copies][0]
            np.testing.assert_array_equal(prediction.labels[...], labels)
            assert (prediction.confidence[...] == 1).all()
            assert prediction.summary["n_left"] == (labels < 0).sum()

    def test_of_a_run_without_spread_or_without_clusters(self):
        same = fit(np.ones((300, 2)), **HERE)
        new = np.array([[1.0, 1.0], [1.0, 2.0]])
        assert_votes(predict(same, new, **HERE), ([0, -1], [1, 0]))
        np.testing.assert_array_equal(SPORE().fit(np.ones((300, 2))).predict(new), [0, -1])
        x = town()[0][:30]
        config = {"min_cluster_size": 100, "max_scr_rounds": 0}
        noise = fit(x, **config, **HERE)
        assert noise.n_clusters == 0
        expected = np.full(31, -1), np.append(np.ones(30), 0)
        assert_votes(predict(noise, np.vstack([x, x[:1] + 1]), **HERE), expected)

    def test_with_an_earlier_graph(self, tmp_path):
        graph = build_graph(town()[0], tmp_path / "graph", 60, scale="standard", **HERE)
        run = fit(town()[0], tmp_path / "out", graph=graph, scale="standard", **HERE)
        expected = fit(town()[0], tmp_path / "own", scale="standard", **HERE)
        assert_votes(
            predict(run, town()[1], **HERE),
            [
                getattr(predict(expected, town()[1], **HERE), n)[...]
                for n in ("labels", "confidence")
            ],
        )


class TestManyDimensions:
    def data(self, dtype=np.float32):
        rng = np.random.default_rng(0)
        centers = rng.normal(scale=0.5, size=(6, 40))
        x = (centers[rng.integers(6, size=6600)] + rng.normal(size=(6600, 40))).astype(dtype)
        x[1000:1300] = x[5]
        x[2000:2400] = x[1400:1800]
        return x[:6000], np.concatenate([x[6000:], x[5:6], x[1400:1500]])

    def test_products_with_all(self, monkeypatch):
        monkeypatch.setattr("spore_dask.pilot.cells_beat_products", lambda *_: False)
        x, new = self.data()
        run = fit(x, knn="exact", n_partitions=3, **HERE)
        assert Graph(*run.graph).summary["search"] == "products with all points"
        votes = votes_of(run, x, new)
        assert_votes(predict(run, new, **HERE), votes)
        model = SPORE(knn="exact").fit(x)
        np.testing.assert_array_equal(model.predict(new), votes[0])

    @pytest.mark.parametrize("knn_index", ["cells", "pynndescent"])
    def test_probes(self, tmp_path, monkeypatch, knn_index):
        monkeypatch.setattr("spore_dask.meeting.FEW_CELLS", 10)
        if knn_index == "pynndescent":  # which takes a minute to compile
            monkeypatch.setattr("spore_dask.stages.approximate._descend", approximate._probe)
        x, new = self.data()
        options = {"knn": "approximate", "knn_index": knn_index, "max_connectivity": 20}
        run = fit(x, n_partitions=5, retention_rate=0.2, **options, **HERE)
        assert Graph(*run.graph).recall.certified == 0
        labels, shares = votes_of(run, x, new)
        predictions = [
            predict(run, source, **HERE)
            for source in (new, write_zarr(tmp_path / "new.zarr", new, 17), new[::-1], new[:3])
        ]
        first = predictions[0]
        assert first.summary["recall"]["sampled"] >= min(0.95, Graph(*run.graph).recall.sampled)
        assert (first.labels[...] == labels).mean() > 0.97
        assert abs(first.confidence[...] - shares).mean() < 0.02
        assert (first.confidence[-101:] == 1).all()
        orders = slice(None), slice(None, None, -1), slice(3)
        for again, order in zip(predictions[1:], orders, strict=True):
            assert_votes(again, (first.labels[...][order], first.confidence[...][order]))
        own = np.asarray(run.labels[...])
        own[1000:1300], own[2000:2400] = own[5], own[1400:1800]
        np.testing.assert_array_equal(predict(run, x, **HERE).labels[...], own)
        (tree,) = Path(run.path).glob("points-*/tree")
        shutil.rmtree(tree)
        with pytest.raises(InputError, match="before predictions were possible"):
            predict(run, new, **HERE)

    def test_probes_in_memory(self):
        x, new = self.data(np.float64)
        model = SPORE(knn="approximate", max_connectivity=20, retention_rate=0.2).fit(x)
        assert not model.exact_
        own = model.labels_.copy()
        own[1000:1300], own[2000:2400] = own[5], own[1400:1800]
        np.testing.assert_array_equal(model.predict(x), own)
        max_z = model.thresholds_.max_z
        stats = [(float(c["mean"]), max_z * float(c["std"])) for c in model.clusters_]
        labels, _ = naive.predict_points(x, model.labels_, stats, new, 20)
        assert (model.predict(new) == labels).mean() > 0.97
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict(new[:50]), model.predict(new)[:50])


class TestMeeting:
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("kind", ["normal", "far", "grid", "tiny"])
    def test_finds_the_nearest(self, dtype, kind):
        rng = np.random.default_rng(1)
        points, queries = rng.normal(size=(1500, 9)), rng.normal(size=(300, 9))
        if kind == "grid":
            points, queries = points.round(), queries.round()
        scale, shift = {"far": (1, 1000), "tiny": (1e-15, 0)}.get(kind, (1, 0))
        points, queries = ((a * scale + shift).astype(dtype) for a in (points, queries))
        expected = brute_force(points, queries, 12)
        rows = np.arange(len(points), dtype=np.uint32)
        parts = [
            (in_blocks(0, points[:700]), rows[:700]),
            (in_blocks(700, points[700:]), rows[700:]),
        ]
        found = meet_by_products(queries, parts, len(points), 12)
        for array, true in zip(found, expected, strict=True):
            np.testing.assert_array_equal(array[:, 1:], true)
        cells, own = build_cells(points, rows), build_cells(queries, rows[: len(queries)])
        fitted = Others(cells.low[:1], cells.high[:1], np.zeros(1, int), lambda _: cells)
        for block in blocks(own, 12):
            found = meet_by_cells(own, block, fitted, len(points), 12)
            here = own.rows[block.first : block.last]
            np.testing.assert_array_equal(cells.rows[found.neighbors[:, 1:]], expected[0][here])
            np.testing.assert_array_equal(found.distances[:, 1:], expected[1][here])

    @pytest.mark.parametrize("n_near", [2, 4])
    def test_probes_are_the_nearest_cells(self, n_near):
        rng = np.random.default_rng(2)
        points, queries = (rng.normal(size=(n, 20)).astype(np.float32) for n in (3000, 60))
        index = split_points(points, 4, seed=0)
        truth = search_sample(index, 10, 100, seed=0)
        aim, recall = choose_aim(index, truth.sample, truth.lists.numbers, 0.9)
        assert recall.sampled >= 0.9
        aim = Aim(n_near, 5, aim.centres)
        found = meet_by_probes(queries, index, 10, aim)
        for query, numbers, distances in zip(queries, *found, strict=True):
            near = nearest(aim.centres, query, n_near)
            centers = np.concatenate([index.centers(p) for p in near])
            cells = np.concatenate([index.firsts[p] + index.starts(p)[:-1] for p in near])
            ends = np.concatenate([index.firsts[p] + index.starts(p)[1:] for p in near])
            chosen = nearest(centers, query, 5)
            own = np.concatenate([np.arange(cells[c], ends[c]) for c in chosen])
            rows = np.concatenate(index.input_rows)[own]
            every = naive.distances_from(np.vstack([query, points[rows]]), 0)[1:]
            order = np.lexsort((rows, every))[:10]
            np.testing.assert_array_equal(numbers[1:], own[order])
            np.testing.assert_array_equal(distances[1:], every[order])

    def test_passes_cover_the_queries(self):
        for n, k in ((1, 1), (10_000, 3), (10_000, 10_000)):
            which = [i for part in passes(n, k, 8) for i in range(part.start, part.stop)]
            assert which == list(range(n))


def brute_force(points, queries, k):
    every = np.stack([naive.distances_from(np.vstack([q, points]), 0)[1:] for q in queries])
    order = np.argsort(every, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(every, order, axis=1)


def nearest(points, query, k):
    return np.argsort(naive.distances_from(np.vstack([query, points]), 0)[1:], kind="stable")[:k]


class TestSources:
    def test_data_in_memory_has_a_folder_that_goes_with_the_prediction(self):
        prediction = predict(town_run(), town()[1][:100], **HERE)
        path, labels = Path(prediction.path), prediction.labels
        assert path.exists()
        del prediction
        gc.collect()
        np.testing.assert_array_equal(labels[...], town_votes()[0][:100])
        del labels
        gc.collect()
        assert not path.exists()

    def test_dask_arrays_groups_and_single_rows(self, tmp_path):
        new = town()[1][:1000]
        expected = [votes[:1000] for votes in town_votes()]
        assert_votes(predict(town_run(), da.from_array(new, chunks=(300, 2)), **HERE), expected)
        group = zarr.open_group(str(tmp_path / "new.zarr"), mode="w")
        group.create_array("a/b", shape=new.shape, dtype=new.dtype, chunks=(100, 2))[...] = new
        prediction = predict(town_run(), tmp_path / "new.zarr", component="a/b", **HERE)
        assert prediction.path == str(tmp_path / "new.predicted")
        assert_votes(prediction, expected)
        assert_votes(predict(town_run(), group["a/b"], **HERE), expected)
        one = predict(town_run().path, new[7:8], tmp_path / "one", **HERE)
        assert_votes(one, [votes[7:8] for votes in expected])
        assert "1 points" in repr(one)

    def test_predictions_of_other_runs_and_sources_stay(self, tmp_path):
        source = write_zarr(tmp_path / "new.zarr", town()[1])
        first = predict(town_run(), source, **HERE)
        other = fit(town()[0], tmp_path / "out", retention_rate=0.3, **HERE)
        second = predict(other, source, **HERE)
        assert first.path == second.path
        assert first.id != second.id
        assert_votes(second, votes_of(other, town()[0], town()[1]))
        assert_votes(Prediction(first.path, first.id), town_votes())
        assert Prediction(first.path).id == second.id
        events = []
        again = predict(town_run(), source, progress=events.append, **HERE)
        assert events == []
        assert again.id == first.id == Prediction(first.path).id
        zarr.open_array(source, mode="r+")[0] = 7
        changed = predict(town_run(), source, **HERE)
        assert changed.id != first.id
        assert changed.labels[0] == votes_of(town_run(), town()[0], np.full((1, 2), 7, "f4"))[0]

    @pytest.mark.parametrize("stage", ["exchange", "partition", "vote", "publish"])
    def test_what_was_begun_is_continued(self, tmp_path, stage):
        source = write_zarr(tmp_path / "new.zarr", town()[1], 500)

        def stop(event):
            if (event.stage, event.kind, event.n_done) == (stage, "task-done", 1):
                raise KeyboardInterrupt

        monkey = pytest.MonkeyPatch()
        with monkey.context() as patch:
            patch.setattr(memory, "LEAST_POINTS", 1000)
            with pytest.raises(KeyboardInterrupt):
                predict(town_run(), source, progress=stop, **HERE)
            with pytest.raises(InputError, match="no finished prediction"):
                Prediction(tmp_path / "new.predicted")
            events = []
            prediction = predict(town_run(), source, progress=events.append, **HERE)
        assert_votes(prediction, town_votes())
        before = ["scan", "exchange", "partition", "vote", "publish"]
        assert not set(stage_ends(events)) & set(before[: before.index(stage)])
        assert {path.name for path in Path(prediction.result.url).iterdir()} == {
            "labels",
            "confidence",
            "summary.json",
        }


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda new: new[:, :1], r"has 1 columns, but the run at .* was fitted on 2: give"),
            (lambda new: new[:0], "n_samples=0, but a prediction needs at least 1"),
            (lambda new: new[0], r"shape \(2,\)"),
            (lambda new: new.astype(complex), "complex"),
            (lambda new: np.where(new == new[7, 1], np.nan, new), "Row 7, column 1"),
            (lambda new: np.where(new == new[7, 1], 1e30, new), r"Column 1 .* has 1e\+30, but"),
            (lambda new: np.where(new == new[7, 1], 1e300, new), r"Column 1 .* has 1e\+300, but"),
        ],
    )
    def test_is_one_sentence_and_leaves_nothing(self, tmp_path, change, words):
        new = change(np.unique(town()[1], axis=0)[:500].astype(np.float64))
        for out in (tmp_path / "out", None):
            with pytest.raises(InputError, match=words) as error:
                predict(town_run(), new, out, **HERE)
            assert "\n" not in str(error.value)
        assert not list(tmp_path.iterdir())
        data = None if new.ndim != 2 or len(new) == 0 or new.dtype == complex else new
        if data is not None:
            with pytest.raises((InputError, ValueError)):
                SPORE().fit(town()[0]).predict(data)

    def test_zero_vectors_have_no_direction(self):
        x = town()[0][:500] + 100
        run = fit(x, metric="cosine", **HERE)
        with pytest.raises(InputError, match="Row 3 of the data is a zero vector"):
            predict(run, np.array([[1, 1], [1, 2], [3, 3], [0, 0]]), **HERE)

    def test_a_cleaned_run_is_refused(self, tmp_path):
        x, new = town()[0][:500], town()[1][:5]
        run = fit(x, tmp_path / "out", keep="labels", **HERE)
        words = "only its labels left, .* keep='predict' and resume=False"
        with pytest.raises(InputError, match=words):
            predict(run, new, **HERE)
        run = fit(x, tmp_path / "out", keep="predict", resume=False, **HERE)
        assert predict(run, new, **HERE).summary["n_points"] == 5
        clean(run, "labels")
        with pytest.raises(InputError, match=words):
            predict(open_run(run.path), new, **HERE)
        with pytest.raises(InputError, match="no finished run"):
            predict(tmp_path / "nothing", new, **HERE)

    def test_a_limit_that_is_too_small_is_refused(self, tmp_path):
        with pytest.raises(ParameterError, match=r"memory_limit is .* but a vote needs .* raise"):
            predict(town_run(), town()[1], tmp_path / "out", memory_limit="400MB", **HERE)
        with pytest.raises(ParameterError, match="memory_limit is 'much'"):
            predict(town_run(), town()[1], tmp_path / "out", memory_limit="much", **HERE)
        assert not list(tmp_path.iterdir())


class TestEstimator:
    def test_goes_the_way_of_the_fit(self, tmp_path):
        x, new = town()
        source = write_zarr(tmp_path / "new.zarr", new)
        model = SPORE(n_partitions=5, **HERE).fit(x)
        for each in (new, source, da.from_array(new, chunks=(999, 2))):
            labels = model.predict(each)
            assert isinstance(labels, np.ndarray)
            np.testing.assert_array_equal(labels, town_votes()[0])

    def test_needs_a_fit(self):
        with pytest.raises(NotFittedError):
            SPORE().predict(town()[1])

    def test_refuses_masked_data(self):
        with pytest.raises(InputError, match="1 masked"):
            SPORE().fit(town()[0][:100]).predict(np.ma.masked_equal(np.eye(2)[:1], 0))


def test_projections_grow_with_what_they_hold():
    fitted, new = memory.shape_of(10**7, 8, 4, 20), memory.shape_of(10**6, 8, 4, 20)
    needs = memory.predict_nbytes(fitted, new, 100)
    assert memory.predict_nbytes(fitted, new, 10**6) > needs
    assert memory.predict_nbytes(memory.shape_of(10**8, 8, 4, 20), new, 100) > needs
    assert memory.predict_nbytes(fitted, memory.shape_of(10**6, 8, 4, 20, 1), 100) > needs
    assert memory.scatter_nbytes(fitted) > memory.scatter_nbytes(new)
