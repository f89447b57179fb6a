"""HDF5 files, and those of AnnData (.h5ad) among them.

A dense dataset is read in ranges of rows, whole chunks of the file where they are small. A sparse
matrix by rows (CSR) is made dense a block at a time; by columns (CSC) it is refused, because any
row is all over the file. Memory: a block, and two chunks of the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse  # type: ignore[import-untyped]
from numpy.typing import NDArray

from spore_dask.errors import InputError
from spore_dask.formats.matrix import (
    Asked,
    Matrix,
    check_numbers,
    listed,
    native,
    only_one,
    ranges,
    refuse_columns,
    require,
)

TOGETHER_NBYTES = 32 << 20
"""Whole chunks of a file are read up to this size."""
ANNDATA = ("obsm/X_pca", "X")
"""What is taken of an AnnData file: the first of these that is there."""
CACHE_NBYTES = 1 << 20
"""HDF5's own cache of a dataset."""
NARROWED_NBYTES = 4
"""A column's number as scipy holds it."""


def open_hdf5(asked: Asked) -> Matrix:
    """Open a dataset of an HDF5 file, or a matrix of an AnnData file."""
    refuse_columns(asked)
    h5py = require("h5py")
    with h5py.File(asked.path, "r") as file:
        name = _find(file, asked)
        found = file[name]
        if isinstance(found, h5py.Dataset):
            return _dense(asked.path, name, found)
        kind = found.attrs.get("encoding-type")
        if kind == "csr_matrix":
            return _sparse(asked.path, name, found)
        if kind == "csc_matrix":
            raise InputError(
                f"{name!r} in {asked.path!r} is sparse by columns (CSC), where no row can be read "
                "without all of it: write it by rows with adata.X = adata.X.tocsr(), or choose "
                "another component."
            )
        raise InputError(
            f"{name!r} in {asked.path!r} is a group, not a matrix: give component= one of "
            f"{_listed(found, name)}."
        )


def _find(file: Any, asked: Asked) -> str:
    """Return the name of what is meant."""
    if asked.component is None and asked.path.lower().endswith(".h5ad"):
        for name in ANNDATA:
            if name in file:
                return name
    if asked.component is not None and asked.component in file:
        return asked.component
    return only_one(asked, _datasets(file))


def _datasets(group: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of each dataset in a group, and in those in it."""
    found: dict[str, tuple[int, ...]] = {}

    def visit(name: str, item: Any) -> None:
        if getattr(item, "shape", None) is not None:
            found[name] = item.shape

    group.visititems(visit)
    return found


def _listed(group: Any, name: str) -> str:
    """Name the matrices in a group, for a message."""
    names = [f"{name}/{inner}" for inner, shape in _datasets(group).items() if len(shape) == 2]
    return listed(names)


def _dense(path: str, name: str, data: Any) -> Matrix:
    """Return the matrix that a dataset is."""
    check_numbers(f"The dataset {name!r} in {path!r}", data.shape, data.dtype)
    n_rows, n_columns = data.shape
    dtype = data.dtype.newbyteorder("=")
    chunk = data.chunks or (1, 0)
    whole_nbytes = chunk[0] * n_columns * dtype.itemsize
    whole_rows = chunk[0] if whole_nbytes <= TOGETHER_NBYTES else 1

    def blocks(rows: int) -> Iterator[NDArray[Any]]:
        step = -(-rows // whole_rows) * whole_rows
        with require("h5py").File(path, "r") as file:
            for first, last in ranges(n_rows, step):
                yield native(file[name][first:last])

    chunk_nbytes = math.prod(chunk) * dtype.itemsize
    together_nbytes = whole_nbytes if whole_rows > 1 else 0
    reading_nbytes = CACHE_NBYTES + 2 * chunk_nbytes + together_nbytes
    return Matrix(n_rows, n_columns, dtype, blocks, reading_nbytes)


def _sparse(path: str, name: str, group: Any) -> Matrix:
    """Return the matrix that a sparse one by rows stands for."""
    shape = tuple(int(n) for n in group.attrs["shape"])
    dtype = group["data"].dtype.newbyteorder("=")
    check_numbers(f"The sparse matrix {name!r} in {path!r}", shape, dtype)
    n_rows, n_columns = shape

    def blocks(rows: int) -> Iterator[NDArray[Any]]:
        with require("h5py").File(path, "r") as file:
            for first, last in ranges(n_rows, rows):
                yield _dense_rows(file[name], first, last, n_columns)

    parts = [group["data"], group["indices"]]
    chunks_nbytes = sum(math.prod(part.chunks or (0,)) * part.dtype.itemsize for part in parts)
    entry_nbytes = sum(part.dtype.itemsize for part in parts) + NARROWED_NBYTES
    return Matrix(
        n_rows,
        n_columns,
        dtype,
        blocks,
        reading_nbytes=2 * CACHE_NBYTES + 2 * chunks_nbytes,
        row_reading_nbytes=n_columns * entry_nbytes,
    )


def _dense_rows(group: Any, first: int, last: int, n_columns: int) -> NDArray[Any]:
    """Return the rows [first, last) of a sparse matrix."""
    starts = native(group["indptr"][first : last + 1])
    if (np.diff(starts) < 0).any():
        raise ValueError(f"the sparse matrix has bad row starts between rows {first} and {last}")
    values = native(group["data"][starts[0] : starts[-1]])
    columns = native(group["indices"][starts[0] : starts[-1]])
    if len(columns) and not 0 <= columns.min() <= columns.max() < n_columns:
        raise ValueError(f"the sparse matrix has columns outside [0, {n_columns})")
    shape = last - first, n_columns
    rows = scipy.sparse.csr_matrix((values, columns, starts - starts[0]), shape)
    return np.asarray(rows.toarray())
