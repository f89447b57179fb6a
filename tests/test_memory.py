import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spore_dask import memory
from spore_dask.probing import number_dtype

sizes = st.tuples(
    st.integers(2, 2**40), st.integers(1, 5000), st.sampled_from([4, 8]), st.integers(1, 500)
)


@given(sizes=sizes, n_partitions=st.none() | st.integers(1, 10**6))
def test_shards_cover_the_points(sizes, n_partitions):
    shape = memory.shape_of(*sizes, n_partitions)
    assert (shape.n_shards - 1) * shape.shard_rows < shape.n_points
    assert shape.n_shards * shape.shard_rows >= shape.n_points
    if n_partitions is not None:
        assert shape.n_partitions == n_partitions
        assert shape.n_shards <= n_partitions
    assert shape.most_points * shape.n_partitions >= shape.n_points


@given(sizes=sizes)
def test_partitions_and_shards_stay_small_by_default(sizes):
    shape = memory.shape_of(*sizes)
    mean = -(-shape.n_points // shape.n_partitions)
    assert mean == 1 or mean * shape.point_nbytes <= memory.PARTITION_NBYTES
    assert mean == 1 or mean * shape.row_nbytes <= memory.SHARD_NBYTES


def test_numbers_widen():
    assert memory.shape_of(2**32, 2, 4, 10).number_nbytes == 4
    assert memory.shape_of(2**32 + 1, 2, 4, 10).number_nbytes == 8


@pytest.mark.parametrize("n_points", [2**31 - 1, 2**31, 2**32 + 1])
def test_numbers_in_lists_are_planned_as_they_are_kept(n_points):
    shape = memory.shape_of(n_points, 2, 4, 10)
    assert shape.listed_nbytes == number_dtype(n_points).itemsize


def test_small_data_still_has_parts_for_workers():
    assert memory.shape_of(100_000, 2, 4, 30).n_partitions == 16
    assert memory.shape_of(1000, 2, 4, 30).n_partitions == 1


@given(
    n_rows=st.integers(1, 10**10),
    row_nbytes=st.integers(1, 10**5),
    chunk_rows=st.integers(1, 10**6),
    beside=st.integers(0, 10**10),
)
def test_tasks_read_whole_chunks(n_rows, row_nbytes, chunk_rows, beside):
    chunk_rows = min(chunk_rows, n_rows)
    decoding_nbytes = 2 * chunk_rows * row_nbytes + beside
    data = memory.input_shape_of(n_rows, row_nbytes, chunk_rows, decoding_nbytes, 1)
    rows, n_chunks = data.rows_per_task, -(-data.rows_per_task // chunk_rows)
    assert rows == n_rows or rows % chunk_rows == 0
    assert rows == chunk_rows or rows * row_nbytes <= memory.MOST_TASK_NBYTES
    assert data.decoding_nbytes == n_chunks * decoding_nbytes
    assert n_chunks == 1 or data.decoding_nbytes <= 4 * memory.MOST_TASK_NBYTES


@given(
    shape=st.tuples(st.integers(1, 10**9), st.integers(1, 5000)),
    chunks=st.tuples(st.integers(1, 10**9), st.integers(1, 5000)),
    per_shard=st.none() | st.tuples(st.integers(1, 100), st.integers(1, 10)),
    itemsize=st.sampled_from([1, 4, 8]),
    n_copies=st.integers(2, 4),
)
def test_chunks_count_with_their_padding(shape, chunks, per_shard, itemsize, n_copies):
    shards = per_shard and tuple(n * size for n, size in zip(per_shard, chunks, strict=True))
    found = memory.Chunks.of(shape, itemsize, chunks, shards, n_copies)
    whole = shards or chunks
    assert found.rows == min(whole[0], shape[0])
    assert found.nbytes % (itemsize * chunks[0] * chunks[1]) == 0
    assert found.rows * shape[1] <= found.nbytes // itemsize
    assert found.nbytes // itemsize < (found.rows + chunks[0]) * (shape[1] + chunks[1])
    assert found.decoding_nbytes > n_copies * found.nbytes


@given(
    n_rows=st.integers(1, 10**10), n_columns=st.integers(1, 5000), chunk_rows=st.integers(1, 10**6)
)
def test_chunks_of_whole_rows_take_what_the_rows_take(n_rows, n_columns, chunk_rows):
    row_nbytes = 4 * n_columns
    chunk_rows = min(n_rows, max(chunk_rows, 2 * memory.CHUNK_NBYTES // row_nbytes + 1))
    chunks = memory.Chunks.of((n_rows, n_columns), 4, (chunk_rows, n_columns))
    data = memory.input_shape_of(n_rows, row_nbytes, chunks.rows, chunks.decoding_nbytes, 1000)
    plain = memory.input_shape_of(n_rows, row_nbytes, chunk_rows, 0, 1000)
    assert data.rows_per_task == plain.rows_per_task
    assert memory.scan_nbytes(data) == memory.scan_nbytes(plain)
    shape = memory.shape_of(max(2, n_rows), n_columns, 4, 1)
    assert memory.exchange_nbytes(data, shape) == memory.exchange_nbytes(plain, shape)


def test_projections_grow_with_what_they_hold():
    small = memory.shape_of(10**6, 8, 4, 20, 16)
    data = memory.InputShape(10_000, 32, 1000)
    larger_k = dataclasses.replace(small, k=40)
    assert memory.neighbors_nbytes(larger_k) > memory.neighbors_nbytes(small)
    longer = dataclasses.replace(small, longest_k=40)
    assert memory.neighbors_nbytes(longer) > memory.neighbors_nbytes(small)
    assert memory.disk_nbytes(larger_k, 0, False) > memory.disk_nbytes(longer, 0, False)
    assert memory.fragments_nbytes(small, 40, 10) > memory.fragments_nbytes(small, 20, 10)
    assert memory.fragments_nbytes(small, 20, 10**6) > memory.fragments_nbytes(small, 20, 10)
    assert memory.gather_nbytes(dataclasses.replace(small, n_partitions=4)) > memory.gather_nbytes(
        small
    )
    wider = dataclasses.replace(data, rows_per_task=10**6)
    assert memory.exchange_nbytes(wider, small) > memory.exchange_nbytes(data, small)
    assert memory.scan_nbytes(wider) > memory.scan_nbytes(data)


def test_projections_of_ranking_grow_with_what_they_hold():
    small = memory.shape_of(10**6, 8, 4, 20, 16)
    for larger in ({"k": 40}, {"longest_k": 40}, {"n_columns": 16}, {"shard_rows": 10**6}):
        changed = dataclasses.replace(small, **larger)
        assert memory.density_nbytes(changed) > memory.density_nbytes(small)
    finer = memory.shape_of(10**6, 8, 4, 20, 1000)
    assert memory.density_driver_nbytes(finer) > memory.density_driver_nbytes(small)


@given(sizes=sizes)
def test_drawn_keys_stay_small(sizes):
    shape = memory.shape_of(*sizes)
    n_keys = memory.keys_per_range(shape.n_shards, shape.key_nbytes)
    assert memory.LEAST_KEYS <= n_keys <= memory.KEYS_PER_RANGE
    if n_keys > memory.LEAST_KEYS:
        assert n_keys * shape.n_shards * shape.key_nbytes <= memory.SAMPLE_NBYTES
    assert min(shape.n_points, shape.shard_rows) <= memory.most_in_range(shape) <= shape.n_points


@given(sizes=sizes)
def test_samples_are_no_more_than_the_coordinator_has_later(sizes):
    shape = memory.shape_of(*sizes)
    nbytes = shape.sample_size * shape.n_columns * shape.itemsize
    least = 1024 * shape.n_columns * shape.itemsize
    assert nbytes <= max(least, memory.SAMPLE_NBYTES, memory.SAMPLE_POINT_NBYTES * shape.n_points)
    assert 4 * memory.SAMPLE_POINT_NBYTES <= memory.POINT_STATE_NBYTES


def test_partitions_of_large_data_have_enough_sampled_rows():
    for n_points, n_columns, least in ((10**8, 64, 128), (10**9, 64, 128), (10**9, 384, 40)):
        shape = memory.shape_of(n_points, n_columns, 4, 100)
        assert shape.sample_size >= least * shape.n_partitions
        assert shape.most_points <= 3 * n_points / shape.n_partitions


def test_the_driver_has_room_for_the_places_of_its_exchanges():
    shape = memory.shape_of(10**9, 384, 4, 100)
    data = memory.InputShape(rows_per_task=20_000, row_nbytes=4 * 384, sample_size=1000)
    assert memory.driver_nbytes(data, shape) >= 8 * 50_000 * shape.n_partitions
    assert memory.driver_nbytes(data, shape, may_approximate=True) >= 8 * shape.n_partitions**2


def test_what_is_likely_is_less_than_what_is_allowed_for():
    shape = memory.shape_of(10**7, 2, 4, 50, longest_k=80)
    assert memory.likely_nbytes(memory.density_nbytes(shape)) < memory.density_nbytes(shape)
    most = memory.coordinator_nbytes(shape)
    found = memory.likely_coordinator_nbytes(shape, 0, 0)
    assert list(found) == ["seeds", "expand", "reassign", "publish"]
    assert all(memory.LOADED_NBYTES + 7 * 10**7 <= nbytes < most for nbytes in found.values())
    more = memory.likely_coordinator_nbytes(shape, 1000, 100)
    assert [more[stage] - found[stage] for stage in found] == [0, 1000, 100, 0]
    wide = dataclasses.replace(shape, n_points=2**31)
    per_point = memory.likely_coordinator_nbytes(wide, 0, 0)["expand"] / 2**31
    assert 16 < per_point < 17
