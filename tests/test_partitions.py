import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spore_dask.datasets import blobs_and_shapes
from spore_dask.exact import block_buffers, blocks, build_cells
from spore_dask.kernels.cells import points_of
from spore_dask.partitions import (
    build_means_tree,
    build_tree,
    find_heavy,
    heavy_points,
    sample_rows,
)
from tests.strategies import point_sets


@pytest.mark.parametrize("n_partitions", [1, 2, 7, 64])
@pytest.mark.parametrize("kind", ["cuts", "means"])
def test_partitions_are_about_equal(n_partitions, kind):
    points, _ = blobs_and_shapes(50_000, 3, dtype=np.float32)
    sample = points[sample_rows(len(points), 30_000, 0)]
    if kind == "cuts":
        tree = build_tree(sample, n_partitions)
    else:
        tree = build_means_tree(sample, n_partitions, 0)
    sizes = np.bincount(tree.assign(points), minlength=n_partitions)
    assert len(sizes) == n_partitions
    assert sizes.max() <= 1.3 * len(points) / n_partitions
    np.testing.assert_array_equal(tree.assign(points[100:200]), tree.assign(points)[100:200])


@given(points=point_sets(), n_partitions=st.integers(1, 9))
def test_any_points_have_a_partition_and_copies_the_same(points, n_partitions):
    tree = build_tree(points, n_partitions)
    found = tree.assign(points)
    assert ((found >= 0) & (found < n_partitions)).all()
    for place in np.unique(points, axis=0):
        assert len(set(found[(points == place).all(axis=1)])) == 1


def test_lopsided_columns_still_give_equal_partitions():
    rng = np.random.default_rng(0)
    points = np.column_stack([10.0 * (rng.random(20_000) < 0.03), rng.random(20_000)])
    sizes = np.bincount(build_tree(points, 8).assign(points), minlength=8)
    assert sizes.max() <= 1.6 * 20_000 / 8


def test_the_sample_is_a_function_of_its_arguments():
    drawn = sample_rows(10**12, 1000, 5)
    np.testing.assert_array_equal(drawn, sample_rows(10**12, 1000, 5))
    assert (np.diff(drawn) > 0).all()
    assert len(drawn) > 990
    np.testing.assert_array_equal(sample_rows(10, 10, 5), np.arange(10))


def test_heavy_points_are_those_with_many_copies():
    rng = np.random.default_rng(0)
    points = rng.random((500, 4)).astype(np.float32)
    points[:20], points[20:60], points[60:70] = points[0], points[20], points[60]
    points = rng.permutation(points)
    heavy = heavy_points(points)
    assert len(heavy) == 2
    found = find_heavy(points, heavy)
    for h, value in enumerate(heavy):
        np.testing.assert_array_equal(found == h, (points == value).all(axis=1))
    assert (find_heavy(points, heavy[:0]) == -1).all()


@pytest.mark.parametrize("k", [5, 300])
def test_any_block_fits_its_buffers(k):
    points = np.random.default_rng(0).random((100_003, 2)).astype(np.float32)
    cells = build_cells(points, np.arange(len(points), dtype=np.uint32))
    n_queries = len(block_buffers(cells, k).counts)
    for first in range(0, 30_000, 997):
        found = list(blocks(cells, k, first, first + 40_000))
        assert max(block.last - block.first for block in found) <= n_queries
        assert found[0].first <= first < found[0].last
        assert found[-1].first < first + 40_000 <= found[-1].last
    np.testing.assert_array_equal(points_of(cells), points[cells.rows])
