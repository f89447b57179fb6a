"""`tune` against the plain algorithm: draws, trials, choices, resumes."""

import functools
import gc
import json
import math
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
    DataWarning,
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
from spore_dask.choosing import Level, Votes, choose
from spore_dask.comparing import chosen_of, compare, usable
from spore_dask.datasets import blobs_and_shapes
from spore_dask.memory import shape_of
from spore_dask.reference import is_better
from spore_dask.spaces import draw, find_space, find_trials, is_open
from spore_dask.store import Folder
from spore_dask.voters import voter_labels
from tests import naive, paper
from tests.conftest import GOLDEN
from tests.strategies import PARAMETERS, point_sets
from tests.test_fit import write_zarr

DATA = GOLDEN.parent / "data"
FOUR = {"expansion_neighbors": [8, 16, 24, 32]}
"""A space with four configurations beside the default, each with an order of its own."""


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


def sampled(n_points, n_draws, seed=42):
    """Draw as the paper does."""
    log2_n = int(math.log2(n_points))
    constants = {"n_jobs": [1], "seeding_order": ["density"], "exact_knn": [True]}
    space = {
        "z_percentile": uniform(12.5, 87.5),
        "retention_rate": uniform(0, 0.875),
        "min_cluster_size": uniform(0.3, 0.4),
        "expansion_neighbors": randint(log2_n, 3 * log2_n),
    }
    random_state = check_random_state(seed)
    sampler = ParameterSampler(space | constants, n_iter=n_draws, random_state=random_state)
    return [{name: values[name] for name in space} for values in sampler]


def with_sizes(values, n_points):
    """Turn a drawn exponent into a minimum size."""
    size = math.floor(n_points ** values["min_cluster_size"])
    return Params(**values | {"min_cluster_size": size})


class TestDraws:
    @pytest.mark.parametrize("n_points", [700, 5000, 20_000])
    def test_are_those_of_the_paper_with_a_cap_on_sizes(self, n_points):
        drawn = draw(None, n_points, 30, 42, {})
        expected = [with_sizes(values, min(n_points, 5000)) for values in sampled(n_points, 30)]
        assert [trial.params for trial in drawn] == expected
        assert [trial.weight for trial in drawn] == [1 - p.retention_rate for p in expected]

    def test_are_followed_by_a_ladder(self):
        found = find_trials(None, 20_000, 31, 42, {})
        assert len(found) == len({trial.params for trial in found}) == 39
        assert found[0] == (Params(), 1, 1)
        assert found[1:31] == draw(None, 20_000, 30, 42, {})
        rungs = [
            Params(min_cluster_size=25, expansion_neighbors=28, z_percentile=z, retention_rate=rate)
            for z in (65, 80, 90, 97)
            for rate in (None, 0.2)
        ]
        assert found[31:] == [(params, 0, 1 if params.retention_rate else 0.99) for params in rungs]
        rungs = find_trials(None, 20_000, 31, 42, {"retention_rate": 0.1})[31:]
        assert [rung.factor for rung in rungs] == 4 * [1]

    def test_of_many_points_are_in_part_without_the_cap(self):
        found, capped = (find_trials(None, n_points, 31, 42, {}) for n_points in (20_001, 20_000))
        assert len(found) == 39
        expected = [with_sizes(values, 20_001) for values in sampled(20_001, 20)[10:]]
        assert [trial.params for trial in found[11:21]] == expected
        assert found[:11] + found[21:] == capped[:11] + capped[21:]

    @pytest.mark.parametrize(
        ("fixed", "left_out"),
        [
            ({"z_percentile": 20.0}, "z_percentile"),
            ({"z": 1.0}, "z_percentile"),
            ({"min_retained": 3}, "retention_rate"),
            ({"min_cluster_size": 50}, "min_cluster_size"),
            ({"expansion_neighbors": 9, "max_scr_rounds": 2}, "expansion_neighbors"),
        ],
    )
    def test_hold_what_is_fixed(self, fixed, left_out):
        assert find_space(None, 1000, {}).keys() - find_space(None, 1000, fixed) == {left_out}
        default = getattr(Params(), left_out)
        for trial in find_trials(None, 1000, 4, 1, fixed):
            assert {name: getattr(trial.params, name) for name in fixed} == fixed
            assert left_out in fixed or getattr(trial.params, left_out) == default

    def test_are_none_where_all_is_fixed(self):
        fixed = {"z": 1.0, "retention_rate": 0.1, "min_cluster_size": 9, "expansion_neighbors": 9}
        assert not is_open(fixed)
        for name in fixed:
            assert is_open({other: fixed[other] for other in fixed if other != name})

    def test_of_a_given_space_have_no_ladder(self):
        space = {"z": [1.0, 2.0], "min_retained": [1, 2]}
        found = [trial.params for trial in find_trials(space, 30_000, 31, 0, {})]
        assert found[0] == Params(seed=0)
        assert set(found[1:]) == {
            Params(z=z, min_retained=least, seed=0) for z in (1.0, 2.0) for least in (1, 2)
        }
        fixed = find_trials(space | {"max_z": [3.0, 4.0]}, 1000, 31, 0, {"z": 1.5})
        assert len(fixed) == 5
        assert all(trial.params.z == 1.5 for trial in fixed)

    def test_have_the_default_first_and_once(self):
        found = find_trials({"z_percentile": [40, 50, 60]}, 1000, 31, 0, {})
        assert [trial.params.z_percentile for trial in found] == [50, 40, 60]

    @pytest.mark.parametrize("n_points", [2, 3, 7])
    def test_of_few_points(self, n_points):
        for trial in find_trials(None, n_points, 20, 3, {}):
            assert trial.params.resolve(n_points).k < n_points

    @pytest.mark.parametrize(
        ("n_points", "sizes"),
        [(3000, [3000]), (10_001, [3334]), (20_000, [5000]), (20_001, [5000] * 4)],
    )
    def test_of_voters_are_for_samples(self, n_points, sizes):
        found = compare((n_points, 2), {"max_z": 2.0}, 7)
        assert len(found.rows) == min(n_points, 20_000)
        assert [len(columns) for columns in found.samples] == sizes
        assert len(np.unique(np.concatenate(found.samples))) == sum(sizes)
        for i, voters in enumerate(found.voters):
            assert list(voters) == draw(None, sizes[i], 50, 8 + i, {"max_z": 2.0})

    def test_have_any_seed(self):
        assert len(compare((100, 2), {}, 2**32 - 1).trials) > 30


class TestTrials:
    @given(points=point_sets(), data=st.data())
    @settings(max_examples=25)
    def test_equal_the_plain_algorithm(self, tmp_path_factory, points, data):
        folder = tmp_path_factory.mktemp("tune")
        names = data.draw(st.lists(st.sampled_from(list(PARAMETERS)), min_size=1, unique=True))
        values = st.lists(st.integers(0, 3), min_size=1, max_size=3)
        space = {name: [data.draw(PARAMETERS[name]) for _ in data.draw(values)] for name in names}
        y = data.draw(st.lists(st.integers(0, 2), min_size=len(points), max_size=len(points)))
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
        labels = paper.SPORE(knn="exact").fit(x).labels_
        np.testing.assert_array_equal(compared(found)[0], labels[rows])
        assert found.trials["ari"][0] == pytest.approx(adjusted_rand_score(y[rows], labels[rows]))
        assert found.trials["noise"][0] == (labels == -1).mean()

    def test_of_points_that_are_all_the_same(self, tmp_path):
        for number in range(2):
            with pytest.warns(UserWarning, match="None of the 11 configurations"):
                found = tune(np.ones((40, 2)), tmp_path / str(number), n_trials=3, n_workers=0)
            assert (found.run.labels[...] == 0).all()
            assert found.trials["n_clusters"].tolist() == [1] * 11

    def test_with_an_approximate_graph(self, tmp_path):
        x = np.random.default_rng(0).random((6000, 40)).astype(np.float32)
        x[:300] += 3
        found = tune(x, tmp_path / "out", n_trials=3, knn="approximate", n_workers=0)
        np.testing.assert_array_equal(found.run.labels[...], compared(found)[found.best])
        assert Graph(*found.run.graph).recall.certified == 0


def test_a_finished_tune_keeps_no_more_than_asked(tmp_path):
    options = {"n_trials": 3, "n_workers": 0}
    assert tune(town()[0], tmp_path / "out", **options).run.summary["keep"] == "predict"
    found = tune(town()[0], tmp_path / "out", keep="labels", **options)
    assert found.run.summary["keep"] == "labels"
    assert not list((tmp_path / "out").glob("graph-*"))


def votes_on(x, compared):
    """Return what further configurations make of the samples."""
    points = [np.ascontiguousarray(x[compared.rows[columns]]) for columns in compared.samples]
    asked = [[voter.params for voter in voters] for voters in compared.voters]
    labels = [voter_labels(*each) for each in zip(points, asked, strict=True)]
    weights = [np.array([voter.weight for voter in voters]) for voters in compared.voters]
    return [Votes(*each) for each in zip(compared.samples, labels, weights, strict=True)]


def assert_chosen_by(found, choice):
    """Assert that a choice is what a tune has found."""
    assert found.best == choice.best
    finite = np.isfinite(choice.scores)
    np.testing.assert_array_equal(found.trials["score"][finite], choice.scores[finite])
    assert np.isnan(found.trials["score"][~finite]).all()
    assert found.levels["trial"].tolist() == [level.trial for level in choice.levels]


class TestChoice:
    @pytest.mark.parametrize("n_points", [3000, 11_000])
    def test_without_labels_is_that_of_choosing(self, tmp_path, n_points):
        x, _ = town(n_points)
        found = tune(x, tmp_path / "out", n_trials=4, n_workers=0, n_partitions=3)
        asked = compare(x.shape, {}, 42, n_trials=4)
        assert len(found.trials) == len(asked.trials) == 12
        choice = choose(
            compared(found), asked.weights, votes=votes_on(x, asked), factors=asked.factors
        )
        assert_chosen_by(found, choice)
        assert np.isnan(found.trials["ari"]).all()
        assert set(found.best_params) == set(find_space(None, 3000, {}))
        np.testing.assert_array_equal(found.run.labels[...], compared(found)[found.best])

    def test_of_many_points_asks_four_samples(self, tmp_path, monkeypatch):
        for module in ("choosing", "comparing", "spaces"):
            monkeypatch.setattr(f"spore_dask.{module}.LARGE", 2999)
        monkeypatch.setattr("spore_dask.choosing.LOW_SCORE", 1.0)
        monkeypatch.setattr("spore_dask.choosing.CLEAR_SCORE", 1.0)
        x, _ = town()
        found = tune(x, tmp_path / "out", n_trials=3, n_workers=0)
        asked = compare(x.shape, {}, 42, n_trials=3)
        assert len(found.trials) == len(asked.trials) == 3 + 8  # 3,000 points are below the cap
        assert len(asked.samples) == 4
        choice = choose(
            compared(found), asked.weights, votes=votes_on(x, asked), factors=asked.factors
        )
        assert_chosen_by(found, choice)

    def test_with_labels_is_the_highest_ari(self, tmp_path):
        x, y = town()
        names = np.array([f"cluster {label}" for label in y])
        array = zarr.create_array(str(tmp_path / "y1.zarr"), shape=y.shape, dtype=y.dtype, chunks=7)
        array[...] = y
        options = {"n_trials": 6, "n_workers": 0, "sample": 900}
        first = tune(x, tmp_path / "out", y=y, **options)
        assert first.best == np.argmax(first.trials["ari"])
        events = []
        for again in (names, tmp_path / "y1.zarr", y.tolist(), array):
            found = tune(x, tmp_path / "out", y=again, progress=events.append, **options)
            assert found.run.id == first.run.id
        assert events == []

    def test_of_degenerate_trials_is_the_one_with_the_least_noise(self):
        labels = np.array([[0, 0, -1], [0, -1, -1], [0, 0, 0]], np.int32)
        facts = [{"n_clusters": 1, "noise": noise} for noise in (0.3, 0.2, 0.4)]
        found = chosen_of(choose(labels, usable=usable(facts)), facts, "auto")
        assert found.is_degenerate
        assert found.best == 1

    def test_what_all_rows_say_decides_on_degenerate_trials(self):
        labels = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 0, 1]], np.int32)
        facts = [{"n_clusters": 2, "noise": noise} for noise in (0.6, 0.6, 0.1)]
        found = chosen_of(choose(labels, usable=usable(facts)), facts, "auto")
        assert found.best == 2
        assert not np.isfinite(found.choice.scores[:2]).any()

    def test_of_noise_only_warns(self, tmp_path):
        space, fixed = {"max_z": [1.0, 2.0]}, {"z": -9.0, "max_scr_rounds": 0}
        with pytest.warns(UserWarning, match=r"None of the 3 configurations .* least noise"):
            found = tune(town()[0], tmp_path / "out", n_trials=3, n_workers=0, space=space, **fixed)
        assert found.best_params == {"max_z": None, **fixed}
        assert (found.trials["noise"] == 1).all()

    def test_other_details_share_the_trials(self, tmp_path):
        x, out, events = town()[0], tmp_path / "out", []
        found = tune(x, out, n_trials=8, n_workers=0)
        assert len(found.levels) > 1
        assert set(Level._fields) <= set(found.levels.dtype.names)
        assert (np.diff(found.levels["entropy"]) > 0).all()
        for detail, place in (("coarse", 0), ("fine", -1)):
            options = {"n_trials": 8, "n_workers": 0, "progress": events.append, "detail": detail}
            other = tune(x, out, **options)
            assert other.best == found.levels["trial"][place]
            np.testing.assert_array_equal(other.run.labels[...], compared(found)[other.best])
            assert other.levels["trial"].tolist() == found.levels["trial"].tolist()
            assert other.run.choice["detail"] == detail
            assert fit(x, out, **options).id == other.run.id
        assert not {"neighbors", "trials", "voters"} & set(stage_ends(events))

    def test_other_spaces_with_the_same_trials_have_other_voters(self, tmp_path):
        options = {"n_trials": 3, "n_workers": 0, "seed": 5}
        spaces = {"z_percentile": [40, 60]}, {"z_percentile": [40, 60, 80]}
        found = [tune(town()[0], tmp_path / "out", space=space, **options) for space in spaces]
        assert found[0].summary["params"] == found[1].summary["params"]
        assert found[0].name != found[1].name

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
        drawn = found.trials[:51]  # what follows is a ladder of our own
        best = drawn[np.argmax(drawn["ari"])]
        assert best["z_percentile"].round(2) == z_percentile
        assert best["retention_rate"].round(2) == retention_rate
        assert best["ari"].round(2) == ari


class TestFolders:
    def test_one_graph_is_built_for_all(self, tmp_path):
        source, events = write_zarr(tmp_path / "x.zarr", town()[0]), []
        found = tune(source, n_trials=5, n_workers=0, progress=events.append)
        stages = stage_ends(events)
        assert [stages.count(name) for name in ("scan", "neighbors", "trials")] == [1, 1, 1]
        needed = [Params(**params).resolve(3000) for params in found.summary["params"]]
        assert len(needed) == 13
        n_orders = len({params.density_neighbors for params in needed})
        n_done = sum(event.stage == "trials" and event.kind == "task-done" for event in events)
        assert n_done == n_orders
        assert Graph(*found.run.graph).k == max(params.k for params in needed)
        assert len(list(Path(found.path).glob("result-*"))) == 1
        verify(found.run)
        assert "score" in repr(found)
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

    def test_a_tune_that_was_stopped_goes_on(self, tmp_path, monkeypatch):
        source, attempt = write_zarr(tmp_path / "x.zarr", town()[0]), trials._try
        whole = tune(source, tmp_path / "whole", space=FOUR, n_workers=0)

        def stop(spec, number):
            found = attempt(spec, number)
            return 1 / 0 if number == 3 else found

        with monkeypatch.context() as patch:
            patch.setattr(trials, "_try", stop)
            with pytest.raises(ZeroDivisionError):
                tune(source, space=FOUR, n_workers=0)
        with pytest.raises(InputError, match="There is no finished tune"):
            open_tuning(tmp_path / "x.spore")
        events = []
        found = tune(source, space=FOUR, n_workers=0, progress=events.append)
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
        some = build_graph(x, tmp_path / "some", 30, n_workers=0)
        found = tune(x, tmp_path / "less", graph=some, n_trials=6, n_workers=0)
        needed = [Params(**params).resolve(3000).k for params in found.summary["params"]]
        assert max(needed) <= 30
        every = [trial.params for trial in find_trials(None, 3000, 6, 42, {})]
        assert len(needed) == sum(params.resolve(3000).k <= 30 for params in every) < len(every)
        few = build_graph(x, tmp_path / "few", 10, n_workers=0)
        for call in (tune, fit):
            words = r"has 10 neighbours per row, but only 0 of 11 .* build one with k >= 36, or"
            with pytest.raises(ParameterError, match=words):
                call(x, tmp_path / "no", graph=few, n_trials=3, n_workers=0)
        assert not (tmp_path / "no").exists()

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


class TestDefault:
    """`fit` and `SPORE` choose what is not given."""

    def test_fit_and_the_estimator_choose_as_tune_does(self, tmp_path):
        x, _ = town()
        run = fit(x, tmp_path / "out", n_workers=0)
        found = tune(x, tmp_path / "out", n_workers=0)
        assert (run.id, run.choice) == (found.run.id, found.run.choice)
        assert len(found.trials) == run.choice["n_trials"] == 39
        assert run.choice["params"] == found.best_params
        assert run.choice["score"] == found.trials["score"][found.best]
        assert run.choice["tuning"] == found.name
        model = SPORE(knn="exact").fit(x)
        assert model.choice_ == {n: v for n, v in run.choice.items() if n != "tuning"}
        np.testing.assert_array_equal(model.labels_, run.labels[...])
        assert vars(model.params_) == run.summary["params"]
        for detail in ("coarse", "fine"):
            other = tune(x, tmp_path / "out", n_workers=0, detail=detail)
            again = SPORE(knn="exact", detail=detail).fit(x)
            np.testing.assert_array_equal(again.labels_, other.run.labels[...])

    def test_what_is_given_is_held(self, tmp_path):
        x, _ = town()
        given = {"min_cluster_size": 50, "max_scr_rounds": 3, "n_trials": 4}
        run = fit(x, n_workers=0, **given)
        found = tune(x, tmp_path / "out", n_workers=0, **given)
        assert (found.trials["min_cluster_size"] == 50).all()
        assert (found.trials["max_scr_rounds"] == 3).all()
        assert len(np.unique(found.trials["z_percentile"])) == 4 + 4
        assert run.choice["params"] == found.best_params
        assert run.summary["params"]["min_cluster_size"] == 50
        np.testing.assert_array_equal(run.labels[...], found.run.labels[...])
        np.testing.assert_array_equal(SPORE(**given).fit(x).labels_, run.labels[...])

    @pytest.mark.parametrize(
        "given",
        [
            {"params": "paper", "retention_rate": 0.2},
            {"z": 1.0, "min_retained": 2, "min_cluster_size": 30, "expansion_neighbors": 20},
        ],
    )
    def test_where_nothing_is_open_there_is_one_pass(self, tmp_path, given):
        x, _ = town()
        run = fit(x, tmp_path / "out", n_workers=0, **given)
        assert run.choice is None
        assert not list((tmp_path / "out").glob("tuning-*"))
        model = SPORE(**given).fit(x)
        assert model.choice_ is None
        np.testing.assert_array_equal(model.labels_, run.labels[...])
        resolved = Params(**{n: v for n, v in given.items() if n != "params"}).resolve(len(x))
        assert run.summary["params"] == vars(resolved)

    def test_data_without_clusters_is_told(self):
        x = np.random.default_rng(0).normal(size=(600, 4))
        with pytest.warns(DataWarning, match="may be due to chance"):
            run = fit(x, n_workers=0)
        found, by_chance = run.choice["chance"]
        assert 0 < by_chance < 0.2
        assert not is_better(found, by_chance)
        with pytest.warns(DataWarning, match="may be due to chance"):
            model = SPORE(knn="exact").fit(x)
        assert list(model.choice_["chance"]) == [found, by_chance]
        x[300:] += 50
        assert fit(x, n_workers=0).choice["chance"] is None  # sure enough not to ask

    @pytest.mark.parametrize("n_points", [2, 3, 10])
    def test_of_few_points(self, n_points):
        x = np.random.default_rng(n_points).normal(size=(n_points, 2))
        run = fit(x, n_workers=0)
        np.testing.assert_array_equal(SPORE().fit(x).labels_, run.labels[...])


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


def test_peak_memory_is_within_the_limit(tmp_path):
    n_points, n_columns = 130_000, 2
    x, _ = blobs_and_shapes(n_points, n_columns, dtype=np.float32)
    source = write_zarr(tmp_path / "x.zarr", x, 100_000)
    space = {"expansion_neighbors": [30, 50], "z_percentile": [40, 60]}
    k = Params(expansion_neighbors=50).resolve(n_points).k
    limit = memory.trial_nbytes(shape_of(n_points, n_columns, 4, k))
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
