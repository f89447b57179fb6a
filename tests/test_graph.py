"""The out-of-core graph against the plain one: chunks, workers, partitions, kills and resumes."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import psutil
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from spore_dask import (
    Graph,
    InputError,
    LimitError,
    ParameterError,
    build_graph,
    memory,
    plan_graph,
    probing,
    shards,
    stages,
)
from spore_dask import points as partitioned
from spore_dask.coordinates import working_coordinates
from spore_dask.datasets import blobs_and_shapes
from spore_dask.engine import open_engine
from spore_dask.inputs import find_input
from spore_dask.points import CACHE
from spore_dask.search import neighbor_rows
from spore_dask.stages.neighbors import search_exactly
from spore_dask.store import Folder, claim
from tests import naive
from tests.clusters import is_alive, wait_until
from tests.strategies import point_sets


def write_zarr(path, x, chunk_rows=1000, **options):
    array = zarr.create_array(
        str(path), shape=x.shape, dtype=x.dtype, chunks=(chunk_rows, x.shape[1]), **options
    )
    array[...] = x
    return str(path)


def assert_graph(graph, neighbors, distances):
    found = graph.to_memory()
    np.testing.assert_array_equal(found[0], neighbors)
    np.testing.assert_array_equal(found[1], distances)


@functools.cache
def crowd(n_points=30_000, n_columns=3):
    """Points of varied density, with one large and many small groups of copies."""
    x, _ = blobs_and_shapes(n_points, n_columns, seed=1, dtype=np.float32)
    rng = np.random.default_rng(2)
    x[rng.random(n_points) < 0.2] = x[17]
    x[n_points // 2 :: 50] = x[rng.integers(0, 40, len(x[n_points // 2 :: 50]))]
    return x


@functools.cache
def crowd_graph(k=12):
    rows = neighbor_rows(crowd(), k, "exact")
    return rows.neighbors, rows.distances


@given(points=point_sets(), data=st.data())
@settings(max_examples=40)
def test_any_data_chunks_and_partitions_equal_brute_force(tmp_path_factory, points, data):
    k = data.draw(st.integers(1, len(points) - 1))
    chunk_rows = data.draw(st.integers(1, len(points)))
    n_partitions = data.draw(st.integers(1, min(6, len(points))))
    folder = tmp_path_factory.mktemp("graph")
    source = write_zarr(folder / "x.zarr", points, chunk_rows)
    graph = build_graph(
        source, folder / "out", k, knn="exact", n_partitions=n_partitions, n_workers=0
    )
    assert_graph(graph, *naive.neighbor_rows(points, k))


@pytest.mark.parametrize(
    ("chunk_rows", "n_partitions"), [(30_000, None), (7_001, 1), (999, 7), (30_000, 23)]
)
def test_chunks_and_partitions_do_not_matter(tmp_path, chunk_rows, n_partitions):
    source = write_zarr(tmp_path / "x.zarr", crowd(), chunk_rows)
    graph = build_graph(source, tmp_path / "out", 12, n_partitions=n_partitions, n_workers=0)
    assert graph.recall.certified == 1
    assert "certified" in str(graph.recall)
    assert_graph(graph, *crowd_graph())


@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_workers_do_not_matter(tmp_path, n_workers):
    source = write_zarr(tmp_path / "x.zarr", crowd(), 5000)
    graph = build_graph(source, tmp_path / "out", 12, n_workers=n_workers)
    assert_graph(graph, *crowd_graph())


def test_heavy_copies_are_not_searched(tmp_path):
    source = write_zarr(tmp_path / "x.zarr", crowd())
    graph = build_graph(source, tmp_path / "out", 12, n_workers=0)
    points = Path(graph.path) / graph.summary["points"]
    n_copies = zarr.open_array(str(points / "copies"), mode="r").shape[0]
    n_equal = int((crowd() == crowd()[17]).all(axis=1).sum())
    assert n_copies >= n_equal - 13 > 5000


def test_products_where_boxes_prune_nothing(tmp_path):
    x = np.random.default_rng(0).random((5000, 60)).astype(np.float32)
    x[:200] = x[0]
    graph = build_graph(x, tmp_path / "out", 10, knn="exact", n_partitions=3, n_workers=0)
    assert graph.summary["search"] == "products with all points"
    rows = neighbor_rows(x, 10, "exact")
    assert_graph(graph, rows.neighbors, rows.distances)


@functools.cache
def wide(n_points=6000, n_columns=120):
    """Points in many dimensions, with copies."""
    rng = np.random.default_rng(3)
    centers = 0.5 * rng.normal(size=(30, n_columns))
    x = (centers[rng.integers(30, size=n_points)] + rng.normal(size=(n_points, n_columns))).astype(
        np.float32
    )
    x[:600], x[700:703] = x[0], x[700]
    return rng.permutation(x)


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probed")
    source = write_zarr(folder / "x.zarr", wide(), 6000)
    return build_graph(source, folder / "out", 10, knn="approximate", n_partitions=5, n_workers=0)


def assert_sound(graph, x, k):
    """Rows are full, distinct, measured by direct distances and sorted by (distance, row)."""
    neighbors, distances = graph.to_memory()
    for i in range(0, len(x), 7):
        row, near = neighbors[i].astype(np.int64), distances[i]
        assert row[0] == i
        assert len(set(row.tolist())) == k + 1
        np.testing.assert_array_equal(near, naive.distances_from(x, i)[row])
        assert (np.lexsort((row[1:], near[1:])) == np.arange(k)).all()


def true_recall(graph, x, k):
    exact = neighbor_rows(x, k, "exact").distances
    return np.mean(graph.to_memory()[1][:, 1:] <= exact[:, -1:])


def test_lists_of_earlier_rounds_are_let_go(tmp_path):
    held = {}

    def watch(event):
        urls = {key[0] for key in CACHE._held}
        held[event.stage] = {Path(url).name for url in urls if "merged-" in url}

    build_graph(
        wide(), tmp_path, 10, knn="approximate", n_partitions=5, n_workers=0, progress=watch
    )
    assert held["join-1"] == {"merged-0"}
    assert held["join-2"] == {"merged-1"}
    assert held["finish"] == set()


def test_receipts_of_exchanges_do_not_grow_with_partitions(probed):
    folders = sorted(Path(probed.path).glob("*/receipts-e*"))
    assert {folder.name for folder in folders} >= {"receipts-exchange", "receipts-edges-0"}
    for folder in folders:
        for path in folder.glob("*.json"):
            assert not [
                fact for fact in json.loads(path.read_text()).values() if not isinstance(fact, int)
            ]


def test_a_kill_while_edges_are_removed(tmp_path, monkeypatch):
    x, remove = wide(), Folder.remove
    build = functools.partial(build_graph, x, knn="approximate", n_partitions=5, n_workers=0)

    def killed(folder, name=""):
        if name == "edges-0":  # in any order
            remove(folder.child(name), "places")
            remove(folder.child(name).child("buckets"), "1.counts.npy")
            raise KeyboardInterrupt
        remove(folder, name)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path / "out", 10)
    again, whole = build(tmp_path / "out", 10), build(tmp_path / "whole", 10)
    for found, expected in zip(again.to_memory(), whole.to_memory(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_probes_find_most_and_say_how_much(probed):
    x = wide()
    assert probed.summary["search"].startswith("probes")
    assert_sound(probed, x, 10)
    found = true_recall(probed, x, 10)
    assert found >= 0.97
    assert abs(probed.recall.sampled - found) <= 5 * probed.recall.error + 0.005
    assert probed.recall.certified == 0
    assert "+-" in str(probed.recall)
    assert ((probed.to_memory()[1] == 0).sum(axis=1) == 11).sum() >= 500


@pytest.mark.parametrize(("chunk_rows", "n_workers"), [(701, 0), (2500, 2)])
def test_probes_do_not_depend_on_chunks_or_workers(tmp_path, probed, chunk_rows, n_workers):
    source = write_zarr(tmp_path / "x.zarr", wide(), chunk_rows)
    graph = build_graph(
        source, tmp_path / "out", 10, knn="approximate", n_partitions=5, n_workers=n_workers
    )
    assert_graph(graph, *probed.to_memory())


def test_probes_continue_after_a_failure(tmp_path, probed):
    source = write_zarr(tmp_path / "x.zarr", wide(), 2000)
    options = {"knn": "approximate", "n_partitions": 5, "n_workers": 0}
    for stage in ("probe", "merge-0", "join-1", "finish"):

        def fail(event, stage=stage):
            if event.kind == "task-done" and event.stage == stage and event.n_done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            build_graph(source, tmp_path / "out", 10, progress=fail, **options)
    graph = build_graph(source, tmp_path / "out", 10, **options)
    assert_graph(graph, *probed.to_memory())
    left = {path.name for path in next((tmp_path / "out").glob("graph-*")).iterdir()}
    assert not {name for name in left if name.startswith(("lists", "merged", "edges", "truths"))}


def test_pynndescent_by_partitions(tmp_path):
    x = wide()
    graph = build_graph(
        x, tmp_path / "out", 10, knn_index="pynndescent", n_partitions=3, n_workers=0
    )
    assert graph.summary["search"] == "pynndescent"
    assert_sound(graph, x, 10)
    assert true_recall(graph, x, 10) >= 0.95


def test_a_recall_under_the_target_warns(tmp_path):
    x = np.random.default_rng(0).random((6000, 90)).astype(np.float32)
    with pytest.warns(UserWarning, match=r"recall_target is 1: .* knn='exact'"):
        graph = build_graph(
            x, tmp_path / "out", 10, knn="approximate", recall_target=1.0, n_workers=0
        )
    assert graph.recall.sampled < 1


def as_dask(x, folder):
    return da.from_array(x, chunks=(700, 2))


def as_v2(x, folder):
    return write_zarr(folder / "v2.zarr", x, 500, zarr_format=2)


def as_component(x, folder):
    group = zarr.open_group(str(folder / "group.zarr"), mode="w")
    array = group.create_array("obsm/X_pca", shape=x.shape, dtype=x.dtype, chunks=(300, 2))
    array[...] = x
    return str(folder / "group.zarr")


def as_memory_zarr(x, folder):
    return zarr.array(x, chunks=(512, 3))


def as_local_zarr(x, folder):
    return zarr.open_array(write_zarr(folder / "v3.zarr", x, 800, shards=(1600, 3)), mode="r")


@pytest.mark.parametrize(
    "give", [as_dask, as_v2, as_component, as_memory_zarr, as_local_zarr, lambda x, folder: x]
)
def test_sources(tmp_path, give):
    x = crowd(4000).copy()
    component = "obsm/X_pca" if give is as_component else None
    source = give(x, tmp_path)
    graph = build_graph(source, tmp_path / "out", 5, component=component, n_workers=0)
    assert_graph(graph, *naive.neighbor_rows(x, 5))
    assert not list((tmp_path / "out").glob("input-*"))
    again = build_graph(source, tmp_path / "out", 5, component=component, n_workers=0)
    assert again.name == graph.name


def test_a_dask_array_on_workers(tmp_path):
    x = crowd(4000)
    graph = build_graph(as_dask(x, tmp_path), tmp_path / "out", 5, n_workers=2)
    assert_graph(graph, *naive.neighbor_rows(x, 5))


@pytest.mark.parametrize("dtype", ["f2", ">f4", "f8", "i1", "u2", "i4", "i8", "?"])
@pytest.mark.parametrize(("scale", "metric"), [(None, "euclidean"), ("standard", "cosine")])
def test_input_types_and_working_coordinates(tmp_path, dtype, scale, metric):
    x = (100 * crowd(1500) - 50).astype(dtype)
    if dtype == "?":
        x = np.random.default_rng(0).random((1500, 3)) < [0.5, 0.1, 0.9]
    if dtype == "i8":
        x[0] = 2**40
    points = working_coordinates(x, scale, metric)
    source = write_zarr(tmp_path / "x.zarr", x, 400)
    graph = build_graph(source, tmp_path / "out", 6, scale=scale, metric=metric, n_workers=0)
    assert graph.distances.dtype == points.dtype
    assert_graph(graph, *naive.neighbor_rows(points, 6))


def test_clip_minmax(tmp_path):
    x = crowd(3000).astype(np.float64)
    x[5] = 1e6
    source = write_zarr(tmp_path / "x.zarr", x, 777)
    graph = build_graph(source, tmp_path / "out", 6, scale="clip-minmax", n_workers=0)
    assert_graph(graph, *naive.neighbor_rows(working_coordinates(x, "clip-minmax"), 6))


def test_the_default_k_is_that_of_the_default_parameters(tmp_path):
    graph = build_graph(crowd(2000), tmp_path / "out", n_workers=0)
    assert graph.k == 30


REFUSED = {
    "k": ({"k": 4000}, ParameterError, r"k is 4000, .* \[1, 3999\]"),
    "memory": ({"memory_limit": "100MiB"}, ParameterError, "memory_limit is 100.00 MiB"),
    "memory text": ({"memory_limit": "much"}, ParameterError, "memory_limit is 'much'"),
    "knn": ({"knn": "fast"}, ParameterError, "knn is 'fast'"),
    "index": ({"knn_index": "hnsw"}, ParameterError, "knn_index is 'hnsw'"),
    "both": ({"knn_index": "pynndescent", "knn": "exact"}, ParameterError, "approximate"),
    "recall": ({"recall_target": 1.5}, ParameterError, "recall_target is 1.5"),
    "partitions": ({"n_partitions": 0}, ParameterError, "n_partitions is 0"),
    "metric": ({"metric": "manhattan"}, ParameterError, "metric is 'manhattan'"),
    "workers": ({"n_workers": -1}, ParameterError, "n_workers is -1"),
    "workers text": ({"n_workers": "2"}, ParameterError, "n_workers is '2'"),
    "component": ({"component": "x"}, InputError, "component is 'x'"),
}


@pytest.mark.parametrize(("options", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        build_graph(crowd(4000), tmp_path / "out", **{"n_workers": 0} | options)
    assert not (tmp_path / "out").exists()


def test_a_chunk_beyond_the_limit_is_refused(tmp_path):
    big = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=(10**8, 10), dtype="f4", chunks=(10**8, 10)
    )
    with pytest.raises(ParameterError, match=r"chunks of 100000000 rows .* smaller chunks"):
        build_graph(big, tmp_path / "out", 5, memory_limit="1GiB")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_refused(tmp_path, monkeypatch):
    leave_on_disk(monkeypatch, 1000)
    with pytest.raises(LimitError, match=r"needs .* of disk, but 0.98 kiB are free"):
        build_graph(crowd(4000), tmp_path / "out", 5, n_workers=0)
    assert not (tmp_path / "out").exists()


def leave_on_disk(monkeypatch, free):
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)


NO_ROOM = r"needs .* of disk, but .* are free"


def test_only_what_is_reused_counts_on_a_full_disk(tmp_path, monkeypatch):
    source, out = write_zarr(tmp_path / "x.zarr", crowd(4000), 1000), tmp_path / "out"
    first = build_graph(source, out, 30, n_workers=0)
    leave_on_disk(monkeypatch, 0)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(LimitError, match=NO_ROOM):
        build_graph(source, out, 5, n_workers=0)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert build_graph(source, out, 30, n_workers=0).name == first.name
    leave_on_disk(monkeypatch, memory.disk_nbytes(memory.shape_of(4000, 3, 4, 5), 0, False))
    assert build_graph(source, out, 5, n_workers=0).k == 5


def test_a_graph_whose_scan_is_gone_needs_no_other_room(tmp_path, monkeypatch):
    source, out = write_zarr(tmp_path / "x.zarr", crowd(4000), 1000), tmp_path / "out"
    first = build_graph(source, out, 5, n_workers=0)
    for scan in out.glob("scan-*"):
        shutil.rmtree(scan)
    leave_on_disk(monkeypatch, 0)
    assert build_graph(source, out, 5, n_workers=0).name == first.name
    for scan in out.glob("scan-*"):
        shutil.rmtree(scan)
    with pytest.raises(LimitError, match=NO_ROOM):
        build_graph(source, out, 7, n_workers=0)
    assert not list(out.glob("scan-*"))


@pytest.mark.parametrize("kind", ["zarr", "numpy", "dask"])
def test_nothing_is_written_of_other_data_on_a_full_disk(tmp_path, monkeypatch, kind):
    out = tmp_path / "out"
    build_graph(write_zarr(tmp_path / "x.zarr", crowd(4000), 1000), out, 5, n_workers=0)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    x = crowd(4000) + 1
    other = {
        "zarr": lambda: write_zarr(tmp_path / "other.zarr", x, 1000),
        "numpy": lambda: x,
        "dask": lambda: da.from_array(x, chunks=(1000, 3)),
    }[kind]()
    leave_on_disk(monkeypatch, x.nbytes - 1)
    for plan in (plan_graph, functools.partial(build_graph, n_workers=0)):
        with pytest.raises(LimitError, match=NO_ROOM):
            plan(other, out, 5)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_scan_that_only_finds_that_there_is_no_room_is_removed(tmp_path, monkeypatch):
    x, out = crowd(4000), tmp_path / "out"
    lazy = da.from_array(x, chunks=(1000, 3))
    build_graph(lazy, out, 5, n_workers=0)
    before = {path.name for path in out.iterdir()}
    leave_on_disk(monkeypatch, x.nbytes)
    with pytest.raises(LimitError, match=NO_ROOM):
        build_graph(lazy, out, 5, seed=3, n_workers=0)
    assert {path.name for path in out.iterdir()} == before | {"progress-graph.json"}
    assert build_graph(lazy, out, 5, n_workers=0).k == 5


def test_a_copied_input_goes_before_the_search(tmp_path, monkeypatch):
    out, seen = tmp_path / "out", []

    def watch(*arguments):
        seen.append(list(out.glob("input-*")))
        return search_exactly(*arguments)

    monkeypatch.setattr("spore_dask.graph.search_exactly", watch)
    build_graph(crowd(4000), out, 5, n_workers=0)
    assert seen == [[]]


def test_the_plan_says_what_it_needs(tmp_path):
    text = str(plan_graph(crowd(4000), tmp_path / "out", 5, memory_limit="1GiB"))
    assert "4000 x 3 float32, k = 5" in text
    assert "neighbors" in text
    assert "1.00 GiB" in text
    assert not (tmp_path / "out").exists()


def test_missing_and_wrong_sources(tmp_path):
    with pytest.raises(InputError, match="There is no Zarr array at"):
        build_graph(str(tmp_path / "nothing"), tmp_path / "out")
    source = as_component(crowd(100), tmp_path)
    with pytest.raises(InputError, match="obsm/X_pca"):
        build_graph(source, tmp_path / "out")
    with pytest.raises(InputError, match="shape"):
        build_graph(zarr.array(np.zeros(5)), tmp_path / "out")


def test_bad_values_name_their_row(tmp_path):
    x = crowd(3000).copy()
    x[2500, 1] = np.nan
    source = write_zarr(tmp_path / "x.zarr", x, 400)
    with pytest.raises(InputError, match="Row 2500, column 1"):
        build_graph(source, tmp_path / "out", 5, n_workers=0)
    x[2500] = 0
    with pytest.raises(InputError, match=r"Row 2500 .* zero vector"):
        build_graph(x, tmp_path / "out2", 5, metric="cosine", n_workers=0)


def test_changed_data_is_an_error(tmp_path):
    source = write_zarr(tmp_path / "x.zarr", crowd(3000), 400)
    build_graph(source, tmp_path / "out", 5, n_workers=0)
    zarr.open_array(source, mode="r+")[0] = 7
    with pytest.raises(InputError, match="has changed"):
        build_graph(source, tmp_path / "out", 5, n_workers=0)


def test_graphs_lie_beside_each_other_and_open_again(tmp_path):
    x = crowd(3000)
    first = build_graph(x, tmp_path / "out", 5, n_workers=0)
    second = build_graph(x, tmp_path / "out", 7, n_workers=0)
    assert Graph(tmp_path / "out").name == second.name
    assert_graph(Graph(tmp_path / "out", first.name), *naive.neighbor_rows(x, 5))
    assert (Graph(tmp_path / "out").k, Graph(tmp_path / "out").n_points) == (7, 3000)
    np.testing.assert_array_equal(np.sort(second.rows[...]), np.arange(3000))
    with pytest.raises(InputError, match="no finished graph"):
        Graph(tmp_path / "nothing")


def count_tasks(events, stage="neighbors"):
    return sum(e.kind == "task-done" and e.stage == stage for e in events)


def test_the_same_call_finds_everything_done(tmp_path):
    source = write_zarr(tmp_path / "x.zarr", crowd(), 5000)
    build_graph(source, tmp_path / "out", 12, n_workers=0)
    events = []
    graph = build_graph(source, tmp_path / "out", 12, n_workers=0, progress=events.append)
    assert count_tasks(events) == 0
    assert_graph(graph, *crowd_graph())


def test_a_killed_worker_changes_nothing(tmp_path):
    source = write_zarr(tmp_path / "x.zarr", crowd(), 5000)
    killed = []

    def kill_once(event):
        if event.kind == "task-done" and event.stage == "neighbors" and not killed:
            killed.append(int(event.process.rsplit(":", 1)[-1]))
            os.kill(killed[0], signal.SIGKILL)

    graph = build_graph(
        source, tmp_path / "out", 12, n_workers=2, n_partitions=40, progress=kill_once
    )
    assert killed
    assert killed[0] != os.getpid()
    assert_graph(graph, *crowd_graph())


DRIVER = """
import sys, time
from spore_dask import build_graph
def wait(event):
    if event.kind == "task-done" and event.stage == sys.argv[3] and event.n_done == 5:
        print("there", flush=True)
        time.sleep(600)
build_graph(sys.argv[1], sys.argv[2], 12, n_workers=2, n_partitions=60, progress=wait)
"""


@pytest.mark.parametrize("stage", ["partition", "neighbors"])
def test_a_killed_driver_continues_with_the_finished_tasks(tmp_path, stage):
    source = write_zarr(tmp_path / "x.zarr", crowd(), 5000)
    command = [sys.executable, "-c", DRIVER, source, str(tmp_path / "out"), stage]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout.readline() == "there\n"
        workers = psutil.Process(driver.pid).children(recursive=True)
        driver.kill()
    wait_until(lambda: not any(map(is_alive, workers)))
    assert len(list((tmp_path / "out").glob(f"*/receipts-{stage}/*.json"))) >= 5
    events = []
    graph = build_graph(
        source, tmp_path / "out", 12, n_workers=0, n_partitions=60, progress=events.append
    )
    assert count_tasks(events, stage) <= 60 - 5
    assert_graph(graph, *crowd_graph())
    assert not list((tmp_path / "out").rglob("*.partial*"))
    assert not list((tmp_path / "out").glob("points-*/buckets"))


@pytest.mark.parametrize("knn", ["exact", "approximate"])
def test_a_kill_before_any_document_is_written_is_survived(tmp_path, monkeypatch, knn):
    x = wide()[:5000]
    options = {"knn": knn, "n_partitions": 2, "n_workers": 0}
    whole = build_graph(x, tmp_path / "whole", 10, **options)
    write = Folder.write_bytes
    n_kills = 0

    def stop(folder, name, *content):
        if name.endswith("done.json") and (folder.url, name) not in seen:
            seen.add((folder.url, name))
            raise KeyboardInterrupt
        write(folder, name, *content)

    seen = set()
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write_bytes", stop)
        while True:
            try:
                graph = build_graph(x, tmp_path / "out", 10, **options)
                break
            except KeyboardInterrupt:
                n_kills += 1
    assert n_kills == 4  # input, scan, partition, and the search
    assert_graph(graph, *whole.to_memory())


def test_half_removed_input_is_written_again(tmp_path):
    x = crowd(3000)
    data = find_input(x, None, Folder(str(tmp_path / "out")))
    claim(Folder(str(tmp_path / "out")))
    with open_engine(n_workers=0) as engine:
        data.write(engine, 0)
    (chunk,) = (tmp_path / "out").glob("input-*/data/c/0/0")
    chunk.unlink()
    (marker,) = (tmp_path / "out").glob("input-*/done.json")
    marker.unlink()  # as `remove` does first
    graph = build_graph(x, tmp_path / "out", 5, n_workers=0)
    assert_graph(graph, *naive.neighbor_rows(x, 5))


def test_a_dask_array_over_changed_data_is_another_input(tmp_path):
    source = write_zarr(tmp_path / "x.zarr", crowd(2000), 500)
    first = build_graph(da.from_zarr(source), tmp_path / "out", 5, n_workers=0)
    zarr.open_array(source, mode="r+")[...] = 7 * crowd(2000)
    second = build_graph(da.from_zarr(source), tmp_path / "out", 5, n_workers=0)
    assert second.name != first.name
    assert_graph(second, *naive.neighbor_rows(7 * crowd(2000), 5))


def test_a_zero_vector_is_named_by_its_row(tmp_path):
    x = np.ones((90_000, 2), np.float32)
    x[:, 1] = np.arange(90_000)
    x[88_888] = 0
    source = write_zarr(tmp_path / "x.zarr", x, 30_000)
    with pytest.raises(InputError, match=r"Row 88888 .* zero vector"):
        build_graph(source, tmp_path / "out", 5, metric="cosine", n_workers=0)


def test_rare_values_in_wide_columns(tmp_path):
    rng = np.random.default_rng(0)
    x = np.where(rng.random((9000, 12)) < 0.002, 1000, 0).astype(np.float32)
    x[:, 8:] = rng.random((9000, 4))
    graph = build_graph(x, tmp_path / "out", 5, knn="exact", n_partitions=16, n_workers=0)
    rows = neighbor_rows(x, 5, "exact")
    assert_graph(graph, rows.neighbors, rows.distances)


def test_local_addresses(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    x = crowd(1000)
    write_zarr(tmp_path / "x.zarr", x)
    for source, out in (("~/x.zarr", "~/a"), ("file://" + str(tmp_path / "x.zarr"), "b")):
        assert_graph(build_graph(source, out, 5, n_workers=0), *naive.neighbor_rows(x, 5))
    graph = build_graph("x.zarr", "file://" + str(tmp_path / "c"), 5, n_workers=0)
    assert_graph(graph, *naive.neighbor_rows(x, 5))
    assert {path.name for path in tmp_path.iterdir()} == {"x.zarr", "a", "b", "c"}


def test_recall_is_told_truly_where_scales_mix(tmp_path):
    rng = np.random.default_rng(0)
    groups = np.repeat(rng.normal(size=(100, 64)), 30, axis=0) + 1e-4 * rng.normal(size=(3000, 64))
    x = rng.permutation(np.concatenate([groups, rng.normal(size=(3000, 64))])).astype(np.float32)
    graph = build_graph(x, tmp_path / "out", 10, knn="approximate", n_partitions=3, n_workers=0)
    assert graph.recall.certified == 0
    found = true_recall(graph, x, 10)
    assert found >= 0.95
    assert abs(graph.recall.sampled - found) <= 4 * graph.recall.error + 0.005


def test_another_recall_target_does_not_repeat_an_exact_search(tmp_path):
    x = crowd(2000)
    first = build_graph(x, tmp_path / "out", 5, n_workers=0)
    assert build_graph(x, tmp_path / "out", 5, recall_target=0.9, n_workers=0).name == first.name


@pytest.mark.parametrize("knn", ["exact", "approximate"])
def test_numbers_of_64_bits(tmp_path, monkeypatch, knn):
    x = wide()[:5000] if knn == "approximate" else crowd(5000)
    options = {"knn": knn, "n_partitions": 3, "n_workers": 0}
    narrow = build_graph(x, tmp_path / "narrow", 5, **options).to_memory()
    for module in (shards, partitioned, stages.partition, probing):
        monkeypatch.setattr(module, "number_dtype", lambda n_points: np.dtype(np.int64))
    graph = build_graph(x, tmp_path / "out", 5, **options)
    assert graph.neighbors.dtype == graph.rows.dtype == np.int64
    assert_graph(graph, *narrow)


def test_peak_memory_is_within_the_projection(tmp_path):
    x, _ = blobs_and_shapes(400_000, 8, dtype=np.float32)
    source = write_zarr(tmp_path / "x.zarr", x, 100_000)
    plan = plan_graph(source, tmp_path / "out", 30, memory_limit="1GiB")
    graph = build_graph(source, tmp_path / "out", 30, memory_limit="1GiB", n_workers=2)
    workers = [
        nbytes
        for name, nbytes in graph.summary["peak_nbytes"].items()
        if not name.endswith(f":{os.getpid()}")
    ]
    assert len(workers) >= 1
    assert max(workers) <= max(plan.memory().values()) + plan.cache_nbytes <= 1 << 30
