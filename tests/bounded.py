"""Tests that need compiled bounds checks: `test_bounds` runs them in a process that has them.

NUMBA_BOUNDSCHECK=1 python -m pytest tests/bounded.py
"""

import contextlib
import functools
import importlib
import os
import pkgutil
import shutil
import uuid
from pathlib import Path

import numba
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import spore_dask.kernels
from spore_dask import (
    Graph,
    SporeError,
    build_graph,
    cluster_graph,
    export_labels,
    open_run,
    predict,
    report,
    tune,
    verify,
)
from spore_dask.datasets import blobs_and_shapes
from spore_dask.fragments import ARRAYS as FRAGMENT_ARRAYS
from spore_dask.fragments import Fragments
from spore_dask.kernels.compiling import kernel
from spore_dask.pilot import PROBES, PRODUCTS
from spore_dask.points import CACHE
from spore_dask.shards import ARRAYS, Longer
from spore_dask.store import Folder
from spore_dask.store.rows import RowArray
from tests.paper import SPORE, fit

pytestmark = pytest.mark.filterwarnings("ignore")
HERE = {"n_workers": 0}
EXAMPLES = int(os.environ.get("SPORE_EXAMPLES", "100")) // 10
"""Each copies a run and reads it."""


def crowd(n_points, n_columns, dtype=np.float32):
    """Clusters, some of them with copies, one of these heavy."""
    points, _ = blobs_and_shapes(n_points, n_columns, seed=3, dtype=dtype)
    points[: n_points // 10] = points[0]
    points[n_points // 10 : n_points // 5] = np.round(points[n_points // 10 : n_points // 5])
    return np.random.default_rng(0).permutation(points)


@kernel
def take(array, place):
    return array[place]


def test_bounds_are_checked():
    with pytest.raises(IndexError):
        take(np.arange(3), 3)


def fit_and_predict(points, out, **options):
    run = fit(points, out, n_partitions=3, keep="all", **HERE, **options)
    verify(run)
    predict(run, points[::7] + np.float32(0.01), Path(out, "new"), **HERE)
    return run


def test_no_kernel_leaves_its_arrays(tmp_path):
    """Every way to search, to seed and to cluster."""
    few, many = crowd(3000, 2), crowd(1500, 40)
    exact = fit_and_predict(few, tmp_path / "few")
    report(exact, tmp_path / "page.html")
    fit_and_predict(few.astype(np.float64), tmp_path / "double", cache_limit=0, scale="standard")
    fit_and_predict(few, tmp_path / "random", seeding_order="random", retention_rate=0.5)
    fit_and_predict(few, tmp_path / "kept", post_reassignment_policy="none", scale="clip-minmax")
    with searched(PRODUCTS):
        fit_and_predict(many, tmp_path / "products", metric="cosine")
    with searched(PROBES):
        fit_and_predict(many, tmp_path / "probes", recall_target=1.0)
    fit_and_predict(many, tmp_path / "descent", knn="approximate", knn_index="pynndescent")
    tune(few, tmp_path / "tune", n_trials=3, **HERE)
    graph = build_graph(few, tmp_path / "graph", 20, **HERE)
    cluster_graph(*graph.to_memory(), few, max_connectivity=20)
    SPORE().fit(few).predict(few[:50])
    SPORE(knn="approximate").fit(many).predict(many[:50])
    assert unused_kernels() == []


def unused_kernels():
    """Return the names of the kernels that nobody has called; parts are part of others."""
    unused = []
    for module in pkgutil.iter_modules(spore_dask.kernels.__path__, "spore_dask.kernels."):
        for name, found in vars(importlib.import_module(module.name)).items():
            if isinstance(found, numba.core.registry.CPUDispatcher):
                is_part = found.targetoptions.get("inline") == "always"
                if not is_part and not found.signatures:
                    unused.append(f"{module.name}.{name}")
    return unused


N_POINTS = 500
OPTIONS = {
    **HERE,
    "n_partitions": 2,
    "keep": "all",
    "expansion_neighbors": 6,
    "reassignment_neighbors": 12,
    "min_cluster_size": 8,
    "z": 6.0,
    "seeding_order": "random",
}
"""Few fragments, so that they are searched apart, and points with copies have longer rows."""
STAGES = ("scan", "points", "graph", "density", "seeds", "expand", "fragments", "reassign")


@contextlib.contextmanager
def searched(how):
    """Search in a way that the data may not ask for."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("spore_dask.graph.choose_search", lambda *_: how)
        yield


def make(folder, n_columns, **options):
    """Write a source and a run on it; return their paths, and the options of the fit."""
    source, options = folder / "x.zarr", OPTIONS | options
    zarr.create_array(str(source), data=crowd(N_POINTS, n_columns), chunks=(200, n_columns))
    fit(source, folder / "out", **options)
    return source, folder / "out", options


@pytest.fixture(scope="module", params=["exact", "approximate", "long rows"])
def finished(request, tmp_path_factory):
    """A source, and a run on it of which everything is there."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "approximate":
        with searched(PROBES):
            yield make(folder, 20)
    elif request.param == "exact":
        yield make(folder, 3)
    else:  # none are longer than others, which is what trials need
        yield make(folder, 3, reassignment_neighbors=6)


def row_files(out):
    """Return everything of a run that is read in rows, by stage and name."""
    run = open_run(out)
    graph = Graph(*run.graph).graph_rows
    found = {f"graph/{name}": graph.array(name) for name in ARRAYS}
    found |= {f"graph/longer/{name}": graph.longer_array(name) for name in Longer._fields}
    for stage in ("points", "expand", "reassign"):
        for array in run.folder.child(run.summary["stages"][stage]["name"]).row_arrays():
            found[f"{stage}/{array.folder.name}"] = array
    folder = run.folder.child(run.summary["stages"]["fragments"]["name"])
    fragments = Fragments.from_summary(folder, folder.read_json("done.json"))
    found |= {f"fragments/{name}": fragments.array(name) for name in FRAGMENT_ARRAYS}
    return {name: files for name, files in found.items() if files.starts[-1]}


def rewrite_rows(files, change):
    """Change the rows of the first file that has any; their checksums are right."""
    file = int(np.flatnonzero(np.diff(files.starts))[0])
    rows = files.read(*files.starts[file : file + 2].tolist())
    change(rows)
    n_missing = files.chunk_rows - len(rows) if isinstance(files, RowArray) else 0
    Folder(files.folder.url).write_rows(files.names[file], rows, n_missing)


def rewrite_array(path, change):
    """Change an array, or put another in its place; its checksum is right."""
    folder = Folder(str(path.parent))
    array = folder.read_array(path.stem).copy()
    changed = change(array)
    folder.write_array(path.stem, array if changed is None else changed)


def wrong_numbers(dtype):
    """Return numbers that are likely to be nobody's place, and some that may be."""
    if dtype.kind == "f":
        values = [np.nan, np.inf, -np.inf, -1.0, 0.0, 1.0, float(np.finfo(dtype).max)]
    else:
        limits = np.iinfo(dtype)
        values = [-1, -2, 0, 1, N_POINTS - 1, N_POINTS, N_POINTS + 7, limits.max, limits.min]
        values = [value for value in values if limits.min <= value <= limits.max]
    return st.sampled_from(values)


def change_array(data, array):
    """Overwrite some entries of an array, of one of its fields if it is of records."""
    if array.dtype.names:
        array = array[data.draw(st.sampled_from(array.dtype.names), "field")]
    if array.dtype.kind == "b" or not array.size:
        return
    places = st.lists(st.integers(0, array.size - 1), min_size=1, max_size=3)
    for place in data.draw(places, "places"):
        index = np.unravel_index(place, array.shape)
        array[index] = data.draw(wrong_numbers(array.dtype), "number")


def change_rows(data, out):
    known = row_files(out)
    name = data.draw(st.sampled_from(sorted(known)), "name")
    rewrite_rows(known[name], functools.partial(change_array, data))
    return name.partition("/")[0]


def change_npy(data, out):
    path = data.draw(st.sampled_from(sorted(out.rglob("*.npy"))), "path")
    changes = [
        functools.partial(change_array, data),
        lambda array: array[: len(array) // 2],
        lambda array: np.concatenate([array, array]),
        lambda array: array.view(np.int32 if array.dtype.itemsize == 4 else np.uint8),
    ]
    rewrite_array(path, changes[data.draw(st.sampled_from([0, 0, 0, 1, 2, 3]), "how")])
    return path.relative_to(out).parts[0].partition("-")[0]


def leaves(value, path=()):
    """Yield where the numbers of a document are."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children if isinstance(value, dict | list) else ():
        if isinstance(child, dict | list):
            yield from leaves(child, (*path, key))
        elif isinstance(child, int | float) and not isinstance(child, bool):
            yield (*path, key)


def change_document(data, out):
    names = ("done.json", "graph.json", "rows.json", "probes.json", "summary.json")
    paths = [path for path in sorted(out.rglob("*.json")) if path.name in names]
    path = data.draw(st.sampled_from([p for p in paths if p.parent != out]), "document")
    folder = Folder(str(path.parent))
    known = folder.read_json(path.name)
    place = data.draw(st.sampled_from(list(leaves(known)) or [None]), "place")
    if place is not None:
        *outer, last = place
        inner = known
        for key in outer:
            inner = inner[key]
        numbers = [-1, 0, 1, inner[last] + 1, inner[last] - 1, N_POINTS, 2**31, 2**45, 10**30]
        inner[last] = data.draw(st.sampled_from(numbers), "number")
    folder.write_json(path.name, known)
    return path.relative_to(out).parts[0].partition("-")[0]


def fit_again(source, out, options, changed):
    """Fit with all that was done before the stage that was changed, and with it."""
    later = STAGES[STAGES.index(changed) + 1 :] if changed in STAGES else ()
    for name in (*later, "result"):
        for path in out.glob(f"{name}-*"):
            shutil.rmtree(path)
    (out / "run.json").unlink()
    fit(source, out, **options)


def graph_of(out):
    return Graph(*open_run(out).graph)


def fit_the_graph(source, out, options, changed):
    given = {"knn": "auto", "n_partitions": None, "graph": graph_of(out)}
    others = {"expansion_neighbors": 5, "seeding_order": "density"}
    fit(source, out.parent / "other", **options | given | others)


def tune_the_graph(source, out, options, changed):
    space = {"z_percentile": [30, 50, 70, 90], "min_retained": [1, 2]}
    counts = {name: options[name] for name in options if name.endswith("neighbors")}
    graph = graph_of(out)
    tune(source, out.parent / "tuned", graph=graph, n_trials=3, space=space, **counts, **HERE)


def predict_others(source, out, options, changed):
    new = np.asarray(zarr.open_array(source, mode="r")[::9])
    found = predict(out, new, out.parent / "new", **HERE)
    assert found.labels[...].max() < N_POINTS


def to_memory(source, out, options, changed):
    neighbors, _ = graph_of(out).to_memory()
    assert neighbors.max() < N_POINTS


CALLS = {
    "fit again": fit_again,
    "fit the graph": fit_the_graph,
    "tune the graph": tune_the_graph,
    "predict": predict_others,
    "to memory": to_memory,
    "verify": lambda _, out, *more: verify(out),
    "report": lambda _, out, *more: report(out, out.parent / "page.html"),
    "export": lambda _, out, *more: export_labels(out, out.parent / "labels.csv"),
}
OF_GRAPH = ["fit the graph", "tune the graph", "predict", "report"]
READERS = {
    "scan": ["fit again", "predict"],
    "points": ["fit again", *OF_GRAPH],
    "graph": ["fit again", "to memory", "verify", *OF_GRAPH],
    "reassign": ["fit again", "predict"],
    "result": ["predict", "report", "export", "verify"],
}
"""Who reads what a stage has left; of other stages, a fit."""


@pytest.mark.parametrize("change", [change_rows, change_npy, change_document])
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_numbers_that_cannot_be_are_refused(finished, tmp_path_factory, change, data):
    """Whatever a run holds, with a right checksum: an error of ours, or a result."""
    source, made, options = finished
    folder = tmp_path_factory.getbasetemp() / uuid.uuid4().hex
    out = folder / "out"
    shutil.copytree(made, out)
    try:
        changed = change(data, out)
        readers = READERS.get(changed, ["fit again", "verify"])
        call = data.draw(st.sampled_from(readers), "call")
        CACHE.clear()
        with contextlib.suppress(SporeError):
            CALLS[call](source, out, options, changed)
    finally:
        shutil.rmtree(folder)
