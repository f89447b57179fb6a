"""`tune` against the plain algorithm: draws, trials in memory and out of core, choices, resumes."""

import functools
import gc
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import randint, uniform
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import ParameterSampler
from sklearn.utils import check_random_state

from spore_dask import (
    SPORE,
    Graph,
    InputError,
    ParameterError,
    Params,
    build_graph,
    fit,
    memory,
    open_run,
    open_tuning,
    trials,
    tune,
    verify,
)
from spore_dask.choosing import choose
from spore_dask.datasets import blobs_and_shapes
from spore_dask.judging import judge
from spore_dask.memory import shape_of
from spore_dask.spaces import draw_trials, find_space
from spore_dask.store import Folder
from spore_dask.voters import MOST_ROWS, voter_labels
from tests import naive
from tests.conftest import GOLDEN
from tests.strategies import PARAMETERS, point_sets
from tests.test_fit import write_zarr

DATA = GOLDEN.parent / "data"


@functools.cache
def town(n_points=3000):
    """Points of varied density, some of them copies, and where they come from."""
    x, y = blobs_and_shapes(n_points, 2, seed=5, dtype=np.float32)
    x[:: n_points // 50] = x[7]
    return x, y


def compared(found):
    """Return the labels of each trial that were compared."""
    folder = Folder(found.path).child(found.name)
    n_rows = found.summary["n_sampled"]
    return trials.read_labels(folder, len(found.trials), n_rows)


def stage_ends(events):
    return [event.stage for event in events if event.kind == "stage-end" and event.n_done]


def without_seconds(found):
    names = [name for name in found.trials.dtype.names if name != "seconds"]
    return json.dumps([found.trials[name].tolist() for name in names])


@pytest.fixture
def out_of_core(monkeypatch):
    monkeypatch.setattr(memory, "trial_nbytes", lambda shape: 10**18)


class TestDraws:
    def test_are_those_of_the_paper(self):
        n_points = 5000
        constants = {"n_jobs": [1], "seeding_order": ["density"], "exact_knn": [True]}
        space = {
            "z_percentile": uniform(12.5, 87.5),
            "retention_rate": uniform(0, 0.875),
            "min_cluster_size": uniform(0.3, 0.4),
            "expansion_neighbors": randint(12, 36),
        }
        sampler = ParameterSampler(
            space | constants, n_iter=50, random_state=check_random_state(42)
        )
        expected = [Params(**{name: draw[name] for name in space}) for draw in sampler]
        drawn = draw_trials(find_space(None, n_points, {}), 51, 42, {})
        assert drawn == [Params(), *expected]
        assert len(set(drawn)) == 51

    def test_leave_out_what_is_fixed(self):
        space = find_space(None, 1000, {"z_percentile": 20})
        assert set(space) == {"retention_rate", "min_cluster_size", "expansion_neighbors"}
        assert all(p.z_percentile == 20 for p in draw_trials(space, 4, 1, {"z_percentile": 20}))
        assert "z_percentile" not in find_space(None, 1000, {"z": 1.0})
        assert "retention_rate" not in find_space(None, 1000, {"min_retained": 3})
        given = {"z": [1.0, 2.0], "max_z": [3.0]}
        assert find_space(given, 1000, {"z": 1.5}) == {"max_z": [3.0]}

    def test_take_each_configuration_of_a_grid_once(self):
        drawn = draw_trials({"z": [1.0, 2.0], "min_retained": [1, 2]}, 30, 0, {})
        assert len(drawn) == 5
        assert len(set(drawn[1:])) == 4

    @pytest.mark.parametrize("n_points", [2, 3, 7])
    def test_of_few_points(self, n_points):
        for params in draw_trials(find_space(None, n_points, {}), 20, 3, {}):
            assert params.resolve(n_points).k < n_points


class TestTrials:
    @pytest.mark.parametrize("in_memory", [True, False])
    @given(points=point_sets(), data=st.data())
    @settings(max_examples=25)
    def test_equal_the_plain_algorithm(self, tmp_path_factory, in_memory, points, data):
        folder = tmp_path_factory.mktemp("tune")
        names = data.draw(st.lists(st.sampled_from(list(PARAMETERS)), min_size=1, unique=True))
        values = st.lists(st.integers(0, 3), min_size=1, max_size=3)
        space = {name: [data.draw(PARAMETERS[name]) for _ in data.draw(values)] for name in names}
        y = data.draw(st.lists(st.integers(0, 2), min_size=len(points), max_size=len(points)))
        with pytest.MonkeyPatch.context() as patch:
            if not in_memory:
                patch.setattr(memory, "trial_nbytes", lambda shape: 10**18)
            options = {"n_partitions": min(3, len(points)), "knn": "exact", "n_workers": 0}
            found = tune(points, folder / "out", y=y, n_trials=4, space=space, **options)
        for number, labels in enumerate(compared(found)):
            params = {name: found.summary["params"][number][name] for name in names}
            params = {name: value for name, value in params.items() if value is not None}
            expected = naive.cluster(points, **params)
            np.testing.assert_array_equal(labels, expected)
            assert found.trials["noise"][number] == (expected == -1).mean()
            assert found.trials["n_clusters"][number] == len(set(expected.tolist()) - {-1})
            assert found.trials["ari"][number] == pytest.approx(adjusted_rand_score(y, expected))
        np.testing.assert_array_equal(found.run.labels[...], compared(found)[found.best])
        assert found.best == np.argmax(found.trials["ari"])

    def test_in_memory_and_out_of_core_are_the_same(self, tmp_path, monkeypatch):
        x, _ = town()
        inside = tune(x, tmp_path / "a", n_trials=6, n_workers=0)
        monkeypatch.setattr(memory, "trial_nbytes", lambda shape: 10**18)
        beside = tune(x, tmp_path / "b", n_trials=6, n_workers=0, cache_limit=0)
        assert without_seconds(inside) == without_seconds(beside)
        assert not list(Path(beside.path).glob("tuning-*/trial-*"))
        assert not trials._held

    def test_do_not_depend_on_workers_or_chunks(self, tmp_path):
        x, _ = town()
        plain = tune(x, tmp_path / "a", n_trials=5, n_workers=0)
        source = write_zarr(tmp_path / "x.zarr", x, 701)
        found = tune(source, n_trials=5, n_workers=2, n_partitions=3)
        assert found.path == str(tmp_path / "x.spore")
        assert without_seconds(plain) == without_seconds(found)
        assert plain.best == found.best
        np.testing.assert_array_equal(plain.run.labels[...], found.run.labels[...])

    def test_compare_a_sample_of_rows(self, tmp_path):
        x, y = town()
        found = tune(x, tmp_path / "out", y=y, n_trials=3, sample=500, n_workers=0, seed=9)
        rows = np.sort(random.Random(9).sample(range(len(x)), 500))
        labels = SPORE(knn="exact").fit(x).labels_
        np.testing.assert_array_equal(compared(found)[0], labels[rows])
        assert found.trials["ari"][0] == pytest.approx(adjusted_rand_score(y[rows], labels[rows]))
        assert found.trials["noise"][0] == (labels == -1).mean()

    def test_of_points_that_are_all_the_same(self, tmp_path):
        for number in range(2):
            with pytest.warns(UserWarning, match="None of the 3 trials"):
                found = tune(np.ones((40, 2)), tmp_path / str(number), n_trials=3, n_workers=0)
            assert (found.run.labels[...] == 0).all()
            assert found.trials["n_clusters"].tolist() == [1, 1, 1]

    def test_with_an_approximate_graph(self, tmp_path):
        x = np.random.default_rng(0).random((6000, 40)).astype(np.float32)
        x[:300] += 3
        found = tune(x, tmp_path / "out", n_trials=3, knn="approximate", n_workers=0)
        np.testing.assert_array_equal(found.run.labels[...], compared(found)[found.best])
        assert Graph(*found.run.graph).recall.certified == 0


def test_half_a_removal_of_a_trial_is_no_result(tmp_path, monkeypatch):
    options = {"n_trials": 3, "n_workers": 0}
    expected = tune(town()[0], tmp_path / "whole", **options)
    monkeypatch.setattr(trials.TrialSpec, "fits_in_memory", False)

    def stop(folder, name=""):
        if "/trial-1/reassign" in folder.url and not name:
            raise KeyboardInterrupt
        return remove(folder, name)

    remove = Folder.remove
    monkeypatch.setattr(Folder, "remove", stop)
    with pytest.raises(KeyboardInterrupt):
        tune(town()[0], tmp_path / "out", **options)
    monkeypatch.setattr(Folder, "remove", remove)
    [half] = (tmp_path / "out").glob("tuning-*/trial-1/reassign-*/labels")
    shutil.rmtree(half)
    found = tune(town()[0], tmp_path / "out", **options)
    assert found.best == expected.best
    np.testing.assert_array_equal(compared(found), compared(expected))


def test_a_finished_tune_keeps_no_more_than_asked(tmp_path):
    options = {"n_trials": 3, "n_workers": 0}
    assert tune(town()[0], tmp_path / "out", **options).run.summary["keep"] == "predict"
    found = tune(town()[0], tmp_path / "out", keep="labels", **options)
    assert found.run.summary["keep"] == "labels"
    assert not list((tmp_path / "out").glob("graph-*"))


class TestChoice:
    def test_without_labels_is_that_of_choosing(self, tmp_path):
        found = tune(town()[0], tmp_path / "out", n_trials=8, n_workers=0)
        rates = np.nan_to_num(found.trials["retention_rate"])
        voters = draw_trials(find_space(None, 3000, {}), 51, 43, {})[1:]
        votes = voter_labels(town()[0], voters)
        shares = [params.retention_rate for params in voters]
        choice = choose(compared(found), rates, voters=votes, voter_retention=shares)
        assert found.best == choice.best
        finite = np.isfinite(choice.scores)
        np.testing.assert_array_equal(found.trials["agreement"][finite], choice.scores[finite])
        assert np.isnan(found.trials["agreement"][~finite]).all()
        assert np.isnan(found.trials["ari"]).all()
        assert found.curve["best"][-1] == found.best
        assert found.curve["score"][-1] == found.trials["agreement"][found.best]
        np.testing.assert_allclose(found.curve["seconds"], np.cumsum(found.trials["seconds"]))
        assert set(found.best_params) == set(find_space(None, 3000, {}))

    def test_votes_are_about_a_sample(self, tmp_path):
        x, _ = town(2 * MOST_ROWS + 10)
        found = tune(x, tmp_path / "out", n_trials=3, n_workers=2, n_partitions=5, sample=len(x))
        [votes] = (tmp_path / "out").glob("tuning-*/voters/votes.npy")
        rows = np.arange(0, len(x), 3)
        voters = draw_trials(find_space(None, len(rows), {}), 51, 43, {})[1:]
        written = Folder(str(votes.parent)).read_array("votes")
        np.testing.assert_array_equal(written, voter_labels(np.ascontiguousarray(x[rows]), voters))
        assert found.best == found.curve["best"][-1]

    def test_with_labels_climbs(self, tmp_path):
        x, y = town()
        names = np.array([f"cluster {label}" for label in y])
        write_zarr(tmp_path / "y.zarr", np.stack([y, y], 1))
        array = zarr.create_array(str(tmp_path / "y1.zarr"), shape=y.shape, dtype=y.dtype, chunks=7)
        array[...] = y
        options = {"n_trials": 6, "n_workers": 0, "sample": 900}
        first = tune(x, tmp_path / "out", y=y, **options)
        np.testing.assert_array_equal(
            first.curve["score"], np.maximum.accumulate(first.trials["ari"])
        )
        assert first.best == np.argmax(first.trials["ari"])
        events = []
        for again in (names, tmp_path / "y1.zarr", y.tolist(), array):
            found = tune(x, tmp_path / "out", y=again, progress=events.append, **options)
            assert found.run.id == first.run.id
        assert events == []

    def test_of_degenerate_trials_is_the_one_with_the_least_noise(self):
        labels = np.array([[0, 0, -1], [0, -1, -1], [0, 0, 0]], np.int32)
        facts = [{"n_clusters": 1, "noise": noise, "seconds": 1.0} for noise in (0.3, 0.2, 0.4)]
        found = judge(labels, np.zeros(3), facts, None)
        assert found.degenerate
        assert found.best == 1

    def test_what_all_rows_say_decides_on_degenerate_trials(self):
        labels = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 0, 1]], np.int32)
        facts = [{"n_clusters": 2, "noise": noise, "seconds": 1.0} for noise in (0.6, 0.6, 0.1)]
        found = judge(labels, np.zeros(3), facts, None)
        assert found.best == 2
        assert found.agreement[:2] == [None, None]

    def test_of_noise_only_warns(self, tmp_path):
        space, fixed = {"max_z": [1.0, 2.0]}, {"z": -9.0, "max_scr_rounds": 0}
        with pytest.warns(UserWarning, match=r"None of the 3 trials has two clusters .* least"):
            found = tune(town()[0], tmp_path / "out", n_trials=3, n_workers=0, space=space, **fixed)
        assert found.best_params == {"max_z": None, **fixed}
        assert (found.trials["noise"] == 1).all()

    @pytest.mark.parametrize(
        ("name", "z_percentile", "retention_rate", "ari"),
        [
            ("aggregation", 78.61, 0.36, 0.99),
            ("compound", 55.33, 0.13, 0.98),
            ("iris", 86.78, 0.85, 0.89),
            ("mk3", 21.73, 0.26, 0.85),
        ],
    )
    def test_of_the_paper_is_found_again(self, tmp_path, name, z_percentile, retention_rate, ari):
        """These are figures of its tables, for datasets with one best configuration."""
        if not DATA.exists():
            pytest.skip("the datasets are not beside the project")
        with np.load(DATA / f"{name}.npz") as file:
            x, y = file["X"], file["y"]
        found = tune(x, tmp_path, y=y, n_trials=51, scale="clip-minmax", knn="exact", n_workers=0)
        assert round(found.best_params["z_percentile"], 2) == z_percentile
        assert round(found.best_params["retention_rate"], 2) == retention_rate
        assert found.trials["ari"].max().round(2) == ari


class TestFolders:
    def test_one_graph_is_built_for_all(self, tmp_path):
        source, events = write_zarr(tmp_path / "x.zarr", town()[0]), []
        found = tune(source, n_trials=5, n_workers=0, progress=events.append)
        stages = stage_ends(events)
        assert [stages.count(name) for name in ("scan", "neighbors", "trials")] == [1, 1, 1]
        assert sum(event.stage == "trials" and event.kind == "task-done" for event in events) == 5
        needed = [Params(**found.summary["params"][i]).resolve(3000).k for i in range(5)]
        assert Graph(*found.run.graph).k == max(needed)
        assert len(list(Path(found.path).glob("result-*"))) == 1
        verify(found.run)
        assert "agreement" in repr(found)
        assert open_run(found.path).id == found.run.id
        again = open_tuning(found.path)
        assert without_seconds(again) == without_seconds(found)
        assert again.best_params == found.best_params

    def test_the_same_call_again_does_nothing(self, tmp_path):
        events = []
        for _ in range(2):
            found = tune(town()[0], tmp_path / "out", n_trials=3, n_workers=0, keep="labels")
            assert not list(Path(found.path).glob("graph-*"))
            assert not list(Path(found.path).glob("input-*"))
            tune(
                da.from_array(town()[0], chunks=(800, 2)),
                tmp_path / "dask",
                n_trials=3,
                n_workers=0,
                progress=events.append,
            )
        assert stage_ends(events).count("trials") == 1
        before = found.trials["seconds"].tolist()
        again = tune(town()[0], tmp_path / "out", n_trials=3, n_workers=0, keep="labels")
        assert again.trials["seconds"].tolist() == before

    def test_a_tune_that_was_stopped_goes_on(self, tmp_path, monkeypatch, out_of_core):
        source, cluster = write_zarr(tmp_path / "x.zarr", town()[0]), trials._cluster_out_of_core
        whole = tune(source, tmp_path / "whole", n_trials=5, n_workers=0)

        def stop(spec, number, places):
            found = cluster(spec, number, places)
            return 1 / 0 if number == 3 else found

        with monkeypatch.context() as patch:
            patch.setattr(trials, "_cluster_out_of_core", stop)
            with pytest.raises(ZeroDivisionError):
                tune(source, n_trials=5, n_workers=0)
        with pytest.raises(InputError, match="There is no finished tune"):
            open_tuning(tmp_path / "x.spore")
        events = []
        found = tune(source, n_trials=5, n_workers=0, progress=events.append)
        assert "neighbors" not in stage_ends(events)
        assert sum(event.stage == "trials" and event.kind == "task-done" for event in events) == 2
        assert without_seconds(found) == without_seconds(whole)

    def test_a_tune_stopped_in_its_last_fit_does_not_search_again(self, tmp_path, monkeypatch):
        options = {"n_trials": 3, "n_workers": 0, "keep": "labels"}
        whole = tune(town()[0], tmp_path / "whole", **options)
        with monkeypatch.context() as patch:
            patch.setattr("spore_dask.fitting.publish", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                tune(town()[0], tmp_path / "out", **options)
        events = []
        found = tune(town()[0], tmp_path / "out", progress=events.append, **options)
        assert not {"scan", "neighbors", "trials"} & set(stage_ends(events))
        np.testing.assert_array_equal(found.run.labels[...], whole.run.labels[...])

    def test_without_resume_all_is_done_again(self, tmp_path):
        events = []
        for _ in range(2):
            tune(
                town()[0],
                tmp_path / "out",
                n_trials=3,
                n_workers=0,
                resume=False,
                progress=events.append,
            )
        stages = stage_ends(events)
        assert [stages.count(name) for name in ("neighbors", "trials", "publish")] == [2, 2, 2]

    def test_an_earlier_graph_is_used(self, tmp_path):
        x, _ = town()
        graph = build_graph(x, tmp_path / "graph", 60, n_workers=0)
        events = []
        found = tune(
            x, tmp_path / "out", graph=graph, n_trials=3, n_workers=0, progress=events.append
        )
        assert not {"scan", "neighbors"} & set(stage_ends(events))
        assert found.run.graph == (graph.path, graph.name)
        few = build_graph(x, tmp_path / "few", 20, n_workers=0)
        with pytest.raises(ParameterError, match=r"has 20 neighbours a row .* need"):
            tune(x, tmp_path / "no", graph=few, n_trials=3, n_workers=0)

    def test_data_in_memory_has_a_folder_that_goes_with_the_result(self):
        found = tune(town()[0], n_trials=3, n_workers=0)
        path = Path(found.path)
        assert path.exists()
        run = found.run
        del found
        gc.collect()
        assert run.labels.shape == (3000,)
        del run
        gc.collect()
        assert not path.exists()

    def test_changed_data_is_refused(self, tmp_path):
        source = write_zarr(tmp_path / "x.zarr", town()[0])
        tune(source, n_trials=3, n_workers=0)
        zarr.open_array(source, mode="r+")[0] = 7
        with pytest.raises(InputError, match="has changed"):
            tune(source, n_trials=3, n_workers=0)

    def test_fit_with_automatic_parameters(self, tmp_path):
        x, _ = town()
        found = tune(x, tmp_path / "out", n_trials=4, n_workers=0, max_scr_rounds=3)
        options = {"params": "auto", "n_trials": 4, "n_workers": 0, "max_scr_rounds": 3}
        run = fit(x, tmp_path / "out", **options)
        assert run.id == found.run.id
        assert run.summary["asked"]["max_scr_rounds"] == 3
        temporary = fit(x, **options)
        np.testing.assert_array_equal(temporary.labels[...], run.labels[...])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"n_trials": 0}, ParameterError, "n_trials is 0, but it must be a whole number"),
        ({"n_trials": 2.5}, ParameterError, "n_trials is 2.5"),
        ({"n_trials": 2}, ParameterError, "n_trials is 2, but without labels y .* at least 3"),
        ({"sample": 1}, ParameterError, "sample is 1"),
        ({"space": {"ke": [3]}}, ParameterError, "There is no parameter 'ke', which is in space"),
        ({"space": {}}, ParameterError, "space is {}, but it must be a dictionary"),
        ({"space": [3]}, ParameterError, r"space is \[3\], but"),
        ({"space": {"z": []}}, ParameterError, r"space has \[\] for 'z'"),
        ({"space": {"z": 3.0}}, ParameterError, "space has 3.0 for 'z'"),
        ({"space": {"z": [1.0]}}, ParameterError, "The space has 1 configurations"),
        ({"space": {"z": [1.0, 2.0]}, "z": 1.0}, ParameterError, "every parameter .* is fixed"),
        ({"space": {"z_percentile": [1, 200]}}, ParameterError, "z_percentile is 200"),
        ({"y": [1, 2]}, InputError, r"y has shape \(2,\), but it must be \(3000,\)"),
        ({"y": "nowhere.zarr"}, InputError, "There is no Zarr array at .*nowhere.zarr'"),
        ({"y": [*range(2999), None]}, InputError, "cannot be compared"),
        ({"radius": 3}, ParameterError, "There is no parameter 'radius'"),
        ({"memory_limit": "100MB"}, ParameterError, "memory_limit is"),
        ({"keep": "some"}, ParameterError, "keep is 'some'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path, options, error, words):
    source = write_zarr(tmp_path / "x.zarr", town()[0])
    with pytest.raises(error, match=words) as caught:
        tune(source, tmp_path / "out", n_workers=0, **{"n_trials": 5, **options})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_other_words_for_params_are_refused(tmp_path):
    with pytest.raises(ParameterError, match="params is 'best', but it must be one of 'auto'"):
        fit(town()[0], tmp_path / "out", params="best")


@pytest.mark.parametrize("in_memory", [True, False])
def test_peak_memory_is_within_the_limit(tmp_path, in_memory):
    n_points, n_columns = 320_000, 2
    x, _ = blobs_and_shapes(n_points, n_columns, dtype=np.float32)
    source = write_zarr(tmp_path / "x.zarr", x, 100_000)
    space = {"expansion_neighbors": [30, 50], "z_percentile": [40, 60]}
    k = Params(expansion_neighbors=50).resolve(n_points).k
    limit = memory.trial_nbytes(shape_of(n_points, n_columns, 4, k))
    limit = limit if in_memory else limit - (32 << 20)
    code = (
        "import json, sys; from spore_dask import tune, trials\n"
        "space, limit = json.loads(sys.argv[2]), int(sys.argv[3])\n"
        "found = tune(sys.argv[1], space=space, n_trials=3, n_workers=1, memory_limit=limit)\n"
        "print(json.dumps(found.run.summary['peak_nbytes']))"
    )
    command = [sys.executable, "-c", code, source, json.dumps(space), str(limit)]
    done = subprocess.run(command, check=True, capture_output=True)
    peaks = json.loads(done.stdout.splitlines()[-1])
    assert len(peaks) == 2
    assert max(peaks.values()) <= limit
    shutil.rmtree(tmp_path)
