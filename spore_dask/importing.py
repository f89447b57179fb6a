"""`import_data`: files that users have, to the Zarr array that `fit` reads.

Reads a file from its first row to its last, once; writes a Zarr array beside it, under another name
until it is whole. Memory: a few chunks of at most 16 MiB, and what the file's library needs.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from dask.utils import format_bytes, parse_bytes
from numpy.typing import DTypeLike, NDArray

from spore_dask import memory
from spore_dask.cgroups import usable_nbytes
from spore_dask.engine import open_engine
from spore_dask.errors import InputError, LimitError, ParameterError
from spore_dask.formats.kinds import find_kind, suffix_of
from spore_dask.formats.matrix import Asked, Matrix, listed, readable
from spore_dask.progress import Event, as_consumer
from spore_dask.store import PARTIAL, Folder, address, open_zarr, refuse_inside_stage

OF_ARRAY = re.compile(r"zarr\.json|\.zarray|\.zattrs|(c[/.])?[0-9]+([/.][0-9]+)*")
"""Files in the folder of a Zarr array."""


def import_data(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    component: str | None = None,
    columns: str | Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    header: bool = True,
    memory_limit: int | str | None = None,
    overwrite: bool = False,
    progress: Any = None,
) -> str:
    """Write the numbers of a file to a Zarr array (N, D) in chunks of rows, in bounded memory.

    Parameters
    ----------
    source : path
        .npy; .npz; Parquet (a file, a folder of files or a pattern such as `x/*.parquet`, in the
        order of their names); .csv, .tsv, .csv.gz or .tsv.gz; .h5, .hdf5 or .h5ad.
    out : path, optional
        The array to write, on this machine's disks. Default: beside the source (`x.csv` to
        `x.zarr`).
    component : str, optional
        The array in an .npz or HDF5 file. Default: the only two-dimensional one; in .h5ad
        "obsm/X_pca" if there is one, else "X". Sparse rows (CSR) are made dense.
    columns : list of str, optional
        The columns of a table. Default: its column of vectors (lists) if it has one, else all that
        are numeric, but for a table's index.
    dtype : dtype, optional
        What to write: a float of at most 64 bits, an integer or bool. Default: that of the source,
        the common one of its columns; float64 for text.
    header : bool
        Whether the first line of a .csv or .tsv names its columns.
    memory_limit : int or str, optional
        What this process may use. Default: half of this machine's memory.
    overwrite : bool
        Whether an array that is at `out` is replaced, when the new one is whole.
    progress
        As in `fit`.

    Returns
    -------
    str
        The path of the array, for `fit`.

    Raises
    ------
    InputError
        If the file cannot be read, or a value is missing, NaN or infinite; nothing is left at
        `out` then.
    """
    consumer = as_consumer(progress)
    path = _local("source", source)
    open_matrix = find_kind(path)
    target = _target(path, out, overwrite)
    asked = Asked(
        path,
        component,
        [columns] if isinstance(columns, str) else columns,
        _as_dtype(dtype),
        header,
        _as_limit(memory_limit),
        _nearest(target),
    )
    with readable(path):
        matrix = open_matrix(asked)
    wanted = _dtype_to_write(matrix, asked)
    chunk_rows = _plan(matrix, wanted, asked)
    if matrix.left_out:
        text = f"columns that are left out: {listed(matrix.left_out)}"
        consumer(Event("message", "import", text=text))
    partial = Folder(f"{asked.scratch}/{os.path.basename(target)}.{uuid.uuid4().hex}{PARTIAL}")
    left_out = list(matrix.left_out) or None
    known = {"source": path, "component": component, "columns": matrix.names, "left_out": left_out}
    about = {name: value for name, value in known.items() if value is not None}
    chunks = _chunks(matrix, wanted, chunk_rows, path)
    n_chunks = -(-(matrix.n_rows or matrix.about_rows) // chunk_rows)
    try:
        with (
            open_engine(None, 0, asked.memory_limit, consumer) as engine,
            engine.here("import", n_chunks) as done,
        ):
            _check_rows(path, _write(partial, about, chunks, done))
        _move(partial, target, overwrite)
    finally:
        partial.remove()
    return target


def _local(name: str, path: str | os.PathLike[str]) -> str:
    """Return an absolute path on this machine."""
    found = address(path)
    if "://" in found:
        raise InputError(f"{name} is {found!r}, but it must be on this machine's disks: copy it.")
    return found.rstrip("/") or "/"


def _target(path: str, out: str | os.PathLike[str] | None, overwrite: bool) -> str:
    """Return where the array goes; refuse what is there already."""
    if out is None and not os.path.exists(path):
        raise ParameterError(f"The source is a pattern, {path!r}: say with out= where to write.")
    stem = path[: len(path) - len(suffix_of(path))] if os.path.isfile(path) else path
    target = f"{stem}.zarr" if out is None else _local("out", out)
    refuse_inside_stage(target)
    if not os.path.lexists(target):
        above = _nearest(target)
        if not os.path.isdir(above):
            raise InputError(f"out is {target!r}, but {above!r} is no folder: give another out=.")
        return target
    if not overwrite:
        raise InputError(
            f"There is something at {target!r} already: give another out=, or overwrite=True."
        )
    try:
        open_zarr(target)
    except InputError:
        raise InputError(
            f"What is at {target!r} is not a Zarr array, so it is not overwritten: give another "
            "out=."
        ) from None
    _refuse_others(target)
    return os.path.realpath(target)


def _refuse_others(target: str) -> None:
    """Refuse to replace the folder of an array that holds other files."""
    for folder, _, names in os.walk(target):
        for name in (os.path.relpath(f"{folder}/{name}", target) for name in names):
            if not OF_ARRAY.fullmatch(name):
                raise InputError(
                    f"The Zarr array at {target!r} also holds {name!r}, so it is not overwritten: "
                    "give another out=, or move that away."
                )


def _nearest(target: str) -> str:
    """Return the nearest thing above a path that is there: a folder on the same disk."""
    above = os.path.dirname(target)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    return above


def _as_dtype(dtype: DTypeLike | None) -> np.dtype[Any] | None:
    """Return the dtype that is asked for, if one is."""
    if dtype is None:
        return None
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "fiub" or found.itemsize > 8:
        raise ParameterError(
            f"dtype is {dtype!r}, but it must be a float of at most 64 bits, an integer or bool."
        )
    return found.newbyteorder("=")


def _as_limit(memory_limit: int | str | None) -> int:
    """Return the limit in bytes."""
    if memory_limit is None:
        return usable_nbytes() // 2
    try:
        limit = int(parse_bytes(memory_limit))
    except (ValueError, AttributeError, TypeError):
        limit = 0
    if limit <= 0:
        raise ParameterError(
            f"memory_limit is {memory_limit!r}, but it must be a number of bytes or a text such "
            "as '1GiB'."
        )
    return limit


def _dtype_to_write(matrix: Matrix, asked: Asked) -> np.dtype[Any]:
    """Return the dtype of the array to write."""
    wanted = matrix.dtype if asked.dtype is None else asked.dtype
    if wanted.itemsize > 8:
        raise InputError(
            f"{asked.path!r} has dtype {wanted}, but it must have at most 64 bits: give "
            "dtype='float64'."
        )
    return wanted


def _plan(matrix: Matrix, dtype: np.dtype[Any], asked: Asked) -> int:
    """Return the rows of a chunk; refuse what has too few, or needs too much memory."""
    _check_rows(asked.path, 2 if matrix.n_rows is None else matrix.n_rows)
    row_nbytes = matrix.n_columns * dtype.itemsize
    chunk_rows = memory.imported_rows(matrix.n_rows or matrix.about_rows, row_nbytes)
    from_nbytes = matrix.row_nbytes + matrix.row_reading_nbytes
    needs = memory.import_nbytes(chunk_rows, from_nbytes, row_nbytes, matrix.reading_nbytes)
    if needs > asked.memory_limit:
        raise LimitError(
            f"memory_limit is {format_bytes(asked.memory_limit)}, but reading {matrix.n_columns} "
            f"columns of {asked.path!r} needs {format_bytes(needs)}: raise it, or import fewer "
            "columns."
        )
    return chunk_rows


def _check_rows(path: str, n_rows: int) -> None:
    if n_rows < 2:
        raise InputError(f"{path!r} has n_samples={n_rows}, but clustering needs at least 2.")


def _write(
    place: Folder, about: dict[str, Any], chunks: Iterator[NDArray[Any]], done: Callable[..., None]
) -> int:
    """Write chunks one behind the other, and tell about each; return the number of rows."""
    parent, name = place.url.rsplit("/", 1)
    n_rows = n_chunks = 0
    for chunk in chunks:
        if n_chunks:
            done()
        Folder(parent).append_zarr(name, chunk, about)
        n_rows, n_chunks = n_rows + len(chunk), n_chunks + 1
    done(n_chunks)  # which for text is only known now
    return n_rows


def _chunks(
    matrix: Matrix, dtype: np.dtype[Any], chunk_rows: int, path: str
) -> Iterator[NDArray[Any]]:
    """Yield the rows of a matrix in chunks, each in the same memory."""
    chunk = np.empty((chunk_rows, matrix.n_columns), dtype)
    first_row = n_rows = 0
    for block in _blocks(matrix, chunk_rows, path):
        start = 0
        while start < len(block):
            part = block[start : start + chunk_rows - n_rows]
            _convert(part, chunk[n_rows : n_rows + len(part)], matrix, first_row + n_rows, path)
            start, n_rows = start + len(part), n_rows + len(part)
            if n_rows == chunk_rows:
                yield chunk
                first_row, n_rows = first_row + n_rows, 0
    if n_rows:
        yield chunk[:n_rows]


def _blocks(matrix: Matrix, rows: int, path: str) -> Iterator[NDArray[Any]]:
    """Yield the blocks of a matrix; say so in a sentence if one cannot be read."""
    blocks = matrix.blocks(rows)
    while True:
        with readable(path):
            block = next(blocks, None)
        if block is None:
            return
        yield block


def _convert(
    part: NDArray[Any], into: NDArray[Any], matrix: Matrix, first_row: int, path: str
) -> None:
    """Write rows as another dtype; refuse what is not finite, or would not be the same number."""
    with np.errstate(over="ignore", invalid="ignore"):
        into[...] = part
        good = np.isfinite(into) if into.dtype.kind == "f" else into == part
    if good.all():
        return
    row, column = (int(i[0]) for i in np.nonzero(~good))
    value, where = part[row, column], f"Row {first_row + row}, column {matrix.column(column)}"
    if not np.isfinite(value):
        raise InputError(
            f"{where} of {path!r} is {value} (NaN or infinity), but every value must be finite: "
            "remove or fill such rows first."
        )
    raise InputError(
        f"{where} of {path!r} is {value}, which {into.dtype} cannot hold: give another dtype=."
    )


def _move(partial: Folder, target: str, overwrite: bool) -> None:
    """Give what was written its name; what was there goes when that is done."""
    old = f"{partial.url}-old"
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if overwrite and os.path.isdir(target):
        _refuse_others(target)  # once more: reading may have taken long
        os.rename(target, old)
    os.rename(partial.url, target)
    shutil.rmtree(old, ignore_errors=True)
