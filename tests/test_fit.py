"""`fit` against the plain algorithm: chunks, workers, caches, sources, what is shared and kept."""

import contextlib
import functools
import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import spore_dask
from spore_dask import (
    DamagedError,
    Graph,
    InputError,
    LimitError,
    ParameterError,
    Params,
    SporeError,
    build_graph,
    clean,
    cluster_graph,
    fitting,
    open_run,
    verify,
)
from spore_dask.datasets import blobs_and_shapes
from spore_dask.search import neighbor_rows
from spore_dask.store import Folder
from tests import naive
from tests.paper import SPORE, fit
from tests.strategies import configs, point_sets

CONFIGS = [
    {},
    {"min_cluster_size": 40, "max_z_percentile": 90},
    {"seeding_order": "random", "post_reassignment_policy": "none"},
    {"seeding_order": "none", "max_scr_rounds": 0},
    {"retention_rate": 0.5, "z_percentile": 20},
    {"min_cluster_size": 1},
]


def write_zarr(path, x, chunk_rows=1000, **options):
    array = zarr.create_array(
        str(path), shape=x.shape, dtype=x.dtype, chunks=(chunk_rows, x.shape[1]), **options
    )
    array[...] = x
    return str(path)


@functools.cache
def town(n_points=20_000, n_columns=3):
    """Points of varied density, with one large and many small groups of copies."""
    x, _ = blobs_and_shapes(n_points, n_columns, seed=3, dtype=np.float32)
    rng = np.random.default_rng(4)
    x[rng.random(n_points) < 0.05] = x[17]
    x[n_points // 2 :: 40] = x[rng.integers(0, 400, len(x[n_points // 2 :: 40]))]
    return x


@functools.cache
def town_graph():
    rows = neighbor_rows(town(), max(Params(**c).resolve(len(town())).k for c in CONFIGS), "exact")
    return rows.neighbors, rows.distances


@functools.cache
def town_labels(number=0):
    return cluster_graph(*town_graph(), town(), **CONFIGS[number])


def labels_of(run):
    return np.asarray(run.labels[...])


def assert_labels(run, labels):
    np.testing.assert_array_equal(labels_of(run), labels)


def stage_ends(events):
    return [event.stage for event in events if event.kind == "stage-end" and event.n_done]


class TestLabels:
    @given(points=point_sets(), config=configs(), data=st.data())
    @settings(max_examples=60)
    def test_equal_the_plain_algorithm(self, tmp_path_factory, points, config, data):
        folder = tmp_path_factory.mktemp("fit")
        source = write_zarr(folder / "x.zarr", points, data.draw(st.integers(1, len(points))))
        options = {
            "n_partitions": data.draw(st.integers(1, min(6, len(points)))),
            "cache_limit": data.draw(st.sampled_from([0, 300, 10**6])),
            "knn": "exact",
            "n_workers": 0,
        }
        with contextlib.suppress(RuntimeWarning):
            run = fit(source, folder / "out", **options, **config)
        assert_labels(run, naive.cluster(points, **config))
        model = SPORE(knn="exact", **config).fit(points)
        np.testing.assert_array_equal(run.provenance[...], model.provenance_)
        np.testing.assert_array_equal(run.clusters, model.clusters_)
        assert run.thresholds == model.thresholds_
        assert verify(run)["labels"] == 4 * len(points)

    @pytest.mark.parametrize("number", range(len(CONFIGS)))
    def test_equal_cluster_graph(self, tmp_path, number):
        run = fit(town(), tmp_path / "out", n_workers=0, **CONFIGS[number])
        assert_labels(run, town_labels(number))

    @pytest.mark.parametrize("pilot", [0.0, 1.0], ids=["fragments apart", "all rows long"])
    @pytest.mark.parametrize("cache_limit", [0, 20_000, "1MB", None])
    def test_do_not_depend_on_the_cache_or_the_pilot(
        self, tmp_path, monkeypatch, cache_limit, pilot
    ):
        monkeypatch.setattr(fitting, "cluster_sample", lambda *_: {"share": pilot})
        run = fit(town(), tmp_path / "out", n_workers=0, cache_limit=cache_limit)
        assert_labels(run, town_labels())
        resolved = Params().resolve(len(town()))
        graph = Graph(*run.graph)
        assert graph.k == (resolved.k if pilot else resolved.expansion_neighbors)
        stages = run.summary["stages"]
        if cache_limit is not None:
            assert stages["expand"]["cache_nbytes"] <= 10**6
        assert stages["expand"]["read_nbytes"] >= stages["expand"]["graph_nbytes"]
        if cache_limit is None:
            assert stages["expand"]["read_nbytes"] == stages["expand"]["graph_nbytes"]

    @pytest.mark.parametrize(
        ("chunk_rows", "n_partitions"), [(20_000, None), (7_001, 1), (999, 9), (20_000, 23)]
    )
    def test_do_not_depend_on_chunks_or_partitions(self, tmp_path, chunk_rows, n_partitions):
        source = write_zarr(tmp_path / "x.zarr", town(), chunk_rows)
        run = fit(source, n_partitions=n_partitions, n_workers=0)
        assert run.path == str(tmp_path / "x.spore")
        assert_labels(run, town_labels())

    @pytest.mark.parametrize("n_workers", [1, 2, 3])
    def test_do_not_depend_on_workers(self, tmp_path, n_workers):
        run = fit(town(), tmp_path / "out", n_workers=n_workers, n_partitions=7)
        assert_labels(run, town_labels())
        assert len(run.summary["peak_nbytes"]) == 1 + n_workers

    def test_follow_a_permutation_of_the_rows(self, tmp_path):
        x = np.random.default_rng(0).random((5000, 3)) ** 2
        labels = labels_of(fit(x, tmp_path / "a", n_workers=0))
        rows = np.random.default_rng(1).permutation(len(x))
        assert_labels(fit(x[rows], tmp_path / "b", n_workers=0), labels[rows])
        np.testing.assert_array_equal(SPORE(knn="exact").fit(x).labels_, labels)

    def test_with_an_approximate_graph_are_those_of_that_graph(self, tmp_path, monkeypatch):
        """Of one with long rows; short ones are in test_extending.py."""
        monkeypatch.setattr(fitting, "cluster_sample", lambda *_: {"share": 1.0})
        x = np.random.default_rng(0).random((6000, 40)).astype(np.float32)
        x[:300] += 3
        run = fit(x, tmp_path / "out", knn="approximate", n_workers=0, n_partitions=3)
        graph = Graph(*run.graph)
        assert graph.recall.certified == 0
        assert run.summary["recall"]["sampled"] == graph.recall.sampled > 0.9
        assert_labels(run, cluster_graph(*graph.to_memory(), x))

    def test_of_golden_datasets(self, tmp_path, golden):
        x, configs, labels = (golden[name] for name in ("X", "configs", "labels"))
        source = write_zarr(tmp_path / "x.zarr", x, 100)
        given = {"knn": "exact", "n_partitions": 4}
        for i, config in enumerate(configs):
            cache_limit = (None, 0)[i % 2]
            run = fit(source, n_workers=0, cache_limit=cache_limit, **given, **config["params"])
            assert_labels(run, labels[i])
        other = write_zarr(tmp_path / "other.zarr", x, 37)
        run = fit(other, n_workers=1 + len(x) % 3, **given, **configs[0]["params"])
        assert_labels(run, labels[0])

    @pytest.mark.parametrize(
        ("n_points", "config"),
        [
            (3, {"min_cluster_size": 100}),
            (30, {"min_cluster_size": 100, "z": 1000.0}),
            (3000, {"min_cluster_size": 2999, "max_scr_rounds": 0}),
            (3000, {"min_cluster_size": 2999, "post_reassignment_policy": "none"}),
            (2, {}),
        ],
    )
    def test_where_no_cluster_is_large_enough(self, tmp_path, n_points, config):
        x = town()[1000 : 1000 + n_points]
        run = fit(x, tmp_path / "out", n_workers=0, **config)
        assert_labels(run, SPORE(knn="exact", **config).fit(x).labels_)
        verify(run)

    def test_of_points_that_are_all_the_same(self, tmp_path):
        run = fit(np.ones((500, 2)), tmp_path / "out", n_workers=0)
        assert run.n_clusters == 1
        assert (labels_of(run) == 0).all()
        assert verify(run)


class TestSources:
    def test_data_in_memory_has_a_folder_that_goes_with_the_run(self):
        run = fit(town()[:3000], n_workers=0)
        path = Path(run.path)
        assert path.exists()
        labels = labels_of(run)
        del run
        gc.collect()
        assert not path.exists()
        np.testing.assert_array_equal(labels, SPORE(knn="exact").fit(town()[:3000]).labels_)

    def test_labels_outlive_the_run_that_they_were_asked_of(self):
        x = town()[:3000]
        np.testing.assert_array_equal(
            fit(x, n_workers=0).labels[...], SPORE(knn="exact").fit(x).labels_
        )

    def test_missing_labels_are_no_labels(self, tmp_path):
        run = fit(town()[:3000], tmp_path / "out", n_workers=0)
        (Path(run.result.url) / "labels" / "c" / "0").unlink()
        assert (labels_of(run) < -1).all()

    def test_bad_data_leaves_no_copy_behind(self, tmp_path):
        x = town()[:3000].copy()
        x[7, 1] = np.nan
        for source in (x, da.from_array(x, chunks=(700, 3))):
            with pytest.raises(InputError, match="Row 7"):
                fit(source, tmp_path / "out", n_workers=0)
            assert not list((tmp_path / "out").glob("input-*"))

    def test_dask_arrays(self, tmp_path):
        x = town()[:3000]
        run = fit(da.from_array(x, chunks=(700, 3)), tmp_path / "out", n_workers=0)
        assert_labels(run, SPORE(knn="exact").fit(x).labels_)
        again = fit(da.from_array(x, chunks=(700, 3)), tmp_path / "out", n_workers=0)
        assert again.id == run.id
        assert not list((tmp_path / "out").glob("input-*"))

    def test_an_array_in_a_group(self, tmp_path):
        x = town()[:3000]
        group = zarr.open_group(str(tmp_path / "adata.zarr"), mode="w")
        group.create_array("obsm/X_pca", shape=x.shape, dtype=x.dtype, chunks=(300, 3))[...] = x
        run = fit(tmp_path / "adata.zarr", component="obsm/X_pca", n_workers=0)
        assert run.path == str(tmp_path / "adata.spore")
        assert_labels(run, SPORE(knn="exact").fit(x).labels_)
        run = fit(group["obsm/X_pca"], n_workers=0)
        assert run.path == str(tmp_path / "adata.spore")
        assert_labels(run, SPORE(knn="exact").fit(x).labels_)

    def test_changed_data_under_a_finished_run_is_refused(self, tmp_path):
        source = write_zarr(tmp_path / "x.zarr", town()[:3000])
        fit(source, n_workers=0)
        zarr.open_array(source, mode="r+")[0] = 7
        with pytest.raises(InputError, match=r"x.zarr' has changed since .* give another `out`"):
            fit(source, n_workers=0)
        with pytest.raises(InputError, match="has changed"):
            fit(source, n_workers=0, z_percentile=20)

    def test_appended_rows_under_a_finished_run_are_refused(self, tmp_path):
        source = write_zarr(tmp_path / "x.zarr", town()[:3000])
        fit(source, n_workers=0)
        zarr.open_array(source, mode="r+").resize((3500, 3))
        with pytest.raises(InputError, match="has changed"):
            fit(source, n_workers=0)


class TestSharing:
    def test_two_configurations_share_what_they_can(self, tmp_path):
        source = write_zarr(tmp_path / "x.zarr", town())
        first = fit(source, n_workers=0)
        events = []
        second = fit(source, n_workers=0, z_percentile=20, progress=events.append)
        again = set(stage_ends(events))
        assert "expand" in again
        assert not again & {"scan", "exchange", "partition", "neighbors", "density", "order"}
        assert_labels(open_run(first.path, first.id), town_labels())
        expected = cluster_graph(*town_graph(), town(), z_percentile=20)
        assert_labels(open_run(first.path), expected)
        assert second.id != first.id
        assert (labels_of(second) != labels_of(first)).any()
        events.clear()
        assert_labels(fit(source, n_workers=0, progress=events.append), town_labels())
        assert events == []
        assert open_run(first.path).id == first.id

    @pytest.mark.parametrize("knn", ["exact", "approximate"])
    def test_another_threshold_redoes_expansion_and_what_follows(self, tmp_path, knn):
        x = np.random.default_rng(0).normal(size=(6000, 80)).astype(np.float32)
        shares = []
        for z_percentile in (95, 2):  # few fragments, and many
            events = []
            run = fit(
                x,
                tmp_path,
                knn=knn,
                z_percentile=z_percentile,
                n_workers=0,
                keep="all",
                progress=events.append,
            )
            shares.append(run.summary["n_skeleton"] / len(x))
        assert (Graph(*run.graph).recall.certified == 1) == (knn == "exact")
        assert shares[0] > 2 / 3 > 1 / 3 > shares[1]
        allowed = {"input", "percentiles-0", "percentiles-1", "expand", "fragments", "gather"}
        assert {"expand"} <= set(stage_ends(events)) <= allowed | {"reassign", "publish"}

    def test_a_call_that_finds_all_done_writes_no_pointer_that_another_might_sweep(self, tmp_path):
        source = write_zarr(tmp_path / "x.zarr", town()[:3000])
        pointer = Path(fit(source, n_workers=0).path, "run.json")
        written = pointer.stat()
        fit(source, n_workers=0)
        assert (pointer.stat().st_ino, pointer.stat().st_mtime_ns) == (
            written.st_ino,
            written.st_mtime_ns,
        )

    def test_many_configurations_in_one_folder(self, tmp_path):
        """Each differs from another in one thing that a stage depends on."""
        changes = [
            {},
            {"min_retained": 3},
            {"post_reassignment_policy": "none"},
            {"max_scr_rounds": 1},
            {"reassignment_neighbors": 20},
            {"min_cluster_size": 200},
            {"max_z": 0.5},
            {"z": 0.1},
            {"seeding_order": "random"},
            {"seeding_order": "random", "seed": 7},
            {"seeding_order": "none"},
            {"density_neighbors": 5},
            {"expansion_neighbors": 9},
            {"max_connectivity": 30},
        ]
        x, found = town()[:5000], []
        for change in changes:
            run = fit(x, tmp_path / "out", n_workers=0, keep="all", **change)
            assert_labels(run, SPORE(knn="exact", **change).fit(x).labels_)
            found.append(run)
        assert len({run.id for run in found}) == len(changes)
        assert len({labels_of(run).tobytes() for run in found}) >= len(changes) - 2
        for run in found:
            verify(run)

    def test_another_gate_of_reassignment_keeps_the_skeletons(self, tmp_path):
        source = write_zarr(tmp_path / "x.zarr", town())
        fit(source, n_workers=0, keep="all")
        events = []
        fit(source, n_workers=0, max_z=0.5, progress=events.append)
        assert stage_ends(events)[-2:] == ["reassign", "publish"]
        assert not {"expand", "fragments"} & set(stage_ends(events))

    def test_a_change_of_reassignment_keeps_the_skeletons(self, tmp_path):
        source = write_zarr(tmp_path / "x.zarr", town())
        fit(source, n_workers=0, keep="all")
        events = []
        run = fit(source, n_workers=0, max_scr_rounds=2, progress=events.append)
        assert stage_ends(events) == ["reassign", "publish"]
        assert_labels(run, cluster_graph(*town_graph(), town(), max_scr_rounds=2))

    def test_an_earlier_graph_is_used(self, tmp_path):
        k = Params().resolve(len(town())).k
        graph = build_graph(town(), tmp_path / "graph", k + 5, n_workers=0)
        for earlier, out in ((graph, "a"), (tmp_path / "graph", "b")):
            events = []
            run = fit(town(), tmp_path / out, graph=earlier, n_workers=0, progress=events.append)
            assert "neighbors" not in stage_ends(events)
            assert "scan" not in stage_ends(events)
            assert_labels(run, town_labels())
        again = fit(town(), tmp_path / "c", graph=run, n_workers=0, z_percentile=20)
        assert_labels(again, cluster_graph(*town_graph(), town(), z_percentile=20))
        assert verify(again)["neighbors"] > 0
        shutil.rmtree(tmp_path / "graph")
        with pytest.raises(DamagedError, match="the graph that it was made from is not there"):
            verify(again)
        clean(again, "labels")
        assert verify(again)["labels"] > 0

    def test_a_graph_that_does_not_suffice_is_refused(self, tmp_path):
        graph = build_graph(town(), tmp_path / "graph", 5, n_workers=0)
        needed = Params().resolve(len(town()))
        words = f"has 5 neighbours .* need {needed.expansion_neighbors} and {needed.k}: build one"
        with pytest.raises(ParameterError, match=words):
            fit(town(), tmp_path / "out", graph=graph, n_workers=0)
        for other in (town()[:100], town() + 1):
            with pytest.raises(
                InputError, match=r"was built from .* build the graph of this source"
            ):
                fit(other, tmp_path / "out", graph=graph, n_workers=0)
        with pytest.raises(ParameterError, match=r"metric is 'cosine', .* built with 'euclidean'"):
            fit(town(), tmp_path / "out", graph=graph, metric="cosine", n_workers=0)
        with pytest.raises(ParameterError, match=r"scale is 'standard', .* built with None"):
            fit(town(), tmp_path / "out", graph=graph, scale="standard", n_workers=0)

    def test_a_fresh_start(self, tmp_path):
        source = write_zarr(tmp_path / "x.zarr", town()[:3000])
        first = fit(source, n_workers=0)
        other = fit(source, n_workers=0, z_percentile=20, keep="labels")
        events = []
        again = fit(source, n_workers=0, resume=False, progress=events.append)
        assert {"scan", "neighbors", "expand", "publish"} <= set(stage_ends(events))
        assert again.id == first.id
        assert verify(again)
        assert verify(other)
        with pytest.raises(ParameterError, match="memory_limit"):
            fit(source, n_workers=0, resume=False, memory_limit="10MB")
        zarr.open_array(source, mode="r+")[0] = 7
        with pytest.raises(InputError, match="has changed"):
            fit(source, n_workers=0, resume=False)
        assert verify(again)


class TestKeeping:
    def test_clean_frees_what_it_says(self, tmp_path):
        source = write_zarr(tmp_path / "x.zarr", town()[:5000])
        run = fit(source, n_workers=0, keep="all")

        def used():
            return sum(path.stat().st_size for path in Path(run.path).rglob("*") if path.is_file())

        def kinds():
            return {path.name.split("-")[0] for path in Path(run.path).iterdir() if path.is_dir()}

        stages = {"scan", "points", "graph", "density", "expand", "fragments", "reassign"}
        assert kinds() == stages | {"result"}
        for keep, left in (("predict", stages - {"expand", "fragments"}), ("labels", set())):
            before = used()
            freed = clean(run, keep=keep)
            assert 0 < freed == pytest.approx(before - used(), abs=100)
            assert kinds() == left | {"result"}
            assert verify(open_run(run.path))

    def test_what_another_result_has_kept_stays(self, tmp_path):
        source = write_zarr(tmp_path / "x.zarr", town()[:5000])
        first = fit(source, n_workers=0)
        fit(source, n_workers=0, z_percentile=20, keep="labels")
        events = []
        fit(source, n_workers=0, z_percentile=30, progress=events.append)
        assert "neighbors" not in stage_ends(events)
        assert verify(first)["neighbors"] > 0
        with pytest.raises(ParameterError, match="keep is 'nothing'"):
            clean(first, keep="nothing")

    def test_graphs_that_are_in_use_stay(self, tmp_path):
        source = write_zarr(tmp_path / "x.zarr", town()[:5000])
        k = Params().resolve(5000).k
        graph = build_graph(source, tmp_path / "out", k, n_workers=0)
        options = {"out": tmp_path / "out", "n_workers": 0}
        run = fit(source, graph=graph, resume=False, **options)
        fit(source, keep="labels", **options)
        assert Graph(tmp_path / "out").name == graph.name
        fit(source, graph=run, z_percentile=30, **options)
        clean(run, "labels")
        assert verify(run)["neighbors"] > 0

        first = fit(source, tmp_path / "b", n_workers=0)
        second = fit(source, tmp_path / "b", graph=first, z_percentile=30, n_workers=0)
        clean(first, "labels")
        assert verify(second)["neighbors"] > 0

    def test_a_kill_before_cleaning_is_made_up_for(self, tmp_path, monkeypatch):
        source = write_zarr(tmp_path / "x.zarr", town()[:3000])
        with monkeypatch.context() as patch:
            patch.setattr(fitting, "clean", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                fit(source, n_workers=0, keep="labels")
        run = fit(source, n_workers=0, keep="labels")
        assert not list(Path(run.path).glob("graph-*"))
        assert fit(source, n_workers=0, keep="predict").summary["keep"] == "labels"

    @pytest.mark.parametrize("stage", ["scan", "points", "graph", "density", "fragments"])
    def test_a_stage_that_was_removed_by_half_is_made_again(self, tmp_path, monkeypatch, stage):
        source = write_zarr(tmp_path / "x.zarr", town()[:5000])
        run = fit(source, n_workers=0, n_partitions=3, keep="all")
        remove = Folder.remove

        def stop(folder, name=""):
            if not name and folder.name.startswith(stage):
                for place in sorted(Path(folder.url).iterdir())[::2]:
                    shutil.rmtree(place) if place.is_dir() else place.unlink()
                raise KeyboardInterrupt
            remove(folder, name)

        with monkeypatch.context() as patch:
            patch.setattr(Folder, "remove", stop)
            with pytest.raises(KeyboardInterrupt):
                clean(run, "labels")
        change = {"z_percentile": 30} if stage != "fragments" else {"max_scr_rounds": 2}
        again = fit(source, n_workers=0, n_partitions=3, keep="all", **change)
        assert_labels(again, SPORE(knn="exact", **change).fit(town()[:5000]).labels_)
        verify(again)

    def test_labels_only(self, tmp_path):
        source = write_zarr(tmp_path / "x.zarr", town()[:5000])
        run = fit(source, n_workers=0, keep="labels")
        assert {path.name for path in Path(run.path).iterdir()} >= {run.result.name, "run.json"}
        assert not list(Path(run.path).glob("graph-*"))
        events = []
        assert fit(source, n_workers=0, keep="labels", progress=events.append).id == run.id
        assert events == []
        with pytest.raises(InputError, match="no finished graph"):
            fit(source, n_workers=0, graph=run)


class TestVerify:
    def test_damage_is_found(self, tmp_path):
        source = write_zarr(tmp_path / "x.zarr", town()[:5000])
        run = fit(source, n_workers=0)
        sizes = verify(run.path)
        assert sizes["labels"] == 20_000
        assert sizes["provenance"] == 10_000
        labels = zarr.open_array(str(Path(run.result.url) / "labels"), mode="r+")
        first = labels[0]
        labels[0] = first + 1
        with pytest.raises(SporeError, match="chunk 0 of 'labels' does not have its checksum"):
            verify(run)
        labels[0] = first
        verify(run)
        (shard, *_) = Path(*run.graph).glob("distances/c/0/0")
        content = bytearray(shard.read_bytes())
        content[1000] ^= 1
        shard.write_bytes(content)
        with pytest.raises(SporeError, match=r"'c/0/0' in .*distances' is damaged"):
            verify(run)

    @pytest.mark.parametrize(
        "name", ["graph-*/longer/0.distances", "result-*/clusters.npy", "reassign-*/clusters.npy"]
    )
    def test_damage_is_found_anywhere(self, tmp_path, name):
        run = fit(town(), tmp_path / "out", n_workers=0)
        (path,) = (tmp_path / "out").glob(name)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(SporeError, match="is damaged"):
            verify(run)

    def test_a_stage_that_is_gone_is_missed(self, tmp_path):
        run = fit(town()[:3000], tmp_path / "out", n_workers=0)
        (marker,) = (tmp_path / "out").glob("density-*/done.json")
        marker.unlink()
        with pytest.raises(SporeError, match=r"'density-.* is not there"):
            verify(run)
        (labels,) = (tmp_path / "out").glob("result-*/labels/zarr.json")
        labels.unlink()
        with pytest.raises(SporeError, match="is damaged"):
            verify(run)

    def test_there_is_nothing(self, tmp_path):
        with pytest.raises(InputError, match=r"no finished run .*\(finished there: none\)"):
            open_run(tmp_path)
        with pytest.raises(InputError, match="no finished run abc"):
            open_run(tmp_path, "abc")


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"keep": "some"}, "keep is 'some', but it must be one of"),
            ({"cache_limit": "much"}, "cache_limit is 'much', but it must be a number of bytes"),
            ({"memory_limit": "10MB"}, "memory_limit is 9.54 MiB a process, but"),
            ({"neighbours": 3}, "There is no parameter 'neighbours'"),
            ({"z_percentile": 101}, "z_percentile is 101"),
            ({"knn": "some"}, "knn is 'some'"),
            ({"n_partitions": 10**9}, r"n_partitions is 1000000000, .* must be in \[1, 100\]"),
        ],
    )
    def test_are_one_sentence_before_anything_is_written(self, tmp_path, options, words):
        with pytest.raises(ParameterError, match=words) as caught:
            fit(town()[:100], tmp_path / "out", n_workers=0, **options)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()

    def test_too_many_clusters_for_the_coordinator(self, tmp_path, monkeypatch):
        monkeypatch.setattr("spore_dask.memory.CLUSTER_NBYTES", 10**9)
        with pytest.raises(ParameterError, match=r"leave \d+ clusters, .* or min_cluster_size"):
            fit(town()[:3000], tmp_path / "out", n_workers=0)

    def test_numpy_numbers_are_numbers(self, tmp_path):
        x = town()[:3000]
        plain = fit(x, tmp_path / "out", n_workers=0, seed=3, n_partitions=2, z_percentile=40)
        numbers = {"seed": np.int64(3), "n_partitions": np.int32(2), "z_percentile": np.float64(40)}
        assert fit(x, tmp_path / "out", n_workers=0, **numbers).id == plain.id

    def test_too_many_points_for_the_coordinator(self, tmp_path):
        big = zarr.create_array(
            str(tmp_path / "big.zarr"), shape=(2 * 10**8, 2), dtype="f4", chunks=(10**5, 2)
        )
        with pytest.raises(
            ParameterError, match=r"coordinator needs .* \(16 bytes each\): raise it"
        ):
            fit(big, tmp_path / "out", memory_limit="2GiB", n_workers=0)


def test_the_summary_says_what_happened(tmp_path):
    source = write_zarr(tmp_path / "x.zarr", town())
    run = fit(source, n_workers=0, z_percentile=40)
    summary = json.loads(Path(run.result.url, "summary.json").read_text())
    assert summary["asked"]["z_percentile"] == 40
    assert summary["params"]["k"] == Params().resolve(len(town())).k
    assert summary["recall"] == {"certified": 1.0, "sampled": 1.0, "error": 0.0}
    for stage in ("scan", "points", "graph", "density", "expand", "fragments", "reassign"):
        assert summary["stages"][stage]["seconds"] >= 0
        assert summary["stages"][stage]["nbytes"] > 0
    assert max(summary["peak_nbytes"].values()) > 50 << 20
    assert summary["n_noise"] == (labels_of(run) == -1).sum()
    assert "clusters" in repr(run)


def test_a_run_without_a_vote_is_whole(tmp_path):
    x = blobs_and_shapes(2000, 2)[0]
    run = fit(x, tmp_path / "out", n_workers=0, max_scr_rounds=0, keep="all")
    assert "fragments" not in verify(run)


def test_verify_reads_the_rows_of_fragments(tmp_path):
    x = blobs_and_shapes(4000, 2)[0]
    run = fit(x, tmp_path / "out", n_workers=0, keep="all")
    assert verify(run)["fragments"] > 0
    path = next((tmp_path / "out").glob("fragments-*/rows/*.distances"))
    content = bytearray(path.read_bytes())
    content[150] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="fragments-"):
        verify(run)


@pytest.mark.parametrize(("stage", "name"), [("expand", "graph"), ("reassign", "fragments")])
def test_nothing_is_kept_of_rows_that_change_in_use(tmp_path, monkeypatch, stage, name):
    """A checkpoint of what was made of damaged rows would outlive them."""
    monkeypatch.setattr("spore_dask.store.plain.can_map", lambda path: True)
    monkeypatch.setattr("spore_dask.checkpoints.EVERY_SECONDS", 0)
    x = blobs_and_shapes(20_000, 2, dtype=np.float32)[0]
    out = tmp_path / "out"
    expected = fit(x, tmp_path / "whole", n_workers=0).labels[...]
    hit = []

    def harm(event):
        if event.stage == stage and event.kind == "task-done" and not hit:
            pattern = {"graph": "distances/c/*/0", "fragments": "rows/*.distances"}[name]
            hit.extend(out.glob(f"{name}-*/{pattern}"))
            for path in hit:
                content = 2 * np.fromfile(path, np.float32)
                with path.open("r+b") as file:
                    file.write(content.data)

    with pytest.raises(DamagedError, match="a checksum is wrong"):
        fit(x, out, n_workers=0, progress=harm)
    assert hit
    np.testing.assert_array_equal(fit(x, out, n_workers=0).labels[...], expected)


def test_a_full_disk_counts_what_a_fit_takes_up(tmp_path, monkeypatch):
    x = blobs_and_shapes(4000, 2)[0].astype(np.float32)
    out, free = tmp_path / "out", type("Usage", (), {"free": 10**9})
    monkeypatch.setattr("shutil.disk_usage", lambda path: free)
    first = fit(x, out, n_workers=0)
    labels = first.labels[...]
    free.free = 0
    assert fit(x, out, n_workers=0).path == first.path
    with pytest.raises(LimitError, match="of disk"):
        fit(x, out, n_workers=0, z_percentile=80)
    np.testing.assert_array_equal(first.labels[...], labels)
    with pytest.raises(LimitError, match="of disk"):
        fit(x, out, n_workers=0, resume=False)
    np.testing.assert_array_equal(spore_dask.open_run(out).labels[...], labels)
    free.free = 18 * 4000
    assert fit(x, out, n_workers=0, z_percentile=80).n_clusters > 0
    with pytest.raises(LimitError, match="of disk"):
        fit(x, tmp_path / "other", n_workers=0, graph=first)
    free.free = 10**6
    np.testing.assert_array_equal(fit(x, out, n_workers=0, resume=False).labels[...], labels)


def test_a_full_disk_does_not_stop_what_is_nearly_done(tmp_path, monkeypatch):
    x = blobs_and_shapes(4000, 2)[0].astype(np.float32)
    out, free = tmp_path / "out", type("Usage", (), {"free": 10**9})
    monkeypatch.setattr("shutil.disk_usage", lambda path: free)

    def stop(event):
        if (event.stage, event.kind) == ("publish", "stage-start"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(x, out, n_workers=0, progress=stop)
    free.free = 0
    assert fit(x, out, n_workers=0, keep="labels").n_clusters > 0
    assert fit(x, out, n_workers=0, keep="labels").n_clusters > 0


def test_an_approximate_fit_is_planned_with_long_rows(tmp_path, monkeypatch):
    x = blobs_and_shapes(4000, 8)[0].astype(np.float32)
    out, free = tmp_path / "out", type("Usage", (), {"free": 10**9})
    monkeypatch.setattr("shutil.disk_usage", lambda path: free)
    head, longest = Params().resolve(4000).expansion_neighbors, Params().resolve(4000).k
    shapes = [spore_dask.memory.shape_of(4000, 8, 4, k, None, longest) for k in (head, longest)]
    short, long = (spore_dask.memory.disk_nbytes(shape, x.nbytes, True) for shape in shapes)
    free.free = (short + long) // 2
    with pytest.raises(LimitError, match="of disk"):
        fit(x, out, n_workers=0, knn="approximate")
    assert not out.exists()


def test_peak_memory_is_within_the_projection(tmp_path):
    x, _ = blobs_and_shapes(400_000, 4, dtype=np.float32)
    source = write_zarr(tmp_path / "x.zarr", x, 100_000)
    code = (
        "import sys, json; from spore_dask import fit, fitting\n"
        "run = fit(sys.argv[1], params='paper', n_workers=1, memory_limit='600MiB')\n"
        "print(json.dumps(run.summary['peak_nbytes']))"
    )
    done = subprocess.run([sys.executable, "-c", code, source], check=True, capture_output=True)
    peaks = json.loads(done.stdout.splitlines()[-1])
    assert len(peaks) == 2
    assert max(peaks.values()) <= 600 << 20


def test_public_names():
    for name in ("fit", "open_run", "verify", "clean", "Run"):
        assert name in spore_dask.__all__
        assert getattr(spore_dask, name).__doc__
    assert os.path.basename(spore_dask.__file__) == "__init__.py"
