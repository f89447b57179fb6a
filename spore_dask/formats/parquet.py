"""Parquet: a file, a folder of files or a pattern, in the order of their names.

Reads the columns that are wanted, page by page. Memory: for each column a page and its dictionary,
which are 1 MiB each as most writers make them, and a block. Larger pages are noticed when the first
is read, and refused if the limit has no room for them.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.errors import InputError
from spore_dask.formats.columns import as_rows, as_vectors, choose, is_vector, numpy_dtype
from spore_dask.formats.matrix import Asked, Matrix, readable, refuse_component, require
from spore_dask.memory import INTERPRETER_NBYTES

PAGE_NBYTES = 3 << 20
"""A page of a column and its dictionary, decompressed, and what decompresses them."""
BATCH_NBYTES = 32 << 20
"""What pyarrow keeps of the batches that it has made."""
READ_NBYTES = 1 << 16
SUFFIXES = (".parquet", ".pq")


def find_files(path: str) -> list[str]:
    """Return the files that a path means: itself, those of a folder, or those of a pattern."""
    if os.path.isdir(path):
        found = [f"{path}/{name}" for name in os.listdir(path) if name.lower().endswith(SUFFIXES)]
    else:
        found = [path] if os.path.exists(path) else glob.glob(path)
    if not found:
        raise InputError(f"There is no Parquet file at {path!r}: check the path.")
    return sorted(found)


def open_parquet(asked: Asked) -> Matrix:
    """Open one or several Parquet files."""
    refuse_component(asked)
    files = find_files(asked.path)
    names: list[str] = []
    left_out: list[str] = []
    types, n_rows = [], []
    for path in files:
        with readable(path), open_file(path) as file:
            schema = file.schema_arrow
            if not names:
                names, left_out = choose(schema, asked, typed=True)
            else:
                choose(schema, Asked(path, columns=names), typed=True)
            types += [schema.field(name).type for name in names]
            n_rows.append(file.metadata.num_rows)
    if len({is_vector(type) for type in types}) > 1:
        raise InputError(
            f"Column {names[0]!r} holds vectors in some files of {asked.path!r} and numbers in "
            "others: write them alike."
        )
    dtype = np.result_type(*(numpy_dtype(type) for type in types))
    table = _Table(asked, files, names, dtype, sum(n_rows))
    if is_vector(types[0]):
        width = table.width()
        return Matrix(
            sum(n_rows),
            width,
            dtype,
            table.vectors,
            BATCH_NBYTES + PAGE_NBYTES,
            left_out=tuple(left_out),
        )
    reading_nbytes = BATCH_NBYTES + len(names) * PAGE_NBYTES
    columns = tuple(names)
    return Matrix(
        sum(n_rows),
        len(names),
        dtype,
        table.rows,
        reading_nbytes,
        names=columns,
        left_out=tuple(left_out),
    )


def open_file(path: str) -> Any:
    """Open a file so that it is read page by page."""
    return require("pyarrow.parquet").ParquetFile(path, buffer_size=READ_NBYTES, pre_buffer=False)


def read_batches(files: list[str], names: list[str], rows: int) -> Iterator[Any]:
    """Yield some columns of files, in batches of at most so many rows."""
    for path in files:
        with readable(path), open_file(path) as file:
            for batch in file.iter_batches(rows, columns=names, use_threads=False):
                if batch.num_rows:
                    yield batch


class _Table:
    """The columns of some files that are read."""

    def __init__(
        self, asked: Asked, files: list[str], names: list[str], dtype: np.dtype[Any], n_rows: int
    ) -> None:
        self.asked = asked
        self.files = files
        self.names = names
        self.dtype = dtype
        self.n_rows = n_rows

    def width(self) -> int:
        """Return the length of the first vector."""
        for batch in read_batches(self.files, self.names, 1):
            vectors = as_vectors(batch, self.names[0], None, 0, self.asked.path)
            width = int(vectors.shape[1])
            if width:
                return width
            break
        raise InputError(
            f"Column {self.names[0]!r} of {self.asked.path!r} has no vector with a number in it: "
            "choose another with columns=."
        )

    def rows(self, rows: int) -> Iterator[NDArray[Any]]:
        """Yield blocks of the columns of numbers."""
        first_row = 0
        for batch in self._batches(rows):
            yield as_rows(batch, self.names, self.dtype, first_row, self.asked.path)
            first_row += batch.num_rows

    def vectors(self, rows: int) -> Iterator[NDArray[Any]]:
        """Yield blocks of the column of vectors."""
        first_row, width = 0, self.width()
        for batch in self._batches(rows):
            block = as_vectors(batch, self.names[0], width, first_row, self.asked.path)
            yield block.astype(self.dtype, copy=False)
            first_row += batch.num_rows

    def _batches(self, rows: int) -> Iterator[Any]:
        """Yield batches, as long as the pages that they come from leave room."""
        pyarrow = require("pyarrow")
        before = pyarrow.total_allocated_bytes()
        room = self.asked.memory_limit - INTERPRETER_NBYTES
        for batch in read_batches(self.files, self.names, rows):
            held = pyarrow.total_allocated_bytes() - before
            if held > room:
                raise InputError(
                    f"The pages of {self.asked.path!r} take {held >> 20} MiB, but memory_limit "
                    f"leaves {room >> 20} MiB: raise it, or write the file with pages of 1 MiB."
                )
            yield batch
