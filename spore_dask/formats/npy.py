"""Files of numpy: .npy, and .npz with several of them.

Arrays are read with plain reads, not mapped: what is mapped would count as this process's memory.
A member of an .npz file is a stream, which is read as it is decompressed; one that is stored by
columns goes to a temporary file first. Memory: a block; by columns, blocks of 32 MiB.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
import zipfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.errors import InputError
from spore_dask.formats.matrix import (
    Asked,
    Matrix,
    check_numbers,
    native,
    only_one,
    ranges,
    refuse_columns,
    refuse_component,
)

BY_COLUMNS_NBYTES = 32 << 20
"""Rows that are read together where columns lie one behind the other."""
COPY_NBYTES = 1 << 20
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclasses.dataclass(frozen=True)
class Header:
    """What is at the beginning of an .npy file."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]
    nbytes: int
    """Bytes of the header itself."""


def read_header(file: IO[bytes]) -> Header:
    """Read the header of an .npy file from its beginning."""
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"version {version} of .npy is for records, not for tables of numbers")
    shape, by_columns, dtype = HEADERS[version](file)
    return Header(shape, by_columns and len(shape) > 1, dtype, file.tell())


def open_npy(asked: Asked) -> Matrix:
    """Open an .npy file."""
    refuse_columns(asked)
    refuse_component(asked)
    with open(asked.path, "rb") as file:
        header = read_header(file)
        check_numbers(f"The array in {asked.path!r}", header.shape, header.dtype)
        data_nbytes = file.seek(0, 2) - header.nbytes
    if data_nbytes < math.prod(header.shape) * header.dtype.itemsize:
        raise InputError(
            f"{asked.path!r} ends too early: it has {data_nbytes} bytes of numbers, but shape "
            f"{header.shape} and dtype {header.dtype} need "
            f"{math.prod(header.shape) * header.dtype.itemsize}; write it again."
        )

    def blocks(rows: int) -> Iterator[NDArray[Any]]:
        with open(asked.path, "rb") as file:
            yield from _read_file(file, header, rows)

    return _matrix(header, blocks)


def _matrix(header: Header, blocks: Any) -> Matrix:
    """Return the matrix that a header describes."""
    n_rows, n_columns = header.shape
    dtype = header.dtype.newbyteorder("=")
    reading_nbytes = 2 * BY_COLUMNS_NBYTES if header.by_columns else 0
    return Matrix(n_rows, n_columns, dtype, blocks, reading_nbytes)


def _read_file(file: IO[bytes], header: Header, rows: int) -> Iterator[NDArray[Any]]:
    """Yield blocks of rows of an array in a file."""
    n_rows, n_columns = header.shape
    if not header.by_columns:
        file.seek(header.nbytes)
        yield from _read_stream(file, header, rows)
        return
    itemsize = header.dtype.itemsize
    rows = max(rows, BY_COLUMNS_NBYTES // (n_columns * itemsize))
    for first, last in ranges(n_rows, rows):
        block = np.empty((n_columns, last - first), header.dtype)
        for j in range(n_columns):
            file.seek(header.nbytes + (j * n_rows + first) * itemsize)
            block[j] = np.frombuffer(_read_exactly(file, (last - first) * itemsize), header.dtype)
        yield native(block.T)


def _read_stream(file: IO[bytes], header: Header, rows: int) -> Iterator[NDArray[Any]]:
    """Yield blocks of rows of an array whose bytes come one after another."""
    row_shape = header.shape[1:]
    row_nbytes = math.prod(row_shape) * header.dtype.itemsize
    for first, last in ranges(header.shape[0], rows):
        content = _read_exactly(file, (last - first) * row_nbytes)
        yield native(np.frombuffer(content, header.dtype).reshape(last - first, *row_shape))


def _read_exactly(file: IO[bytes], nbytes: int) -> bytes:
    content = file.read(nbytes)
    if len(content) < nbytes:
        raise EOFError(f"it ends {nbytes - len(content)} bytes too early")
    return content


def open_npz(asked: Asked) -> Matrix:
    """Open the array of an .npz file that is meant."""
    refuse_columns(asked)
    with zipfile.ZipFile(asked.path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        headers = {}
        for name in names:
            with archive.open(name) as file, contextlib.suppress(ValueError):
                headers[name.removesuffix(".npy")] = read_header(file)
    name = only_one(asked, {name: header.shape for name, header in headers.items()})
    header = headers[name]
    check_numbers(f"The array {name!r} in {asked.path!r}", header.shape, header.dtype)

    def blocks(rows: int) -> Iterator[NDArray[Any]]:
        with zipfile.ZipFile(asked.path) as archive, archive.open(f"{name}.npy") as member:
            if not header.by_columns:
                _read_exactly(member, header.nbytes)
                yield from _read_stream(member, header, rows)
                return
            with tempfile.TemporaryFile(dir=asked.scratch) as file:
                while content := member.read(COPY_NBYTES):
                    file.write(content)
                yield from _read_file(file, header, rows)

    return _matrix(header, blocks)


def read_vector(path: str, step: int) -> tuple[int, Iterator[NDArray[Any]]]:
    """Return the length of a one-dimensional .npy file, and its values in blocks."""
    with open(path, "rb") as file:
        header = read_header(file)
    if len(header.shape) != 1 or header.dtype.kind not in "iufbUS":
        raise InputError(
            f"The array in {path!r} has shape {header.shape} and dtype {header.dtype}, but ids "
            "must be one-dimensional, of numbers or text."
        )

    def blocks() -> Iterator[NDArray[Any]]:
        with open(path, "rb") as file:
            file.seek(header.nbytes)
            yield from _read_stream(file, header, step)

    return header.shape[0], blocks()
