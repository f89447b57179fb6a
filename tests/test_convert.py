"""Files to Zarr and labels to files: what is read is what was written, in bounded memory."""

import gzip
import json
import os
import subprocess
import sys
import zipfile

import h5py
import numpy as np
import pandas
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse
import zarr

import spore_dask
from spore_dask import InputError, ParameterError, export_labels, import_data, memory, open_run
from spore_dask.formats import csv as csv_format
from spore_dask.formats import npy as npy_format
from spore_dask.store import Folder

CHUNK = 8
N_LABELS = 70
MIB = 1 << 20


def numbers(n_rows, n_columns=3, dtype="float64"):
    """Return rows that differ, each value exact in any of the dtypes."""
    values = np.arange(n_rows * n_columns).reshape(n_rows, n_columns) % 100
    return (values / 4 if np.dtype(dtype).kind == "f" else values).astype(dtype)


def table(x, names=None):
    names = names or [f"c{j}" for j in range(x.shape[1])]
    return pyarrow.table(dict(zip(names, x.T.copy(), strict=True)))


def write_list(path, x, kind, **options):
    values = pyarrow.array(x.reshape(-1))
    if kind == "fixed":
        column = pyarrow.FixedSizeListArray.from_arrays(values, x.shape[1])
    else:
        made = pyarrow.ListArray if kind == "list" else pyarrow.LargeListArray
        column = made.from_arrays(np.arange(len(x) + 1) * x.shape[1], values)
    columns = {"id": np.arange(len(x)), "vector": column, "text": ["a"] * len(x)}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)


def write_folder(path, x):
    path.mkdir()
    for i, part in enumerate(np.array_split(x, 3)):
        pyarrow.parquet.write_table(table(part), path / f"part-{i}.parquet")
    (path / "_SUCCESS").write_text("")


def write_h5(path, x, name, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=x, **options)
        file["y"] = np.arange(3)


def write_sparse(path, x, kind="csr"):
    matrix = scipy.sparse.csr_matrix(x) if kind == "csr" else scipy.sparse.csc_matrix(x)
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        group.attrs["encoding-type"] = f"{kind}_matrix"
        group.attrs["shape"] = x.shape
        for name in ("data", "indices", "indptr"):
            group.create_dataset(name, data=getattr(matrix, name), chunks=True)


def compressed(path, write):
    plain = path.with_suffix("")
    write(plain)
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


def write_csv(path, x, delimiter=","):
    options = pyarrow.csv.WriteOptions(delimiter=delimiter)
    pyarrow.csv.write_csv(table(x), path, options)


WRITERS = {
    "rows.npy": lambda path, x: np.save(path, x),
    "columns.npy": lambda path, x: np.save(path, np.asfortranarray(x)),
    "swapped.npy": lambda path, x: np.save(path, x.astype(x.dtype.newbyteorder(">"))),
    "stored.npz": lambda path, x: np.savez(path, x=x, y=np.arange(3)),
    "packed.npz": lambda path, x: np.savez_compressed(path, y=np.arange(3), x=x),
    "columns.npz": lambda path, x: np.savez_compressed(path, np.asfortranarray(x)),
    "wide.parquet": lambda path, x: pyarrow.parquet.write_table(table(x), path, row_group_size=5),
    "fixed.parquet": lambda path, x: write_list(path, x, "fixed"),
    "list.parquet": lambda path, x: write_list(path, x, "list", row_group_size=5),
    "large.parquet": lambda path, x: write_list(path, x, "large"),
    "folder": write_folder,
    "plain.h5": lambda path, x: write_h5(path, x, "a/b"),
    "chunked.hdf5": lambda path, x: write_h5(path, x, "x", chunks=(2, 1), compression="gzip"),
    "pca.h5ad": lambda path, x: write_h5(path, x, "obsm/X_pca"),
    "dense.h5ad": lambda path, x: write_h5(path, x, "X"),
    "sparse.h5ad": write_sparse,
}
TEXTS = {
    "commas.csv": write_csv,
    "tabs.tsv": lambda path, x: write_csv(path, x, "\t"),
    "semicolons.csv": lambda path, x: write_csv(path, x, ";"),
    "packed.csv.gz": lambda path, x: compressed(path, lambda plain: write_csv(plain, x)),
    "packed.tsv.gz": lambda path, x: compressed(path, lambda plain: write_csv(plain, x, "\t")),
}


@pytest.fixture
def small_chunks(monkeypatch):
    """Make chunks of 8 rows of three float64, and the blocks of readers smaller or larger."""
    monkeypatch.setattr(memory, "TASK_NBYTES", CHUNK * 24)
    monkeypatch.setattr(npy_format, "BY_COLUMNS_NBYTES", 11 * 24)


def left_behind(folder):
    return sorted(path.name for path in folder.rglob("*") if "partial" in path.name)


@pytest.mark.parametrize("n_rows", [2, 7, 8, 9, 24, 25])
@pytest.mark.parametrize("name", [*WRITERS, *TEXTS])
def test_every_format_round_trips(tmp_path, small_chunks, name, n_rows):
    x = numbers(n_rows)
    (WRITERS | TEXTS)[name](tmp_path / name, x)
    out = import_data(tmp_path / name)
    assert out == str(tmp_path / name.split(".")[0]) + ".zarr"
    found = zarr.open_array(out, mode="r")
    assert found.metadata.zarr_format == 3
    assert found.chunks == (min(CHUNK, n_rows), 3)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found[...], x)
    assert not left_behind(tmp_path)


DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32"]
NO_DTYPES = {  # columns of bool are not numbers unless they are chosen; scipy has no float16
    ("bool", name) for name in WRITERS if "parquet" in name or name == "folder"
} | {("float16", "sparse.h5ad")}


@pytest.mark.parametrize(
    ("dtype", "name"), [(d, n) for d in DTYPES for n in WRITERS if (d, n) not in NO_DTYPES]
)
def test_dtypes_stay(tmp_path, small_chunks, name, dtype):
    x = numbers(25, dtype=dtype)
    WRITERS[name](tmp_path / name, x)
    found = zarr.open_array(import_data(tmp_path / name), mode="r")
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found[...], x)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int16", "int64"])
@pytest.mark.parametrize("name", ["rows.npy", "wide.parquet", "list.parquet", "commas.csv"])
def test_another_dtype(tmp_path, name, dtype):
    x = numbers(25, dtype="int64")
    (WRITERS | TEXTS)[name](tmp_path / name, x)
    found = zarr.open_array(import_data(tmp_path / name, dtype=dtype), mode="r")
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[...], x.astype(dtype))


def test_large_integers_in_text_stay_exact(tmp_path):
    (tmp_path / "x.csv").write_text(f"a\n{2**53 + 1}\n-5\n")
    found = zarr.open_array(import_data(tmp_path / "x.csv", dtype="int64"), mode="r")
    assert found[...].tolist() == [[2**53 + 1], [-5]]


def test_common_type_of_columns(tmp_path):
    columns = {"a": np.arange(3, dtype="int64"), "b": np.arange(3, dtype="float32") / 2}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    found = zarr.open_array(import_data(tmp_path / "x.parquet"), mode="r")
    assert found.dtype == "float64"
    assert found[...].tolist() == [[0, 0], [1, 0.5], [2, 1]]


def test_columns_by_name_and_by_default(tmp_path):
    frame = pandas.DataFrame(
        {"name": ["a", "b"], "x": [1.5, 2.5], "flag": [True, False], "y": [3, 4]}, index=[7, 9]
    )
    frame.to_parquet(tmp_path / "x.parquet")
    frame.to_csv(tmp_path / "x.csv")
    events = []
    for source in ("x.parquet", "x.csv"):
        out = tmp_path / f"{source}.zarr"
        found = zarr.open_array(import_data(tmp_path / source, out, progress=events.append))
        assert found[...].tolist() == [[1.5, 3], [2.5, 4]]
        assert found.attrs["columns"] == ["x", "y"]
        assert "'flag'" in events[0].text
        found = zarr.open_array(import_data(tmp_path / source, f"{out}-y", columns=["y", "x"]))
        assert found[...].tolist() == [[3, 1.5], [4, 2.5]]
    chosen = import_data(tmp_path / "x.parquet", tmp_path / "flag", columns="flag")
    assert zarr.open_array(chosen)[...].tolist() == [[True], [False]]


def test_files_of_a_pattern_in_the_order_of_their_names(tmp_path):
    x = numbers(9)
    for i in (2, 0, 1):
        part = x[3 * i : 3 * i + 3]
        pyarrow.parquet.write_table(table(part.astype(["f4", "f8", "f4"][i])), tmp_path / f"{i}.pq")
    found = zarr.open_array(import_data(tmp_path / "?.pq", tmp_path / "out"))
    assert found.dtype == "float64"
    np.testing.assert_array_equal(found[...], x)


def test_text_as_people_write_it(tmp_path):
    text = '\ufeffname,a,b\r\n"x, and\ny",1, 2\r\n\r\nz,3e2,-4.5\r\n'
    (tmp_path / "x.csv").write_bytes(text.encode())
    found = zarr.open_array(import_data(tmp_path / "x.csv"))
    assert found[...].tolist() == [[1, 2], [300, -4.5]]
    (tmp_path / "y.csv").write_text("1.5,2\n3,4\n")
    found = zarr.open_array(import_data(tmp_path / "y.csv", header=False))
    assert found[...].tolist() == [[1.5, 2], [3, 4]]
    pandas.DataFrame(numbers(4)).to_csv(tmp_path / "z.csv", index=False)
    np.testing.assert_array_equal(zarr.open_array(import_data(tmp_path / "z.csv")), numbers(4))


def test_whole_numbers_may_become_fractions_later(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_format, "BLOCKS_NBYTES", (64, 256))
    (tmp_path / "x.csv").write_text("a\n" + "1\n" * 100 + "0.5\n")
    assert zarr.open_array(import_data(tmp_path / "x.csv"))[-1, 0] == 0.5


def test_rows_of_text_that_are_longer_than_a_block(tmp_path, monkeypatch):
    x = numbers(50, 30)
    write_csv(tmp_path / "x.csv", x)
    monkeypatch.setattr(csv_format, "BLOCKS_NBYTES", (64, 256, 4096))
    np.testing.assert_array_equal(zarr.open_array(import_data(tmp_path / "x.csv")), x)


def test_a_chosen_component(tmp_path):
    x = numbers(5)
    np.savez(tmp_path / "x.npz", a=x, b=x + 1)
    assert zarr.open_array(import_data(tmp_path / "x.npz", component="b"))[0, 0] == 1
    with h5py.File(tmp_path / "y.h5ad", "w") as file:
        file["X"], file["obsm/X_pca"], file["obsm/X_umap"] = x, x + 1, x + 2
    for component, first in ((None, 1), ("X", 0), ("obsm/X_umap", 2)):
        out = import_data(tmp_path / "y.h5ad", tmp_path / f"{first}", component=component)
        assert zarr.open_array(out)[0, 0] == first


def test_repeated_entries_of_a_sparse_matrix_are_summed(tmp_path):
    write_sparse(tmp_path / "x.h5ad", np.eye(3))
    with h5py.File(tmp_path / "x.h5ad", "a") as file:
        del file["X/data"], file["X/indices"], file["X/indptr"]
        file["X/data"], file["X/indices"] = np.array([1.0, 2.0, 5.0]), np.array([1, 1, 0])
        file["X/indptr"] = np.array([0, 2, 2, 3])
    found = zarr.open_array(import_data(tmp_path / "x.h5ad"))
    assert found[...].tolist() == [[0, 3, 0], [0, 0, 0], [5, 0, 0]]


def test_events_tell_each_chunk(tmp_path, small_chunks):
    np.save(tmp_path / "x.npy", numbers(25))
    write_csv(tmp_path / "y.csv", numbers(25))
    for name in ("x.npy", "y.csv"):
        events = []
        import_data(tmp_path / name, progress=events.append)
        assert [event.kind for event in events] == ["stage-start", *["task-done"] * 4, "stage-end"]
        assert {event.stage for event in events} == {"import"}
        assert (events[-1].n_done, events[-1].n_tasks) == (4, 4)
        assert events[1].peak_nbytes > 0


def put(x, row, column, value):
    x[row, column] = value
    return x


def text_file(name, content):
    return lambda folder: (folder / name).write_text(content)


def array_file(array):
    return lambda folder: np.save(folder / "x.npy", array)


def parquet_file(**columns):
    return lambda folder: pyarrow.parquet.write_table(pyarrow.table(columns), folder / "x.parquet")


def h5_file(name, **items):
    def write(folder):
        with h5py.File(folder / name, "w") as file:
            for key, value in items.items():
                file[key] = value

    return write


NAN = put(numbers(40), 30, 1, np.nan)
EMPTY = pyarrow.array([[], []], pyarrow.list_(pyarrow.float64()))
BAD = [
    ("x.npy", array_file(NAN), {}, "Row 30, column 1 .* is nan"),
    ("x.npy", array_file(put(numbers(40), 30, 1, np.inf)), {}, "Row 30, column 1 .* is inf"),
    ("x.npy", array_file(4 * NAN), {"dtype": "int64"}, "Row 30, column 1 .* is nan"),
    ("x.npy", array_file(numbers(9)), {"dtype": "int8"}, "Row 0, column 1 .* is 0.25, which int8"),
    ("x.npy", array_file(numbers(9) + 1e39), {"dtype": "f4"}, "which float32 cannot hold"),
    ("x.npy", array_file(numbers(9, dtype="i8") - 1), {"dtype": "u8"}, "is -1, which uint64"),
    ("x.npy", array_file(np.arange(5.0)), {}, r"shape \(5,\)"),
    ("x.npy", array_file(np.array([["a"]])), {}, "dtype <U1"),
    ("x.npy", array_file(np.ones((2, 2), complex)), {}, "complex128"),
    ("x.npy", array_file(np.ones((2, 2), [("a", "f4")])), {}, "must hold real numbers"),
    ("x.npy", array_file(np.array([[None]])), {}, "dtype object"),
    ("x.npy", array_file(np.ones((1, 2))), {}, "n_samples=1"),
    ("x.npy", array_file(np.ones((0, 2))), {}, "n_samples=0"),
    ("x.npy", array_file(np.ones((9, 2))), {"columns": ["a"]}, "have no names"),
    ("x.npy", array_file(np.ones((9, 2))), {"component": "a"}, "holds one table"),
    ("x.npy", array_file(np.ones((9, 2))), {"memory_limit": "1MiB"}, "raise it"),
    ("x.npy", array_file(np.ones((9, 2))), {"memory_limit": "much"}, "a number of bytes"),
    ("x.npy", array_file(np.ones((9, 2))), {"dtype": "text"}, "dtype is 'text'"),
    ("x.npy", text_file("x.npy", "not an array"), {}, "cannot be read"),
    ("x.npy", text_file("x.npy", ""), {}, "cannot be read"),
    ("y.npy", array_file(np.ones((9, 2))), {}, "There is no file"),
    ("x.dat", text_file("x.dat", "1"), {}, "no suffix"),
    ("x.npz", text_file("x.npz", "not an archive"), {}, "cannot be read"),
    ("x.npz", lambda f: np.savez(f / "x.npz", a=NAN, b=NAN), {}, "holds 2 .*'a', 'b'"),
    ("x.npz", lambda f: np.savez(f / "x.npz", a=[1]), {}, "no two-dimensional array"),
    ("x.npz", lambda f: np.savez(f / "x.npz", a=NAN), {"component": "c"}, "no 'c' in"),
    ("x.npz", lambda f: np.savez(f / "x.npz", a=NAN), {}, "Row 30, column 1"),
    ("x.parquet", text_file("x.parquet", "no table"), {}, "cannot be read"),
    ("x.parquet", parquet_file(a=["x", "y"]), {}, "no numeric column"),
    ("x.parquet", parquet_file(a=[1.0, None]), {}, "row 1, column 'a' .* is missing"),
    ("x.parquet", parquet_file(a=[1.0, np.nan]), {}, "Row 1, column 'a' .* is nan"),
    ("x.parquet", parquet_file(a=[1.0], b=["x"]), {"columns": ["b"]}, "'b' .* holds string"),
    ("x.parquet", parquet_file(a=[1.0]), {"columns": ["b"]}, "no column 'b' .* 'a'"),
    ("x.parquet", parquet_file(a=[1.0]), {"columns": ["a", "a"]}, "each once"),
    ("x.parquet", parquet_file(a=[1.0]), {"columns": []}, "must name columns"),
    ("x.parquet", parquet_file(a=pyarrow.array([], "f8")), {}, "n_samples=0"),
    ("x.parquet", parquet_file(a=[[1.0, 2.0], [3.0]]), {}, "row 1, column 'a' .* has 1 numbers"),
    ("x.parquet", parquet_file(a=[[1.0], None]), {}, "row 1, column 'a' .* is missing"),
    ("x.parquet", parquet_file(a=[[1.0], [None]]), {}, "row 1, column 'a' .* is missing"),
    ("x.parquet", parquet_file(a=[[1.0], [np.nan]]), {}, "Row 1, column 0 .* is nan"),
    ("x.parquet", parquet_file(a=EMPTY), {}, "no vector"),
    ("x.parquet", parquet_file(a=[[1.0]], b=[[1.0]]), {}, "2 columns of vectors"),
    ("x.parquet", parquet_file(a=[[1.0]], b=[1]), {"columns": ["a", "b"]}, "choose it alone"),
    ("x.parquet", parquet_file(a=[1.0]), {"component": "a"}, "holds one table"),
    ("*.parquet", parquet_file(a=[1.0]), {}, "pattern.* out="),
    ("z*.parquet", parquet_file(a=[1.0]), {"out": "z"}, "no Parquet file"),
    ("x.csv", text_file("x.csv", ""), {}, "cannot be read .*[Ee]mpty"),
    ("x.csv", text_file("x.csv", "a,b\n"), {}, "no rows below its header"),
    ("x.csv", text_file("x.csv", "a,b\n1,2\n"), {}, "n_samples=1"),
    ("x.csv", text_file("x.csv", "1.5,2\n3,4\n"), {}, "header=False"),
    ("x.csv", text_file("x.csv", "a,b\n1,2\n3\n"), {}, "Row 1 of .*Expected 2 columns, got 1"),
    ("x.csv", text_file("x.csv", "a,b\n1,2\n,4\n"), {}, "row 1, column 'a' .* is missing"),
    ("x.csv", text_file("x.csv", "a,b\n1,2\nnan,4\n"), {}, "row 1, column 'a' .* is missing"),
    ("x.csv", text_file("x.csv", "a,b\n1,2\ninf,4\n"), {}, "Row 1, column 'a' .* is inf"),
    ("x.csv", text_file("x.csv", "a,b\nx,y\n"), {}, "no numeric column"),
    ("x.csv", text_file("x.csv", "a,a\n1,2\n"), {}, "several columns with the name 'a'"),
    (
        "x.csv",
        text_file("x.csv", "a,b\n1,2\n3,x\n"),
        {"columns": ["b"]},
        "Row 1, column 'b' .*invalid value 'x'",
    ),
    ("x.csv", text_file("x.csv", "a\n1\n1.5\n"), {"dtype": "int8"}, "Row 1, column 'a'"),
    ("x.csv.gz", text_file("x.csv.gz", "a,b\n1,2\n"), {}, "cannot be read"),
    ("x.h5", text_file("x.h5", "not HDF5"), {}, "cannot be read"),
    ("x.h5", h5_file("x.h5", a=NAN, b=NAN), {}, "holds 2 .*'a', 'b'"),
    ("x.h5", h5_file("x.h5", a=NAN), {"component": "b"}, "no 'b' in .*'a'"),
    ("x.h5", h5_file("x.h5", a=NAN), {}, "Row 30, column 1 .* is nan"),
    ("x.h5", h5_file("x.h5", **{"a/b": NAN}), {"component": "a"}, "a group, .*'a/b'"),
    ("x.h5ad", h5_file("x.h5ad", y=[1]), {}, "no two-dimensional array"),
    ("x.h5ad", lambda f: write_sparse(f / "x.h5ad", np.eye(3), "csc"), {}, r"CSC.*tocsr\(\)"),
    ("x.h5ad", lambda f: write_sparse(f / "x.h5ad", NAN), {}, "Row 30, column 1 .* is nan"),
    ("s3://bucket/x.npy", lambda f: None, {}, "this machine's disks"),
]


@pytest.mark.parametrize("i", range(len(BAD)))
def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path, small_chunks, i):
    source, write, options, message = BAD[i]
    write(tmp_path)
    if "out" in options:
        options = options | {"out": tmp_path / options["out"]}
    before = sorted(tmp_path.rglob("*"))
    events = []
    path = source if "://" in source else tmp_path / source
    with pytest.raises((InputError, ParameterError), match=message) as caught:
        import_data(path, progress=events.append, **options)
    assert str(caught.value).count("\n") == 0
    assert str(caught.value).endswith(".")
    assert sorted(tmp_path.rglob("*")) == before
    assert not events or events[-1].kind in ("stage-failed", "message")


def test_existing_output_stays(tmp_path):
    np.save(tmp_path / "x.npy", numbers(9))
    out = import_data(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", numbers(5) + 1)
    with pytest.raises(InputError, match="already"):
        import_data(tmp_path / "x.npy")
    np.testing.assert_array_equal(zarr.open_array(out), numbers(9))
    np.save(tmp_path / "bad.npy", NAN)
    with pytest.raises(InputError, match="nan"):
        import_data(tmp_path / "bad.npy", out, overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(out), numbers(9))
    assert import_data(tmp_path / "x.npy", overwrite=True) == out
    np.testing.assert_array_equal(zarr.open_array(out), numbers(5) + 1)
    with pytest.raises(InputError, match="not a Zarr array, so it is not overwritten"):
        import_data(tmp_path / "x.npy", tmp_path, overwrite=True)
    with pytest.raises(InputError, match="Zarr already"):
        import_data(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.npy", "x.npy", "x.zarr"]


def test_a_stopped_import_leaves_nothing(tmp_path, small_chunks):
    np.save(tmp_path / "x.npy", numbers(25))

    def stop(event):
        if event.n_done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_data(tmp_path / "x.npy", tmp_path / "new" / "er" / "x.zarr", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]
    out = import_data(tmp_path / "x.npy", tmp_path / "new" / "er" / "x.zarr")
    assert zarr.open_array(out).shape == (25, 3)


def test_files_that_end_early(tmp_path):
    x = np.random.default_rng(0).random((1000, 3))
    np.save(tmp_path / "x.npy", x)
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content[:-5])
    with pytest.raises(InputError, match="ends too early"):
        import_data(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content[:-5])
    with pytest.raises(InputError, match="5 bytes too early"):
        import_data(tmp_path / "x.npz")
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"a\n" + b"1\n" * 10**6)[:-900])
    with pytest.raises(InputError, match="cannot be read"):
        import_data(tmp_path / "x.csv.gz")
    assert not list(tmp_path.glob("*.zarr*"))


def test_without_the_libraries(tmp_path, monkeypatch):
    write_csv(tmp_path / "x.csv", numbers(5))
    write_h5(tmp_path / "x.h5", numbers(5), "x")
    np.save(tmp_path / "x.npy", numbers(5))
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r"pyarrow.*pip install 'spore-dask\[formats\]'"):
        import_data(tmp_path / "x.csv")
    with pytest.raises(InputError, match=r"h5py.*pip install 'spore-dask\[formats\]'"):
        import_data(tmp_path / "x.h5")
    import_data(tmp_path / "x.npy")


def big_csv(folder):
    x = np.random.default_rng(0).random((20_000, 12))
    write_csv(folder / "part.csv", x)
    header, _, body = (folder / "part.csv").read_bytes().partition(b"\n")
    (folder / "x.csv").write_bytes(header + b"\n" + body * 48)


def big_parquet(folder):
    x = np.random.default_rng(0).random((900_000, 32))
    write_list(folder / "x.parquet", x, "fixed")


def wide_parquet(folder):
    x = np.random.default_rng(0).random((850_000, 32))
    pyarrow.parquet.write_table(table(x), folder / "x.parquet", compression="none")


def big_npz(folder):
    np.savez_compressed(folder / "x.npz", x=np.arange(900_000 * 32).reshape(-1, 32) % 7)


def columns_npz(folder):
    np.savez(folder / "x.npz", x=np.ones((32, 900_000)).T)


def big_h5ad(folder):
    write_h5(folder / "x.h5ad", np.ones((900_000, 32)), "X", chunks=(9000, 4))


def big_sparse(folder):
    write_sparse(folder / "part.h5ad", scipy.sparse.random(2000, 3000, 0.05, "csr").toarray())
    with h5py.File(folder / "part.h5ad") as part, h5py.File(folder / "x.h5ad", "w") as file:
        group = file.create_group("X")
        group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", (10_000, 3000)
        starts = part["X/indptr"][...].astype("int64")
        group["indptr"] = np.append(0, (starts[1:] + starts[-1] * np.arange(5)[:, None]).ravel())
        for name in ("data", "indices"):
            group.create_dataset(name, data=np.tile(part[f"X/{name}"], 5), chunks=True)


IMPORT = """
import json, pathlib, sys, spore_dask
from spore_dask import engine, importing, memory
for path in pathlib.Path(sys.argv[2]).iterdir():
    spore_dask.import_data(path)
needs, project = [], memory.import_nbytes
memory.import_nbytes = lambda *sizes: needs.append(project(*sizes)) or needs[-1]
before = engine.peak_nbytes()
out = spore_dask.import_data(sys.argv[1], memory_limit="640MiB")
print(json.dumps([before, engine.peak_nbytes(), needs[0]]))
"""


@pytest.mark.parametrize(
    "write",
    [big_csv, big_parquet, wide_parquet, big_npz, columns_npz, big_h5ad, big_sparse],
    ids=lambda write: write.__name__,
)
def test_memory_is_bounded(tmp_path, write):
    write(tmp_path)
    source = next(tmp_path.glob("x.*"))
    (tmp_path / "warm").mkdir()
    for name in ("packed.npz", "fixed.parquet", "commas.csv", "sparse.h5ad"):  # load libraries
        (WRITERS | TEXTS)[name](tmp_path / "warm" / name, numbers(9))
    code = [sys.executable, "-c", IMPORT, str(source), str(tmp_path / "warm")]
    done = subprocess.run(code, check=True, capture_output=True, text=True)
    before, peak, needs = json.loads(done.stdout.splitlines()[-1])
    written = zarr.open_array(tmp_path / "x.zarr")
    assert max(os.path.getsize(source), written.nbytes) > 200 * MIB
    assert peak <= needs <= 640 * MIB
    assert peak - before <= needs - memory.INTERPRETER_NBYTES
    assert peak - before < 160 * MIB
    source.unlink()


def test_pages_that_are_too_large(tmp_path):
    x = np.random.default_rng(0).random((20_000, 800))
    write_list(tmp_path / "x.parquet", x, "fixed", data_page_size=1 << 30, use_dictionary=False)
    with pytest.raises(InputError, match=r"pages of .* take \d+ MiB"):
        import_data(tmp_path / "x.parquet", memory_limit="380MiB")
    assert not (tmp_path / "x.zarr").exists()


def test_chunks_suit_a_fit():
    assert memory.imported_rows(10**6, 8) == 2 * MIB // 8
    assert memory.imported_rows(10**9, 400) == 16 * MIB // 400
    assert memory.imported_rows(10**5, 2**25) == 1
    assert memory.import_nbytes(10, 8, 8, 5) > memory.import_nbytes(10, 8, 4, 5)
    assert memory.import_nbytes(10, 8, 8, 5) > memory.import_nbytes(9, 8, 8, 5)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run as `fit` leaves it, but for what an export does not read."""
    folder = Folder(str(tmp_path_factory.mktemp("run")))
    rng = np.random.default_rng(0)
    folder.write_json("run.json", {"id": "ab"})
    result = folder.child("result-ab")
    result.write_zarr("labels", rng.integers(-1, 5, N_LABELS).astype(np.int32), 16)
    result.write_zarr("provenance", rng.integers(-1, 3, N_LABELS).astype(np.int16), 16)
    result.write_json("summary.json", {"n_points": N_LABELS, "n_clusters": 5})
    return open_run(folder.url)


class Predicted:
    """What a prediction has."""

    def __init__(self, folder):
        rng = np.random.default_rng(1)
        self.folder = folder / "p.predicted"
        self.folder.mkdir()
        (self.folder / "prediction.json").write_text('{"id": "ab"}')
        inner = self.folder / "prediction-ab"
        self.labels = zarr.create_array(inner / "labels", shape=70, dtype="i4", chunks=16)
        self.confidence = zarr.create_array(inner / "confidence", shape=70, dtype="f4", chunks=16)
        self.labels[...] = rng.integers(-1, 3, 70)
        self.confidence[...] = rng.random(70)
        (inner / "summary.json").write_text('{"n_points": 70}')


@pytest.fixture(params=[7, 16, 69, 70, 10**6])
def block_rows(request, monkeypatch):
    monkeypatch.setattr("spore_dask.exporting.BLOCK_ROWS", request.param)
    monkeypatch.setattr("spore_dask.formats.ids.BLOCK_ROWS", 11)
    return request.param


def read_back(path):
    if path.endswith(".csv"):
        return pandas.read_csv(path, dtype={"id": str})
    return pyarrow.parquet.read_table(path).to_pandas()


def test_labels_to_npy(run, tmp_path, block_rows):
    events = []
    out = export_labels(run.path, tmp_path / "labels.npy", progress=events.append)
    labels = np.load(out)
    assert labels.dtype == np.int32
    np.testing.assert_array_equal(labels, run.labels[...])
    n_blocks = -(-70 // block_rows)
    assert [event.kind for event in events].count("task-done") == events[-1].n_tasks == n_blocks


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_labels_to_tables(run, tmp_path, block_rows, suffix):
    out = export_labels(run, tmp_path / f"labels{suffix}", provenance=True)
    found = read_back(out)
    assert list(found) == ["row", "label", "provenance"]
    assert found["row"].tolist() == list(range(70))
    assert found["label"].tolist() == run.labels[...].tolist()
    assert found["provenance"].tolist() == run.provenance[...].tolist()
    if suffix == ".parquet":
        types = [str(field.type) for field in pyarrow.parquet.read_schema(out)]
        assert types == ["int64", "int32", "int16"]


def id_files(folder, names):
    whole = np.arange(len(names)) * 3
    frame = pandas.DataFrame({"id": names, "number": whole})
    frame.to_parquet(folder / "ids.parquet", row_group_size=9)
    frame.to_csv(folder / "ids.csv", index=False)
    frame.to_csv(folder / "ids.tsv", index=False, sep="\t")
    np.save(folder / "ids.npy", np.array(names))
    zarr.create_array(folder / "ids.zarr", data=whole, chunks=(64,))
    return whole


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_ids_beside_labels(run, tmp_path, block_rows, suffix):
    names = [f'{i:04d}, "é"' for i in range(70)]
    numbers_ = id_files(tmp_path, names)
    cases = [
        ("ids.parquet", {"id_column": "id"}, "id", names),
        ("ids.parquet", {"id_column": "number"}, "number", numbers_.tolist()),
        ("ids.csv", {"id_column": "id"}, "id", names),
        ("ids.tsv", {"id_column": "id"}, "id", names),
        ("ids.npy", {}, "id", names),
        ("ids.zarr", {"id_column": "key"}, "key", numbers_.tolist()),
    ]
    for i, (file, options, name, expected) in enumerate(cases):
        out = export_labels(run, tmp_path / f"{i}{suffix}", ids=tmp_path / file, **options)
        found = read_back(out)
        assert list(found) == [name, "label"]
        assert found[name].tolist() == expected
        assert found["label"].tolist() == run.labels[...].tolist()
    out = export_labels(run, tmp_path / f"list{suffix}", ids=names)
    assert read_back(out)["id"].tolist() == names


def test_ids_in_text_stay_as_they_are(run, tmp_path):
    (tmp_path / "ids.csv").write_text("label\n" + "".join(f"{i:05d}\n" for i in range(70)))
    out = export_labels(run, tmp_path / "out.parquet", ids=tmp_path / "ids.csv")
    found = read_back(out)
    assert list(found) == ["id", "label"]
    assert found["id"].tolist() == [f"{i:05d}" for i in range(70)]


@pytest.mark.parametrize("by_path", [False, True])
def test_labels_of_a_prediction(tmp_path, by_path):
    predicted = Predicted(tmp_path)
    given = predicted.folder if by_path else predicted
    for suffix in (".parquet", ".csv"):
        out = export_labels(given, tmp_path / f"labels{suffix}", confidence=True)
        found = read_back(out)
        assert list(found) == ["row", "label", "confidence"]
        assert found["label"].tolist() == predicted.labels[...].tolist()
        values = found["confidence"].to_numpy().astype(np.float32)
        np.testing.assert_array_equal(values, predicted.confidence[...])
    with pytest.raises(ParameterError, match="a prediction has none"):
        export_labels(given, tmp_path / "x.csv", provenance=True)


def test_bad_exports_leave_nothing(run, tmp_path):
    id_files(tmp_path, [str(i) for i in range(69)])
    np.save(tmp_path / "square.npy", np.ones((70, 2)))
    (tmp_path / "broken.parquet").write_text("no table")
    (tmp_path / "there.csv").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    cases = [
        ("x.csv", {"ids": "ids.parquet", "id_column": "id"}, "69 ids, but 70 labels"),
        ("x.csv", {"ids": "ids.csv", "id_column": "id"}, "69 ids, but 70 labels"),
        ("x.parquet", {"ids": "ids.npy"}, "69 ids, but 70 labels"),
        ("x.parquet", {"ids": "ids.zarr"}, "69 ids, but 70 labels"),
        ("x.csv", {"ids": "ids.parquet"}, "2 columns.*id_column="),
        ("x.csv", {"ids": "ids.csv", "id_column": "key"}, "no one column 'key'"),
        ("x.csv", {"ids": "square.npy"}, r"shape \(70, 2\)"),
        ("x.csv", {"ids": "broken.parquet", "id_column": "id"}, "cannot be read"),
        ("x.csv", {"ids": "absent.csv", "id_column": "id"}, "There is no file"),
        ("x.csv", {"ids": "absent.parquet", "id_column": "id"}, "no Parquet file"),
        ("x.csv", {"ids": "absent"}, "must be .parquet"),
        ("x.csv", {"id_column": "id"}, "ids is not given"),
        ("x.csv", {"confidence": True}, "a run has none"),
        ("x.npy", {"ids": "ids.npy"}, "labels only"),
        ("x.npy", {"provenance": True}, "labels only"),
        ("x.txt", {}, "must be a file"),
        ("x", {}, "must be a file"),
        ("absent/x.csv", {}, "no folder"),
        ("there.csv", {}, "already"),
    ]
    for out, options, message in cases:
        if "ids" in options:
            options["ids"] = tmp_path / options["ids"]
        with pytest.raises((InputError, ParameterError), match=message) as caught:
            export_labels(run, tmp_path / out, **options)
        assert "\n" not in str(caught.value)
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(InputError, match="no finished run"):
        export_labels(tmp_path / "absent", tmp_path / "x.csv")
    assert (tmp_path / "there.csv").read_text() == "mine"
    export_labels(run, tmp_path / "there.csv", overwrite=True)
    assert len(read_back(str(tmp_path / "there.csv"))) == 70


def test_a_stopped_export_leaves_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr("spore_dask.exporting.BLOCK_ROWS", 10)

    def stop(event):
        if event.n_done == 2:
            raise KeyboardInterrupt

    for name in ("x.npy", "x.csv", "x.parquet"):
        with pytest.raises(KeyboardInterrupt):
            export_labels(run, tmp_path / name, progress=stop)
    assert not list(tmp_path.iterdir())


def test_public_names():
    for name in ("import_data", "export_labels"):
        assert name in spore_dask.__all__
        assert getattr(spore_dask, name).__doc__
