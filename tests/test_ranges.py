"""Numbers on disk that cannot be, but have a right checksum, are refused when they are read."""

import shutil

import numpy as np
import pytest

from spore_dask import DamagedError, Graph, checkpoints, open_run, predict
from spore_dask.pilot import PROBES
from spore_dask.points import CACHE
from spore_dask.stages import expand
from spore_dask.store import Folder, Limits
from tests.bounded import (
    N_POINTS,
    crowd,
    fit_again,
    make,
    rewrite_array,
    rewrite_rows,
    row_files,
    searched,
)
from tests.paper import fit


@pytest.mark.parametrize(
    ("values", "dtype", "wrong"),
    [
        ([0, 9], np.uint32, ""),
        ([0, 10], np.uint32, "10"),
        ([-1, 9], np.int32, "-1"),
        ([0, 2**64 - 1], np.uint64, str(2**64 - 1)),
        ([0.0, np.nan], np.float32, "nan"),
        ([-0.5, 1.0], np.float64, "-0.5"),
        ([], np.int64, ""),
    ],
)
def test_limits(values, dtype, wrong):
    found = Limits(0, 10).broken_by(np.array(values, dtype))
    assert bool(found) == bool(wrong)
    assert f"the number {wrong}" in found or not wrong


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("exact"), 3)


@pytest.fixture(scope="module")
def approximate(tmp_path_factory):
    with searched(PROBES):
        return make(tmp_path_factory.mktemp("approximate"), 20)


@pytest.fixture
def run(exact, tmp_path):
    """A copy of a run that may be changed: the source, the folder, the options."""
    source, made, options = exact
    shutil.copytree(made, tmp_path / "out")
    CACHE.clear()
    return source, tmp_path / "out", options


@pytest.fixture
def approximate_run(approximate, tmp_path):
    source, made, options = approximate
    shutil.copytree(made, tmp_path / "out")
    CACHE.clear()
    return source, tmp_path / "out", options


def put(number, place=-1):
    """Return what puts a number somewhere into an array."""

    def change(array):
        array.reshape(-1)[place] = number

    return change


ROWS = {
    "graph/neighbors": N_POINTS,
    "graph/distances": np.nan,
    "graph/rows": N_POINTS,
    "graph/longer/points": N_POINTS,
    "graph/longer/neighbors": N_POINTS,
    "graph/longer/distances": -1,
    "points/copies": N_POINTS,
    "expand/skeletons": N_POINTS,
    "fragments/points": N_POINTS,
    "fragments/neighbors": 2**32 - 1,
    "fragments/distances": np.inf,
    "reassign/labels": N_POINTS,
    "reassign/rounds": -7,
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(run, name):
    source, out, options = run
    known = row_files(out)
    assert set(known) == set(ROWS)
    rewrite_rows(known[name], put(ROWS[name]))
    why = f"it has the number {ROWS[name]}.*, but they must be"
    why = "do not ascend from 0 on" if name.endswith("h/distances") else why
    with pytest.raises(DamagedError, match=why):
        fit_again(source, out, options, name.partition("/")[0])


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("points-*/partitions/1/rows.npy", N_POINTS),
        ("points-*/partitions/1/columns.npy", np.nan),
        ("points-*/boxes.npy", np.inf),
        ("density-*/order/0.npy", N_POINTS),
        ("density-*/ranges/0.npy", 2**16 - 1),
        ("seeds-*/order/0.npy", N_POINTS),
    ],
)
def test_arrays(run, name, number):
    source, out, options = run
    rewrite_array(next(out.glob(name)), put(number))
    with pytest.raises(DamagedError, match=f"it has the number {number}"):
        fit_again(source, out, options, name.partition("-")[0])


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("points-*/partitions/1/columns.npy", lambda array: array[:-1], "it has shape"),
        ("points-*/partitions/1/low.npy", lambda array: array[:-1], "it has shape"),
        ("points-*/partitions/1/rows.npy", lambda array: array.astype(np.int64), "dtype int64"),
        ("density-*/order/0.npy", lambda array: array[:-1], "it has shape"),
        ("expand-*/clusters/0.npy", lambda array: array["size"], "it has dtype int64"),
    ],
)
def test_forms(run, name, change, why):
    source, out, options = run
    rewrite_array(next(out.glob(name)), change)
    with pytest.raises(DamagedError, match=why):
        fit_again(source, out, options, name.partition("-")[0])


def test_points_that_are_named_twice(run):
    """An order without a point, and rows without a row, are within their limits."""
    source, out, options = run
    rewrite_array(next(out.glob("seeds-*/order/0.npy")), put(0, slice(None)))
    with pytest.raises(DamagedError, match=r"point \d+ is not in it"):
        fit_again(source, out, options, "seeds")
    fit(source, out, **options)
    rewrite_rows(row_files(out)["graph/rows"], lambda rows: put(rows[0])(rows))
    with pytest.raises(DamagedError, match="a row is in it twice"):
        Graph(*open_run(out).graph).to_memory()
    for order in ("random", "density"):  # which is noticed when seeds are put in order, or at last
        changed = shutil.copytree(out, out.parent / order)
        with pytest.raises(DamagedError, match=r"row \d+ is not in it"):
            fit_again(source, changed, options | {"seeding_order": order}, "graph")


def test_rows_that_do_not_ascend_and_rows_that_are_missing(run):
    source, out, options = run

    def shuffle(distances):
        distances[7, 1:] = distances[7, :0:-1].copy()

    shutil.copytree(out, other := out.parent / "other")
    rewrite_rows(row_files(out)["graph/distances"], shuffle)
    with pytest.raises(DamagedError, match="the distances of point 7 do not ascend"):
        fit_again(source, out, options, "graph")
    n_longer = row_files(other)["graph/longer/points"].starts[-1]
    rewrite_rows(row_files(other)["graph/longer/points"], lambda points: points[::-1].sort())
    assert n_longer > 1
    with pytest.raises(DamagedError, match="its numbers do not ascend from 0"):
        fit_again(source, other, options, "graph")


def test_a_point_without_its_longer_row(run):
    source, out, options = run
    known = row_files(out)
    copied = known["graph/longer/points"].read(0, 10)

    def lend(distances):
        free = next(point for point in range(len(distances)) if distances[point, 1] > 0)
        distances[free, 1] = 0

    assert len(copied) == 10
    rewrite_rows(known["graph/distances"], lend)
    with pytest.raises(DamagedError, match="should be there, because it has copies"):
        fit_again(source, out, options, "density")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("points-*/partitions/1/starts.npy", N_POINTS),
        ("points-*/tree/children.npy", 0),
        ("points-*/tree/children.npy", -9),
        ("graph-*/truth.npy", N_POINTS),
        ("result-*/clusters.npy", None),
        ("reassign-*/labels", None),
    ],
)
def test_what_a_prediction_reads(approximate_run, name, number):
    _, out, _ = approximate_run
    if name.startswith("reassign"):
        rewrite_rows(row_files(out)["reassign/labels"], put(open_run(out).n_clusters))
    else:
        change = put(number) if number is not None else lambda array: array[:-1]
        rewrite_array(next(out.glob(name)), change)
    with pytest.raises(DamagedError, match="is damaged"):
        predict(out, crowd(90, 20), out.parent / "new", n_workers=0)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("graph-*/graph.json", {"n_points": N_POINTS + 1}),
        ("graph-*/graph.json", {"n_points": 2**45}),
        ("graph-*/graph.json", {"k": 7}),
        ("graph-*/graph.json", {"k": -1}),
        ("graph-*/graph.json", {"longest_k": 2**40}),
        ("graph-*/graph.json", {"shard_rows": 0}),
        ("graph-*/graph.json", {"shard_rows": 10}),
        ("graph-*/graph.json", {"n_longer": [N_POINTS + 1]}),
        ("graph-*/graph.json", {"dtype": "<f8"}),
        ("graph-*/neighbors/rows.json", {"shape": [N_POINTS, 5]}),
        ("graph-*/neighbors/rows.json", {"chunk_rows": 0}),
        ("points-*/done.json", {"n_points": N_POINTS - 1}),
        ("points-*/done.json", {"n_columns": 4}),
        ("points-*/done.json", {"firsts": [0, 600, 500]}),
        ("points-*/done.json", {"leaders": [N_POINTS]}),
        ("density-*/done.json", {"starts": [0, N_POINTS + 1]}),
        ("density-*/done.json", {"n_upper": 2**40}),
        ("expand-*/skeletons/rows.json", {"shape": [N_POINTS + 1]}),
        ("fragments-*/done.json", {"counts": [N_POINTS + 1]}),
        ("fragments-*/done.json", {"k": 99}),
        ("scan-*/done.json", {"checksums": []}),
    ],
)
def test_documents_that_do_not_fit(run, name, changes):
    source, out, options = run
    (path,) = out.glob(name)
    folder = Folder(str(path.parent))
    folder.write_json(path.name, folder.read_json(path.name) | changes)
    with pytest.raises(DamagedError, match="is damaged"):
        fit_again(source, out, options, name.partition("-")[0])


class Stopped(Exception):
    """Stands for a kill."""


@pytest.fixture
def stopped(run, monkeypatch):
    """A run that ended when Expansion had saved where it stands."""
    source, out, options = run
    save = checkpoints.Checkpoints.save

    def save_and_stop(self, arrays, facts):
        save(self, arrays, facts)
        if len(arrays.get("queue", ())) > 1:
            raise Stopped

    options = options | {"cache_limit": 0}
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "EVERY_SECONDS", 0)
        patched.setattr(checkpoints.Checkpoints, "save", save_and_stop)
        patched.setattr(expand, "STEPS_PER_CALL", 1)
        with pytest.raises(Stopped):
            fit_again(source, out, options, "seeds")
    (folder,) = out.glob("expand-*/checkpoint-*[0-9]")
    return source, out, options, folder


def test_an_expansion_goes_on_from_its_checkpoint(stopped, exact):
    source, out, options, _ = stopped
    whole = open_run(exact[1]).labels[...]
    np.testing.assert_array_equal(fit(source, out, **options).labels[...], whole)


def overfill(state):
    state["tail"] = len(state) + N_POINTS


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("labels", put(N_POINTS)),
        ("labels", lambda labels: labels[:-1]),
        ("labels", lambda labels: np.full_like(labels, -1)),
        ("queue", put(N_POINTS)),
        ("queue", lambda queue: queue[:-1]),
        ("state", overfill),
        ("closed", lambda closed: closed[:0].view(np.int64)),
    ],
)
def test_checkpoints(stopped, name, change):
    source, out, options, folder = stopped
    rewrite_array(folder / f"{name}.npy", change)
    with pytest.raises(DamagedError, match="is damaged"):
        fit(source, out, **options)
