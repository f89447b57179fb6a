import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spore_dask import ParameterError, exact, search
from spore_dask.kernels import cells, copies, nearest
from spore_dask.search import neighbor_rows
from tests import naive
from tests.strategies import point_sets


def assert_rows_equal(found, points, k):
    neighbors, distances = naive.neighbor_rows(points, k)
    np.testing.assert_array_equal(found[0], neighbors)
    np.testing.assert_array_equal(found[1], distances)
    assert found[1].dtype == points.dtype


def by_products(points, k):
    arrays = search._new_arrays(len(points), k, points.dtype)
    search._search_products(points, *arrays)
    return arrays


@given(points=point_sets(), data=st.data())
def test_cells_equal_brute_force(points, data):
    k = data.draw(st.integers(1, len(points) - 1))
    rows = neighbor_rows(points, k, "exact")
    assert rows.exact
    assert_rows_equal((rows.neighbors, rows.distances), points, k)


@given(points=point_sets(), data=st.data())
def test_products_equal_brute_force(points, data):
    k = data.draw(st.integers(1, len(points) - 1))
    assert_rows_equal(by_products(points, k), points, k)


DISTANCES = {
    "apart": lambda rng, n: rng.lognormal(sigma=2, size=n),
    "ties": lambda rng, n: rng.integers(0, 4, n) / 3,
    "nearly equal": lambda rng, n: 1 + rng.integers(0, 50, n) * 1e-7,
    "equal": lambda rng, n: np.full(n, 0.25),
    "zeros": lambda rng, n: np.zeros(n),
    "infinite": lambda rng, n: np.where(rng.random(n) < 0.6, np.inf, rng.random(n)),
}


@pytest.mark.parametrize("kind", DISTANCES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("number_dtype", [np.uint32, np.int64])
@pytest.mark.parametrize("k", [1, 7, 38, nearest.MOST_RANKED, nearest.MOST_RANKED + 1])
def test_the_nearest_candidates_by_distance_and_row(kind, dtype, number_dtype, k):
    rng = np.random.default_rng(k)
    buffers = nearest.new_buffers(3, k, np.dtype(dtype), number_dtype)
    entries = []
    for query, n_found in enumerate((k, k + 1, buffers.capacity)):
        here = slice(query * buffers.capacity, query * buffers.capacity + n_found)
        buffers.distances[here] = DISTANCES[kind](rng, n_found)
        most = np.iinfo(number_dtype).max
        buffers.rows[here] = most - rng.permutation(10**6)[:n_found]
        buffers.points[here] = rng.permutation(10**6)[:n_found]
        buffers.counts[query] = n_found
        entries.append([array[here].tolist() for array in buffers[1:4]])
    near, neighbors = np.zeros((3, k + 1), dtype), np.zeros((3, k + 1), number_dtype)
    nearest.cut_all(buffers, 0, 2, k)
    assert nearest.finish(buffers, np.arange(3), np.arange(3), k, False, neighbors, near) == 3
    for query, found in enumerate(entries):
        expected = sorted(zip(*found, strict=True))[:k]
        assert near[query, 1:].tolist() == [distance for distance, _, _ in expected]
        assert neighbors[query, 1:].tolist() == [point for _, _, point in expected]
    farthest = near[:, -1]
    wider, further = buffers.slack
    np.testing.assert_array_equal(buffers.limits[:2], (farthest * farthest * wider + further)[:2])


KINDS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "ties": lambda rng, shape: rng.integers(0, 5, shape),
    "copies": lambda rng, shape: rng.normal(size=shape)[rng.integers(0, shape[0] // 40, shape[0])],
    "one big group": lambda rng, shape: rng.normal(size=shape) * (rng.random((shape[0], 1)) < 0.5),
    "far from the origin": lambda rng, shape: 1000 + rng.normal(size=shape),
    "vanishing distances": lambda rng, shape: np.where(
        np.arange(shape[0])[:, None] % 10 == 0, 1e-26 * rng.integers(1, 9, shape), 0
    ),
    "underflowing squares": lambda rng, shape: 4e-23 * rng.normal(size=shape),
    "a huge constant column": lambda rng, shape: np.where(
        np.arange(shape[1]) == shape[1] // 2, 3e38, rng.normal(size=shape)
    ),
    "uneven": lambda rng, shape: rng.lognormal(sigma=3, size=shape),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "k"), [((700, 1), 9), ((1500, 2), 30), ((900, 17), 90)])
def test_many_cells_equal_brute_force(kind, dtype, shape, k):
    rng = np.random.default_rng(shape)
    points = np.ascontiguousarray(KINDS[kind](rng, shape), dtype) + 0
    rows = neighbor_rows(points, k, "exact")
    assert_rows_equal((rows.neighbors, rows.distances), points, k)
    assert_rows_equal(by_products(points, k), points, k)


def test_a_full_grid_needs_bounds_that_are_not_too_large():
    nodes = np.stack(np.meshgrid(*[np.arange(12)] * 3), axis=-1).reshape(-1, 3)
    points = np.random.default_rng(0).permutation(nodes).astype(np.float32)
    rows = neighbor_rows(points, 6, "exact")
    assert_rows_equal((rows.neighbors, rows.distances), points, 6)


def test_products_need_their_margin():
    rng = np.random.default_rng(0)
    points = (1e4 * rng.integers(0, 2, (800, 1)) + rng.random((800, 64))).astype(np.float32)
    assert_rows_equal(by_products(points, 10), points, 10)


def test_a_tie_of_rounded_distances_goes_to_the_lower_row():
    base = np.float64(1) + np.finfo(np.float64).eps
    points = np.array([[0.0, 0.0], [np.nextafter(base, 2), 0.0], [base, 0.0], [1.0, 1.5e-8]])
    rows = neighbor_rows(points, 3, "exact")
    assert_rows_equal((rows.neighbors, rows.distances), points, 3)


def one_row(points, row, k):
    """Return the row of one point, by the oracle's distances."""
    distances = naive.distances_from(points, row)
    distances[row] = -1
    return np.lexsort((np.arange(len(points)), distances))[: k + 1]


def test_a_large_group_of_copies_is_not_searched():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(60_000, 3)).astype(np.float32)
    points[rng.permutation(60_000)[:40_000]] = 0
    rows = neighbor_rows(points, 10, "exact")
    zeros = np.flatnonzero((points == 0).all(axis=1))
    last = zeros[-1]
    np.testing.assert_array_equal(rows.neighbors[last], [last, *zeros[:10]])
    assert (rows.distances[zeros] == 0).all()
    near = np.flatnonzero((points != 0).any(axis=1))[0]
    np.testing.assert_array_equal(rows.neighbors[near], one_row(points, near, 10))


@pytest.mark.parametrize("colliding", [False, True])
def test_groups_of_copies(monkeypatch, colliding):
    if colliding:
        monkeypatch.setattr(copies, "hash_rows", lambda bits: np.zeros(len(bits), np.uint64))
    rng = np.random.default_rng(0)
    points = rng.integers(0, 3, (200, 2)).astype(np.float32)
    found = {tuple(rows) for rows in copies.large_groups(points, larger_than=20)}
    places = {tuple(point) for point in points.tolist()}
    every = [np.flatnonzero((points == place).all(axis=1)) for place in places]
    assert found == {tuple(rows) for rows in every if len(rows) > 20}
    assert 0 < len(found) < len(every)


def test_products_take_over_where_boxes_prune_nothing(monkeypatch):
    calls = []
    original = search._search_products
    monkeypatch.setattr(
        search, "_search_products", lambda *args: (calls.append(1), original(*args))[1]
    )
    rng = np.random.default_rng(0)
    neighbor_rows(rng.random((5000, 2)), 10, "exact")
    assert not calls
    wide = rng.random((5000, 60)).astype(np.float32)
    rows = neighbor_rows(wide, 10, "exact")
    assert calls
    for row in range(0, 5000, 500):
        np.testing.assert_array_equal(rows.neighbors[row], one_row(wide, row, 10))


def test_approximate_rows_are_sorted_full_and_close():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(40, 90))
    points = (centers[rng.integers(40, size=5000)] + rng.normal(size=(5000, 90))).astype(np.float32)
    points[:300] = points[300]
    points[4000:4005] = points[17]
    found = neighbor_rows(points, 15, "approximate", seed=1)
    exact = neighbor_rows(points, 15, "exact")
    assert exact.exact
    assert not found.exact
    shared = [
        len(np.intersect1d(a, b)) for a, b in zip(found.neighbors, exact.neighbors, strict=True)
    ]
    assert np.mean(shared) / 16 > 0.95
    assert (np.diff(found.distances, axis=1) >= 0).all()
    assert (found.neighbors[:, 0] == np.arange(5000)).all()
    assert all(len(set(row)) == 16 for row in found.neighbors.tolist())
    far = neighbor_rows(points.astype(np.float64) + 1e8, 15, "approximate", seed=2**40)
    pairs = zip(far.neighbors, exact.neighbors, strict=True)
    assert np.mean([len(np.intersect1d(*pair)) for pair in pairs]) / 16 > 0.95
    again = neighbor_rows(points, 15, "approximate", seed=1)
    np.testing.assert_array_equal(found.neighbors, again.neighbors)


@pytest.mark.parametrize("k", [0, 3, 100])
def test_k_out_of_range(k):
    with pytest.raises(ParameterError, match=rf"k is {k}, .* \[1, 2\]"):
        neighbor_rows(np.zeros((3, 2)), k)


def test_unknown_knn():
    with pytest.raises(ParameterError, match="knn is 'fast'"):
        neighbor_rows(np.zeros((3, 2)), 1, "fast")


@pytest.mark.parametrize("wanted", [None, "some", "none"])
def test_boxes_that_no_cell_has_in_reach_are_left_out(wanted):
    rng = np.random.default_rng(0)
    points, k = rng.random((3000, 3)).astype(np.float32), 9
    own = exact.build_cells(points, np.arange(3000, dtype=np.uint32), n_threads=1)
    low = rng.uniform(-2, 2, (500, 3)).astype(np.float32)
    high = low + rng.uniform(0, 0.3, (500, 3)).astype(np.float32)
    block = next(exact.blocks(own, k))
    buffers = exact.block_buffers(own, k)
    queries = np.arange(block.last - block.first) < 100 if wanted == "some" else None
    queries = np.zeros(block.last - block.first, bool) if wanted == "none" else queries
    exact.search_block(own, block, k, buffers, wanted=queries)
    homes = block.first_home, block.last_home
    found = cells.boxes_in_reach(own, *homes, low, high, buffers)
    within = [
        bool(cells.nearest_to_homes(own, *homes, low[i : i + 1], high[i : i + 1], buffers)[0])
        for i in range(len(low))
    ]
    assert set(np.flatnonzero(within)) <= set(found.tolist())
    assert np.all(np.diff(found) > 0)
    assert len(found) < len(low) / 2
    assert (len(found) > 0) == (wanted != "none")


def test_far_partitions_are_neither_ordered_nor_loaded(monkeypatch):
    rng = np.random.default_rng(1)
    points = rng.random((2000, 2)).astype(np.float32)
    own = exact.build_cells(points, np.arange(2000, dtype=np.uint32), n_threads=1)
    low = np.full((50_000, 2), 7, np.float32)
    others = exact.Others(low, low + 1, np.arange(50_000), lambda p: pytest.fail("loaded"))
    block, buffers = next(exact.blocks(own, 5)), exact.block_buffers(own, 5)
    alone = exact.search_block(own, block, 5, buffers)
    calls = []
    bound = cells.nearest_to_homes
    monkeypatch.setattr(cells, "nearest_to_homes", lambda *a: calls.append(a) or bound(*a))
    assert exact.search_block(own, block, 5, buffers, others) == alone
    assert not calls
