"""The input: a Zarr array that every process can open by its address.

Rows that a run reads again are compared with what they were. Memory: the rows that are read, and
the chunks that they lie in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from spore_dask.errors import InputError, SporeError
from spore_dask.memory import Chunks
from spore_dask.patience import hide, patiently
from spore_dask.store.checksums import checksum_of
from spore_dask.store.files import address, find_all, find_files, is_url
from spore_dask.store.folders import Folder
from spore_dask.store.zarrs import open_safely, zarr_store
from spore_dask.threads import in_threads

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
VERSIONS = (
    *("ETag", "etag", "mtime", "LastModified", "Last-Modified", "last_modified"),
    *("updated", "created"),
)
"""By what file systems tell that a file has changed, the best first."""
REQUESTS_AT_ONCE = 16


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
    decoding_nbytes: int
    """What decoding them takes, beside the rows."""
    identity: str
    """What the content was when the source was opened: see `identity_of`."""
    is_copy: bool = False
    """Whether a run has written it, and named it by its content."""

    @property
    def is_local(self) -> bool:
        """Whether this is on a disk that this machine has mounted."""
        return Folder(self.url).is_local

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Read the rows [first, last)."""
        if self.is_copy:
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
                "with its time (cp -p), or give another `out`, or resume=False to read all again."
            )
        return data

    def n_missing(self) -> tuple[int, int]:
        """Return how many chunks are not stored, and how many there should be."""
        files = {} if self.is_copy else _listed(self.url)
        if not files:
            return 0, 0
        n_chunks = math.prod(_grid(open_safely(self.url)))
        names = (name.rsplit("/", 1)[-1] for name in files)
        n_stored = sum(name[-1:].isdigit() for name in names)  # others are about the array
        return max(0, n_chunks - n_stored), n_chunks

    def confirm(self) -> None:
        """Raise `InputError` unless the data is still what it was when it was opened.

        Called before anything is claimed for it.
        """
        now = ""
        with contextlib.suppress(InputError, FileNotFoundError):  # it may be gone
            now = self.identity if self.is_copy else identity_of(self.url)
        if now != self.identity:
            raise InputError(
                f"The data at {hide(self.url)!r} changed while this call worked on it, so nothing "
                "was claimed for it: restore it with its times (cp -p) and call again, or give "
                "another `out`."
            )


def identity_of(url: str) -> str:
    """Return a hash of the names, sizes and times of the files that an array is made of.

    Where a store has a checksum of each file (its ETag), that counts instead of the time. A store
    that does not list its files is asked about each chunk; if it says nothing of its version
    either, the content of the chunk counts.
    """
    start = len(find_files(url)[1])
    found = {name[start:]: _version(about) for name, about in _listed(url).items()}
    if not found or "" in found.values():
        found = _versions_of_chunks(url)
    lines = [f"{name} {version}" for name, version in sorted(found.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _listed(url: str) -> dict[str, dict[str, Any]]:
    """Return what a store lists under an address; nothing where it does not list.

    On this machine's disks links are followed: a chunk, or a folder of them, may be elsewhere.
    """
    if not is_url(url):
        found = {}
        for folder, _, names in os.walk(url, followlinks=True):
            for path in (f"{folder}/{name}" for name in names):
                with contextlib.suppress(FileNotFoundError):  # it is gone, or a link to nothing
                    about = os.stat(path)
                    found[path] = {"size": about.st_size, "mtime": about.st_mtime_ns}
        return found
    try:
        return find_all(url)
    except (SporeError, PermissionError):
        raise
    except Exception:  # whatever a library makes of a server that refuses to list
        return {}


def _version(about: dict[str, Any]) -> str:
    """Return the size and the version of a file; "" if a store does not say that."""
    version = next((about[kind] for kind in VERSIONS if about.get(kind)), None)
    return "" if version is None else f"{about['size']} {version}"


def _grid(array: zarr.Array[Any]) -> list[int]:
    """Return how many stored chunks (or shards) there are along each axis."""
    sizes = array.shards or array.chunks
    return [-(-n // size) for n, size in zip(array.shape, sizes, strict=True)]


def _versions_of_chunks(url: str) -> dict[str, str]:
    """Return the metadata of an array, and the version of each of its chunks, by its name."""
    files, path = find_files(url)
    array = open_safely(url)
    places = itertools.product(*map(range, _grid(array)))
    names = [array.metadata.encode_chunk_key(place) for place in places]

    def ask(name: str) -> str:
        try:
            return _version(patiently(functools.partial(files.info, f"{path}/{name}"), url))
        except FileNotFoundError:  # a chunk of nothing but the fill value
            return "absent"

    found = dict(zip(names, in_threads(ask, names, REQUESTS_AT_ONCE), strict=True))
    for name, version in found.items():
        if not version:  # one chunk at a time is in memory
            content = patiently(functools.partial(files.cat_file, f"{path}/{name}"), url)
            found[name] = hashlib.sha256(content).hexdigest()
    return found | {"metadata": json.dumps(array.metadata.to_dict(), default=str)}


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
        Its `shape`, `dtype` and `identity`, for which all its files are listed.

    Raises
    ------
    InputError
        If there is no such array, or it has no rows and columns.
    """
    url = address(url)
    place = f"{url.rstrip('/')}/{component}" if component else url.rstrip("/")
    hint = ", or a group's path and component='name'"
    _open(place, place, lambda: _ask_for_array(hint + _arrays_in(url)))
    identity = identity_of(place)
    # Opened again: if the data was replaced since, `confirm` will find another identity.
    return _describe(open_safely(place), place, identity)


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


def _describe(array: zarr.Array[Any], place: str, identity: str) -> Source:
    """Return the source that an open array is."""
    if array.ndim != 2 or array.shape[1] == 0:
        raise InputError(
            f"The array at {place!r} has shape {array.shape}, but it must be (points, columns) "
            "with at least one column."
        )
    chunks = chunks_of(array)
    return Source(
        url=place,
        shape=(int(array.shape[0]), int(array.shape[1])),
        dtype=array.dtype.str,
        chunk_rows=chunks.rows,
        chunk_nbytes=chunks.nbytes,
        decoding_nbytes=chunks.decoding_nbytes,
        identity=identity,
    )


def chunks_of(array: zarr.Array[Any]) -> Chunks:
    """Return what is read together of an array, and what that takes."""
    is_gzip = any("gzip" in type(codec).__name__.lower() for codec in array.compressors)
    n_copies = 2 + is_gzip + bool(array.filters)
    return Chunks.of(array.shape, array.dtype.itemsize, array.chunks, array.shards, n_copies)


def address_of(array: zarr.Array[Any]) -> str | None:
    """Return an address by which other processes can open an array; None if there is none."""
    store, path = array.store_path.store, array.store_path.path
    if isinstance(store, zarr.storage.LocalStore):
        root = os.path.abspath(store.root)  # a ~ in it is a name, as Zarr takes it
    elif isinstance(store, zarr.storage.FsspecStore):
        root = store.fs.unstrip_protocol(store.path)
    else:
        return None
    return address(f"{root}/{path}")
