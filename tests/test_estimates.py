"""What `estimate` says before a fit, beside what the fit then has."""

import dataclasses
import json
import os
import subprocess
import sys
import time

import dask.array as da
import numpy as np
import pytest
import zarr

from spore_dask import (
    InputError,
    ParameterError,
    build_graph,
    estimate,
    estimates,
    sample_fits,
)
from spore_dask.costs import REACH_POWER, reach_growth
from spore_dask.datasets import blobs_and_shapes
from spore_dask.graph import Graph
from spore_dask.jobs import find_job
from spore_dask.pilot import CELLS, PROBES, PRODUCTS, PYNNDESCENT
from spore_dask.sample_fits import Search, fit_samples, search_of_whole
from tests.clusters import ROOT

FIT = """
import json, os, sys
from spore_dask import fit
most = {}
def watch(event):
    if event.kind == "stage-end":
        sizes = {}
        for folder, _, files in os.walk(sys.argv[2]):
            stage = os.path.relpath(folder, sys.argv[2]).partition("-")[0]
            here = (os.path.getsize(os.path.join(folder, name)) for name in files)
            sizes[stage] = sizes.get(stage, 0) + sum(here)
        most[event.stage] = sizes
run = fit(sys.argv[1], sys.argv[2], params="paper", n_workers=1, keep="all", progress=watch)
print(json.dumps({"stages": run.summary["stages"], "on_disk": most}))
"""


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
    for out in ("first", "second"):  # the first may have to compile
        command = [sys.executable, "-c", FIT, source, str(folder / out)]
        done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    plan = find_job(source, folder / "third").plan(None, 1)
    return said, json.loads(done.stdout.splitlines()[-1]), plan


def test_disk_is_within_a_factor_of_two(known):
    said, found, _ = known
    stages = ["scan", "points", "graph", "density", "expand", "fragments", "reassign", "publish"]
    assert list(said.stages) == stages
    for name, stage in said.stages.items():
        low, high = stage.disk_nbytes
        if found["stages"][name]["nbytes"] > 100_000:
            assert low / 2 <= found["stages"][name]["nbytes"] <= 2 * high, name
    total = sum(stage["nbytes"] for stage in found["stages"].values())
    assert said.disk_nbytes[0] / 2 <= total <= 2 * said.disk_nbytes[1]
    most = max(sum(sizes.values()) for sizes in found["on_disk"].values())
    assert most > total
    assert said.most_disk_nbytes[0] / 2 <= most <= 2 * said.most_disk_nbytes[1]


@pytest.mark.parametrize(
    ("stage", "step"), [("points", "partition"), ("density", "order"), ("fragments", "gather")]
)
def test_disk_while_a_stage_runs_is_within_a_factor_of_two(known, stage, step):
    said, found, _ = known
    low, high = np.add(said.stages[stage].disk_nbytes, said.stages[stage].passing_nbytes)
    most = found["on_disk"][step][stage]
    assert most > 1.5 * found["stages"][stage]["nbytes"]
    assert low / 2 <= most <= 2 * high


resets = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="peaks are those of whole lives"
)


@resets
def test_memory_is_within_a_factor_of_two(known):
    said, found, _ = known
    for name, stage in said.stages.items():
        measured = found["stages"][name]["peak_nbytes"]
        assert stage.memory_nbytes / 2 <= measured <= 2 * stage.memory_nbytes, name
    peaks = {name: stage["peak_nbytes"] for name, stage in found["stages"].items()}
    assert peaks["expand"] - peaks["publish"] > 25 << 20  # rows of 62 MiB, most of them mapped
    assert peaks["expand"] == max(peaks.values())


@resets
def test_memory_is_at_most_what_is_projected(known):
    _, found, plan = known
    projected, shape = plan.memory(), plan.shape
    points = min(plan.cache_nbytes, shape.n_points * shape.point_nbytes)
    for stages, most in (
        (["scan"], projected["scan"]),
        (["points"], max(projected["exchange"], projected["partition"])),
        (["graph"], projected["neighbors"] + points),
        (["density"], projected["density"] + points),
        (["fragments"], projected["fragments"] + points),
        (["expand"], projected["expand"] + shape.n_points * shape.row_nbytes),
        (["reassign", "publish"], projected["expand"]),
    ):
        for stage in stages:
            assert found["stages"][stage]["peak_nbytes"] <= most, stage


def test_memory_is_that_of_the_search_that_is_made(monkeypatch):
    monkeypatch.setattr(sample_fits, "REPEATS", 1)
    x, _ = blobs_and_shapes(20_000, 8, dtype=np.float32)
    auto, exact, approximate = (
        estimate(x, n_workers=0, knn=knn).stages["graph"].memory_nbytes
        for knn in ("auto", "exact", "approximate")
    )
    assert auto == exact  # which is what such data gets
    assert approximate == exact  # as long as that compares less
    far = np.random.default_rng(0).random((20_000, 64), np.float32)
    exact, approximate = (
        estimate(far, n_workers=0, knn=knn).stages["graph"].memory_nbytes
        for knn in ("exact", "approximate")
    )
    assert approximate > exact


def test_times_are_spans_only_where_fragments_count(known):
    said, _, _ = known
    for name, stage in said.stages.items():
        low, high = stage.seconds
        assert 0 < low <= high
        assert (low < high) == (name in ("fragments", "reassign"))
    low, high = said.seconds
    assert low > sum(stage.seconds[0] for stage in said.stages.values())
    text = str(said)
    assert "whole" in text
    assert all(name in text for name in said.stages)


def test_more_workers_take_less_time():
    x, _ = blobs_and_shapes(20_000, 2, dtype=np.float32)
    one, four = (estimate(x, n_workers=n).stages for n in (1, 4))
    assert four["graph"].seconds[0] < one["graph"].seconds[0]


def test_the_way_that_the_whole_will_be_searched(tmp_path):
    x = np.random.default_rng(0).random((150_000, 64), np.float32)
    graph = build_graph(x[:1000], tmp_path / "graph", 20, n_workers=0)
    for data, options, expected in (
        (x, {}, Search(PROBES, None)),
        (x, {"knn": "exact"}, Search(PRODUCTS, None)),
        (x, {"knn": "approximate", "knn_index": "pynndescent"}, Search(PYNNDESCENT, None)),
        (x[:20_000], {}, Search(PRODUCTS, None)),
        (x[:20_000], {"knn": "approximate"}, Search(PROBES, None)),
        (x[:, :3], {}, Search(CELLS, None)),
        (x[:1000], {"graph": graph, "reassignment_neighbors": 20}, Search(CELLS, True)),
    ):
        job = find_job(data, tmp_path / "out", **options)
        plan = job.plan(None, 0)
        assert search_of_whole(job, plan, data[:100_000]) == expected


@pytest.mark.parametrize("way", [CELLS, PRODUCTS, PROBES])
def test_samples_are_searched_as_they_are_told(monkeypatch, tmp_path, way):
    monkeypatch.setattr(sample_fits, "REPEATS", 1)
    monkeypatch.setattr(sample_fits, "search_of_whole", lambda *_: Search(way, None))
    x, _ = blobs_and_shapes(9000, 5, dtype=np.float32)
    job = find_job(x, tmp_path / "out")
    pilot = fit_samples(job, job.plan(None, 0), x)
    for sample in (pilot.few, pilot.split, pilot.many):
        assert Graph(*sample.run.graph).summary["search"] == way
    shapes = [sample.size.shape for sample in (pilot.few, pilot.split, pilot.many)]
    assert [shape.n_points for shape in shapes] == [6000, 6000, 9000]
    assert [shape.n_partitions for shape in shapes[:2]] == [1, 8]
    assert shapes[2].n_partitions == job.plan(None, 0).shape.n_partitions


def test_repeats_end_where_they_take_long(monkeypatch, tmp_path):
    x, _ = blobs_and_shapes(600, 2, dtype=np.float32)
    job = find_job(x, tmp_path / "out")
    fits = []
    one = sample_fits._fit
    monkeypatch.setattr(sample_fits, "_fit", lambda *given: fits.append(given) or one(*given))
    fit_samples(job, job.plan(None, 0), x)
    assert len(fits) == 1 + 3 * sample_fits.REPEATS
    monkeypatch.setattr(sample_fits, "REPEAT_SECONDS", 0.0)
    fit_samples(job, job.plan(None, 0), x)
    assert len(fits) == 1 + 3 * sample_fits.REPEATS + 1 + 3


def test_rows_of_the_sample_come_from_everywhere(tmp_path):
    x = np.arange(150_000, dtype=np.float32).reshape(-1, 1)
    for source in (x, write_zarr(tmp_path / "x.zarr", x, 10_000)):
        job = find_job(source, tmp_path / "out")
        drawn = estimates._draw(job.data.source, job.data.content)
        sample = drawn.rows[:, 0]
        assert drawn.row_seconds > 0
        assert 90_000 < len(np.unique(sample)) == len(sample) <= estimates.SAMPLE_POINTS
        assert sample[-1] > 148_000
    narrow = write_zarr(tmp_path / "narrow.zarr", x, 1000)
    job = find_job(narrow, tmp_path / "out")
    sample = estimates._draw(job.data.source, job.data.content).rows[:, 0]
    assert len(np.unique(sample)) == len(sample) == 16_000


@pytest.mark.parametrize(("scale", "n_scans"), [(None, 1), ("standard", 2)])
def test_the_source_is_read_by_each_pass(tmp_path, monkeypatch, scale, n_scans):
    monkeypatch.setattr(sample_fits, "REPEATS", 1)
    x, _ = blobs_and_shapes(8000, 2, dtype=np.float32)
    source = write_zarr(tmp_path / "x.zarr", x, 8000)  # one task reads it
    monkeypatch.setattr(estimates, "_draw", lambda *_: estimates.Drawn(x, 0.01))
    stages = estimate(source, n_workers=2, scale=scale).stages
    assert stages["scan"].seconds[0] // 80 == n_scans
    assert stages["points"].seconds[0] // 80 == 1
    assert sum(stage.seconds[0] for stage in stages.values()) // 80 == n_scans + 1
    stages = estimate(x, n_workers=2, scale=scale).stages  # which is written, and read as samples
    assert sum(stage.seconds[0] for stage in stages.values()) < 80


def fit_normal(shape, knn, folder, monkeypatch):
    """Fit samples of normal points; return their plan, their pilot, and the graphs of few and many.

    The files go with the pilot.
    """
    monkeypatch.setattr(sample_fits, "REPEATS", 1)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    job = find_job(x, folder / "out", knn=knn)
    plan = job.plan(None, 0)
    pilot = fit_samples(job, plan, x)
    return plan, pilot, *(Graph(*each.run.graph) for each in (pilot.few, pilot.many))


def test_approximate_searches_grow_with_what_they_reach(monkeypatch, tmp_path):
    plan, pilot, few, many = fit_normal((24_000, 24), "approximate", tmp_path, monkeypatch)
    assert many.summary["search"] == PROBES
    reaches = [graph.summary["found"]["reach"] for graph in (few, many)]
    assert 1 < reaches[0] < reaches[1]
    sample = pilot.many.size
    same = estimates._whole_size(plan, sample.shape, pilot)
    assert (same.compared, same.fragment_compared) == (sample.compared, sample.fragment_compared)
    growth = reach_growth((6000, reaches[0]), (24_000, reaches[1]), 240_000)
    assert 1 < growth < 10**REACH_POWER
    larger = dataclasses.replace(sample.shape, n_points=240_000)
    whole = estimates._whole_size(plan, larger, pilot)
    assert whole.fragment_compared == pytest.approx(growth * sample.fragment_compared)
    found = many.summary["found"]
    cells = growth * (found["n_probes"] + 32 * found["n_rounds"]) + 240_000 / 64**3
    assert whole.compared == pytest.approx(64 * 24 * cells)


def test_only_some_chunks_of_a_dask_array_are_computed(monkeypatch, tmp_path):
    monkeypatch.setattr(sample_fits, "REPEATS", 1)
    computed = []

    def block(block_id):
        computed.append(block_id)
        time.sleep(0.05)
        return np.random.default_rng(block_id[0]).random((1000, 2), np.float32)

    chunks = (1000,) * 40, (2,)
    x = da.map_blocks(block, chunks=chunks, dtype=np.float32, meta=np.empty((0, 2)))
    computed.clear()
    said = estimate(x, tmp_path / "out", n_workers=0)
    assert len(computed) == len(set(computed)) == 16
    assert said.other_seconds > 40 * 0.05


def test_data_that_few_partitions_can_hold():
    x = np.random.default_rng(0).integers(0, 100, (20_000, 1)).astype(np.float32)
    assert estimate(x, n_workers=0).seconds[0] > 0


@pytest.mark.parametrize("n_points", [2, 3, 10, 600])
def test_few_points(n_points):
    x = np.random.default_rng(0).random((n_points, 2), np.float32)
    assert estimate(x, n_workers=0).seconds[0] > 0


@pytest.mark.parametrize("options", [{"z": 1000.0}, {"seeding_order": "random"}])
def test_no_fragments_and_another_order(options):
    x, _ = blobs_and_shapes(8000, 2, dtype=np.float32)
    said = estimate(x, n_workers=0, **options)
    assert said.seconds[0] > 0
    assert ("seeds" in said.stages) == ("seeding_order" in options)
    assert all(stage.memory_nbytes > 0 < stage.disk_nbytes[0] for stage in said.stages.values())


def test_points_that_are_all_the_same():
    assert list(estimate(np.ones((3000, 2)), n_workers=0).stages) == [
        *("scan", "points", "graph", "publish")
    ]


def test_products_grow_with_the_number_of_points(monkeypatch, tmp_path):
    _, pilot, few, many = fit_normal((5000, 64), "exact", tmp_path, monkeypatch)
    assert pilot.many.size.shape.n_points == 5000
    assert many.summary["search"] == PRODUCTS
    assert estimates._search_growth(few, many, 50_000) == 10


def test_unusual_arguments(tmp_path):
    x, _ = blobs_and_shapes(6000, 2, dtype=np.float32)
    assert estimate(x, n_workers=0, resume=False, progress=True).seconds[0] > 0
    assert estimate(x, n_workers=0, min_cluster_size=7000).seconds[0] > 0
    graph = build_graph(x, tmp_path / "out", 100, n_workers=0)
    known = estimate(x, n_workers=0, graph=graph, knn_index="pynndescent")
    assert next(iter(known.stages)) == "density"
    assert known.stages["fragments"].seconds[0] == known.stages["fragments"].seconds[1]  # copied
    assert estimate(x, n_workers=0, params=None, n_trials=5).seconds[0] > 0
    assert "fragments" not in estimate(x, n_workers=0, max_scr_rounds=0).stages


def test_errors_are_those_of_fit(tmp_path):
    with pytest.raises(InputError, match="no Zarr array"):
        estimate(tmp_path / "nothing.zarr")
    with pytest.raises(ParameterError, match="z_percentile is 101"):
        estimate(np.zeros((10, 2)), z_percentile=101)
    with pytest.raises(ParameterError, match="params is 'auto', but `estimate` tells"):
        estimate(np.zeros((10, 2)), params="auto")
    with pytest.raises(ParameterError, match="memory_limit is"):
        estimate(np.zeros((10, 2)), memory_limit="1MB")
