"""What `estimate` says before a fit, beside what the fit then has."""

import os

import numpy as np
import pytest
import zarr

from spore_dask import InputError, ParameterError, build_graph, estimate, estimates, fit
from spore_dask.datasets import blobs_and_shapes
from spore_dask.estimates import _knn_of_whole, _repeat
from spore_dask.jobs import find_job


def write_zarr(path, x, chunk_rows):
    array = zarr.create_array(
        str(path), shape=x.shape, dtype=x.dtype, chunks=(chunk_rows, x.shape[1])
    )
    array[...] = x
    return str(path)


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    folder = tmp_path_factory.mktemp("estimate")
    x, _ = blobs_and_shapes(250_000, 2, dtype=np.float32)
    source = write_zarr(folder / "x.zarr", x, 10_000)
    said = estimate(source, n_workers=1)
    assert [path.name for path in folder.iterdir()] == ["x.zarr"]
    return said, fit(source, n_workers=1, keep="all").summary


def test_disk_is_within_a_factor_of_two(known):
    said, summary = known
    stages = ["scan", "points", "graph", "density", "expand", "fragments", "reassign", "publish"]
    assert list(said.stages) == stages
    for name, stage in said.stages.items():
        low, high = stage.disk_nbytes
        if summary["stages"][name]["nbytes"] > 100_000:
            assert low / 2 <= summary["stages"][name]["nbytes"] <= 2 * high, name
    total = sum(stage["nbytes"] for stage in summary["stages"].values())
    assert said.disk_nbytes[0] / 2 <= total <= 2 * said.disk_nbytes[1]


def test_memory_is_within_a_factor_of_two(known):
    said, summary = known
    own = f":{os.getpid()}"  # has run other tests
    [measured] = [n for name, n in summary["peak_nbytes"].items() if not name.endswith(own)]
    assert measured <= 2 * said.memory_nbytes
    workers = [stage.memory_nbytes for name, stage in said.stages.items() if name != "expand"]
    assert measured >= max(workers) / 2.5


def test_times_are_spans_only_where_fragments_count(known):
    said, _ = known
    for name, stage in said.stages.items():
        low, high = stage.seconds
        assert 0 < low <= high
        assert (low < high) == (name in ("fragments", "reassign"))
    low, high = said.seconds
    assert low > sum(stage.seconds[0] for stage in said.stages.values())
    text = str(said)
    assert "whole" in text
    assert all(name in text for name in said.stages)


def test_more_workers_take_less_time(monkeypatch):
    x, _ = blobs_and_shapes(20_000, 2, dtype=np.float32)
    one, four = (estimate(x, n_workers=n).stages for n in (1, 4))
    assert four["graph"].seconds[0] < one["graph"].seconds[0]


def test_the_sample_is_searched_as_the_whole_will_be(tmp_path):
    x = np.random.default_rng(0).random((150_000, 64), np.float32)
    sample, graph = x[:3000], build_graph(x[:1000], tmp_path / "graph", 20, n_workers=0)
    for data, options, expected in (
        (x, {}, "approximate"),
        (x, {"knn": "exact"}, "exact"),
        (x[:20_000], {}, "exact"),  # half a minute of products: worth their proof
        (x[:20_000], {"knn": "approximate"}, "approximate"),
        (x[:, :3], {}, "auto"),
        (x[:1000], {"graph": graph, "reassignment_neighbors": 20}, "exact"),
    ):
        job = find_job(data, tmp_path / "out", **options)
        assert _knn_of_whole(job, sample[:, : data.shape[1]]) == expected


def test_repeats_end_where_they_take_long(monkeypatch):
    assert len(_repeat(lambda: None)[0]) == estimates.REPEATS
    monkeypatch.setattr(estimates, "REPEAT_SECONDS", 0.0)
    assert len(_repeat(lambda: None)[0]) == 1


def test_unusual_arguments(tmp_path):
    x, _ = blobs_and_shapes(6000, 2, dtype=np.float32)
    assert estimate(x, n_workers=0, resume=False, progress=True).seconds[0] > 0
    assert estimate(x, n_workers=0, min_cluster_size=7000).seconds[0] > 0
    graph = build_graph(x, tmp_path / "out", 100, n_workers=0)
    assert next(iter(estimate(x, n_workers=0, graph=graph).stages)) == "density"


def test_errors_are_those_of_fit(tmp_path):
    with pytest.raises(InputError, match="no Zarr array"):
        estimate(tmp_path / "nothing.zarr")
    with pytest.raises(ParameterError, match="z_percentile is 101"):
        estimate(np.zeros((10, 2)), z_percentile=101)
    with pytest.raises(ParameterError, match="memory_limit is"):
        estimate(np.zeros((10, 2)), memory_limit="1MB")
