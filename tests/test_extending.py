"""Approximate rows that are extended: they stay as they are, and go on with what is behind."""

import functools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spore_dask import Graph, Params, approximate, fitting, memory, probing, verify
from spore_dask.clustering import cluster_rows
from spore_dask.engine import open_engine
from spore_dask.extending import Extension, extend_points, neighbors_of, some_points
from spore_dask.fragments import Fragments
from spore_dask.graph import build_with
from spore_dask.kernels.probes import Part
from spore_dask.plan import Options
from spore_dask.points import CACHE
from spore_dask.search import neighbor_rows
from spore_dask.shards import new_entries
from spore_dask.stages.fragments import FragmentSpec, gather_fragments
from spore_dask.store import Folder
from spore_dask.truths import Truth
from tests import naive
from tests.paper import fit
from tests.strategies import point_sets
from tests.test_fit import assert_labels, labels_of, write_zarr
from tests.test_fragments import (
    LARGE,
    longer_in_input_rows,
    worker_peak,
    write_order,
    write_skeletons,
)
from tests.test_graph import wide
from tests.test_probing import blobs

HEAD, LONGEST = 8, 20
EVERY = 10**6
"""More probes than there are cells."""


def heads_with_gaps(points, n_head, k, seed):
    """Return true neighbours, some of them missed, after each point."""
    rng, (rows, _) = np.random.default_rng(seed), naive.neighbor_rows(points, len(points) - 1)
    within = len(points) - 1 - rng.integers(0, k - n_head + 1)  # sometimes too few are behind
    kept = [np.sort(rng.choice(max(n_head, within), n_head, replace=False)) for _ in rows]
    return np.concatenate([rows[:, :1], rows[np.arange(len(rows))[:, None], 1 + np.array(kept)]], 1)


def extension_of(index, heads, k, n_probes):
    """Return how rows in memory, in numbers, are extended."""

    def heads_of(wanted, n_heads):
        found = np.ascontiguousarray(heads[wanted, 1 : n_heads + 1])
        return found, np.ones(found.shape, bool)

    return Extension(index, heads_of, k, n_probes)


@given(points=point_sets(), data=st.data())
@settings(max_examples=80)
def test_what_is_appended_is_all_that_is_behind(points, data):
    k = data.draw(st.integers(2, len(points) - 1)) if len(points) > 2 else 1
    n_head = data.draw(st.integers(1, max(1, k - 1)))
    if n_head == k:
        return
    heads = heads_with_gaps(points, n_head, k, data.draw(st.integers(0, 99)))
    index = approximate.split_points(points, data.draw(st.integers(1, 3)), 0)
    row_of = np.concatenate(index.input_rows)
    number_of = np.argsort(row_of).astype(np.int32)
    in_numbers = number_of[heads[row_of]]
    extension = extension_of(index, in_numbers, k, EVERY)
    margin = data.draw(st.sampled_from([probing.MARGIN, len(points)]))
    for home, part in enumerate(index.parts):
        places = np.arange(0, len(part.points), data.draw(st.integers(1, 2)))
        with mock.patch.object(probing, "MARGIN", margin):
            found, near = extension.rows(home, places, in_numbers[part.first + places])
        for place, neighbors, distances in zip(places, row_of[found], near, strict=True):
            head = heads[row_of[part.first + place]].tolist()
            behind, expected = naive.behind_row(points, head)
            if len(behind) < k - n_head:
                behind, expected = naive.others_of_row(points, head)
            assert distances.tolist() == expected[: k - n_head]
            if margin == len(points):  # else of many that are as far away any may be found
                assert neighbors.tolist() == behind[: k - n_head]
            ranks = [behind.index(neighbor) for neighbor in neighbors]
            assert ranks == sorted(set(ranks))


def test_few_probes_find_most_of_what_is_behind():
    points = blobs(3000, 24)
    index = approximate.split_points(points, 4, 0)
    row_of = np.concatenate(index.input_rows)
    true = neighbor_rows(points, LONGEST, "exact").neighbors
    number_of = np.argsort(row_of).astype(np.int32)
    heads = number_of[true[row_of][:, : HEAD + 1]]
    extension = extension_of(index, heads, LONGEST, 8)
    shares = []
    for home, part in enumerate(index.parts):
        places = np.arange(0, len(part.points), 5)
        found, _ = extension.rows(home, places, heads[part.first + places])
        rows = row_of[part.first + places]
        shares += [
            np.isin(true[row, HEAD + 1 :], row_of[mine]).mean()
            for row, mine in zip(rows, found, strict=True)
        ]
    assert np.mean(shares) > 0.9


def test_a_row_without_enough_behind_it_goes_on_with_the_nearest():
    points = blobs(60, 5)
    index = approximate.split_points(points, 2, 0)
    numbered = np.concatenate([part.points for part in index.parts])
    near = np.argsort(naive.distances_from(numbered, 0))
    heads = np.array([[0, *near[-3:]]], np.int32)
    extension = extension_of(index, np.repeat(heads, 60, axis=0), 6, 8)
    found, distances = extension.rows(0, np.array([0]), heads)
    np.testing.assert_array_equal(found[0], near[1:4])
    np.testing.assert_array_equal(distances[0], naive.distances_from(numbered, 0)[near[1:4]])


def test_some_points_keep_their_cells():
    part = Part(100, np.arange(12.0).reshape(6, 2), np.array([0, 2, 2, 5, 6]), np.eye(4, 2))
    some = some_points(part, np.array([2, 4, 5]))
    np.testing.assert_array_equal(some.points, part.points[[2, 4, 5]])
    assert some.starts.tolist() == [0, 2, 3]
    np.testing.assert_array_equal(some.centers, part.centers[[2, 3]])
    assert some.first + 3 < 0


@functools.cache
def wide_rows():
    """Return the true rows of `wide`."""
    return neighbor_rows(wide(), LONGEST, "exact")


def build(folder, n_workers=0, **options):
    """Build an approximate graph with longer rows for copies."""
    given = Options(HEAD, "approximate", longest_k=LONGEST, n_partitions=5, **options)
    return build_with(given, wide(), folder, n_workers=n_workers)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return build(tmp_path_factory.mktemp("extended"))


def assert_extended(x, graph, rows, neighbors, distances):
    """Rows of the input begin with those of a graph, and go on in order, by direct distances."""
    heads = graph.to_memory()
    np.testing.assert_array_equal(neighbors[:, : graph.k + 1], heads[0][rows])
    np.testing.assert_array_equal(distances[:, : graph.k + 1], heads[1][rows])
    for row, mine, near in zip(rows, neighbors.astype(np.int64), distances, strict=True):
        assert len(set(mine.tolist())) == len(mine)
        np.testing.assert_array_equal(near, naive.distances_from(x, row)[mine])
        for part in (slice(1, graph.k + 1), slice(graph.k + 1, None)):
            assert (np.lexsort((mine[part], near[part])) == np.arange(len(mine[part]))).all()
        assert near[graph.k] <= near[graph.k + 1]


def test_points_with_copies_have_longer_rows(graph):
    x, (rows, neighbors, distances) = wide(), longer_in_input_rows(graph)
    assert graph.summary["search"] == "probes of cells around centres"
    assert graph.k == HEAD
    np.testing.assert_array_equal(rows, np.flatnonzero(wide_rows().distances[:, 1] == 0))
    some = np.unique(np.append(np.arange(0, len(rows), 19), np.flatnonzero(distances[:, -1] > 0)))
    assert_extended(x, graph, rows[some], neighbors[some], distances[some])
    heavy = wide_rows().distances[rows, LONGEST] == 0
    assert heavy.sum() == 600
    assert (distances[heavy] == 0).all()


@pytest.mark.parametrize("search", ["probes", "pynndescent"])
def test_extended_rows_are_sound_and_mostly_right(tmp_path, search):
    x = wide()
    graph = build(tmp_path, knn_index=search if search == "pynndescent" else None)
    numbers = np.sort(np.random.default_rng(0).choice(graph.n_points, 500, replace=False))
    entries = new_entries(numbers, graph.n_points, LONGEST, np.float32)
    heads = np.asarray(graph.neighbors[...])[numbers], np.asarray(graph.distances[...])[numbers]
    for rows, head in zip(entries, heads, strict=True):
        rows[:, : HEAD + 1] = head
    n_probes = graph.summary["found"]["n_probes"]
    n_compared = extend_points(graph.points, graph.graph_rows, n_probes, numbers, entries)
    assert n_compared >= 400 * 120 * 64 * n_probes
    row_of = np.asarray(graph.rows[...])
    rows, neighbors = row_of[numbers], row_of[entries.neighbors]
    assert_extended(x, graph, rows, neighbors, entries.distances)
    reached = wide_rows().distances[rows, -1:]
    assert np.mean(entries.distances <= reached) > 0.93
    CACHE.clear()


def test_rows_are_read_from_shards(graph):
    numbers = np.array([0, 1, 777, 3000, graph.n_points - 1])
    found = neighbors_of(graph.graph_rows, numbers, slice(None))
    np.testing.assert_array_equal(found, np.asarray(graph.neighbors[...])[numbers])
    assert found.dtype == np.int32
    heads = neighbors_of(graph.graph_rows, numbers, slice(1, 4))
    np.testing.assert_array_equal(heads, found[:, 1:4])
    CACHE.clear()


def test_shares_of_sampled_points():
    truth = Truth(
        np.array([2, 5, 9]),
        np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [1.0, 1.0, 2.0]]),
        np.array([[7, 8, 9], [1, 3, 4], [2, 5, 6]]),
    )
    known, places = truth.among(np.array([4, 5, 6, 9]))
    assert (known.numbers.tolist(), places.tolist()) == ([5, 9], [1, 3])
    neighbors, distances = np.array([[3, 30, 31], [6, 2, 1]]), np.array([[0, 0, 1], [1, 2, 3.0]])
    assert known.shares(neighbors, distances, 3).tolist() == pytest.approx([2 / 3, 2 / 3])
    assert known.shares(neighbors[:, :2], distances[:, :2], 2).tolist() == [1.0, 0.5]


def fit_in_two(out, monkeypatch, x=None, n_workers=0, **options):
    """Fit with a second search for fragments, whatever the pilot says."""
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "cluster_sample", lambda *_: {"share": 0.0})
        return fit(
            wide() if x is None else x,
            out,
            **{"knn": "approximate", "n_partitions": 5, "keep": "all", **options},
            n_workers=n_workers,
        )


def as_one_graph(run):
    """Return the graph of a run with K neighbours in each row; rows of skeletons go on anyhow."""
    graph, k = Graph(*run.graph), run.summary["params"]["k"]
    heads = np.asarray(graph.neighbors[...]), np.asarray(graph.distances[...])
    more = np.arange(1, k - graph.k + 1)
    others = (heads[0][:, :1].astype(np.int64) + more) % graph.n_points
    neighbors = np.concatenate([heads[0], others.astype(heads[0].dtype)], axis=1)
    far = np.broadcast_to(np.float32(1e6) * more.astype(np.float32), others.shape)
    distances = np.concatenate([heads[1], far], axis=1)
    for shard in range(graph.graph_rows.n_shards):
        points, *longer = graph.graph_rows.longer(shard)
        neighbors[points], distances[points] = longer
    folder = Folder(run.path).child(run.summary["stages"]["fragments"]["name"])
    fragments = Fragments.from_summary(folder, folder.read_json("done.json"))
    points, found, near = (
        fragments.array(name).read(0, int(fragments.counts.sum()))
        for name in ("points", "neighbors", "distances")
    )
    np.testing.assert_array_equal(found[:, : graph.k + 1], heads[0][points])
    np.testing.assert_array_equal(near[:, : graph.k + 1], heads[1][points])
    copied = np.isin(points, np.flatnonzero(heads[1][:, 1] == 0))
    np.testing.assert_array_equal(found[copied], neighbors[points[copied]])
    neighbors[points], distances[points] = found, near
    rows = np.asarray(graph.rows[...])
    order = np.argsort(rows)
    return rows[neighbors[order]], distances[order]


@pytest.mark.parametrize("options", [{}, {"z_percentile": 90}, {"knn_index": "pynndescent"}])
def test_labels_are_those_of_the_one_graph_that_there_is(tmp_path, monkeypatch, options):
    run = fit_in_two(tmp_path, monkeypatch, **options)
    params = Params(z_percentile=options.get("z_percentile", 50.0))
    assert Graph(*run.graph).k == params.resolve(len(wide())).expansion_neighbors
    resolved = params.resolve(len(wide()))
    found = cluster_rows(*as_one_graph(run), wide(), resolved)  # of copies, any may come first
    assert_labels(run, found.labels)
    verify(run)


@pytest.mark.parametrize("in_two", [False, True])
def test_the_recall_of_fragments_is_told(tmp_path, monkeypatch, in_two):
    if in_two:
        run = fit_in_two(tmp_path, monkeypatch, min_retained=5)
        distances = as_one_graph(run)[1]
    else:
        options = {"knn": "approximate", "n_partitions": 5, "recall_target": 0.9}
        run = fit(wide(), tmp_path, n_workers=0, min_retained=5, **options)
        distances = Graph(*run.graph).to_memory()[1]
    stage, k = run.summary["stages"]["fragments"], run.summary["params"]["k"]
    assert distances.shape == (len(wide()), k + 1)
    is_fragment = run.provenance[...] != 0
    is_fragment &= distances[:, 1] > 0  # of copies, most are not drawn
    true = neighbor_rows(wide(), k, "exact").distances[is_fragment, -1:]
    recall = np.mean(distances[is_fragment, 1:] <= true)
    assert is_fragment.sum() > 1000
    assert 0 < stage["error"] < 0.02
    assert stage["recall"] == pytest.approx(recall, abs=4 * stage["error"])


def test_labels_do_not_depend_on_workers_chunks_or_caches(tmp_path, monkeypatch):
    labels = labels_of(fit_in_two(tmp_path / "a", monkeypatch))
    source = write_zarr(tmp_path / "x.zarr", wide(), 777)
    for name, options in {
        "workers": {"n_workers": 2},
        "chunks": {"x": source, "cache_limit": 0},
        "limit": {"memory_limit": "700MiB"},
    }.items():
        assert_labels(fit_in_two(tmp_path / name, monkeypatch, **options), labels)


def test_a_graph_of_short_rows_can_be_given(tmp_path, monkeypatch):
    run = fit_in_two(tmp_path / "a", monkeypatch)
    again = fit(wide(), tmp_path / "b", graph=run, n_workers=0, z_percentile=60)
    whole = fit_in_two(tmp_path / "c", monkeypatch, z_percentile=60)
    assert_labels(again, labels_of(whole))


@pytest.mark.parametrize("n_voting", [49, 51, 99])
def test_almost_all_of_few_points_may_vote(tmp_path, monkeypatch, n_voting):
    x = np.random.default_rng(0).random((100, 30)).astype(np.float32)
    options = {"knn_index": "pynndescent", "n_partitions": 1, "reassignment_neighbors": n_voting}
    run = fit_in_two(tmp_path, monkeypatch, x, recall_target=0.5, **options)
    assert (Graph(*run.graph).k, run.summary["params"]["k"]) == (7, n_voting)


def test_labels_do_not_depend_on_other_fits_in_the_folder(tmp_path, monkeypatch):
    shares = iter([0.0, 0.9, 0.9])
    monkeypatch.setattr(fitting, "cluster_sample", lambda *_: {"share": next(shares)})
    options = {"knn": "approximate", "n_partitions": 5, "recall_target": 0.9, "n_workers": 0}
    fit(wide(), tmp_path / "out", min_retained=2, **options)
    run = fit(wide(), tmp_path / "out", **options)
    assert Graph(*run.graph).k == run.summary["params"]["k"]
    assert_labels(run, labels_of(fit(wide(), tmp_path / "fresh", **options)))


@pytest.mark.parametrize("index", [None, "pynndescent"])
def test_copies_between_short_and_long_rows_are_all_counted(tmp_path, index):
    """Copies count as such whichever of them the short row has."""
    x = np.repeat(wide()[:400], 14, axis=0)[np.random.default_rng(0).permutation(5600)]
    options = Options(HEAD, "approximate", index, n_partitions=3, longest_k=LONGEST)
    graph = build_with(options, x, tmp_path, n_workers=0)
    assert graph.k == HEAD
    _, _, distances = longer_in_input_rows(graph)
    assert len(distances) == len(x)
    assert np.mean((distances <= 0).sum(axis=1) >= 14) > 0.99


def test_equal_distances_fill_rows_before_farther_ones(tmp_path):
    """Of many points that are as far away as the last of a row, it goes on with any."""
    x = np.eye(80, dtype=np.float32)[np.random.default_rng(0).integers(0, 80, 6000)]
    x[:, 0] += np.arange(6000) % 2
    x[:, 1] += np.arange(6000) % 3 / 4
    options = Options(HEAD, "approximate", "pynndescent", n_partitions=3, longest_k=LONGEST)
    graph = build_with(options, x, tmp_path, n_workers=0)
    rows, _, distances = longer_in_input_rows(graph)
    true = neighbor_rows(x, LONGEST, "exact").distances[rows]
    assert np.mean(distances <= true[:, -1:]) > 0.95


@pytest.mark.parametrize(("share", "in_two"), [(0.33, True), (0.34, False)])
def test_the_pilot_decides(tmp_path, monkeypatch, share, in_two):
    monkeypatch.setattr(fitting, "cluster_sample", lambda *_: {"share": share})
    options = {"knn": "approximate", "recall_target": 0.9}
    run = fit(wide(), tmp_path, n_partitions=5, n_workers=0, **options)
    resolved = Params().resolve(len(wide()))
    assert Graph(*run.graph).k == (resolved.expansion_neighbors if in_two else resolved.k)


@pytest.mark.parametrize(("k", "longest_k"), [(20, 60), (200, 220)])
def test_peak_memory_is_within_the_projection(tmp_path, k, longest_k):
    """All points of large shards are extended."""
    x = np.random.default_rng(0).normal(size=(60_000, 24)).astype(np.float32)
    options = Options(k, "approximate", n_partitions=3, longest_k=longest_k, recall_target=0.5)
    graph = build_with(options, x, tmp_path / "out", n_workers=2, memory_limit="2GiB")
    folder, rows, shape = Folder(str(tmp_path)), graph.graph_rows, graph.shape
    order = write_order(folder, rows, np.random.default_rng(0).permutation(len(x)), 4)
    write_skeletons(folder, np.ones(len(x), bool), rows.shard_rows)
    needs, cache_nbytes = memory.extend_nbytes(shape), 16 << 20
    spec = FragmentSpec(
        points=graph.points,
        graph=rows,
        search=graph.summary["search"],
        n_probes=graph.summary["found"]["n_probes"],
        shape=shape,
        order=order,
        skeletons=folder,
        k=longest_k,
        cache_nbytes=cache_nbytes,
        needs_nbytes=needs,
    )
    with open_engine(n_workers=2) as engine:
        fragments = gather_fragments(engine, folder.child("fragments"), spec, LARGE)
        assert fragments.counts.sum() == len(x)
        assert worker_peak(engine.peaks()) <= needs + cache_nbytes
