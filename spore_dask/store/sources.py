"""The input: a Zarr array that every process can open by its address.

Rows that a run reads again are compared with what they were. Memory: the rows that are read, and
the chunks that they lie in.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from spore_dask.errors import InputError, SporeError
from spore_dask.patience import hide, patiently
from spore_dask.store.checksums import checksum_of
from spore_dask.store.files import address, find_all, find_files
from spore_dask.store.folders import Folder
from spore_dask.store.zarrs import open_safely, zarr_store

UNREADABLE = (
    RuntimeError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    EOFError,
    OSError,
    zlib.error,
)
"""What decoders raise when bytes are not what they expect."""
VERSIONS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")
"""By what file systems tell that a file has changed, the best first."""


@dataclasses.dataclass(frozen=True)
class Source:
    """The input: where its Zarr array is, and what it looks like."""

    url: str
    shape: tuple[int, int]
    dtype: str
    chunk_rows: int
    """Rows that are read together, because they share a chunk (or shard)."""
    chunk_nbytes: int
    """Bytes of the chunks that hold such rows, decoded."""
    identity: str | None = None
    """What the content is, where that is known; else the files tell."""

    @property
    def is_local(self) -> bool:
        """Whether this is on a disk that this machine has mounted."""
        return Folder(self.url).is_local

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Read the rows [first, last)."""
        if self.identity is not None:  # a copy, which a run has written
            place, _, name = self.url.rpartition("/")
            dtype = np.dtype(self.dtype).newbyteorder("<")
            rows = Folder(place).known_rows(name, self.shape, dtype, self.chunk_rows)
            return rows.read(first, last)
        try:
            return patiently(lambda: np.asarray(open_safely(self.url)[first:last]), self.url)
        except (SporeError, FileNotFoundError):
            raise
        except UNREADABLE as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the disk or the network, not of what is there
            raise InputError(
                f"Rows {first} to {last - 1} of the data at {hide(self.url)!r} cannot be decoded "
                f"({type(error).__name__}: {error}): a chunk of {self.chunk_rows} rows there is "
                "damaged; restore it with its time (cp -p), and call again."
            ) from error

    def read_again(self, first: int, last: int, checksum: int) -> NDArray[Any]:
        """Read rows whose checksum is known; a chunk that is gone reads as zeros."""
        data = self.read(first, last)
        if checksum_of(data) != checksum:
            raise InputError(
                f"Rows {first} to {last - 1} of the data at {hide(self.url)!r} are no longer what "
                "they were when the run first read them: restore what has changed, or is missing, "
                "with its time (cp -p), or give another `out`; then call again."
            )
        return data

    def n_missing(self) -> tuple[int, int]:
        """Return how many chunks are not stored, and how many there should be."""
        if self.identity is not None:
            return 0, 0
        array = open_safely(self.url)
        sizes = array.shards or array.chunks
        n_chunks = math.prod(-(-n // size) for n, size in zip(self.shape, sizes, strict=True))
        names = (name.rsplit("/", 1)[-1] for name in find_all(self.url))
        n_stored = sum(name[-1:].isdigit() for name in names)  # others are about the array
        return max(0, n_chunks - n_stored), n_chunks

    def fingerprint(self) -> str:
        """Return a hash of the names, sizes and times of the files that the array is made of.

        Where a store tells a checksum of each file (its ETag), that counts instead of the time.
        """
        if self.identity is not None:
            return self.identity
        start = len(find_files(self.url)[1])
        lines = [
            f"{name[start:]} {about['size']} "
            f"{next((about[kind] for kind in VERSIONS if about.get(kind)), None)}"
            for name, about in sorted(find_all(self.url).items())
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def open_source(url: str, component: str | None = None) -> Source:
    """Look at an input, without reading its rows.

    Parameters
    ----------
    url : path or URL
        A Zarr array, or a group.
    component : str, optional
        The path of the array in the group.

    Returns
    -------
    Source
        Its `shape` and `dtype`, among others.

    Raises
    ------
    InputError
        If there is no such array, or it has no rows and columns.
    """
    url = address(url)
    find_files(url)
    place = f"{url.rstrip('/')}/{component}" if component else url.rstrip("/")
    hint = ", or a group's path and component='name'"
    return describe(_open(place, place, lambda: _ask_for_array(hint + _arrays_in(url))), place)


def open_column(url: str) -> zarr.Array[Any]:
    """Open an array of one number a row by its address."""
    place = address(url)
    return _open(place, place, _ask_for_array)


def open_zarr(url: str) -> zarr.Array[Any]:
    """Open any Zarr array by its address."""
    return _open(address(url), url, lambda: "check the path")


def _open(place: str, shown: str, advice: Callable[[], str]) -> zarr.Array[Any]:
    """Open an array, or say that there is none, and what to do then."""
    try:
        return open_safely(place)
    except InputError:
        raise
    except (FileNotFoundError, KeyError, ValueError, zarr.errors.BaseZarrError) as error:
        raise InputError(
            f"There is no Zarr array at {shown!r} ({type(error).__name__}): {advice()}."
        ) from None


def _ask_for_array(hint: str = "") -> str:
    """Say what may be given as input."""
    return f"give the path of an array{hint}; files of other kinds are to be imported first"


def _arrays_in(url: str) -> str:
    """Name the arrays of a group, for an error message."""
    try:
        group = zarr.open_group(zarr_store(url), mode="r")
        members = group.members(max_depth=None)
        names = sorted(name for name, member in members if isinstance(member, zarr.Array))[:8]
    except Exception:
        return ""
    return f" (here {', '.join(names)})" if names else ""


def describe(array: zarr.Array[Any], place: str) -> Source:
    """Return the source that an open array is."""
    if array.ndim != 2 or array.shape[1] == 0:
        raise InputError(
            f"The array at {place!r} has shape {array.shape}, but it must be (points, columns) "
            "with at least one column."
        )
    rows, columns = array.shards or array.chunks
    across = -(-array.shape[1] // columns) * columns
    return Source(
        url=place,
        shape=(int(array.shape[0]), int(array.shape[1])),
        dtype=array.dtype.str,
        chunk_rows=int(min(rows, max(1, array.shape[0]))),
        chunk_nbytes=int(rows * across * array.dtype.itemsize),
    )


def address_of(array: zarr.Array[Any]) -> str | None:
    """Return an address by which other processes can open an array; None if there is none."""
    store, path = array.store_path.store, array.store_path.path
    if isinstance(store, zarr.storage.LocalStore):
        root = str(store.root)
    elif isinstance(store, zarr.storage.FsspecStore):
        root = store.fs.unstrip_protocol(store.path)
    else:
        return None
    return address(f"{root}/{path}")
