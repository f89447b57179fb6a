import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spore_dask import approximate, probing
from spore_dask.approximate import approximate_rows
from spore_dask.kernels import joins, means, probes
from tests import naive
from tests.strategies import point_sets


def blobs(n_points=900, n_columns=24, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(12, n_columns))
    points = centers[rng.integers(12, size=n_points)] + rng.normal(size=(n_points, n_columns))
    return points.astype(dtype)


def assert_sound(points, k, neighbors, distances):
    """Rows are full, distinct, measured by direct distances and sorted by (distance, row)."""
    assert neighbors.shape == distances.shape == (len(points), k + 1)
    assert distances.dtype == points.dtype
    for i, (row, near) in enumerate(zip(neighbors, distances, strict=True)):
        assert row[0] == i
        assert len(set(row.tolist())) == k + 1
        np.testing.assert_array_equal(near, naive.distances_from(points, i)[row])
        assert (np.lexsort((row[1:], near[1:])) == np.arange(k)).all()


def recall(points, k, distances):
    exact = naive.neighbor_rows(points, k)[1]
    return np.mean(distances[:, 1:] <= exact[:, -1:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_partitions", [1, 5])
def test_rows_are_sound_and_mostly_right(dtype, n_partitions):
    points = blobs(dtype=dtype)
    neighbors, distances, sampled = approximate_rows(points, 12, n_partitions)
    assert_sound(points, 12, neighbors, distances)
    assert recall(points, 12, distances) > 0.95
    assert abs(recall(points, 12, distances) - sampled.sampled) < 0.03
    assert 0 < sampled.error < 0.03


@pytest.mark.parametrize("shift", [0, 1e4])
def test_every_cell_probed_is_brute_force(shift):
    points = blobs(700, 9, np.float64) + shift
    neighbors, distances, sampled = approximate_rows(points, 10, 3, n_probes=10**6, max_rounds=0)
    expected = naive.neighbor_rows(points, 10)
    np.testing.assert_array_equal(neighbors, expected[0])
    np.testing.assert_array_equal(distances, expected[1])
    assert sampled.sampled == 1


@settings(max_examples=30)
@given(points=point_sets(), data=st.data())
def test_awkward_points_get_full_rows(points, data):
    k = data.draw(st.integers(1, len(points) - 1))
    n_partitions = data.draw(st.integers(1, 4))
    neighbors, distances, _ = approximate_rows(
        points, k, n_partitions, max_rounds=1, recall_target=1.0
    )
    assert_sound(points, k, neighbors, distances)


def test_many_copies_and_ties():
    rng = np.random.default_rng(0)
    points = rng.integers(0, 3, (800, 4)).astype(np.float32)
    neighbors, distances, _ = approximate_rows(points, 20, 6)
    assert_sound(points, 20, neighbors, distances)


def test_the_same_seed_gives_the_same_rows(monkeypatch):
    points = blobs()
    first = approximate_rows(points, 10, 4, seed=7)
    monkeypatch.setattr("spore_dask.threads.n_threads", lambda: 3)
    second = approximate_rows(points, 10, 4, seed=7)
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])


def test_rounds_only_improve():
    points = blobs(2000, 40)
    distances = [
        approximate_rows(points, 15, 4, n_probes=1, max_rounds=n, recall_target=1.0)[1]
        for n in range(3)
    ]
    assert (distances[1] <= distances[0]).all()
    assert (distances[2] <= distances[1]).all()
    assert recall(points, 15, distances[1]) > recall(points, 15, distances[0]) + 0.02


@pytest.mark.parametrize("n_parts", [1, 2, 3, 7, 16])
def test_parts_of_a_tree_are_balanced(n_parts):
    points = blobs(1600)
    tree = means.build_tree(points, n_parts, seed=1)
    sizes = np.bincount(means.assign(tree, points), minlength=n_parts)
    assert len(sizes) == n_parts
    assert sizes.min() >= 1600 // n_parts - 8
    assert sizes.max() <= 1600 // n_parts + 8


def test_a_part_depends_on_the_point_alone():
    points = blobs()
    tree = means.build_tree(points[::3], 7, seed=1)
    whole = means.assign(tree, points)
    single = np.concatenate([means.assign(tree, points[i : i + 1]) for i in range(len(points))])
    np.testing.assert_array_equal(whole, single)


@pytest.mark.parametrize("kind", ["blobs", "one place", "two places"])
def test_cells_hold_every_point_once_and_are_bounded(kind):
    points = blobs(1500)
    if kind != "blobs":
        points = points[np.arange(1500) % (1 if kind == "one place" else 2)]
    order, starts, centers = means.cluster_cells(points, seed=3)
    np.testing.assert_array_equal(np.sort(order), np.arange(1500))
    sizes = np.diff(starts)
    assert starts[0] == 0
    assert starts[-1] == 1500
    assert sizes.min() > 0
    assert sizes.max() <= means.LARGEST_CELL * means.POINTS_PER_CELL
    for i in range(len(sizes)):
        mean = points[order[starts[i] : starts[i + 1]]].mean(axis=0, dtype=np.float64)
        np.testing.assert_allclose(centers[i], mean, rtol=1e-5, atol=1e-6)


def test_few_probes_are_enough_for_a_list():
    assert probes.fewest_probes(np.array([5, 1, 9, 2]), 2) == 2
    assert probes.fewest_probes(np.array([5, 1, 9, 2]), 16) == 4
    assert probes.fewest_probes(np.array([5, 1, 9, 2]), 1) == 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_near", [1, 9, 20, 600])
def test_near_cells_do_not_depend_on_how_centers_are_split(dtype, n_near):
    centers = blobs(600, 8, dtype)
    squares = ((centers[:7, None].astype(np.float64) - centers) ** 2).sum(axis=2)
    nearest = np.sort(np.argsort(squares, axis=1)[:, :n_near], axis=1)
    rng = np.random.default_rng(n_near)
    for n_parts in (1, 3, 30):
        firsts = np.arange(0, 600, 600 // n_parts)
        parts = [(first, centers[first : first + 600 // n_parts]) for first in firsts.tolist()]
        for order in (parts, parts[::-1], [parts[i] for i in rng.permutation(n_parts)]):
            found = probes.near_cells(centers[:7], order, n_near)
            np.testing.assert_array_equal(found, nearest)


def some_lists(rng, n_rows=40, width=6, first=0):
    """Lists of distinct numbers up to 60, at squares that are functions of the pair."""
    numbers = np.array([rng.permutation(60)[:width] for _ in range(n_rows)], np.int32)
    squares = pair_squares(np.arange(first, first + n_rows)[:, None], numbers)
    order = np.lexsort((numbers, squares), axis=1)
    return probes.Lists(
        np.take_along_axis(numbers, order, axis=1),
        np.take_along_axis(squares, order, axis=1),
        np.zeros(numbers.shape, bool),
    )


def pair_squares(left, right):
    return np.float32((left - right) ** 2 % 37)


def test_reverse_edges_are_merged_once():
    lists = some_lists(np.random.default_rng(0))
    expected = [
        {(s, n) for s, n in zip(lists.squares[i].tolist(), lists.numbers[i].tolist(), strict=True)}
        for i in range(40)
    ]
    for source in range(40):
        for target in lists.numbers[source].tolist():
            if target < 40:
                expected[target].add((float(pair_squares(target, source)), source))
    edges = joins.reverse_edges(lists, 0, lists.squares[:, -1].copy(), 0)
    twice = [np.concatenate([column, column]) for column in edges]
    before = lists.numbers.copy()
    n_taken = joins.merge_edges(lists, 0, *twice)
    for i in range(40):
        assert lists.squares[i].tolist() == [s for s, _ in sorted(expected[i])[:6]]
        assert len(set(lists.numbers[i].tolist())) == 6
        is_new = ~np.isin(lists.numbers[i], before[i])
        np.testing.assert_array_equal(lists.fresh[i], is_new)
    assert n_taken >= lists.fresh.sum() > 0


def test_candidates_are_the_distinct_neighbours_of_neighbours():
    lists = some_lists(np.random.default_rng(1), n_rows=60)
    lists.fresh[::2] = True
    starts = np.array([0, 25, 26, 60])
    heads = np.ascontiguousarray(lists.numbers[:, :4])
    fresh_heads = np.ascontiguousarray(lists.fresh[:, :4])
    middles = np.ascontiguousarray(lists.numbers[:, :3])
    known = lists.fresh, starts, middles, heads, fresh_heads
    found, found_starts = joins.cell_candidates(*known, 1000)
    for cell in range(3):
        expected = {
            heads[middle, j]
            for row in range(starts[cell], starts[cell + 1])
            for i, middle in enumerate(middles[row])
            for j in range(4)
            if lists.fresh[row, i] or fresh_heads[middle, j]
        }
        mine = found[found_starts[cell] : found_starts[cell + 1]].tolist()
        assert len(mine) == len(expected)
        assert set(mine) == expected
    few, few_starts = joins.cell_candidates(*known, 5)
    assert np.diff(few_starts).max() == 5
    np.testing.assert_array_equal(few[:5], found[:5])


def test_the_pilot_counts_what_probes_reach():
    index = approximate.split_points(blobs(1500, 30), 3, seed=0)
    truth = approximate.search_sample(index, 10, 200, seed=0)
    ranks = probing.probe_ranks(index, truth.sample, truth.lists.numbers)
    for n_probes in (2, 8):
        lists = [probing.probe(index, home, n_probes, 10) for home in range(len(index.parts))]
        counted = np.mean(ranks < n_probes)
        found = approximate.recall_of(index, lists, truth).sampled
        assert found == pytest.approx(counted, abs=0.01)
    assert probing.enough_probes(ranks, 0.0) == probing.FEWEST_PROBES
    assert probing.enough_probes(ranks, 1.1) > ranks.max()
    reach = probing.reach_of(ranks)
    assert np.mean(ranks < reach) >= probing.START_RECALL > np.mean(ranks < reach - 1)


def test_a_sample_is_searched_exactly():
    points = blobs(800, 15)
    partitions = approximate.split_points(points, 3, seed=0)
    truth = approximate.search_sample(partitions, 9, 50, seed=0)
    rows = np.concatenate(partitions.input_rows)
    neighbors = naive.neighbor_rows(points, 9)[0]
    found = rows[truth.lists.numbers]
    same = [
        len(set(found[i].tolist()) & set(neighbors[row, 1:].tolist()))
        for i, row in enumerate(rows[truth.numbers])
    ]
    assert sum(same) >= 9 * 50 - 1


@given(n_lists=st.integers(1, 9), size=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_nearest_of_groups_are_the_nearest_of_all(n_lists, size, seed):
    rng = np.random.default_rng(seed)
    shape, k = (6, 7), 5
    found = [
        probes.Lists(
            rng.integers(0, 1000, shape).astype(np.int32),
            np.sort(rng.integers(0, 5, shape), axis=1).astype(np.float32),  # ties
            np.zeros(shape, bool),
        )
        for _ in range(n_lists)
    ]
    best = []
    for first in range(0, n_lists, size):
        best = [probing.nearest_of([*best, *found[first : first + size]], k)]
    for grouped, whole in zip(best[0], probing.nearest_of(found, k), strict=True):
        np.testing.assert_array_equal(grouped, whole)
