"""Folders of arrays: the place where a run keeps its data.

Arrays that many tasks write, or that users read, are Zarr. Those of a graph are not compressed,
because what a run writes is read again soon and hardly shrinks; a chunk then is just the bytes of
its rows: see `rows`. Arrays that one task writes and others read as a whole are .npy files, which
open ten times as fast. Whole chunks are written at once. Memory: what is read or written.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Self

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from spore_dask.errors import DamagedError
from spore_dask.patience import patiently
from spore_dask.store.checksums import CHECKSUM_NBYTES, file_checksum
from spore_dask.store.disks import read_file, room_for
from spore_dask.store.files import address
from spore_dask.store.limits import Limits, broken_form
from spore_dask.store.npy import as_array, fetch_npy, header_of
from spore_dask.store.plain import PlainFolder
from spore_dask.store.rows import RowArray, write_rows, write_some_rows
from spore_dask.store.zarrs import open_safely, zarr_store
from spore_dask.threads import in_threads

CHUNK_ROWS = 1 << 18
"""Rows of a chunk where one process writes all of them."""
N_WRITERS = 4
"""Threads that write chunks."""
ROWS = "rows.json"
"""Says how the rows of an array lie in its chunks, as its Zarr metadata do, but checked."""


@dataclasses.dataclass(frozen=True)
class Folder(PlainFolder):
    """A folder of arrays, documents and further folders, named by its address."""

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Self:
        """Return the folder at a path or URL, which then means the same in every process."""
        return cls(address(path))

    def arrays(self) -> list[str]:
        """List the arrays that `write_array` has written, in this folder and those in it."""
        start = len(self._place()) + 1
        return sorted(
            name[start:].removesuffix(".npy") for name in self._sizes() if name.endswith(".npy")
        )

    def write_array(self, name: str, array: NDArray[Any]) -> None:
        """Write an array that is read as a whole: an .npy file, and the checksum of all that."""
        data = np.ascontiguousarray(array)
        header, content = header_of(data), data.reshape(-1).view(np.uint8)
        checksum = file_checksum(header, content)
        self.write_bytes(f"{name}.npy", header, content.data, checksum)

    def read_array(
        self,
        name: str,
        *,
        shape: tuple[int | None, ...] | None = None,
        dtype: Any = None,
        limits: Limits | None = None,
    ) -> NDArray[Any]:
        """Read what `write_array` has written, and refuse it if it is not of some form.

        Parameters
        ----------
        name : str
        shape : tuple of int or None, optional
            The shape that it must have; None for lengths that may be any.
        dtype : optional
            The dtype that it must have.
        limits : Limits, optional
            The numbers that it may have.
        """
        try:
            content = self._read_buffer(f"{name}.npy")
        except FileNotFoundError:
            raise self.damaged("array", f"{name}.npy", "it is not there") from None
        except DamagedError as error:
            raise self.damaged("array", f"{name}.npy", error.what) from None
        content, checksum = np.split(content, [max(0, len(content) - CHECKSUM_NBYTES)])
        if file_checksum(content) != checksum.tobytes():
            raise self.damaged("array", f"{name}.npy", "its checksum is wrong")
        try:
            array = as_array(content)
        except (TypeError, ValueError) as error:
            raise self.damaged("array", f"{name}.npy", str(error)) from None
        if why := broken_form(array, shape, dtype, limits):
            raise self.damaged("array", f"{name}.npy", why)
        return array

    def _read_buffer(self, name: str) -> NDArray[np.uint8]:
        """Read the file of an array into memory that can be written to."""
        place = self._place(name)
        if self.is_local:
            return patiently(lambda: read_file(place), self.url)
        return fetch_npy(self._files[0], place, self.url)

    def write_rows(self, name: str, rows: NDArray[Any], n_missing: int = 0) -> None:
        """Write rows as plain bytes, for `RowFiles`, and beside them their checksums.

        Zeros take the place of `n_missing` further rows.
        """
        write_rows(self, name, rows, n_missing)

    def write_some_rows(self, name: str, rows: NDArray[Any], places: NDArray[np.int64]) -> None:
        """Write the rows at some places, for `RowFiles`, without a copy of all of them."""
        write_some_rows(self, name, rows, places)

    def create_rows(
        self, name: str, shape: tuple[int, ...], dtype: Any, chunk_rows: int
    ) -> RowArray:
        """Create a Zarr array in chunks of rows, each written by one task; once is enough."""
        chunk_rows = max(1, min(chunk_rows, shape[0]))
        if not self.exists(f"{name}/{ROWS}"):
            with room_for(self.child(name).url):
                zarr.create_array(
                    zarr_store(self.child(name).url),
                    shape=shape,
                    dtype=dtype,
                    chunks=(chunk_rows, *shape[1:]),
                    compressors=None,
                    fill_value=0,
                    zarr_format=3,
                    overwrite=True,
                )
            known = {"shape": shape, "dtype": np.dtype(dtype).str, "chunk_rows": chunk_rows}
            self.child(name).write_json(ROWS, known)
        return self.known_rows(name, shape, dtype, chunk_rows)

    def write_all_rows(self, name: str, rows: NDArray[Any]) -> None:
        """Create a Zarr array as `create_rows` does, and write all its chunks."""
        target = self.create_rows(name, rows.shape, rows.dtype, CHUNK_ROWS)

        def write(first: int) -> None:
            target.write(first, rows[first : first + target.chunk_rows])

        in_threads(write, range(0, len(rows), target.chunk_rows), N_WRITERS)

    def open_rows(
        self,
        name: str,
        shape: tuple[int, ...] | None = None,
        dtype: Any = None,
        limits: Limits | None = None,
    ) -> RowArray:
        """Open what `create_rows` has created; see `read_array` for what it must be."""
        known = self.child(name).read_json(ROWS)
        if known is None:
            raise self.damaged("array", name, "it is not there")
        with self.child(name).understood(ROWS):
            found = tuple(map(int, known["shape"])), np.dtype(known["dtype"])
            chunk_rows = int(known["chunk_rows"])
            if min(*found[0], chunk_rows - 1) < 0:
                raise ValueError(f"shape {found[0]} in chunks of {chunk_rows}")
            if shape not in (None, found[0]) or (dtype is not None and found[1] != dtype):
                wanted = shape or found[0], found[1] if dtype is None else np.dtype(dtype)
                raise ValueError("{} of {}, but it must be {} of {}".format(*found, *wanted))
        return self.known_rows(name, *found, chunk_rows, limits)

    def row_arrays(self) -> list[RowArray]:
        """Open everything in this folder that `create_rows` has created."""
        return [self.open_rows(name) for name in self.names() if self.exists(f"{name}/{ROWS}")]

    def known_rows(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: Any,
        chunk_rows: int,
        limits: Limits | None = None,
    ) -> RowArray:
        """Return what `create_rows` has created, without a look at the disk."""
        starts = np.append(np.arange(0, shape[0], chunk_rows), shape[0])
        across = "/0" * (len(shape) - 1)
        names = tuple(f"c/{i}{across}" for i in range(len(starts) - 1))
        return RowArray(self.child(name), names, starts, shape[1:], np.dtype(dtype), limits)

    def open_array(self, name: str) -> zarr.Array[Any]:
        """Open a Zarr array to read."""
        return open_safely(self.child(name).url, zarr_format=3)

    def write_zarr(
        self, name: str, array: NDArray[Any], chunk_rows: int, fill_value: Any = 0
    ) -> None:
        """Write a Zarr array for users: compressed, in chunks of rows; what was there goes.

        Chunks have a checksum, so that any reader notices damage. What is missing later reads as
        `fill_value`.
        """
        with room_for(self.child(name).url, array.nbytes):
            zarr.create_array(
                zarr_store(self.child(name).url),
                shape=array.shape,
                dtype=array.dtype,
                chunks=(max(1, min(chunk_rows, len(array))), *array.shape[1:]),
                fill_value=fill_value,
                compressors=[ZstdCodec(), Crc32cCodec()],
                zarr_format=3,
                overwrite=True,
                config={"write_empty_chunks": True},
            )[...] = array

    def append_zarr(
        self, name: str, rows: NDArray[Any], about: dict[str, Any], *, fill_value: Any = 0
    ) -> None:
        """Append a chunk of rows to a Zarr array for users; the first one creates it.

        All but the last must have as many rows as the first.

        Parameters
        ----------
        name : str
        rows : array (rows, ...)
        about : dict
            What is noted in the array's attributes.
        fill_value : number, optional
            What a chunk that is missing later reads as.
        """
        place = zarr_store(self.child(name).url)
        with room_for(self.child(name).url, rows.nbytes):
            if not self.exists(f"{name}/zarr.json"):
                zarr.create_array(
                    place,
                    shape=(0, *rows.shape[1:]),
                    dtype=rows.dtype,
                    chunks=rows.shape,
                    attributes=about,
                    fill_value=fill_value,
                    zarr_format=3,
                    config={"write_empty_chunks": True},
                )
            zarr.open_array(place, mode="r+", config={"write_empty_chunks": True}).append(rows)
