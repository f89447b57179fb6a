"""What `estimate` says before a fit, beside what the fit then has."""

import os

import numpy as np
import pytest
import zarr

from spore_dask import InputError, ParameterError, build_graph, estimate, fit
from spore_dask.datasets import blobs_and_shapes


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
