import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spore_dask import InputError, ParameterError, Params, cluster_graph
from spore_dask import clustering as module
from spore_dask.clusters import expansion_settings
from spore_dask.kernels import expand as expansion
from spore_dask.kernels import order as density_order
from spore_dask.kernels.reassign import FRAGMENT, Fragments, Gates, vote
from tests import naive
from tests.strategies import configs, point_sets


@given(points=point_sets(), config=configs())
def test_everything_equals_the_oracle(points, config):
    params = Params(**config).resolve(len(points))
    neighbors, distances = naive.neighbor_rows(points, params.k)
    labels, provenance, clusters = naive.cluster_graph_details(
        neighbors, distances, points, **config
    )
    found = module.cluster_rows(neighbors, distances, points, params)
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_array_equal(found.provenance, provenance)
    for record, expected in zip(found.clusters, clusters, strict=True):
        assert record["size"] == expected["size"]
        assert record["skeleton_size"] == expected["skeleton_size"]
        assert record["mean"] == expected["mean"]
        assert record["std"] == expected["std"]
        assert record["seed_row"] == expected["seed"]


@given(points=point_sets(), config=configs(), extra=st.integers(0, 3))
def test_cluster_graph_uses_the_first_columns(points, config, extra):
    k = min(Params(**config).resolve(len(points)).k + extra, len(points) - 1)
    neighbors, distances = naive.neighbor_rows(points, k)
    expected = naive.cluster_graph(neighbors, distances, points, **config)
    labels = cluster_graph(neighbors, distances, points, **config)
    np.testing.assert_array_equal(labels, expected)
    assert labels.dtype == np.int32


@given(points=point_sets(), several=st.lists(configs(), min_size=1, max_size=4), data=st.data())
def test_one_graph_for_several_configurations(points, several, data):
    order = data.draw(st.lists(st.sampled_from(range(len(several))), min_size=1, max_size=6))
    resolved = [Params(**config).resolve(len(points)) for config in several]
    neighbors, distances = naive.neighbor_rows(points, max(params.k for params in resolved))
    graph = module.GraphInMemory(neighbors, distances, points)
    for number in order:
        width = resolved[number].k + 1
        rows = neighbors[:, :width], distances[:, :width]
        expected = naive.cluster_graph(*rows, points, **several[number])
        np.testing.assert_array_equal(graph.cluster(resolved[number]).labels, expected)


@given(points=point_sets(), data=st.data())
def test_order_and_thresholds_equal_the_oracle(points, data):
    config = data.draw(configs())
    params = Params(**config).resolve(len(points))
    _, distances = naive.neighbor_rows(points, params.k)
    extent = density_order.extent(points)
    assert extent == naive.extent(points)
    if extent <= 0:
        return
    density = density_order.densities(distances, params.density_neighbors, extent)
    expected = naive.density(distances, params.density_neighbors, extent)
    np.testing.assert_array_equal(density, expected)
    order = density_order.total_order(density, points)
    np.testing.assert_array_equal(order, naive.total_order(expected, points))
    thresholds = module.measure_thresholds(distances, params, extent)
    resolved = naive.resolve(config, len(points))
    assert (thresholds.z, thresholds.max_z) == naive.thresholds(distances, resolved)
    start = naive.starting_statistics(distances, params.expansion_neighbors)
    assert (thresholds.start_mean, thresholds.start_std) == start


class TestPieces:
    """The kernels give the same when rows and seeds come a few at a time."""

    @given(points=point_sets(), config=configs(), data=st.data())
    def test_expansion(self, points, config, data):
        params = Params(**config).resolve(len(points))
        neighbors, distances = naive.neighbor_rows(points, params.k)
        extent = density_order.extent(points)
        if extent <= 0:
            return
        thresholds = module.measure_thresholds(distances, params, extent)
        seeds = data.draw(st.permutations(range(len(points))))
        seeds = np.array(seeds, np.int64)
        whole, grown = module._expand(neighbors, distances, seeds, params, thresholds)
        shard_rows = data.draw(st.integers(1, 10))
        n_slots = data.draw(st.integers(1, 3))
        labels, again, n_fetched = expand_in_pieces(
            neighbors, distances, seeds, params, thresholds, shard_rows, n_slots
        )
        np.testing.assert_array_equal(labels, whole)
        np.testing.assert_array_equal(again, grown)
        assert n_fetched >= 1

    @given(points=point_sets(), config=configs(), size=st.integers(1, 10))
    def test_reassignment(self, points, config, size):
        params = Params(**config).resolve(len(points))
        neighbors, distances = naive.neighbor_rows(points, params.k)
        rng = np.random.default_rng(len(points))
        labels = rng.integers(-1, 3, len(points)).astype(np.int32)
        gates = Gates(
            means=np.repeat(distances[:, -1].mean(dtype=np.float64), 3),
            tolerances=np.array([0.0, 0.5, 1.0]) * distances.std(dtype=np.float64),
            reach=params.reassignment_neighbors,
        )
        fragments = np.flatnonzero(labels == FRAGMENT)
        whole, in_pieces = labels.copy(), labels.copy()
        rounds, rounds_in_pieces = np.zeros((2, len(labels)), np.int16)
        n_whole = vote(
            Fragments(fragments, fragments, neighbors, distances), gates, whole, rounds, 1
        )
        n_pieces = 0
        for first in range(0, len(fragments), size):
            part = fragments[first : first + size]
            piece = Fragments(part, np.arange(len(part)), neighbors[part], distances[part])
            n_pieces += vote(piece, gates, in_pieces, rounds_in_pieces, 1)
        assert n_pieces == n_whole
        np.testing.assert_array_equal(in_pieces, whole)
        np.testing.assert_array_equal(rounds_in_pieces, rounds)


def expand_in_pieces(neighbors, distances, seeds, params, thresholds, shard_rows, n_slots):
    """Run Expansion with `n_slots` shards of `shard_rows` rows at hand, 7 seeds at a time."""
    n_points, width = neighbors.shape
    n_shards = -(-n_points // shard_rows)
    slots = expansion.Slots(
        np.full(n_shards, -1, np.int32),
        shard_rows,
        np.full((n_slots * shard_rows, width), -1, neighbors.dtype),
        np.full((n_slots * shard_rows, width), np.nan, distances.dtype),
    )
    growth = expansion.Growth(
        np.zeros(1, expansion.STATE),
        np.full(n_points, expansion.UNASSIGNED, np.int32),
        np.empty(n_points, np.int32),
        np.empty(7, expansion.CLUSTER),
    )
    settings = expansion_settings(params, thresholds)
    longer = expansion.no_longer_rows(neighbors.dtype, distances.dtype)
    grown, n_fetched = [], 0
    for first in range(0, n_points, 7):
        growth.state["seed"] = growth.state["n_closed"] = 0
        piece = seeds[first : first + 7]
        while (wanted := expansion.expand(settings, piece, slots, longer, growth)) >= 0:
            slot = n_fetched % n_slots
            slots.slot_of_page[slots.slot_of_page == slot] = -1
            rows = slice(wanted * shard_rows, min((wanted + 1) * shard_rows, n_points))
            room = slice(slot * shard_rows, slot * shard_rows + rows.stop - rows.start)
            slots.neighbors[room] = neighbors[rows]
            slots.distances[room] = distances[rows]
            slots.slot_of_page[wanted] = slot
            n_fetched += 1
        grown.append(growth.closed[: growth.state["n_closed"][0]].copy())
    return growth.labels, np.concatenate(grown), n_fetched


class TestThresholdsAreSharp:
    """A distance exactly at a limit is within it, as `distance - mean <= z * std` computes it."""

    def test_expansion_admits_a_distance_at_the_limit(self):
        points = np.array([[0.0], [1.0], [3.0], [6.0]])
        neighbors, distances = naive.neighbor_rows(points, 1)
        params = {"min_cluster_size": 1, "expansion_neighbors": 1, "seeding_order": "none"}
        mean, std = naive.distance_statistics(distances)
        at_limit = (1.0 - mean) / std
        while at_limit * std < 1.0 - mean:
            at_limit = np.nextafter(at_limit, np.inf)
        below = at_limit
        while below * std >= 1.0 - mean:
            below = np.nextafter(below, -np.inf)
        for z, joined in ((float(at_limit), True), (float(below), False)):
            labels = cluster_graph(neighbors, distances, points, z=z, **params)
            np.testing.assert_array_equal(
                labels, naive.cluster_graph(neighbors, distances, points, z=z, **params)
            )
            assert (labels[0] == labels[1]) is np.bool_(joined)

    def test_reassignment_admits_a_distance_at_the_limit(self):
        neighbors = np.array([[0, 1], [1, 0]], np.int32)
        distances = np.array([[0.0, 0.3], [0.0, 0.3]])
        fragments = Fragments(np.array([0]), np.array([0]), neighbors, distances)
        for tolerance, joined in ((0.3 - 0.1, 1), (np.nextafter(0.3 - 0.1, 0), 0)):
            labels = np.array([FRAGMENT, 0], np.int32)
            gates = Gates(np.array([0.1]), np.array([tolerance]), 1)
            assert vote(fragments, gates, labels, np.zeros(2, np.int16), 1) == joined


def test_votes_tie_to_the_label_met_first():
    neighbors = np.array([[0, 3, 1, 2, 4]], np.int32)
    distances = np.array([[0.0, 1.0, 2.0, 3.0, 4.0]], np.float32)
    labels = np.array([FRAGMENT, 0, 0, 1, 1], np.int32)
    gates = Gates(np.zeros(2), np.full(2, 10.0), 4)
    rounds = np.zeros(5, np.int16)
    fragments = Fragments(np.array([0]), np.array([0]), neighbors, distances)
    assert vote(fragments, gates, labels, rounds, 1) == 1
    assert labels[0] == 1
    assert rounds[0] == 1


def test_identical_points_are_one_cluster():
    points = np.full((5, 2), 3.0)
    labels = cluster_graph(*naive.neighbor_rows(points, 4), points)
    np.testing.assert_array_equal(labels, np.zeros(5))


@pytest.fixture
def graph():
    points = np.random.default_rng(0).normal(size=(20, 2))
    return [*naive.neighbor_rows(points, 12), points]


@pytest.mark.parametrize("number", [np.int32, np.uint32, np.int64, np.uint64])
def test_number_dtypes_and_layouts(graph, number):
    neighbors, distances, points = graph
    expected = naive.cluster_graph(neighbors, distances, points)
    layouts = np.asfortranarray(neighbors.astype(number)), distances, points.tolist()
    np.testing.assert_array_equal(cluster_graph(*layouts), expected)
    swapped = neighbors.astype(np.dtype(number).newbyteorder()), distances.astype(">f8"), points
    np.testing.assert_array_equal(cluster_graph(*swapped), expected)


def spoil(array, place, value):
    array = array.copy()
    array[place] = value
    return array


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda n, d, p: (n[:5], d[:5], p), r"shape \(5, 13\)"),
        (lambda n, d, p: (n, d[:, :5], p), r"distances \(20, 5\)"),
        (lambda n, d, p: (n[:, :2], d[:, :2], p), "has 2 columns, but .* need 4"),
        (lambda n, d, p: (n.astype(float), d, p), "neighbors is float64"),
        (lambda n, d, p: (n, d.astype(int), p), "distances int64"),
        (lambda n, d, p: (spoil(n, (3, 0), 4), d, p), "Row 3"),
        (lambda n, d, p: (spoil(n, (3, 1), 3), d, p), "Row 3"),
        (lambda n, d, p: (spoil(n, (3, 2), n[3, 1]), spoil(d, (3, 2), d[3, 1]), p), "Row 3"),
        (lambda n, d, p: (spoil(n, (3, 3), n[3, 1]), d, p), "Row 3 .* names a point twice"),
        (lambda n, d, p: (spoil(n.astype("u8"), (7, 2), 2**64 - 1), d, p), "Row 7"),
        (lambda n, d, p: (spoil(n.astype("i1"), (7, 2), -128), d, p), "Row 7"),
        (lambda n, d, p: (n > 3, d, p), "neighbors is bool"),
        (lambda n, d, p: (n, spoil(d, (2, 3), -1.0), p), "Row 2"),
        (lambda n, d, p: (spoil(n, (7, 2), 20), d, p), "Row 7"),
        (lambda n, d, p: (spoil(n, (7, 2), -1), d, p), "Row 7"),
        (lambda n, d, p: (n, spoil(d, (2, 1), 9.0), p), "Row 2"),
        (lambda n, d, p: (n, spoil(d, (2, 1), np.nan), p), "Row 2"),
        (lambda n, d, p: (n, spoil(d, (2, slice(1, None)), np.inf), p), "Row 2"),
        (lambda n, d, p: (n, spoil(d, (2, slice(1, None)), 1e200 * d[2, 1:]), p), "Row 2"),
        (lambda n, d, p: (n, spoil(d, (2, 0), -1.0), p), "Row 2"),
        (lambda n, d, p: (n, d, spoil(p, (1, 1), np.nan)), "Row 1, column 1"),
    ],
)
def test_a_bad_graph_gets_one_sentence(graph, change, words):
    with pytest.raises(InputError, match=words):
        cluster_graph(*change(*graph))


def test_a_point_named_twice_is_refused_before_it_does_harm():
    n_points = 1000
    first = np.arange(n_points)
    nexts = (first[:, None] + np.repeat(np.arange(1, 9), 8)) % n_points
    neighbors = np.column_stack((first, nexts))
    distances = np.tile(np.append(0.0, np.linspace(1, 2, 64)), (n_points, 1))
    with pytest.raises(InputError, match=r"Row \d+ of the graph names a point twice"):
        cluster_graph(neighbors, distances, first[:, None] * 1.0, expansion_neighbors=60, z=5)


def test_a_bad_graph_of_identical_points(graph):
    neighbors, distances, points = graph
    with pytest.raises(InputError, match="Row 3"):
        cluster_graph(spoil(neighbors, (3, 0), 4), distances, np.zeros_like(points))


def test_many_pieces_of_seeds(monkeypatch):
    points = np.random.default_rng(1).normal(size=(300, 2))
    neighbors, distances = naive.neighbor_rows(points, 20)
    config = {"retention_rate": 0.5, "max_scr_rounds": 0, "post_reassignment_policy": "none"}
    expected = cluster_graph(neighbors, distances, points, **config)
    monkeypatch.setattr(module, "SEEDS_PER_PIECE", 7)
    params = Params(**config).resolve(300)
    rows = neighbors[:, : params.k + 1], distances[:, : params.k + 1]
    found = module.cluster_rows(*rows, points, params)
    np.testing.assert_array_equal(found.labels, expected)
    details = naive.cluster_graph_details(neighbors, distances, points, **config)[2]
    assert len(details) > 14
    np.testing.assert_array_equal(found.clusters["mean"], [each["mean"] for each in details])


def test_a_bad_parameter(graph):
    with pytest.raises(ParameterError, match="z_percentile is 200"):
        cluster_graph(*graph, z_percentile=200)
    with pytest.raises(ParameterError, match="no parameter 'eps'"):
        cluster_graph(*graph, eps=0.5)
