"""Which kind of file a path is, by its suffix.

Looks at names only. Memory: nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from spore_dask.errors import InputError
from spore_dask.formats.csv import open_csv
from spore_dask.formats.hdf5 import open_hdf5
from spore_dask.formats.matrix import Asked, Matrix
from spore_dask.formats.npy import open_npy, open_npz
from spore_dask.formats.parquet import open_parquet

KINDS: dict[str, Callable[[Asked], Matrix]] = {
    ".csv.gz": open_csv,
    ".tsv.gz": open_csv,
    ".csv": open_csv,
    ".tsv": open_csv,
    ".npy": open_npy,
    ".npz": open_npz,
    ".parquet": open_parquet,
    ".pq": open_parquet,
    ".h5": open_hdf5,
    ".hdf5": open_hdf5,
    ".h5ad": open_hdf5,
}


def suffix_of(path: str) -> str:
    """Return the suffix that tells what a file is; "" if it has none of those that are known."""
    name = path.lower()
    return next((suffix for suffix in KINDS if name.endswith(suffix)), "")


def is_zarr(path: str) -> bool:
    """Tell whether a folder is an array or a group of Zarr."""
    return any(os.path.exists(f"{path}/{name}") for name in ("zarr.json", ".zarray", ".zgroup"))


def find_kind(path: str) -> Callable[[Asked], Matrix]:
    """Return what opens a file; a folder is one of Parquet files."""
    if os.path.isdir(path):
        if is_zarr(path):
            raise InputError(f"{path!r} is Zarr already: give it to spore_dask.fit as it is.")
        return open_parquet
    suffix = suffix_of(path)
    if not suffix:
        raise InputError(
            f"{path!r} has no suffix that tells what it is: import reads {', '.join(KINDS)} and "
            "folders of .parquet."
        )
    is_pattern = KINDS[suffix] is open_parquet and any(mark in path for mark in "*?[")
    if not os.path.exists(path) and not is_pattern:
        raise InputError(f"There is no file {path!r}: check the path.")
    return KINDS[suffix]
