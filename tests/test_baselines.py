"""The baselines of the benchmark: cases worked out by hand, slow twins, bounds, sharing."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import DBSCAN, HDBSCAN
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from pipelines.benchmark import baselines, dpc, snn_dbscan
from pipelines.benchmark.baselines import BASELINES, dbscan_eps, neighbor_distances
from pipelines.benchmark.distances import (
    FEW_COLUMNS,
    ROWS,
    TILE,
    distance_matrix,
    nearest_by_products,
)
from pipelines.benchmark.dpc import dpc_labels, measure_pairs
from pipelines.benchmark.methods import Facts
from pipelines.benchmark.snn_dbscan import nearest_lists, snn_dbscan_labels
from spore_dask import threads
from spore_dask.datasets import blobs_and_shapes

NAMES = ["DBSCAN", "HDBSCAN", "KMeans", "DPC", "SNN_DBSCAN"]
SHAPES = [(150, 4), (399, 2), (240, 1), (178, 13), (2048, 128), (35_000, 784)]


@st.composite
def few_points(draw):
    """Up to 40 points in up to three columns, with ties, copies and constant columns."""
    n_points, n_columns = draw(st.integers(4, 40)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        return rng.integers(0, 5, (n_points, n_columns)).astype(float)
    x = rng.normal(size=(n_points, n_columns))
    x[:, 0] *= draw(st.sampled_from([0, 1]))
    return x


# Distances


@pytest.mark.parametrize("n_columns", [3, 70])
def test_distances_of_several_tiles(n_columns):
    x = np.random.default_rng(0).random((TILE + 300, n_columns))
    x[-1] = x[0]
    found = distance_matrix(x)
    some = np.r_[0:5, TILE - 3 : TILE + 3, len(x) - 2 : len(x)]
    expected = np.sqrt(((x[some, None] - x[some]) ** 2).sum(axis=2))
    np.testing.assert_allclose(found[np.ix_(some, some)], expected, atol=1e-6)
    np.testing.assert_array_equal(found, found.T)
    assert not np.diag(found).any()
    np.testing.assert_array_equal(distance_matrix(x, np.float32), found.astype(np.float32))


@given(few_points(), st.data())
def test_nearest_by_products(x, data):
    k = data.draw(st.integers(1, len(x) - 1))
    x = np.round(x * 8)  # products and sums are exact
    np.testing.assert_array_equal(nearest_by_products(x, k), naive_lists(x, k))


def test_nearest_by_products_of_several_blocks():
    x = np.random.default_rng(0).random((2 * ROWS + 44, FEW_COLUMNS + 1))
    np.testing.assert_array_equal(nearest_by_products(x, 17), naive_lists(x, 17))
    np.testing.assert_array_equal(nearest_lists(x, 17), naive_lists(x, 17))


# DPC


def test_dpc_by_hand():
    x = np.array([0.0, 1, 2, 10, 11, 12, 13])[:, None]
    pairs = measure_pairs(x)
    # The 21 distances: 1 five times (0-1, 1-2, 10-11, 11-12, 12-13), 2 three times, then 3, ...
    assert sorted(pairs.some)[:9] == [1] * 5 + [2] * 3 + [3]
    assert dpc.cut_distance(pairs, 32.5) == pytest.approx(2)  # place 6.5 of 0 to 20
    density = dpc.densities(pairs.distances, 1.5)
    np.testing.assert_array_equal(density, [1, 2, 1, 1, 2, 2, 1])
    ascent = dpc.ascend(pairs.distances, density)
    # Row 5 is the densest, then 4 and 1, which have as many neighbours, then 6, 3, 2, 0.
    np.testing.assert_array_equal(ascent.order, [5, 4, 1, 6, 3, 2, 0])
    np.testing.assert_array_equal(ascent.nearest[[4, 1, 6, 3, 2, 0]], [5, 4, 5, 4, 1, 1])
    np.testing.assert_array_equal(ascent.delta, [1, 10, 1, 1, 1, 12, 1])
    # Gammas: 1, 20, 1, 1, 2, 24, 1.
    np.testing.assert_array_equal(dpc.centres(density, ascent, 2), [5, 1])
    np.testing.assert_array_equal(dpc.centres(density, ascent, 4), [5, 1, 4, 6])
    np.testing.assert_array_equal(dpc_labels(pairs, 32.5, 2), [1, 1, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(dpc_labels(pairs, 32.5, 1), np.zeros(7))


def test_dpc_gaussian_by_hand():
    x = np.array([0.0, 1, 3])[:, None]
    density = dpc.densities(distance_matrix(x), 2.0, "gaussian")
    ratios = np.exp(-(np.array([1, 3, 2]) ** 2) / 4)
    expected = [ratios[0] + ratios[1], ratios[0] + ratios[2], ratios[1] + ratios[2]]
    np.testing.assert_allclose(density, expected, rtol=1e-14)


def naive_dpc(x, percentile, n_clusters):
    """Cluster by density peaks, by the book."""
    n = len(x)
    distance = [[math.dist(a, b) for b in x] for a in x]
    pairs = sorted(distance[i][j] for i in range(n) for j in range(i))
    cut = float(np.percentile(pairs, percentile)) or min((d for d in pairs if d), default=1)
    density = [sum(distance[i][j] < cut for j in range(n) if j != i) for i in range(n)]
    order = sorted(range(n), key=lambda i: (-density[i], -i))
    delta, parent = {order[0]: max(distance[order[0]])}, {}
    for place in range(1, n):
        i = order[place]
        parent[i] = min(order[:place], key=lambda j: distance[i][j])
        delta[i] = distance[i][parent[i]]
    ranked = sorted(order, key=lambda i: -density[i] * delta[i])
    labels = {point: number for number, point in enumerate(ranked[:n_clusters])}
    for i in order:
        if i not in labels:
            labels[i] = labels[parent[i]]
    return [labels[i] for i in range(n)]


@given(few_points(), st.sampled_from([0.0, 1.7, 5, 21.3, 50]), st.integers(1, 4))
def test_dpc_is_its_twin(x, percentile, n_clusters):
    found = dpc_labels(measure_pairs(x), percentile, n_clusters)
    np.testing.assert_array_equal(found, naive_dpc(x, percentile, n_clusters))


def test_dpc_with_a_sample_of_pairs_and_single_precision(monkeypatch):
    x, _ = blobs_and_shapes(600, seed=1)
    exact = measure_pairs(x)
    monkeypatch.setattr(dpc, "MOST_EXACT", 100)
    monkeypatch.setattr(dpc, "MOST_DOUBLE", 100)
    monkeypatch.setattr(dpc, "N_SAMPLED", 50_000)
    sampled = measure_pairs(x)
    assert sampled.distances.dtype == np.float32
    assert sampled.some.size == 50_000
    assert sampled.some.all()  # never a point with itself
    for percentile in (2, 20, 50):
        cut = dpc.cut_distance(sampled, percentile)
        assert np.mean(exact.some <= cut) * 100 == pytest.approx(percentile, abs=0.7)


@pytest.mark.parametrize("shape", ["cutoff", "gaussian"])
def test_dpc_of_copies(shape):
    x = np.repeat([[0.0, 0], [5, 5], [9, 0]], [5, 4, 3], axis=0)
    labels = dpc_labels(measure_pairs(x), 0, 3, shape)  # the percentile is 0
    np.testing.assert_array_equal(labels, np.repeat(labels[[0, 5, 9]], [5, 4, 3]))
    assert len(set(labels)) == 3
    same = measure_pairs(np.ones((6, 2)))
    assert set(dpc_labels(same, 3, 2, shape)) == {0, 1}


def test_dpc_with_as_many_clusters_as_points_and_more():
    pairs = measure_pairs(np.arange(5.0)[:, None])
    assert sorted(dpc_labels(pairs, 10, 5)) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"n_clusters is 6, but with 5 points .*\[1, 5\]"):
        dpc_labels(pairs, 10, 6)
    np.testing.assert_array_equal(dpc_labels(measure_pairs(np.ones((1, 2))), 10, 1), [0])


# SNN-DBSCAN

LISTS = np.array(
    [
        [1, 2, 3],  # 0
        [0, 2, 3],  # 1
        [0, 1, 3],  # 2
        [0, 1, 4],  # 3: shares 0, 1 with 2; 1 with 0; 0 with 1
        [3, 5, 6],  # 4: shares 3 with 0, 1, 2; 5, 6 with 7
        [4, 6, 7],  # 5
        [4, 5, 7],  # 6
        [5, 6, 8],  # 7
        [7, 0, 5],  # 8: shares 7, 5 with 6
    ],
    np.int32,
)
# Pairs that share two: 0-1 (2, 3), 0-2 (1, 3), 1-2 (0, 3), 2-3 (0, 1), 4-7 (5, 6), 5-6 (4, 7),
# 6-8 (5, 7). Of these 0-1, 0-2, 1-2, 5-6 are in each other's lists.


def test_snn_dbscan_by_hand():
    for min_samples, expected in (
        (2, [0, 0, 0, 0, 1, 2, 2, 1, 2]),  # every point is core
        (3, [0, 0, 0, 0, -1, 1, 1, -1, 1]),  # cores 0, 1, 2, 6; border 3, 5, 8; noise 4, 7
        (4, [0, 0, 0, 0, -1, -1, -1, -1, -1]),  # the only core is 2
        (5, [-1] * 9),
    ):
        found = snn_dbscan_labels(LISTS, 2, min_samples)
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == np.int64
    mutual = snn_dbscan_labels(LISTS, 2, 3, mutual=True)
    np.testing.assert_array_equal(mutual, [0, 0, 0] + [-1] * 6)
    mutual = snn_dbscan_labels(LISTS, 2, 2, mutual=True)
    np.testing.assert_array_equal(mutual, [0, 0, 0, -1, -1, 1, 1, -1, -1])


def test_snn_dbscan_without_a_threshold():
    np.testing.assert_array_equal(snn_dbscan_labels(LISTS, 0, 9), np.zeros(9))
    np.testing.assert_array_equal(snn_dbscan_labels(LISTS, 0, 10), np.full(9, -1))


def shared_counts(lists):
    """Count the shared entries of all pairs."""
    sets = [set(row.tolist()) for row in lists]
    return np.array([[len(a & b) for b in sets] for a in sets])


def test_shared_counts_by_hand():
    counts = shared_counts(LISTS)
    pairs = np.argwhere(np.triu(counts >= 2, 1)).tolist()
    assert pairs == [[0, 1], [0, 2], [1, 2], [2, 3], [4, 7], [5, 6], [6, 8]]


def naive_lists(x, k):
    """Return the k nearest others of each point, by (distance, row)."""
    distance = np.sqrt(((x[:, None] - x) ** 2).sum(axis=2))
    np.fill_diagonal(distance, np.inf)
    return np.argsort(distance, axis=1, kind="stable")[:, :k]


@given(few_points(), st.data())
def test_snn_dbscan_is_dbscan_on_counts(x, data):
    k = data.draw(st.integers(1, min(8, len(x) - 1)))
    threshold, min_samples = data.draw(st.integers(0, k)), data.draw(st.integers(1, 8))
    mutual = data.draw(st.booleans())
    lists = nearest_lists(x, k)
    np.testing.assert_array_equal(lists, naive_lists(x, k))
    with pytest.MonkeyPatch.context() as patch:  # several forests to merge
        patch.setattr(snn_dbscan, "ROWS_PER_TASK", data.draw(st.sampled_from([3, 64])))
        found = snn_dbscan_labels(lists, threshold, min_samples, mutual)
    counts = shared_counts(lists)
    if mutual and threshold:
        holds = (lists[:, None] == np.arange(len(x))[:, None]).any(axis=2)
        counts *= holds & holds.T
    apart = (k - counts).astype(float)
    np.fill_diagonal(apart, 0)
    model = DBSCAN(eps=k - threshold + 1e-9, min_samples=min_samples, metric="precomputed")
    np.testing.assert_array_equal(found, model.fit_predict(apart))


def test_lists_longer_than_the_others():
    with pytest.raises(ValueError, match=r"k is 5, but with 5 points it must be in \[1, 4\]"):
        nearest_lists(np.zeros((5, 2)), 5)


# DBSCAN and HDBSCAN


def test_eps_of_dbscan_by_hand():
    x = np.array([0.0, 1, 3, 7])[:, None]
    # Itself is the first neighbour. Distances to the second: 1, 1, 2, 4; to the third: 3, 2, 3, 6.
    for min_samples, percentile, expected in ((2, 50, 1.5), (2, 100, 4), (3, 50, 3), (3, 0, 2)):
        config = {"min_samples": min_samples, "q_eps": percentile}
        assert dbscan_eps(neighbor_distances(x, [config]), config) == expected
    two = {"min_samples": 2, "q_eps": 50.0}
    np.testing.assert_array_equal(BASELINES["DBSCAN"].labels(x, two, None), [0, 0, -1, -1])


def test_dbscan_of_copies_has_a_positive_eps():
    x = np.repeat([[0.0], [1], [5]], [4, 4, 1], axis=0)
    config = {"min_samples": 3, "q_eps": 20.0}
    labels = BASELINES["DBSCAN"].labels(x, config, None)
    np.testing.assert_array_equal(labels, [0] * 4 + [1] * 4 + [-1])


def test_min_samples_of_hdbscan_leave_out_the_point_itself():
    x, _ = blobs_and_shapes(400, seed=2)
    config = {"min_cluster_size": 9, "min_samples": 4, "cluster_selection_method": "leaf"}
    model = HDBSCAN(min_cluster_size=9, min_samples=5, cluster_selection_method="leaf", copy=True)
    found = BASELINES["HDBSCAN"].labels(x, config, None)
    np.testing.assert_array_equal(found, model.fit_predict(x))
    assert len(set(found)) > 2


# All of them


def test_names():
    assert list(BASELINES) == NAMES
    assert [method.name for method in BASELINES.values()] == NAMES


@pytest.mark.parametrize("name", ["DBSCAN", "HDBSCAN"])
def test_scikit_learn_gets_the_threads_of_the_search(monkeypatch, name):
    """As many as this process may use, in each of its estimators."""
    asked = []

    def watched(kind):
        def make(**options):
            asked.append(options["n_jobs"])
            return kind(**options)

        return make

    for kind in (DBSCAN, HDBSCAN, NearestNeighbors):
        monkeypatch.setattr(baselines, kind.__name__, watched(kind))
    monkeypatch.setattr(threads, "n_threads", lambda: 2)
    method, (x, _) = BASELINES[name], blobs_and_shapes(200, seed=2)
    config = method.configurations(Facts(200, 2, 3), 0, 0)[0]
    method.labels(x, config, None)
    assert asked == {"DBSCAN": [2, 2], "HDBSCAN": [2]}[name]


def limits(n_points, n_columns):
    """Return the bounds of the paper's appendix, written out."""
    root, log2 = math.sqrt(n_points), math.floor(math.log2(n_points))
    density = math.floor(min(root, n_columns)), math.floor(min(n_points, 3 * root, 3 * n_columns))
    return {
        "DBSCAN": {"min_samples": density, "q_eps": (12.5, 100)},
        "HDBSCAN": {
            "min_cluster_size": (math.floor(n_points**0.3), math.floor(n_points**0.7)),
            "min_samples": (1, 2 * log2),
        },
        "DPC": {"q_dc": (0, 50), "k": (7, 7)},
        "SNN_DBSCAN": {
            "k": (log2, math.floor(root)),
            "f": (0, 0.875),
            "min_samples": density,
        },
    }


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["DBSCAN", "HDBSCAN", "DPC", "SNN_DBSCAN"])
def test_draws_stay_within_the_bounds_and_reach_both_ends(name, shape):
    default, *draws = BASELINES[name].configurations(Facts(*shape, 7), 3000, 42)
    assert len(draws) == 3000
    assert json.loads(json.dumps([default, *draws])) == [default, *draws]
    for parameter, (low, high) in limits(*shape)[name].items():
        values = [config[parameter] for config in draws]
        assert low <= min(values) <= max(values) <= high
        margin = 0.02 * (high - low)
        assert min(values) <= low + margin
        assert max(values) >= high - margin
        assert isinstance(values[0], type(default[parameter]))
    assert set(default) == set(draws[0])
    if name == "HDBSCAN":
        assert {config["cluster_selection_method"] for config in draws} == {"leaf", "eom"}


@pytest.mark.parametrize("name", NAMES)
def test_draws_depend_on_the_seed_alone(name):
    configurations = BASELINES[name].configurations
    facts = Facts(500, 3, 4)
    assert configurations(facts, 20, 1) == configurations(facts, 20, 1)
    assert configurations(facts, 20, 1) != configurations(facts, 20, 2)
    assert configurations(facts, 5, 1) == configurations(facts, 20, 1)[:6]


def test_defaults():
    facts = Facts(500, 3, 4)
    assert {name: method.configurations(facts, 0, 9)[0] for name, method in BASELINES.items()} == {
        "DBSCAN": {"min_samples": 5, "q_eps": 50.0},
        "HDBSCAN": {"min_cluster_size": 5, "min_samples": 5, "cluster_selection_method": "eom"},
        "KMeans": {"n_clusters": 4, "init": "k-means++", "n_init": 5, "random_state": 9},
        "DPC": {"q_dc": 5.0, "k": 4},
        "SNN_DBSCAN": {"k": 10, "f": 0.4, "min_samples": 5},
    }
    assert len(BASELINES["KMeans"].configurations(facts, 50, 9)) == 1


@pytest.mark.parametrize("n_columns", [2, 20, 130])
@pytest.mark.parametrize("name", NAMES)
def test_shared_and_from_scratch_and_few_or_many_threads_give_the_same(
    name, n_columns, monkeypatch
):
    method = BASELINES[name]
    x, y = blobs_and_shapes(420, n_columns, seed=3)
    x = np.round(np.asarray(x, np.float64), 2)  # ties
    configs = method.configurations(Facts(*x.shape, len(set(y))), 4, 42)
    shared = method.share(x, configs)
    before = x.copy()
    for config in configs:
        found = method.labels(x, config, shared)
        assert found.dtype == np.int64
        assert found.shape == (420,)
        assert found.min() >= -1
        np.testing.assert_array_equal(found, method.labels(x, config, None))
        for n_threads in (1, 5):
            monkeypatch.setattr(threads, "n_threads", lambda n_threads=n_threads: n_threads)
            with threadpool_limits(n_threads):
                np.testing.assert_array_equal(found, method.labels(x, config, None))
        np.testing.assert_array_equal(found, method.labels(x, config, shared))  # not changed
    np.testing.assert_array_equal(x, before)


def test_hdbscan_shares_distances_where_they_pay():
    share = BASELINES["HDBSCAN"].share
    assert share(np.zeros((50, 20)), []) is None
    assert share(np.zeros((50, 101)), []).shape == (50, 50)


@pytest.mark.parametrize("name", NAMES)
def test_blobs_are_found(name):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 60)
    x = rng.normal(size=(180, 2)) * 0.02 + np.array([[0, 0], [1, 0], [0, 1]])[y]
    method = BASELINES[name]
    configs = method.configurations(Facts(180, 2, 3), 20, 0)
    shared = method.share(x, configs)
    scores = [adjusted_rand_score(y, method.labels(x, config, shared)) for config in configs]
    assert max(scores) > 0.95


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_classes", [1, 3, 24])
def test_copies_and_constant_columns(name, n_classes):
    x = np.column_stack([np.arange(24.0), np.ones(24)])
    x[1:5] = x[0]
    method = BASELINES[name]
    configs = method.configurations(Facts(24, 2, n_classes), 10, 0)
    if name == "KMeans" and n_classes == 24:
        with pytest.warns(UserWarning, match="distinct clusters"):
            labels = method.labels(x, configs[0], None)
        assert len(set(labels)) == 20
        return
    shared = method.share(x, configs)
    for config in configs:
        labels = method.labels(x, config, shared)
        assert labels.shape == (24,)
        if name in ("KMeans", "DPC"):
            assert len(set(labels)) == n_classes


def test_smallest_sets_have_configurations_that_run():
    for n_points in (2, 3, 6):
        x = np.random.default_rng(n_points).random((n_points, 2))
        for method in BASELINES.values():
            configs = method.configurations(Facts(n_points, 2, 2), 5, 0)
            shared = method.share(x, configs)
            for config in configs:
                assert len(method.labels(x, config, shared)) == n_points
