"""What is read of a source: no more than the plan has counted, and nothing that it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dask.array
import dask.dataframe
import h5py
import numcodecs
import numpy as np
import pandas
import pytest
import xarray
import zarr

import spore_dask
from spore_dask import memory
from spore_dask.errors import InputError, LimitError
from tests import paper

MIB = 1 << 20
ROOT = Path(__file__).parents[1]
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}


def town(n_points=2000, n_columns=3):
    rng = np.random.default_rng(0)
    centers = rng.uniform(-30, 30, (5, n_columns))
    x = centers[np.arange(n_points) % 5] + rng.standard_normal((n_points, n_columns))
    return x.astype(np.float32)


def run(code, *arguments):
    """Run code in a process of its own; return what it prints last, as JSON."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=ENVIRON, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


# Chunks that do not fit

ABSURD = {"wide": (3000, 200_000), "tall": (200_000_000, 2)}


def absurd(store, chunks, n_rows=3000):
    """Create an array in chunks far beyond its shape; to decode one would fail."""
    array = zarr.create_array(store, shape=(n_rows, 2), chunks=chunks, dtype="f4")
    if isinstance(array.store, zarr.storage.MemoryStore):
        array.store._store_dict["c/0/0"] = zarr.core.buffer.cpu.Buffer.from_bytes(b"no chunk")
    else:
        path = array.store.root / "c" / "0" / "0"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"no chunk")
    return array


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    return paper.fit(town(n_columns=2), tmp_path_factory.mktemp("run") / "out", n_workers=0)


def calls(fitted):
    return {
        "fit": paper.fit,
        "build_graph": spore_dask.build_graph,
        "plan_graph": spore_dask.plan_graph,
        "tune": spore_dask.tune,
        "estimate": spore_dask.estimate,
        "predict": lambda *given, **options: spore_dask.predict(fitted, *given, **options),
    }


@pytest.mark.parametrize("place", ["path", "local", "memory"])
@pytest.mark.parametrize("chunks", ABSURD.values(), ids=ABSURD.keys())
@pytest.mark.parametrize("name", calls(None))
def test_a_chunk_that_does_not_fit_is_refused_before_it_is_read(
    tmp_path, fitted, name, chunks, place
):
    store = zarr.storage.MemoryStore() if place == "memory" else tmp_path / "x.zarr"
    array = absurd(store, chunks)
    source = str(store) if place == "path" else array
    with pytest.raises(LimitError, match=r"600.00 MiB.*rows \(.* GiB decoded\).*rechunk\(\("):
        calls(fitted)[name](source, tmp_path / "out", memory_limit="600MiB", n_workers=0)


def test_what_the_refusal_advises_works(tmp_path):
    x = town()
    array = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(6_000_000, 3), dtype="f4")
    array[:] = x
    with pytest.raises(LimitError, match=r"memory_limit is 400.00 MiB") as refused:
        paper.fit(array, memory_limit="400MiB", n_workers=0)
    call = str(refused.value).split(" with ")[-1].rstrip(".")
    names = {"dask": dask, "source": str(tmp_path / "x.zarr"), "path": str(tmp_path / "y.zarr")}
    eval(call, names)
    found = paper.fit(tmp_path / "y.zarr", memory_limit="400MiB", n_workers=0)
    expected = paper.fit(x, tmp_path / "out", n_workers=0)
    np.testing.assert_array_equal(found.labels[...], expected.labels[...])


def test_chunks_of_a_dask_array_that_do_not_fit(tmp_path):
    def refuse(block):
        raise AssertionError("a block was computed")

    x = dask.array.ones((10**8, 2), chunks=(10**8, 2), dtype="f4")
    x = dask.array.map_blocks(refuse, x, dtype="f4", meta=np.empty((0, 0), "f4"))
    with pytest.raises(LimitError, match=r"smaller chunks, with rechunk\(\(\d+, 2\)\)"):
        paper.fit(x, tmp_path / "out", memory_limit="1GiB", n_workers=0)


@pytest.mark.parametrize("place", ["local", "memory"])
def test_labels_in_a_chunk_that_does_not_fit(tmp_path, place):
    store = zarr.storage.MemoryStore() if place == "memory" else tmp_path / "y.zarr"
    y = zarr.create_array(store, shape=2000, chunks=10**9, dtype="i4")
    with pytest.raises(LimitError, match=r"640.00 MiB, but reading y needs .* of 2000 labels"):
        spore_dask.tune(town(), tmp_path / "out", y=y, memory_limit="640MiB", n_workers=0)


def test_labels_are_picked_from_chunks(tmp_path):
    x, truth = town(), np.arange(2000) % 5
    y = zarr.create_array(tmp_path / "y.zarr", shape=2000, chunks=7, dtype="i4")
    y[:] = truth
    options = {"n_trials": 2, "sample": 300, "n_workers": 0}
    stored = spore_dask.tune(x, tmp_path / "stored", y=y, **options)
    given = spore_dask.tune(x, tmp_path / "given", y=truth, **options)
    assert stored.trials[0]["ari"] == given.trials[0]["ari"] > 0.5


# Chunks that fit

ROWS = 1 << 22
LAYOUTS = {
    "whole": {"chunks": (ROWS, 2)},
    "gzip": {"chunks": (ROWS, 2), "compressors": zarr.codecs.GzipCodec(level=1)},
    "big endian": {"chunks": (ROWS, 2), "serializer": zarr.codecs.BytesCodec(endian="big")},
    "version 2": {
        "chunks": (ROWS, 2),
        "zarr_format": 2,
        "filters": [numcodecs.Delta(dtype="f4")],
        "compressors": numcodecs.GZip(1),
    },
    "columns": {"chunks": (ROWS, 1)},
    "padded": {"chunks": (ROWS, 8)},
    "shard": {"chunks": (ROWS // 16, 2), "shards": (ROWS, 2)},
    "padded shard": {"chunks": (ROWS // 2, 2), "shards": (ROWS * 16, 2)},
}
READ = """
import json, sys
from spore_dask.engine.peaks import peak_since_now, status_nbytes
from spore_dask.store import open_source
open_source(sys.argv[1]).read(0, 10)
source = open_source(sys.argv[2])
before = status_nbytes("VmRSS")
with peak_since_now() as peak:
    rows = source.read(0, source.chunk_rows)
print(json.dumps([peak.nbytes - before, rows.nbytes, source.decoding_nbytes]))
"""


def write_random(path, n_rows, **layout):
    array = zarr.create_array(path, shape=(n_rows, 2), dtype="f4", **layout)
    array[:] = np.random.default_rng(0).standard_normal((n_rows, 2)).astype("f4")
    return path


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_reading_takes_no_more_than_is_projected(tmp_path, layout):
    small = {"chunks": (10, 2)} | {n: v for n, v in layout.items() if n not in ("chunks", "shards")}
    write_random(tmp_path / "small.zarr", 10, **small)
    write_random(tmp_path / "x.zarr", ROWS - 5, **layout)
    taken, rows_nbytes, decoding_nbytes = run(READ, tmp_path / "small.zarr", tmp_path / "x.zarr")
    assert rows_nbytes == 8 * (ROWS - 5)
    assert 1.7 * rows_nbytes < taken <= rows_nbytes + decoding_nbytes
    assert taken > 0.5 * (rows_nbytes + decoding_nbytes)


def test_reading_tiny_chunks_takes_no_more_than_is_projected(tmp_path):
    for name, n_rows in (("small", 10), ("x", 8000)):
        layout = {"chunks": (1, 2), "shards": (n_rows, 2), "compressors": None}
        write_random(tmp_path / f"{name}.zarr", n_rows, **layout)
    taken, rows_nbytes, decoding_nbytes = run(READ, tmp_path / "small.zarr", tmp_path / "x.zarr")
    assert 50 * rows_nbytes < taken <= rows_nbytes + decoding_nbytes


GRAPH = """
import json, sys, spore_dask
from spore_dask import memory
plan = spore_dask.plan_graph(sys.argv[1], sys.argv[2], 3, n_workers=1)
needs = plan.memory()
graph = spore_dask.build_graph(
    sys.argv[1], sys.argv[2], 3, n_workers=1, memory_limit=max(needs.values())
)
folder = spore_dask.Folder(graph.path)
stages = {"scan": graph.summary["scan"], "exchange": graph.summary["points"]}
peaks = {stage: folder.child(name).read_json("done.json") for stage, name in stages.items()}
print(json.dumps([needs, {stage: peak["peak_nbytes"] for stage, peak in peaks.items()}]))
"""


@pytest.mark.parametrize("compressors", [zarr.codecs.ZstdCodec(), zarr.codecs.GzipCodec(level=1)])
def test_workers_take_no_more_than_is_projected(tmp_path, compressors):
    array = zarr.create_array(
        tmp_path / "x.zarr",
        shape=(3000, 2),
        chunks=(3000, 8000),
        dtype="f4",
        compressors=compressors,
        fill_value=0.5,
    )
    array[:] = town(3000, 2)
    needs, peaks = run(GRAPH, tmp_path / "x.zarr", tmp_path / "out")
    for stage, peak in peaks.items():
        assert peak <= needs[stage]
    assert needs["scan"] > memory.INTERPRETER_NBYTES + 2 * 4 * 3000 * 8000
    assert peaks["scan"] > 4 * 3000 * 8000 + 100 * MIB


# What is not a Zarr array


def write_hdf5(path, x):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=x, chunks=(300, 2))
    return h5py.File(path)["x"]


def open_lazily(path, x):
    xarray.Dataset({"x": (("row", "column"), x)}).to_zarr(path, zarr_format=3, consolidated=False)
    return xarray.open_zarr(path, chunks=None, consolidated=False)["x"]


def in_memory_zarr(x):
    array = zarr.create_array(zarr.storage.MemoryStore(), shape=x.shape, chunks=(70, 2), dtype="f4")
    array[:] = x
    return array


KINDS = {
    "xarray": lambda x, path: xarray.DataArray(x),
    "xarray over dask": lambda x, path: xarray.DataArray(dask.array.from_array(x, (300, 2))),
    "xarray over a file": lambda x, path: open_lazily(path, x),
    "dask DataFrame": lambda x, path: dask.dataframe.from_pandas(
        pandas.DataFrame(x, columns=["a", "b", "c"]), npartitions=3
    ),
    "h5py": lambda x, path: write_hdf5(path, x),
    "zarr in memory": lambda x, path: in_memory_zarr(x),
    "DataFrame": lambda x, path: pandas.DataFrame(x),
    "list": lambda x, path: x.tolist(),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
def test_labels_are_those_of_the_same_numbers(tmp_path, make):
    x = town()
    expected = paper.fit(x, tmp_path / "expected", n_workers=0)
    content = make(x, tmp_path / "x")
    run = paper.fit(content, tmp_path / "out", n_workers=0)
    np.testing.assert_array_equal(run.labels[...], expected.labels[...])
    again = paper.fit(content, tmp_path / "out", n_workers=0)
    assert again.id == run.id
    predicted = spore_dask.predict(run, content, tmp_path / "predicted", n_workers=0)
    np.testing.assert_array_equal(predicted.labels[...], expected.labels[...])
    assert not [name for name in os.listdir(tmp_path / "out") if name.startswith("input-")]


def test_the_estimator_reads_them_in_blocks(tmp_path):
    x = town()
    found = paper.SPORE().fit(KINDS["dask DataFrame"](x, tmp_path / "x"))
    assert found.run_ is not None
    np.testing.assert_array_equal(found.labels_, paper.SPORE().fit(x).labels_)


@pytest.mark.parametrize("make", [open_lazily, write_hdf5])
def test_stored_chunks_count_whoever_reads_them(tmp_path, make):
    x = np.zeros((400, 2), "f4")
    if make is write_hdf5:
        with h5py.File(tmp_path / "x", "w") as file:
            sizes = {"chunks": (40_000_000, 2), "maxshape": (None, 2)}
            file.create_dataset("x", shape=x.shape, dtype="f4", compression="gzip", **sizes)
        content = h5py.File(tmp_path / "x")["x"]
    else:
        encoding = {"x": {"chunks": (40_000_000, 2)}}
        data = xarray.Dataset({"x": (("row", "column"), x)})
        data.to_zarr(tmp_path / "x", zarr_format=3, consolidated=False, encoding=encoding)
        content = xarray.open_zarr(tmp_path / "x", chunks=None, consolidated=False)["x"]
    with pytest.raises(LimitError, match="for chunks of 400 rows"):
        paper.fit(content, tmp_path / "out", memory_limit="600MiB", n_workers=0)


def test_other_data_in_memory_is_another_result(tmp_path):
    x = town()
    first = paper.fit(in_memory_zarr(x), tmp_path / "out", n_workers=0)
    x[7] += 1e-3
    second = paper.fit(in_memory_zarr(x), tmp_path / "out", n_workers=0)
    assert first.id != second.id


def test_a_dataset_of_xarray_is_not_an_array(tmp_path):
    data = xarray.Dataset({"x": (("row", "column"), town()), "y": ("row", np.ones(2000))})
    with pytest.raises(InputError, match=r"variables 'x', 'y': give one of them"):
        paper.fit(data, tmp_path / "out", n_workers=0)


@pytest.mark.parametrize("dtype", ["str", "Int64", "datetime64[s]"])
def test_columns_of_a_dask_frame_that_are_no_numbers(tmp_path, dtype):
    frame = pandas.DataFrame(town(), columns=["a", "b", "c"]).astype({"a": "int64"})
    frame = dask.dataframe.from_pandas(frame.astype({"a": dtype}), npartitions=2)
    with pytest.raises(InputError, match="Column 'a' of the dask DataFrame has dtype"):
        paper.fit(frame, tmp_path / "out", n_workers=0)


FIT = """
import json, sys
import numpy as np
import dask.array, dask.dataframe, h5py, pandas, xarray, zarr
import spore_dask
from spore_dask.engine import peak_nbytes

N_ROWS, N_COLUMNS, STEP = 1_600_000, 64, 50_000
VALUES = np.random.default_rng(0).standard_normal((40, N_COLUMNS)).astype("f4")

def rows(block_id):
    return VALUES[np.arange(STEP) % 40]

def frame(part):
    return pandas.DataFrame(rows((part, 0)), columns=[f"c{i}" for i in range(N_COLUMNS)])

def blocks():
    chunks = ((STEP,) * (N_ROWS // STEP), (N_COLUMNS,))
    return dask.array.map_blocks(lambda block_id=None: rows(block_id), chunks=chunks, dtype="f4")

def stored():
    about = {"shape": (N_ROWS, N_COLUMNS), "dtype": "f4", "chunks": (STEP, N_COLUMNS)}
    group = zarr.open_group(sys.argv[2], mode="w")
    array = group.create_array("x", dimension_names=("row", "column"), **about)
    for first in range(0, N_ROWS, STEP):
        array[first : first + STEP] = rows(first)
    return xarray.open_zarr(sys.argv[2], chunks=None, consolidated=False)["x"]

content = {
    "xarray over dask": lambda: xarray.DataArray(blocks()),
    "dask DataFrame": lambda: dask.dataframe.from_map(frame, range(N_ROWS // STEP)),
    "xarray over a file": stored,
}[sys.argv[1]]()
run = spore_dask.build_graph(content, sys.argv[2] + ".out", 5, memory_limit="700MiB", n_workers=1)
print(json.dumps([peak_nbytes(), N_ROWS * N_COLUMNS * 4]))
"""


@pytest.mark.parametrize("kind", ["xarray over dask", "dask DataFrame", "xarray over a file"])
def test_the_driver_keeps_its_limit(tmp_path, kind):
    peak, nbytes = run(FIT, kind, tmp_path / "x")
    assert peak <= 700 * MIB
    assert peak < 330 * MIB + nbytes
