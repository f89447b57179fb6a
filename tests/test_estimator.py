import inspect
import re

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import spore_dask
from spore_dask import InputError, ParameterError
from spore_dask.datasets import blobs_and_shapes
from tests import naive
from tests.paper import SPORE
from tests.strategies import configs, point_sets


@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API")
@parametrize_with_checks([spore_dask.SPORE(), SPORE(knn="exact", scale="standard")])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@given(
    x=point_sets(),
    config=configs(),
    scale=st.sampled_from([None, "clip-minmax", "standard"]),
    knn=st.sampled_from(["auto", "exact", "approximate"]),
)
def test_small_data_equals_the_oracle(x, config, scale, knn):
    model = SPORE(knn=knn, scale=scale, **config).fit(x)
    expected = naive.cluster(x, scale=scale, **config)
    np.testing.assert_array_equal(model.labels_, expected)
    assert model.exact_


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_columns", [1, 2, 5])
def test_rows_may_be_permuted(dtype, n_columns):
    x, _ = blobs_and_shapes(3000, n_columns, seed=3, dtype=np.float64)
    x += np.random.default_rng(5).normal(scale=1e-3, size=x.shape)
    x = x.astype(dtype)
    labels = SPORE(knn="exact", retention_rate=0.3).fit_predict(x)
    assert labels.max() >= 2
    order = np.random.default_rng(4).permutation(len(x))
    np.testing.assert_array_equal(
        SPORE(knn="exact", retention_rate=0.3).fit_predict(x[order]), labels[order]
    )


def test_attributes_fit_together():
    x, truth = blobs_and_shapes(5000, 2, seed=1)
    model = SPORE(min_cluster_size=30).fit(x)
    assert model.labels_.dtype == np.int32
    assert model.n_features_in_ == 2
    assert model.n_clusters_ == model.labels_.max() + 1 == len(model.clusters_) > 3
    np.testing.assert_array_equal(model.provenance_ == -1, model.labels_ == -1)
    clustered = model.labels_ >= 0
    np.testing.assert_array_equal(model.clusters_["size"], np.bincount(model.labels_[clustered]))
    skeleton = model.provenance_ == 0
    np.testing.assert_array_equal(
        model.clusters_["skeleton_size"], np.bincount(model.labels_[skeleton])
    )
    np.testing.assert_array_equal(
        model.labels_[model.clusters_["seed_row"]], np.arange(model.n_clusters_)
    )
    assert (model.clusters_["skeleton_size"] >= 30).all()
    assert model.provenance_.max() >= 1
    assert model.thresholds_.z > 0
    assert model.params_.min_cluster_size == 30
    assert len(truth) == len(x)


def test_cosine_ignores_length():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    lengths = 2.0 ** rng.integers(-3, 4, (200, 1))
    labels = SPORE(metric="cosine").fit_predict(x)
    np.testing.assert_array_equal(labels, naive.cluster(x, metric="cosine"))
    np.testing.assert_array_equal(SPORE(metric="cosine").fit_predict(x * lengths), labels)


def test_random_seeds_matter_and_repeat():
    x, _ = blobs_and_shapes(2000, 2, seed=1)
    first, again, other = (
        SPORE(seeding_order="random", retention_rate=0.4, seed=seed).fit_predict(x)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_data_frames_and_lists():
    x = np.random.default_rng(0).normal(size=(60, 3))
    expected = SPORE().fit_predict(x)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    model = SPORE().fit(frame)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    np.testing.assert_array_equal(model.labels_, expected)
    np.testing.assert_array_equal(SPORE().fit_predict(x.tolist()), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.int16, np.uint8, bool])
def test_narrow_dtypes(dtype):
    x = np.random.default_rng(0).integers(0, 9, (80, 2)).astype(dtype)
    np.testing.assert_array_equal(SPORE().fit_predict(x), naive.cluster(x))


@pytest.mark.parametrize("n_points", [2, 3, 4, 5])
@pytest.mark.parametrize("neighbors", [1, 50])
def test_tiny_data_and_more_neighbours_than_points(n_points, neighbors):
    x = np.random.default_rng(n_points).normal(size=(n_points, 1))
    config = {"expansion_neighbors": neighbors, "reassignment_neighbors": neighbors}
    np.testing.assert_array_equal(SPORE(**config).fit_predict(x), naive.cluster(x, **config))


def test_constant_data_is_one_cluster():
    model = SPORE().fit(np.ones((500, 3)))
    assert model.n_clusters_ == 1
    assert (model.labels_ == 0).all()


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        ([[0.0, 1.0], [np.nan, 1.0]], InputError, "Row 1, column 0"),
        ([[0.0, 1.0], [np.inf, 1.0]], InputError, "Row 1, column 0"),
        ([["a", "b"], ["c", "d"]], ValueError, "string"),
        ([1.0, 2.0, 3.0], ValueError, "Reshape"),
        (np.zeros((1, 2)), ValueError, "minimum of 2"),
        (np.zeros((0, 2)), ValueError, "minimum of 2"),
        (np.zeros((2, 2, 2)), ValueError, "dim 3"),
        (np.ma.masked_less(np.eye(3), 1), InputError, "6 masked"),
    ],
)
def test_bad_data(x, error, words):
    with pytest.raises(error, match=words):
        SPORE().fit(x)


@pytest.mark.parametrize(
    ("name", "value"), [("knn", "best"), ("metric", "l1"), ("scale", "robust"), ("z", "1")]
)
def test_bad_options_are_named(name, value):
    with pytest.raises(ParameterError, match=f"{name} is {value!r}"):
        SPORE(**{name: value}).fit(np.random.default_rng(0).normal(size=(30, 2)))


def test_parameters_are_checked_before_the_data_is_read():
    with pytest.raises(ParameterError, match="metric"):
        SPORE(metric="l1").fit([[np.nan], [1.0]])


def test_the_docstring_lists_the_parameters():
    documented = re.findall(
        r"^    (\w+) : ", spore_dask.SPORE.__doc__.split("Attributes")[0], re.MULTILINE
    )
    assert documented == list(inspect.signature(spore_dask.SPORE).parameters)


def test_clone_keeps_parameters():
    model = SPORE(z=1.0, scale="standard", knn="exact")
    assert clone(model).get_params() == model.get_params()


def test_sources_and_options_of_fit(tmp_path):
    x, _ = blobs_and_shapes(3000, 3, seed=1, dtype=np.float32)
    zarr.create_array(str(tmp_path / "x.zarr"), shape=x.shape, dtype=x.dtype, chunks=(700, 3))[
        ...
    ] = x
    expected = SPORE(knn="exact", retention_rate=0.3).fit(x)
    assert expected.run_ is None
    dask_array = da.from_array(x, chunks=(500, 3))
    for source in (tmp_path / "x.zarr", zarr.open_array(str(tmp_path / "x.zarr")), dask_array, x):
        model = SPORE(n_workers=0, n_partitions=2, retention_rate=0.3).fit(source)
        for name in ("labels_", "provenance_", "clusters_"):
            np.testing.assert_array_equal(getattr(model, name), getattr(expected, name))
        for name in ("n_clusters_", "thresholds_", "params_", "recall_", "exact_"):
            assert getattr(model, name) == getattr(expected, name), name
        assert model.n_features_in_ == 3
        np.testing.assert_array_equal(model.run_.labels[...], model.labels_)
    assert clone(model).get_params() == model.get_params()


def test_every_option_of_fit_is_one_of_the_estimator():
    options = dict(inspect.signature(spore_dask.fit).parameters)
    for name in ("source", "given"):
        del options[name]
    known = spore_dask.SPORE().get_params()
    assert {name: option.default for name, option in options.items()} == {
        name: known[name] for name in options
    }


def test_every_option_of_a_graph_is_one_of_fit():
    known = inspect.signature(spore_dask.fit).parameters
    options = dict(inspect.signature(spore_dask.build_graph).parameters)
    for name in ("source", "out", "k"):
        del options[name]
    assert {name: option.default for name, option in options.items()} == {
        name: known[name].default for name in options
    }


def test_a_recall_under_the_target_warns_in_memory():
    x = np.random.default_rng(0).random((6000, 90)).astype(np.float32)
    with pytest.warns(UserWarning, match=r"has recall 0\.\d+ \+- 0\.\d+.* recall_target is 1:"):
        model = SPORE(knn="approximate", recall_target=1.0, max_connectivity=10).fit(x)
    assert 0 < model.recall_.sampled < 1
    assert 0 < model.recall_.error < 0.1
    assert not model.exact_
