"""Tables as text: .csv, .tsv, and both compressed with gzip.

The first line names the columns. Read in blocks of text; nothing but the columns that are wanted is
made into numbers. Memory: the blocks of text that pyarrow reads ahead, 32 of 1 MiB unless rows are
very long.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.errors import InputError
from spore_dask.formats.columns import as_rows, choose
from spore_dask.formats.matrix import Asked, Matrix, readable, refuse_component, require

BLOCKS_NBYTES = (1 << 20, 1 << 22, 1 << 24, 1 << 26)
"""Sizes of a block of text: the first that holds some rows."""
ROWS_PER_BLOCK = 4
READ_AHEAD = 56
"""Blocks in memory: 32 that are read ahead, and what becomes of some of them."""
BAD_VALUE = re.compile(r"In CSV column #(\d+): Row #(\d+): CSV conversion error to \w+: (.*)", re.S)
BAD_ROW = re.compile(r"CSV parse error: Row #(\d+): (Expected \d+ columns, got \d+)")


@dataclasses.dataclass(frozen=True)
class Text:
    """A file of text, and how it is written."""

    path: str
    header: bool
    delimiter: str
    block_nbytes: int
    schema: Any
    """The columns, with types as the first rows suggest."""
    about_rows: int

    def batches(self, names: list[str], type: Any) -> Iterator[Any]:
        """Yield some columns as values of one type."""
        options = require("pyarrow.csv").ConvertOptions(
            include_columns=names, column_types=dict.fromkeys(names, type)
        )
        with self.explained(), _open(self, options) as reader:
            yield from reader

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Say which row and column is bad."""
        try:
            yield
        except ValueError as error:
            if found := BAD_VALUE.search(str(error)):
                column, row, what = found.groups()
                name = self.schema.names[int(column)]
                raise InputError(
                    f"Row {self._row(row)}, column {name!r} of {self.path!r} is not a number of "
                    f"the type that is read ({what[:80]}): correct or remove it, give another "
                    "dtype=, or choose other columns."
                ) from None
            if found := BAD_ROW.search(str(error)):
                row, what = found.groups()
                raise InputError(
                    f"Row {self._row(row)} of {self.path!r} does not have the columns of the "
                    f"others ({what}): correct it."
                ) from None
            raise

    def _row(self, line: str) -> int:
        """Return the number of a row, counted from 0 after the header."""
        return int(line) - 1 - self.header


def find_text(path: str, header: bool = True) -> Text:
    """Look at the beginning of a file of text."""
    name = path.lower().removesuffix(".gz")
    text = Text(path, header, "\t" if name.endswith(".tsv") else ",", BLOCKS_NBYTES[0], None, 0)
    with readable(path):
        text = _look(text)
        first = text.schema.names[0]
        if len(text.schema.names) == 1 and any(mark in first for mark in ";\t"):
            text = _look(dataclasses.replace(text, delimiter=";" if ";" in first else "\t"))
    if header and _are_numbers(text.schema.names):
        raise InputError(
            f"The first line of {path!r} holds numbers, not the names of its columns: put names "
            "there, or give header=False if that is the first row."
        )
    return text


def _look(text: Text) -> Text:
    """Read the first block, with blocks large enough for some rows."""
    convert = require("pyarrow.csv").ConvertOptions()
    size = _text_nbytes(text.path)
    for nbytes in BLOCKS_NBYTES:
        text = dataclasses.replace(text, block_nbytes=nbytes)
        is_last = nbytes >= min(size, BLOCKS_NBYTES[-1])
        try:
            with text.explained(), _open(text, convert) as reader:
                n_rows = next((len(batch) for batch in reader), 0)
                schema = reader.schema
        except ValueError:  # the block may end before a row does
            if is_last:
                raise
            continue
        if is_last or n_rows >= ROWS_PER_BLOCK:
            break
    if not n_rows:
        raise InputError(f"{text.path!r} has no rows below its header: give a table with rows.")
    return dataclasses.replace(text, schema=schema, about_rows=max(n_rows, n_rows * size // nbytes))


def _text_nbytes(path: str) -> int:
    """Return the length of the text, a guess where it is compressed and beyond 4 GiB."""
    if not path.lower().endswith(".gz"):
        return os.path.getsize(path)
    with open(path, "rb") as file:
        file.seek(-4, 2)
        return int.from_bytes(file.read(), "little")


def _are_numbers(names: list[str]) -> bool:
    """Tell whether names are the numbers of a row; 0, 1, ... may well be names."""
    try:
        values = [float(name) for name in names if name]
    except ValueError:
        return False
    return values != list(range(len(values)))


def _open(text: Text, convert: Any) -> Any:
    """Open a file to read it in blocks, one thread, which tells the numbers of bad rows."""
    csv = require("pyarrow.csv")
    return csv.open_csv(
        text.path,
        csv.ReadOptions(
            use_threads=False,
            block_size=text.block_nbytes,
            autogenerate_column_names=not text.header,
        ),
        csv.ParseOptions(delimiter=text.delimiter, newlines_in_values=True),
        convert,
    )


def open_csv(asked: Asked) -> Matrix:
    """Open a table that is text: float64, or the dtype that is asked for."""
    refuse_component(asked)
    text = find_text(asked.path, asked.header)
    names, left_out = choose(text.schema, asked, typed=False)
    dtype = np.dtype(np.float64) if asked.dtype is None else asked.dtype
    dtype = np.dtype(np.float32) if dtype == np.float16 else dtype
    type = require("pyarrow").from_numpy_dtype(dtype)

    def blocks(rows: int) -> Iterator[NDArray[Any]]:
        first_row = 0
        for batch in text.batches(names, type):
            for start in range(0, len(batch), rows):
                part = batch.slice(start, rows)
                yield as_rows(part, names, dtype, first_row, asked.path)
                first_row += len(part)

    return Matrix(
        None,
        len(names),
        dtype,
        blocks,
        reading_nbytes=READ_AHEAD * text.block_nbytes,
        names=tuple(names),
        left_out=tuple(left_out),
        about_rows=text.about_rows,
    )
