"""The ids of a user's rows: a column of a table, an .npy file or a Zarr array.

Reads them in blocks, as they are; those in text stay text. Memory: a block.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from spore_dask.errors import InputError
from spore_dask.formats.csv import find_text, open_csv
from spore_dask.formats.kinds import KINDS, is_zarr, suffix_of
from spore_dask.formats.matrix import listed, native, ranges, readable, require
from spore_dask.formats.npy import open_npy, read_vector
from spore_dask.formats.parquet import find_files, open_file, open_parquet, read_batches
from spore_dask.store import address, open_zarr

BLOCK_ROWS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Ids:
    """A name for each row."""

    name: str
    """The name of the column."""
    type: Any
    """Arrow's type of it."""
    n_rows: int
    blocks: Callable[[], Iterator[Any]]
    """Yields them in blocks, arrays of Arrow or numpy."""


def open_ids(ids: Any, column: str | None) -> Ids:
    """Open the ids that a user means.

    Parameters
    ----------
    ids : path, zarr.Array or sequence
    column : str, optional
        The column of a table; the only one by default.
    """
    if not isinstance(ids, str | os.PathLike):
        return _values(ids, column)
    path = address(ids)
    opener = KINDS.get(suffix_of(path))
    if is_zarr(path):
        return _values(open_zarr(path), column)
    if os.path.isdir(path) or opener is open_parquet:
        return _parquet(path, column)
    if opener not in (open_csv, open_npy):
        raise InputError(
            f"ids is {path!r}, but it must be .parquet, .csv, .tsv, .npy or a Zarr array."
        )
    if not os.path.exists(path):
        raise InputError(f"There is no file {path!r}: check the path of ids.")
    with readable(path):
        return _text(path, column) if opener is open_csv else _vector(path, column)


def _vector(path: str, column: str | None) -> Ids:
    """Return the ids in an .npy file."""
    n_rows, first = read_vector(path, 1)
    type = _type_of(next(first, np.empty(0)))
    return Ids(column or "id", type, n_rows, lambda: read_vector(path, BLOCK_ROWS)[1])


def _values(ids: Any, column: str | None) -> Ids:
    """Return ids that are an array."""
    array = ids if hasattr(ids, "chunks") else np.asarray(ids)
    if array.ndim != 1:
        raise InputError(f"ids has shape {array.shape}, but it must be one-dimensional.")
    n_rows = int(array.shape[0])

    def blocks() -> Iterator[Any]:
        for first, last in ranges(n_rows, BLOCK_ROWS):
            yield native(np.asarray(array[first:last]))

    return Ids(column or "id", _type_of(next(blocks(), np.empty(0))), n_rows, blocks)


def _type_of(values: Any) -> Any:
    """Return the type that Arrow gives some values."""
    return require("pyarrow").array(values).type


def _column(names: list[str], column: str | None, path: str) -> str:
    """Return the column of a table that has the ids."""
    if column is None and len(names) == 1:
        return names[0]
    if column is None:
        raise InputError(
            f"{path!r} has {len(names)} columns: say with id_column= which has the ids "
            f"({listed(names)})."
        )
    if names.count(column) != 1:
        raise InputError(
            f"There is no one column {column!r} in {path!r}: give id_column= one of "
            f"{listed(names)}."
        )
    return column


def _parquet(path: str, column: str | None) -> Ids:
    """Return the ids in a column of Parquet files."""
    files, types, n_rows = find_files(path), [], 0
    for file in files:
        with readable(file), open_file(file) as opened:
            column = _column(opened.schema_arrow.names, column, file)
            types.append(opened.schema_arrow.field(column).type)
            n_rows += opened.metadata.num_rows
    if len(set(types)) > 1:
        raise InputError(
            f"Column {column!r} has several types in the files of {path!r} "
            f"({listed(map(str, set(types)))}): write them alike."
        )
    name = str(column)

    def blocks() -> Iterator[Any]:
        for batch in read_batches(files, [name], BLOCK_ROWS):
            yield batch.column(name)

    return Ids(name, types[0], n_rows, blocks)


def _text(path: str, column: str | None) -> Ids:
    """Return the ids in a column of text, as text; they are counted first."""
    text = find_text(path)
    name = _column(text.schema.names, column, path)

    def blocks() -> Iterator[Any]:
        for batch in text.batches([name], require("pyarrow").string()):
            yield batch.column(name)

    return Ids(name, require("pyarrow").string(), sum(map(len, blocks())), blocks)
