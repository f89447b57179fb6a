"""Which columns of a table are read, and how those of Arrow become numbers.

Reads and writes nothing. Memory: a block of rows.
"""

from __future__ import annotations

import collections
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.errors import InputError, ParameterError
from spore_dask.formats.matrix import Asked, listed, require

INDEX = re.compile(r"|__index_level_\d+__")
"""Names under which a table's index is written: not data, unless it is asked for."""


def is_number(type: Any) -> bool:
    """Tell whether a type of Arrow is a number."""
    types = require("pyarrow").types
    return bool(types.is_integer(type) or types.is_floating(type) or types.is_decimal(type))


def is_vector(type: Any) -> bool:
    """Tell whether a type of Arrow is a list of numbers."""
    types = require("pyarrow").types
    is_list = types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type)
    return bool(is_list and is_number(type.value_type))


def choose(schema: Any, asked: Asked, typed: bool) -> tuple[list[str], list[str]]:
    """Return the names of the columns to read, and those of the others.

    Parameters
    ----------
    schema : pyarrow.Schema
    asked : Asked
    typed : bool
        Whether the schema is known, and not a guess from the first rows.
    """
    if asked.columns is None:
        chosen = _by_type(schema, asked.path)
    else:
        chosen = list(asked.columns)
        _check_names(schema, chosen, asked.path)
        if typed:
            _check_types(schema, chosen, asked.path)
    counts = collections.Counter(schema.names)
    twice = [name for name in chosen if counts[name] > 1]
    if twice:
        raise InputError(
            f"{asked.path!r} has several columns with the name {twice[0]!r}: rename them, or "
            "choose others with columns=."
        )
    taken = set(chosen)
    return chosen, [name for name in schema.names if name not in taken]


def _by_type(schema: Any, path: str) -> list[str]:
    """Return the column of vectors if there is one, or all columns of numbers."""
    vectors = [field.name for field in schema if is_vector(field.type)]
    if len(vectors) > 1:
        raise InputError(
            f"{path!r} has {len(vectors)} columns of vectors ({listed(vectors)}): choose one with "
            "columns=."
        )
    numbers = [
        field.name
        for field in schema
        if (is_number(field.type) or str(field.type) == "null") and not INDEX.fullmatch(field.name)
    ]
    if not vectors and not numbers:
        raise InputError(
            f"{path!r} has no numeric column (it has {listed(schema.names)}): give a table with "
            "columns of numbers, or one of vectors."
        )
    return vectors or numbers


def _check_names(schema: Any, chosen: list[str], path: str) -> None:
    """Refuse columns that are not there, or chosen twice."""
    if not chosen or len(set(chosen)) < len(chosen):
        raise ParameterError(f"columns is {chosen}, but it must name columns, each once.")
    there = set(schema.names)
    missing = [name for name in chosen if name not in there]
    if missing:
        raise InputError(
            f"There is no column {missing[0]!r} in {path!r}: choose from {listed(schema.names)}."
        )


def _check_types(schema: Any, chosen: list[str], path: str) -> None:
    """Refuse columns that are not numbers, and vectors beside others."""
    for name in chosen:
        type = schema.field(name).type
        if is_vector(type) and len(chosen) > 1:
            raise InputError(
                f"Column {name!r} of {path!r} holds vectors and is chosen with others: choose it "
                "alone."
            )
        if not (is_vector(type) or is_number(type) or str(type) in ("bool", "null")):
            raise InputError(
                f"Column {name!r} of {path!r} holds {type}, but it must hold numbers or vectors "
                "of numbers: choose another."
            )


def numpy_dtype(type: Any) -> np.dtype[Any]:
    """Return the dtype of the numbers of a column."""
    if is_vector(type):
        return numpy_dtype(type.value_type)
    if str(type) == "null" or require("pyarrow").types.is_decimal(type):
        return np.dtype(np.float64)
    dtype: np.dtype[Any] = np.dtype(type.to_pandas_dtype())
    return dtype


def as_rows(
    batch: Any, names: list[str], dtype: np.dtype[Any], first_row: int, path: str
) -> NDArray[Any]:
    """Return the numbers of a batch; refuse missing ones."""
    rows = np.empty((batch.num_rows, len(names)), dtype)
    for j, name in enumerate(names):
        column = batch.column(name)
        _refuse_missing(column, name, first_row, path)
        rows[:, j] = _values(column)
    return rows


def as_vectors(batch: Any, name: str, width: int | None, first_row: int, path: str) -> NDArray[Any]:
    """Return the vectors of a batch; refuse those that are missing or of another length."""
    column = batch.column(name)
    _refuse_missing(column, name, first_row, path)
    lengths = _values(require("pyarrow.compute").list_value_length(column))
    width = int(lengths[0]) if width is None else width
    if (lengths != width).any():
        bad = int(np.flatnonzero(lengths != width)[0])
        raise InputError(
            f"The vector in row {first_row + bad}, column {name!r} of {path!r} has {lengths[bad]} "
            f"numbers, but that of row 0 has {width}: all must have the same number."
        )
    values = column.flatten()
    if values.null_count:
        bad = int(np.flatnonzero(_values(values.is_null()))[0]) // width
        raise _missing(f"a number of the vector in row {first_row + bad}, column {name!r}", path)
    return _values(values).reshape(len(column), width)


def _refuse_missing(column: Any, name: str, first_row: int, path: str) -> None:
    if column.null_count:
        row = first_row + int(np.flatnonzero(_values(column.is_null()))[0])
        raise _missing(f"row {row}, column {name!r}", path)


def _missing(what: str, path: str) -> InputError:
    return InputError(
        f"The value of {what} of {path!r} is missing, but every value must be there: remove or "
        "fill such rows first, or choose other columns."
    )


def _values(column: Any) -> NDArray[Any]:
    """Return the values of a column that has no missing ones."""
    if require("pyarrow").types.is_decimal(column.type):
        column = column.cast("float64")
    return np.asarray(column.to_numpy(zero_copy_only=False))
