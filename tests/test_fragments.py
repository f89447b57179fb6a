"""Rows for some points only: the longer rows of points with copies, and those of fragments."""

import dataclasses
import functools
import itertools
import json
import os
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spore_dask import (
    Graph,
    ParameterError,
    Params,
    build_graph,
    cluster_graph,
    exact,
    fitting,
    memory,
    shards,
    stages,
)
from spore_dask import fragments as fragment_rows
from spore_dask import points as partitioned
from spore_dask.datasets import blobs_and_shapes
from spore_dask.engine import open_engine
from spore_dask.fragments import Rows
from spore_dask.graph import build_with
from spore_dask.kernels import cells
from spore_dask.kernels.order import find_members
from spore_dask.orders import Order
from spore_dask.pilot import CELLS
from spore_dask.plan import Options
from spore_dask.points import BOXES, CACHE, Points
from spore_dask.search import neighbor_rows
from spore_dask.searching import compare_points, search_points
from spore_dask.shards import new_entries
from spore_dask.stages.fragments import FragmentSpec, gather_fragments
from spore_dask.store import Folder
from tests import naive
from tests.paper import fit
from tests.strategies import point_sets
from tests.test_graph import crowd

HEAD, LONGEST = 5, 12
N_RANGES = 7

LARGE = np.array([3, 8, 20])


def points_on_disk(graph):
    """Return the points that a graph was built from."""
    folder = Folder(graph.path).child(graph.summary["points"])
    summary = folder.read_json("done.json")
    return Points(
        folder,
        BOXES,
        graph.n_points,
        folder.read_array("boxes").shape[-1],
        graph.summary["dtype"],
        *(np.array(summary[name], np.int64) for name in ("firsts", "copy_starts", "leaders")),
    )


def write_order(folder, rows, order, n_ranges):
    """Write a total order in ranges, some of them empty where there are few points."""
    starts = np.linspace(0, len(order), n_ranges + 1).astype(np.int64)
    ranges = np.empty(len(order), np.uint16)
    for i, (first, last) in enumerate(itertools.pairwise(starts)):
        folder.write_array(f"order/{i}", order[first:last].astype(np.uint32))
        ranges[order[first:last]] = i
    for shard in range(rows.n_shards):
        folder.write_array(f"ranges/{shard}", ranges[slice(*rows.span(shard))])
    return Order(folder, starts)


def write_skeletons(folder, is_fragment, chunk_rows):
    """Write clusters 3 and 8, which are large, and 0 to 12 otherwise."""
    rng = np.random.default_rng(5)
    small = np.setdiff1d(np.arange(13), (3, 8))
    n_points = len(is_fragment)
    clusters = np.where(is_fragment, rng.choice(small, n_points), rng.choice([3, 8], n_points))
    array = folder.create_rows("skeletons", (n_points,), np.int32, chunk_rows)
    for first in range(0, n_points, chunk_rows):
        array.write(first, clusters[first : first + chunk_rows].astype(np.int32))


def tiny_cells(points_per_cell=4, block_nbytes=2000):
    """Make cells and blocks so small that few points have many."""
    return (
        mock.patch.object(cells, "POINTS_PER_CELL", points_per_cell),
        mock.patch.object(exact, "BLOCK_NBYTES", block_nbytes),
    )


def small_graph(folder, points, k, longest_k, n_partitions):
    """Build a graph in this process, with tiny cells, and keep nothing of it in memory."""
    options = Options(k, knn="exact", n_partitions=n_partitions, longest_k=longest_k)
    few_points, few_bytes = tiny_cells()
    with few_points, few_bytes:
        return build_with(options, points, folder, n_workers=0)


def longer_in_input_rows(graph):
    """Return the points with longer rows, these, and their distances, in rows of the input."""
    rows, stored = np.asarray(graph.rows[...]), graph.graph_rows
    found = [stored.longer(shard) for shard in range(stored.n_shards)]
    points, neighbors, distances = (np.concatenate(part) for part in zip(*found, strict=True))
    assert (np.diff(points.astype(np.int64)) > 0).all()
    order = np.argsort(rows[points])
    return rows[points][order], rows[neighbors][order], distances[order]


def assert_head_and_longer(graph, k, neighbors, distances):
    """Compare with a graph whose rows are all as long as the longest."""
    found = graph.to_memory()
    np.testing.assert_array_equal(found[0], neighbors[:, : k + 1])
    np.testing.assert_array_equal(found[1], distances[:, : k + 1])
    copied = np.flatnonzero(distances[:, 1] <= 0)
    longest_k = neighbors.shape[1] - 1
    n_longer = len(copied) if longest_k > k else 0
    assert sum(graph.summary["n_longer"]) == n_longer
    if n_longer:
        points, longer, near = longer_in_input_rows(graph)
        np.testing.assert_array_equal(points, copied)
        np.testing.assert_array_equal(longer, neighbors[copied])
        np.testing.assert_array_equal(near, distances[copied])
        assert near.dtype == distances.dtype


@given(points=point_sets(), data=st.data())
@settings(max_examples=60)
def test_head_and_longer_rows_equal_brute_force(tmp_path_factory, points, data):
    longest_k = data.draw(st.integers(1, len(points) - 1))
    k = data.draw(st.integers(1, longest_k))
    n_partitions = data.draw(st.integers(1, min(6, len(points))))
    folder = tmp_path_factory.mktemp("graph")
    graph = small_graph(folder, points, k, longest_k, n_partitions)
    assert_head_and_longer(graph, k, *naive.neighbor_rows(points, longest_k))


@functools.cache
def crowd_rows(dtype):
    rows = neighbor_rows(crowd().astype(dtype), LONGEST, "exact")
    return rows.neighbors, rows.distances


@pytest.mark.parametrize(
    ("dtype", "n_partitions", "n_workers"),
    [(np.float32, None, 0), (np.float32, 7, 2), (np.float64, 1, 0), (np.float64, 23, 0)],
)
def test_heavy_copies_have_longer_rows(tmp_path, dtype, n_partitions, n_workers):
    x = crowd().astype(dtype)
    options = Options(HEAD, n_partitions=n_partitions, longest_k=LONGEST)
    graph = build_with(options, x, tmp_path, n_workers=n_workers)
    assert points_on_disk(graph).copy_starts[-1] - points_on_disk(graph).copy_starts[0] > 5000
    assert_head_and_longer(graph, HEAD, *crowd_rows(dtype))


def test_receipts_count_longer_rows(tmp_path):
    options = Options(HEAD, n_partitions=3, longest_k=LONGEST)
    graph = build_with(options, crowd(6000), tmp_path, n_workers=0)
    n_longer = []
    for shard in range(3):
        receipt = tmp_path / graph.name / "receipts-neighbors" / f"{shard}.json"
        receipt = json.loads(receipt.read_text())
        n_longer.append(receipt["n_longer"])
        assert len(graph.graph_rows.longer(shard).points) == n_longer[-1]
    assert n_longer == graph.summary["n_longer"]
    assert min(n_longer) > 0


def test_no_row_is_longer_where_there_are_no_copies(tmp_path):
    x = np.random.default_rng(0).random((3000, 2))
    graph = build_with(Options(HEAD, longest_k=LONGEST), x, tmp_path, n_workers=0)
    assert graph.summary["n_longer"] == [0] * graph.graph_rows.n_shards
    assert not (tmp_path / graph.name / "longer").exists()


@functools.cache
def cube():
    """Points where boxes prune nothing, with copies, and their true rows."""
    x = np.random.default_rng(0).random((5000, 60)).astype(np.float32)
    x[:200] = x[0]
    return x, neighbor_rows(x, LONGEST, "exact")


def test_longer_rows_by_products(tmp_path):
    x, rows = cube()
    options = Options(HEAD, knn="exact", n_partitions=3, longest_k=LONGEST)
    graph = build_with(options, x, tmp_path, n_workers=0)
    assert graph.summary["search"] == "products with all points"
    assert (graph.k, graph.graph_rows.longest_k) == (HEAD, LONGEST)
    assert_head_and_longer(graph, HEAD, rows.neighbors, rows.distances)


def test_comparing_some_points_equals_comparing_all(tmp_path, monkeypatch):
    monkeypatch.setattr("spore_dask.searching.QUERIES_PER_PASS", 300)
    x, rows = cube()
    graph = build_graph(x, tmp_path, LONGEST, knn="exact", n_partitions=3, n_workers=0)
    numbers = np.flatnonzero(np.random.default_rng(1).random(5000) < 0.2)
    places = np.random.default_rng(2).permutation(len(numbers))
    found = new_entries(np.empty(len(numbers), int), 5000, LONGEST, np.float32)
    found.neighbors[places, 0] = numbers
    points = points_on_disk(graph)
    n_compared = compare_points(points, numbers, found, places)
    CACHE.clear()
    n_searched = int((numbers < points.firsts[-1]).sum())
    assert n_compared >= n_searched * int(points.firsts[-1]) * 60
    row_of = np.asarray(graph.rows[...])
    in_rows = row_of[found.neighbors[places]]
    np.testing.assert_array_equal(in_rows, rows.neighbors[row_of[numbers]])
    np.testing.assert_array_equal(found.distances[places], rows.distances[row_of[numbers]])


@pytest.mark.parametrize(("share", "in_two"), [(0.04, True), (0.06, False)])
def test_fragments_by_products(tmp_path, monkeypatch, share, in_two):
    monkeypatch.setattr(fitting, "cluster_sample", lambda *_: {"share": share})
    x, _ = cube()
    run = fit(x, tmp_path, knn="exact", n_partitions=3, n_workers=0)
    resolved = Params().resolve(len(x))
    graph = Graph(*run.graph)
    assert graph.summary["search"] == "products with all points"
    assert graph.k == (resolved.expansion_neighbors if in_two else resolved.k)
    assert (run.summary["stages"]["fragments"]["coordinates_compared"] > 0) == in_two
    rows = neighbor_rows(x, resolved.k, "exact")
    np.testing.assert_array_equal(run.labels[...], cluster_graph(rows.neighbors, rows.distances, x))


@pytest.mark.parametrize("longest_k", [HEAD - 1, 3000])
def test_a_longest_row_that_cannot_be_is_refused(tmp_path, longest_k):
    with pytest.raises(ParameterError, match=rf"longest_k is {longest_k}, .* \[5, 2999\]"):
        build_with(Options(HEAD, longest_k=longest_k), crowd(3000), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@given(points=point_sets(), data=st.data())
@settings(max_examples=60)
def test_searching_for_some_points_equals_searching_for_all(tmp_path_factory, points, data):
    k = data.draw(st.integers(1, len(points) - 1))
    wanted = data.draw(st.lists(st.booleans(), min_size=len(points), max_size=len(points)))
    numbers = np.flatnonzero(wanted)
    places = data.draw(st.permutations(range(len(numbers))).map(lambda p: np.array(p, np.int64)))
    n_partitions = data.draw(st.integers(1, min(6, len(points))))
    graph = small_graph(tmp_path_factory.mktemp("graph"), points, k, k, n_partitions)
    found = new_entries(np.empty(len(numbers), int), len(points), k, points.dtype)
    found.neighbors[places, 0] = numbers
    few_points, few_bytes = tiny_cells()
    with few_points, few_bytes:
        n_compared = search_points(points_on_disk(graph), numbers, found, places)
    CACHE.clear()
    assert (n_compared > 0) == (len(numbers) > 0)
    np.testing.assert_array_equal(found.neighbors[places], graph.neighbors[...][numbers])
    np.testing.assert_array_equal(found.distances[places], graph.distances[...][numbers])


def test_points_that_are_not_wanted_cost_no_comparisons(tmp_path):
    graph = build_graph(crowd(), tmp_path, LONGEST, n_partitions=5, n_workers=0)
    points = points_on_disk(graph)
    n_searched = int(points.firsts[-1])
    numbers = np.flatnonzero(np.random.default_rng(0).random(n_searched) < 0.1)
    found = new_entries(numbers, graph.n_points, LONGEST, points.dtype)
    n_compared = search_points(points, numbers, found)
    CACHE.clear()
    share = n_compared / graph.summary["found"]["coordinates_compared"]
    assert 0.05 < share < 0.15


class Case:
    """Points with copies, their rows with as many neighbours as the longest, and an order."""

    def __init__(self, folder, n_points=6000, n_partitions=4, n_ranges=N_RANGES):
        self.folder = Folder(str(folder))
        x = crowd(n_points)
        head = Options(HEAD, n_partitions=n_partitions, longest_k=LONGEST)
        whole = Options(LONGEST, n_partitions=n_partitions)
        self.graphs = {
            k: build_with(options, x, folder / f"graph-{k}", n_workers=0)
            for k, options in ((HEAD, head), (LONGEST, whole))
        }
        CACHE.clear()
        np.testing.assert_array_equal(*(graph.rows[...] for graph in self.graphs.values()))
        rows = self.graphs[HEAD].graph_rows
        self.order = np.random.default_rng(1).permutation(n_points)
        self.stored_order = write_order(self.folder, rows, self.order, n_ranges)
        self.shape = memory.shape_of(n_points, x.shape[1], 4, HEAD, n_partitions, LONGEST)

    def spec(self, k, is_fragment, name):
        """Return what the rows of these fragments are asked for, of a graph with k neighbours."""
        graph = self.graphs[k]
        skeletons = self.folder.child(f"skeletons-{name}")
        write_skeletons(skeletons, is_fragment, 1000)
        return FragmentSpec(
            points=points_on_disk(graph),
            graph=graph.graph_rows,
            search=graph.summary["search"],
            n_probes=0,
            shape=self.shape,
            order=self.stored_order,
            skeletons=skeletons,
            k=LONGEST,
            cache_nbytes=1 << 20,
            needs_nbytes=0,
        )

    def assert_rows(self, fragments, is_fragment):
        """Compare the rows of fragments with those of all points."""
        wanted = self.order[is_fragment[self.order]]
        assert fragments.counts.sum() == len(wanted)
        for budget_nbytes in (0, 200_000, 1 << 30):
            self.assert_pieces(fragments, wanted, budget_nbytes)

    def assert_pieces(self, fragments, wanted, budget_nbytes):
        """Compare the rows that are at hand within a budget."""
        whole, rows = self.graphs[LONGEST], Rows(fragments, budget_nbytes)
        numbers = range(len(fragments.counts))
        pieces = [rows.piece(i) for i in numbers for _ in range(2)][::2]  # once more: the same
        assert [len(piece.points) for piece in pieces] == fragments.counts.tolist()
        rows.check()
        if not pieces:
            return
        points = np.concatenate([piece.points for piece in pieces])
        neighbors = np.concatenate([piece.neighbors[piece.rows] for piece in pieces])
        distances = np.concatenate([piece.distances[piece.rows] for piece in pieces])
        np.testing.assert_array_equal(points, wanted)
        np.testing.assert_array_equal(neighbors, whole.neighbors[...][wanted])
        np.testing.assert_array_equal(distances, whole.distances[...][wanted])
        assert (points.dtype, neighbors.dtype) == (np.uint32, np.uint32)
        assert distances.dtype == np.float32


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return Case(tmp_path_factory.mktemp("case"))


@pytest.mark.parametrize("k", [HEAD, LONGEST])
@pytest.mark.parametrize("share", [0, 0.002, 0.2, 1])
@pytest.mark.parametrize("maps", [False, True])
def test_fragments_have_the_rows_of_the_whole_graph_in_order(
    case, tmp_path, monkeypatch, k, share, maps
):
    monkeypatch.setattr("spore_dask.store.plain.can_map", lambda path: maps)
    is_fragment = np.random.default_rng(3).random(6000) < share
    spec = case.spec(k, is_fragment, f"{k}-{share}-{maps}")
    with open_engine(n_workers=0) as engine:
        fragments = gather_fragments(engine, Folder(str(tmp_path)), spec, LARGE)
    case.assert_rows(fragments, is_fragment)
    assert not (tmp_path / "buckets").exists()
    n_searched = Folder(str(tmp_path)).read_json("done.json")["coordinates_compared"]
    assert (n_searched > 0) == (k == HEAD and share > 0)


def test_fragments_of_a_few_ranges_and_shards(case, tmp_path):
    is_fragment = np.zeros(6000, bool)
    is_fragment[case.order[2000:2100]] = True
    is_fragment[:1500] = False
    with open_engine(n_workers=0) as engine:
        spec = case.spec(HEAD, is_fragment, "few")
        fragments = gather_fragments(engine, Folder(str(tmp_path)), spec, LARGE)
    assert len(fragments.counts) == 1
    case.assert_rows(fragments, is_fragment)


@pytest.mark.parametrize(
    ("counts", "pieces"),
    [
        ([], []),
        ([0, 0], []),
        ([0, 3, 0, 2, 0], [(1, 4)]),
        ([0, 3, 0, 3, 0, 2, 4], [(1, 2), (3, 6), (6, 7)]),
        ([9, 0, 9, 1, 4, 0], [(0, 1), (2, 3), (3, 5)]),
    ],
)
def test_pieces_are_full_but_not_too_large(counts, pieces):
    found = stages.fragments._cut(np.array(counts, np.int64), 5)
    assert [(piece.start, piece.stop) for piece in found] == pieces


def test_pieces_forget_those_that_are_not_left(case, tmp_path):
    spec = case.spec(HEAD, np.ones(6000, bool), "left")
    with open_engine(n_workers=0) as engine:
        rows = Rows(gather_fragments(engine, Folder(str(tmp_path)), spec, LARGE), 1 << 30)
    before = rows.piece(1)
    left = np.arange(len(before.points)) % 3 == 0
    rows.keep(1, left)
    after = rows.piece(1)
    np.testing.assert_array_equal(after.points, before.points[left])
    np.testing.assert_array_equal(after.neighbors[after.rows], before.neighbors[before.rows[left]])


def test_fragments_on_workers(case, tmp_path):
    is_fragment = np.random.default_rng(4).random(6000) < 0.3
    with open_engine(n_workers=2) as engine:
        spec = case.spec(HEAD, is_fragment, "workers")
        fragments = gather_fragments(engine, Folder(str(tmp_path)), spec, LARGE)
    case.assert_rows(fragments, is_fragment)


def test_a_kill_before_any_write_is_survived(case, tmp_path, monkeypatch):
    is_fragment = np.random.default_rng(4).random(6000) < 0.3
    spec = case.spec(HEAD, is_fragment, "kills")
    write = Folder.write_parts
    for n_written in itertools.count():
        folder = Folder(str(tmp_path / str(n_written)))
        left = iter(range(n_written))

        def stop(*file, left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt
            write(*file)

        with open_engine(n_workers=0) as engine:
            with monkeypatch.context() as patch:
                patch.setattr(Folder, "write_parts", stop)
                try:
                    gather_fragments(engine, folder, spec, LARGE)
                    break
                except KeyboardInterrupt:
                    pass
            case.assert_rows(gather_fragments(engine, folder, spec, LARGE), is_fragment)
    # of shards and of two pieces, each with a receipt; the large clusters, the places, the marker
    assert n_written == 1 + 8 * spec.graph.n_shards + 2 + 7 * 2 + 1


def test_more_neighbours_than_copies_were_kept_for_are_refused(case, tmp_path):
    spec = case.spec(HEAD, np.ones(6000, bool), "many")
    shape = memory.shape_of(6000, 3, 4, HEAD, 4, LONGEST - 1)
    spec = dataclasses.replace(spec, shape=shape)
    with open_engine(n_workers=0) as engine, pytest.raises(ValueError, match="longest_k is 11"):
        gather_fragments(engine, Folder(str(tmp_path)), spec, LARGE)


def test_numbers_of_64_bits(case, tmp_path, monkeypatch):
    for module in (shards, partitioned, stages.partition, fragment_rows):
        monkeypatch.setattr(module, "number_dtype", lambda n_points: np.dtype(np.int64))
    options = Options(HEAD, n_partitions=4, longest_k=LONGEST)
    graph = build_with(options, crowd(6000), tmp_path / "graph", n_workers=0)
    is_fragment = np.random.default_rng(4).random(6000) < 0.3
    spec = case.spec(HEAD, is_fragment, "wide")
    spec = dataclasses.replace(spec, points=points_on_disk(graph), graph=graph.graph_rows)
    with open_engine(n_workers=0) as engine:
        fragments = gather_fragments(engine, Folder(str(tmp_path / "wide")), spec, LARGE)
    CACHE.clear()
    whole = case.graphs[LONGEST].neighbors[...]
    for i in range(len(fragments.counts)):
        points, _, neighbors, _ = Rows(fragments, 0).piece(i)
        assert (points.dtype, neighbors.dtype) == (np.int64, np.int64)
        np.testing.assert_array_equal(neighbors, whole[points])
    for shard, n_longer in enumerate(graph.summary["n_longer"]):
        points, neighbors, _ = graph.graph_rows.longer(shard)
        assert len(points) == n_longer > 0
        np.testing.assert_array_equal(neighbors, whole[points])


def worker_peak(peaks):
    """Return the largest peak of another process than this one."""
    return max(nbytes for name, nbytes in peaks.items() if not name.endswith(f":{os.getpid()}"))


def test_peak_memory_is_within_the_projections(tmp_path):
    k, longest_k, n_partitions = 20, 60, 4
    x = np.repeat(blobs_and_shapes(100_000, 4, dtype=np.float32)[0], 2, axis=0)
    options = Options(k, n_partitions=n_partitions, longest_k=longest_k)
    graph = build_with(options, x, tmp_path / "out", n_workers=2, memory_limit="1GiB")
    shape = memory.shape_of(len(x), 4, 4, k, n_partitions, longest_k)
    assert sum(graph.summary["n_longer"]) == len(x)
    cache_nbytes = 16 << 20
    cached = ((1 << 30) - memory.neighbors_nbytes(shape)) // 2
    assert worker_peak(graph.summary["peak_nbytes"]) <= memory.neighbors_nbytes(shape) + cached
    folder, rows = Folder(str(tmp_path)), graph.graph_rows
    order = write_order(folder, rows, np.random.default_rng(0).permutation(len(x)), 4)
    write_skeletons(folder, np.ones(len(x), bool), rows.shard_rows)
    needs = memory.fragments_nbytes(shape, longest_k, len(x) // 4)
    spec = FragmentSpec(
        points_on_disk(graph), rows, CELLS, 0, shape, order, folder, longest_k, cache_nbytes, needs
    )
    with open_engine(n_workers=2) as engine:
        fragments = gather_fragments(engine, folder.child("fragments"), spec, LARGE)
        assert fragments.counts.sum() == len(x)
        assert worker_peak(engine.peaks()) <= needs + cache_nbytes


@settings(deadline=None)
@given(
    st.sets(st.integers(0, 3000), max_size=200),
    st.lists(st.integers(0, 4000), max_size=200, unique=True),
    st.sampled_from([(np.uint32, 0), (np.uint32, 2**32 - 4001), (np.int64, 2**40)]),
)
def test_members_are_found_where_they_are(known, wanted, numbers):
    dtype, first = numbers
    ascending = sorted(first + number for number in known)
    wanted = [first + number for number in wanted]
    places = find_members(np.array(ascending, dtype), np.array(wanted, dtype))
    assert places.tolist() == naive.find_members(ascending, wanted)
