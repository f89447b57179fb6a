"""The out-of-core order and thresholds against those in memory: exactly, in input rows."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spore_dask import Params, build_graph, memory, orders
from spore_dask.clustering import measure_thresholds
from spore_dask.datasets import blobs_and_shapes
from spore_dask.engine import open_engine, process_name
from spore_dask.kernels.order import densities, extent, total_order
from spore_dask.kernels.sums import mean_and_std
from spore_dask.percentiles import between, ranks_around
from spore_dask.points import BOXES, MEANS, Points
from spore_dask.shards import GraphRows, Longer, Shard, create_graph, write_longer, write_shard
from spore_dask.stages import density as stage
from spore_dask.stages.density import DensitySpec, rank_points, reach_percentiles
from spore_dask.store import Folder
from tests.strategies import PERCENTILES, point_sets

LIMIT = 1 << 30


def points_of_graph(graph, x):
    """Open the points that a graph was built from."""
    folder = Folder(graph.path).child(graph.summary["points"])
    done = folder.read_json("done.json")
    return Points(
        folder,
        MEANS if graph.summary["search"].startswith("probes") else BOXES,
        *x.shape,
        x.dtype.str,
        np.array(done["firsts"]),
        np.array(done["copy_starts"]),
        np.array(done["leaders"], np.int64),
    )


def rows_of_graph(graph, x):
    """Open the rows of a graph, none of them longer."""
    shard_rows = graph.rows.chunks[0]
    none = np.zeros(-(-len(x) // shard_rows), np.int64)
    folder = Folder(graph.path).child(graph.name)
    return GraphRows(folder, len(x), graph.k, graph.k, x.dtype.str, shard_rows, none)


def cut_rows(rows, folder, k):
    """Write a graph again with k neighbours, and longer rows for the points that have copies."""
    shape = memory.Shape(rows.n_points, 1, 4, k, rows.k, 1, rows.shard_rows)
    create_graph(folder, shape, np.dtype(rows.dtype))
    n_longer = np.zeros(rows.n_shards, np.int64)
    for i in range(rows.n_shards):
        first, last = rows.span(i)
        neighbors, distances, numbers = (
            rows.array(name).read(first, last) for name in ("neighbors", "distances", "rows")
        )
        short = neighbors[:, : k + 1].copy(), distances[:, : k + 1].copy()
        write_shard(folder, Shard(first, *short, numbers))
        copied = np.flatnonzero(distances[:, 1] == 0)
        n_longer[i] = len(copied)
        if len(copied):
            points = (first + copied).astype(numbers.dtype)
            write_longer(folder, i, Longer(points, neighbors[copied], distances[copied]))
    return dataclasses.replace(rows, folder=folder, k=k, n_longer=n_longer)


def spec_of(graph, x, kd, ke, k=None, rows=None):
    return DensitySpec(
        points=points_of_graph(graph, x),
        graph=rows or rows_of_graph(graph, x),
        density_neighbors=kd,
        expansion_neighbors=ke,
        k=k or graph.k,
        extent=extent(x),
        cache_nbytes=0,
        needs_nbytes=0,
    )


def rank(path, spec, percentiles=(50.0, 100.0)):
    with open_engine(n_workers=0) as engine:
        found = rank_points(engine, Folder(str(path)), spec)
        return found, reach_percentiles(engine, found, list(percentiles))


def assert_equal_to_memory(graph, x, found, values, percentiles=(50.0, 100.0)):
    """Compare everything with what is computed in memory, on rows in input order."""
    spec = found.spec
    distances = graph.to_memory()[1][:, : spec.k + 1]
    density = densities(distances, spec.density_neighbors, spec.extent)
    rows = np.asarray(graph.rows[...])
    ranges = [found.order.points(i) for i in range(found.order.n_ranges)]
    np.testing.assert_array_equal(rows[np.concatenate(ranges)], total_order(density, x))
    assert found.order.starts.tolist() == np.cumsum([0, *map(len, ranges)]).tolist()
    told = np.concatenate([found.order.ranges_of(i) for i in range(spec.graph.n_shards)])
    held = np.empty(len(x), np.int64)
    held[np.concatenate(ranges)] = np.repeat(np.arange(len(ranges)), [*map(len, ranges)])
    np.testing.assert_array_equal(told, held)
    reach = np.concatenate([found.reach(i) for i in range(spec.graph.n_shards)])
    np.testing.assert_array_equal(reach, distances[rows, spec.expansion_neighbors])
    assert reach.dtype == x.dtype
    assert_thresholds(distances, found, values, percentiles)


def assert_thresholds(distances, found, values, percentiles):
    ke = found.spec.expansion_neighbors
    params = dataclasses.replace(
        Params().resolve(len(distances)),
        expansion_neighbors=ke,
        z_percentile=percentiles[0],
        max_z_percentile=percentiles[1],
    )
    expected = measure_thresholds(distances, params, found.spec.extent)
    assert (found.start_mean, found.start_std) == (expected.start_mean, expected.start_std)
    assert (found.reach_mean, found.reach_std) == mean_and_std(distances[:, ke])
    reach = distances[:, ke].astype(np.float64)
    upper = reach[reach >= found.reach_mean]
    np.testing.assert_array_equal(values, np.percentile(upper, percentiles))
    if found.reach_std > 0:
        z = (np.array(values) - found.reach_mean) / found.reach_std
        assert (expected.z, expected.max_z) == tuple(z)


@given(points=point_sets(), data=st.data())
@settings(max_examples=60)
def test_any_data_equals_what_memory_computes(tmp_path_factory, points, data):
    assume(extent(points) > 0)
    widest = data.draw(st.integers(1, len(points) - 1))
    k = data.draw(st.integers(1, widest))
    kd, ke = data.draw(st.integers(1, k)), data.draw(st.integers(1, k))
    percentiles = data.draw(st.tuples(PERCENTILES, PERCENTILES))
    n_partitions = data.draw(st.integers(1, min(6, len(points))))
    folder = tmp_path_factory.mktemp("density")
    graph = build_graph(
        points, folder / "out", widest, knn="exact", n_partitions=n_partitions, n_workers=0
    )
    rows = rows_of_graph(graph, points)
    if data.draw(st.booleans()):
        rows = cut_rows(rows, Folder(str(folder / "cut")), max(kd, ke))
    spec = spec_of(graph, points, kd, ke, k, rows)
    assert_equal_to_memory(graph, points, *rank(folder / "density", spec, percentiles), percentiles)


def grid(side=70):
    nodes = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 2)
    return np.random.default_rng(0).permutation(nodes)


def copies(n_points=6000, n_columns=3):
    """Points of which a fifth are one, and many others are in small groups of copies."""
    x, _ = blobs_and_shapes(n_points, n_columns, seed=1, dtype=np.float64)
    rng = np.random.default_rng(2)
    x[::50] = x[rng.integers(0, 40, len(x[::50]))]
    x[rng.random(n_points) < 0.2] = x[17]
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [grid, copies])
@pytest.mark.parametrize("longer", [False, True])
def test_ties_and_copies(tmp_path, make, dtype, longer):
    x = make().astype(dtype)
    graph = build_graph(x, tmp_path / "out", 16, n_partitions=5, n_workers=0)
    rows = rows_of_graph(graph, x)
    if longer:
        rows = cut_rows(rows, Folder(str(tmp_path / "cut")), 8)
        assert (rows.n_longer.sum() > 0) == (make is copies)
    spec = spec_of(graph, x, 6, 8, 16, rows)
    found, values = rank(tmp_path / "density", spec)
    assert_equal_to_memory(graph, x, found, values)
    sizes = np.diff(found.order.starts)
    assert len(sizes) == 5
    assert sizes.max() <= 1.2 * len(x) / 5


def test_a_grid_ties_almost_everywhere(tmp_path):
    x = grid().astype(np.float32)
    graph = build_graph(x, tmp_path / "out", 8, n_partitions=5, n_workers=0)
    density = densities(graph.to_memory()[1], 6, extent(x))
    assert np.unique(density, return_counts=True)[1].max() > 0.9 * len(x)
    found, values = rank(tmp_path / "density", spec_of(graph, x, 6, 8))
    assert_equal_to_memory(graph, x, found, values)
    splitters = found.folder.read_array("splitters")
    assert len(np.unique(splitters["density"])) < len(splitters) == 4


def test_copies_of_heavy_points_are_ranked(tmp_path):
    x = copies().astype(np.float32)
    graph = build_graph(x, tmp_path / "out", 16, n_partitions=5, n_workers=0)
    points = points_of_graph(graph, x)
    assert points.firsts[-1] < len(x) - 1000
    np.testing.assert_array_equal(points.coordinates(0, len(x)), x[np.asarray(graph.rows[...])])


def test_fewer_columns_than_the_graph_has(tmp_path):
    x = copies()
    graph = build_graph(x, tmp_path / "out", 16, n_partitions=3, n_workers=0)
    narrow, values = rank(tmp_path / "narrow", spec_of(graph, x, 5, 4, 7))
    assert_equal_to_memory(graph, x, narrow, values)
    wide, _ = rank(tmp_path / "wide", spec_of(graph, x, 5, 4, 16))
    assert (narrow.order.points(0) != wide.order.points(0)[: len(narrow.order.points(0))]).any()


def test_points_around_means(tmp_path):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(5000, 60)).astype(np.float32)
    x[:600], x[700:703] = x[0], x[700]
    x = rng.permutation(x)
    graph = build_graph(
        x, tmp_path / "out", 10, knn="approximate", recall_target=0.1, n_partitions=4, n_workers=0
    )
    spec = spec_of(graph, x, 4, 6)
    assert spec.points.kind == MEANS
    assert_equal_to_memory(graph, x, *rank(tmp_path / "density", spec))


def test_numbers_of_64_bits(tmp_path, monkeypatch):
    x = grid(30).astype(np.float32)
    graph = build_graph(x, tmp_path / "out", 8, n_partitions=3, n_workers=0)
    for module in (stage, orders):
        monkeypatch.setattr(module, "number_dtype", lambda n_points: np.dtype(np.int64))
    found, values = rank(tmp_path / "density", spec_of(graph, x, 4, 6))
    assert found.order.points(0).dtype == np.int64
    assert_equal_to_memory(graph, x, found, values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_kill_before_any_file_is_written_is_survived(tmp_path, monkeypatch, dtype):
    x = copies(1500).astype(dtype)
    graph = build_graph(x, tmp_path / "out", 8, n_partitions=3, n_workers=0)
    spec = spec_of(graph, x, 4, 6)
    write, remove = Folder.write_bytes, Folder.remove
    seen = set()

    def stop_at_first(change):
        def stop(folder, name="", *content):
            if (change, folder.url, name) not in seen:
                seen.add((change, folder.url, name))
                raise KeyboardInterrupt
            change(folder, name, *content)

        return stop

    n_kills = 0
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write_bytes", stop_at_first(write))
        patch.setattr(Folder, "remove", stop_at_first(remove))
        while True:
            try:
                found, values = rank(tmp_path / "density", spec)
                break
            except KeyboardInterrupt:
                n_kills += 1
    assert n_kills == len(seen) > 30
    assert_equal_to_memory(graph, x, found, values)
    left = {path.name for path in (tmp_path / "density").iterdir()}
    assert not left & {"buckets", "densities", "sample"}
    assert not list((tmp_path / "density").rglob("histograms"))
    assert not list((tmp_path / "density").rglob("*.partial"))


def test_what_is_done_is_not_done_again(tmp_path, monkeypatch):
    x = copies(1500)
    graph = build_graph(x, tmp_path / "out", 8, n_partitions=3, n_workers=0)
    spec = spec_of(graph, x, 4, 6)
    first = rank(tmp_path / "density", spec)
    monkeypatch.delattr(stage, "run_work")
    again = rank(tmp_path / "density", spec)
    assert again[1] == first[1]
    assert again[0].reach_std == first[0].reach_std


@given(
    values=hnp.arrays(
        np.float64, st.integers(1, 40), elements=st.integers(0, 5) | st.floats(0, 1e6)
    ),
    percentile=PERCENTILES | st.just(99.9),
)
def test_interpolation_is_that_of_numpy(values, percentile):
    low, high, fraction = ranks_around(len(values), percentile)
    ranked = np.sort(values).tolist()
    expected = np.percentile(values, percentile)
    assert between(ranked[low], ranked[high], fraction) == expected
    assert np.percentile(values, [percentile, 50])[0] == expected


def test_the_mean_is_not_rounded_to_float32():
    reach = np.array([1, np.nextafter(np.float32(1), np.float32(2))], np.float32)
    mean = float(reach.astype(np.float64).mean())
    assert float(np.float32(mean)) == float(reach[0]) < mean
    np.testing.assert_array_equal(stage._upper(reach, mean), reach[1:])


@pytest.mark.parametrize("n_columns", [2, 16])
def test_peak_memory_is_within_the_projection(tmp_path, n_columns):
    x = np.random.default_rng(0).integers(0, 1000, (300_000, n_columns)).astype(np.float32)
    x[:, 1:] //= 100 if n_columns == 2 else 1000  # many copies, or many ties
    needs = memory.density_nbytes(memory.shape_of(*x.shape, 4, 10, 2, 20))
    with open_engine(n_workers=2, memory_limit=LIMIT) as engine:
        peaks = []
        for name, part in (("small", x[:3000]), ("large", x)):
            out = tmp_path / name
            graph = build_graph(part, out, 20, knn="exact", n_partitions=2, n_workers=0)
            rows = cut_rows(rows_of_graph(graph, part), Folder(str(out / "cut")), 10)
            spec = dataclasses.replace(spec_of(graph, part, 8, 10, 20, rows), needs_nbytes=needs)
            found = rank_points(engine, Folder(str(out / "density")), spec)
            reach_percentiles(engine, found, [50.0, 100.0])
            workers = engine.peaks()
            workers.pop(process_name())
            peaks.append(max(workers.values()))
    assert rows.n_longer.max() > 100_000
    assert peaks[1] <= needs <= LIMIT
    assert 10 << 20 < peaks[1] - peaks[0] <= needs - memory.INTERPRETER_NBYTES
