"""Where a run keeps its data: the only module that knows Zarr and file systems.

A `Folder` is a directory or a prefix in an object store. Arrays that many tasks write, or that
users read, are Zarr. Those of a graph are not compressed, because what a run writes is read again
soon and hardly shrinks; a chunk then is just the bytes of its rows, which a `RowArray` writes
without a copy and reads row by row. Arrays that one task writes and others read as a whole are .npy
files, which open ten times as fast. Whole chunks are written at once, and on local disks files
appear whole or not at all.
Whatever is read of a run is compared with checksums first: those of .npy files and documents are
inside, those of rows beside them, in `checks/`, one for each block of a few rows.
A `Source` is the input: a Zarr array that every process can open by its address.

Object stores are reached through fsspec, with what the environment of each process says: an address
has no secrets, so that tasks and documents have none. What a store refuses for a moment is tried
again, here and nowhere else: see `patience`. Nothing that is read is ever unpickled, and names
lead nowhere but into their folder. Memory: what is read or written; from and to object stores
`PART_NBYTES` more, a few times.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import hashlib
import io
import json
import math
import os
import re
import shutil
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import fsspec
import numpy as np
import zarr
import zarr.abc.store
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from numpy.typing import NDArray

from spore_dask.errors import DamagedError, FullDiskError, InputError, SporeError
from spore_dask.memory import PAGE_ROWS
from spore_dask.patience import hide, patiently, wait_after, waits_between

PARTIAL = ".partial"
CHECKS = "checks"
"""Folder of the checksums of files of rows, beside these."""
CHECKSUM = "crc32"
"""Where a document has its checksum."""
CHECKSUM_NBYTES = 4
BLOCK_NBYTES = 1024
"""Rows of few bytes that share a checksum; of others, those of a page do."""
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
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
HEADER_NBYTES = 4096
"""More than the header of any .npy file of ours."""
ROWS = "rows.json"
"""Says how the rows of an array lie in its chunks, as its Zarr metadata do, but checked."""
PART_NBYTES = 16 << 20
"""What is asked of an object store, or given to it, at a time."""
GAP_NBYTES = 64 << 10
"""Bytes between two wanted ranges that are read along, because another request takes longer."""
RANGES_AT_ONCE = 64

TIMEOUT_SECONDS = 15.0
"""Time without a byte after which a request to S3 has failed."""

PACKAGES = {
    "s3": "'spore-dask[s3]'",
    "s3a": "'spore-dask[s3]'",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
    "sftp": "paramiko",
    "ssh": "paramiko",
}
"""What reaches a kind of store, by the beginning of its addresses."""
FIRST_PART_MAY_BE_SECRET = {"s3", "s3a", "gs", "gcs", "http", "https"}
"""Kinds of addresses in which a name before an @ is a key, if anything."""

Part = tuple[str, int, int]
"""A file, its first byte that is wanted, and how many bytes are."""
ResultType = TypeVar("ResultType")


def _protocol(url: str) -> str:
    """Return what an address begins with; nothing for a path of this machine."""
    return url.partition("://")[0] if "://" in url else ""


def _options(url: str) -> dict[str, Any]:
    """Return how to reach a store. Listings are never answered from memory: others write too."""
    protocol = _protocol(url)
    if not protocol or "::" in url:
        return {}
    options: dict[str, Any] = {"use_listings_cache": False}
    if protocol in ("s3", "s3a"):
        times = {"connect_timeout": TIMEOUT_SECONDS, "read_timeout": TIMEOUT_SECONDS}
        retries = {"mode": "standard", "total_max_attempts": 2}  # of each part of a large file
        options["config_kwargs"] = {**times, "retries": retries}
        options["max_concurrency"] = 1  # else the size of each file is asked for, before it is read
    return options


def _once(files: Any) -> Any:
    """Return a file system that leaves it to us to try again."""
    if "s3" in files.protocol:
        files.retries = 1
    return files


@functools.lru_cache(maxsize=256)
def _find_files(url: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path there."""
    try:
        files, path = fsspec.core.url_to_fs(url, **_options(url))
    except ImportError as error:
        package = PACKAGES.get(_protocol(url))
        remedy = f"pip install {package}" if package else str(error).rstrip(".")
        raise InputError(
            f"{hide(url)!r} needs a library that is not installed ({type(error).__name__}): "
            f"{remedy}, here and on every worker."
        ) from None
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise InputError(f"{hide(url)!r} cannot be opened: {hide(reason)}.") from None
    return _once(files), path.rstrip("/")


class _PatientStore(zarr.storage.FsspecStore):
    """A Zarr store whose requests are tried again like all others, over the same connections."""

    def __init__(self, fs: Any, read_only: bool = False, path: str = "/", **_: Any) -> None:
        zarr.abc.store.Store.__init__(self, read_only=read_only)
        self.fs, self.path = fs, path
        self.allowed_exceptions = (FileNotFoundError, IsADirectoryError, NotADirectoryError)

    async def _patiently(self, action: Callable[[], Coroutine[Any, Any, ResultType]]) -> ResultType:
        waits = waits_between()
        while True:
            try:
                if self.fs.asynchronous:
                    return await action()
                there = asyncio.run_coroutine_threadsafe(action(), self.fs.loop)
                return await asyncio.wrap_future(there)
            except Exception as error:
                wait = wait_after(error, waits, self.fs.unstrip_protocol(self.path))
            await asyncio.sleep(wait)

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        """Read a value; None if it is not there."""
        return await self._patiently(functools.partial(super().get, key, *args, **options))

    async def get_partial_values(self, *args: Any, **options: Any) -> Any:
        """Read parts of values."""
        read = functools.partial(super().get_partial_values, *args, **options)
        return await self._patiently(read)

    async def set(self, key: str, *args: Any, **options: Any) -> None:
        """Write a value."""
        try:
            await self._patiently(functools.partial(super().set, key, *args, **options))
        except FileNotFoundError as error:
            raise _no_place(self.fs.unstrip_protocol(self.path), error) from None

    async def exists(self, key: str) -> bool:
        """Tell whether there is a value."""

        async def ask() -> bool:
            try:
                await self.fs._info(f"{self.path}/{key}")
            except FileNotFoundError:
                return False
            return True

        return await self._patiently(ask)

    async def delete(self, key: str) -> None:
        """Remove a value."""
        await self._patiently(functools.partial(super().delete, key))

    async def delete_dir(self, prefix: str) -> None:
        """Remove what begins with a prefix."""
        await self._patiently(functools.partial(super().delete_dir, prefix))

    async def clear(self) -> None:
        """Remove everything."""
        await self._patiently(super().clear)

    async def getsize(self, key: str) -> int:
        """Return the bytes of a value."""
        return await self._patiently(functools.partial(super().getsize, key))

    async def list(self) -> AsyncIterator[str]:
        """List all values."""
        for name in await self._collected(super().list):
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """List the values that begin with a prefix."""
        for name in await self._collected(functools.partial(super().list_prefix, prefix)):
            yield name

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """List what is in a group."""
        for name in await self._collected(functools.partial(super().list_dir, prefix)):
            yield name

    async def _collected(self, find: Callable[[], AsyncIterator[str]]) -> Sequence[str]:
        """Return all names at once: each request is to be made where the connections are."""

        async def collect() -> Sequence[str]:
            return [name async for name in find()]

        return await self._patiently(collect)


def _no_place(url: str, error: OSError) -> InputError:
    return InputError(
        f"{hide(url)!r} cannot be written to ({error}): create its bucket, or the disk that it is "
        "on, first."
    )


def _zarr_store(url: str) -> Any:
    """Return what Zarr reads and writes an address through."""
    files, path = _find_files(url)
    if _is_local(files):
        return path
    if not files.async_impl:
        files = AsyncFileSystemWrapper(files, asynchronous=True)
    return _PatientStore(files, path=path)


def _open_zarr(url: str, mode: Any = "r", **options: Any) -> zarr.Array[Any]:
    """Open a Zarr array, unless reading it would run code that is stored with it."""
    store = _zarr_store(url)
    array = patiently(lambda: zarr.open_array(store, mode=mode, **options), url)
    about = array.metadata.to_dict()
    coded = [about.get(name) for name in ("codecs", "filters", "compressor")]
    if array.dtype.kind == "O" or "pickle" in json.dumps(coded, default=str).lower():
        raise InputError(
            f"The Zarr array at {hide(url)!r} holds Python objects ({array.dtype}), which are "
            "never read from a store: write it with numbers or texts."
        )
    return array


def _is_local(files: Any) -> bool:
    """Tell whether a file system is that of this machine."""
    return "file" in ((files.protocol,) if isinstance(files.protocol, str) else files.protocol)


def _checked(name: Any) -> str:
    """Return a name, unless it leads out of its folder: it may come from a document."""
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or "::" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise DamagedError(
            f"{name!r} is not the name of anything inside a run's folder: a document there is "
            "damaged or was changed; remove the run and make it anew."
        )
    return str(name)


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder of arrays, documents and further folders, named by its address."""

    url: str

    @property
    def _files(self) -> tuple[Any, str]:
        return _find_files(self.url)

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rstrip("/").rsplit("/", 1)[-1]

    @property
    def is_local(self) -> bool:
        """Whether this is on a disk that this machine has mounted."""
        return _is_local(self._files[0])

    def _place(self, name: str = "") -> str:
        """Return the path of something in this folder, or of the folder, on its file system."""
        path = self._files[1]
        return f"{path}/{_checked(name)}" if name != "" else path

    def child(self, name: str) -> Folder:
        """Return a folder in this one."""
        return Folder(f"{self.url.rstrip('/')}/{_checked(name)}")

    def exists(self, name: str = "") -> bool:
        """Tell whether there is something of this name."""
        files, place = self._files[0], self._place(name)
        try:
            patiently(lambda: files.info(place), self.url)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self) -> list[str]:
        """List what is in this folder."""
        files, path = self._files

        def find() -> list[str]:
            files.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                return list(files.ls(path, detail=False))
            return []

        entries = patiently(find, self.url)
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries)

    def _sizes(self) -> dict[str, int]:
        """Return the path and size of each file in this folder and those in it."""
        return {name: int(about["size"] or 0) for name, about in _find(self.url).items()}

    def arrays(self) -> list[str]:
        """List the arrays that `write_array` has written, in this folder and those in it."""
        start = len(self._place()) + 1
        return sorted(
            name[start:].removesuffix(".npy") for name in self._sizes() if name.endswith(".npy")
        )

    def remove(self, name: str = "") -> None:
        """Remove something, if it is there."""
        files, place = self._files[0], self._place(name)
        if not self.is_local and (any(sign in place for sign in "*?[") or "/" not in place):
            raise DamagedError(
                f"{hide(self.url)!r} and {name!r} do not name one folder, so nothing is removed "
                "there: check the address, and the documents of the run."
            )

        remove = functools.partial(_remove, files, place, self.is_local)
        with contextlib.suppress(FileNotFoundError):
            patiently(remove, self.url)

    def nbytes(self) -> int:
        """Return the size of everything in this folder."""
        return sum(self._sizes().values())

    def sweep(self) -> None:
        """Remove what writers that were killed have left behind; in object stores, that is gone."""
        if not self.is_local:
            return
        files, path = self._files
        for entry in files.find(path):
            if PARTIAL in entry.rsplit("/", 1)[-1]:
                with contextlib.suppress(FileNotFoundError):
                    files.rm(entry)

    def write_bytes(self, name: str, *content: bytes | memoryview) -> None:
        """Write a file, whole or not at all."""
        target = self._place(name)
        write = _write_file if self.is_local else functools.partial(_put_file, self._files[0])
        try:
            patiently(lambda: write(target, content), self.url)
        except FileNotFoundError as error:
            raise _no_place(self.url, error) from None

    def read_bytes(self, name: str, first: int | None = None, last: int | None = None) -> bytes:
        """Read a file, or its bytes [first, last)."""
        files, place = self._files[0], self._place(name)
        if first is None or last is None:
            return bytes(patiently(lambda: files.cat_file(place, start=first, end=last), self.url))
        return bytes(patiently(lambda: _cat_range(files, place, first, last), self.url))

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write a document, and its checksum in it."""
        checked = {**value, CHECKSUM: _checksum_of(value)}
        self.write_bytes(name, json.dumps(checked, indent=1).encode())

    def read_json(self, name: str) -> Any:
        """Read a document; None if it is not there. One that others wrote has no checksum."""
        try:
            value = json.loads(self.read_bytes(name))
        except FileNotFoundError:
            return None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise self.damaged("document", name, str(error)) from None
        if isinstance(value, dict):
            checksum = value.pop(CHECKSUM, None)
            if checksum is not None and checksum != _checksum_of(value):
                raise self.damaged("document", name, "its checksum is wrong")
        return value

    def damaged(self, kind: str, name: str, why: str) -> DamagedError:
        """Return what to raise about something in this folder."""
        return DamagedError(
            f"The {kind} {name!r} in {self.url!r} is damaged ({why})",
            place=self.child(name).url,
            remedy="remove its stage's folder and run again",
        )

    def create_rows(
        self, name: str, shape: tuple[int, ...], dtype: Any, chunk_rows: int
    ) -> RowArray:
        """Create a Zarr array in chunks of rows, each written by one task; once is enough."""
        chunk_rows = max(1, min(chunk_rows, shape[0]))
        if not self.exists(f"{name}/{ROWS}"):
            with room_for(self.child(name).url):
                zarr.create_array(
                    _zarr_store(self.child(name).url),
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

    def open_rows(self, name: str) -> RowArray:
        """Open what `create_rows` has created."""
        known = self.child(name).read_json(ROWS)
        if known is None:
            raise self.damaged("array", name, "it is not there")
        return self.known_rows(name, tuple(known["shape"]), known["dtype"], known["chunk_rows"])

    def row_arrays(self) -> list[RowArray]:
        """Open everything in this folder that `create_rows` has created."""
        return [self.open_rows(name) for name in self.names() if self.exists(f"{name}/{ROWS}")]

    def known_rows(
        self, name: str, shape: tuple[int, ...], dtype: Any, chunk_rows: int
    ) -> RowArray:
        """Return what `create_rows` has created, without a look at the disk."""
        starts = np.append(np.arange(0, shape[0], chunk_rows), shape[0])
        across = "/0" * (len(shape) - 1)
        names = tuple(f"c/{i}{across}" for i in range(len(starts) - 1))
        return RowArray(self.child(name), names, starts, shape[1:], np.dtype(dtype))

    def open_array(self, name: str) -> zarr.Array[Any]:
        """Open a Zarr array to read."""
        return _open_zarr(self.child(name).url, zarr_format=3)

    def write_zarr(
        self, name: str, array: NDArray[Any], chunk_rows: int, fill_value: Any = 0
    ) -> None:
        """Write a Zarr array for users: compressed, in chunks of rows; what was there goes.

        What is missing later reads as `fill_value`.
        """
        with room_for(self.child(name).url, array.nbytes):
            zarr.create_array(
                _zarr_store(self.child(name).url),
                shape=array.shape,
                dtype=array.dtype,
                chunks=(max(1, min(chunk_rows, len(array))), *array.shape[1:]),
                fill_value=fill_value,
                zarr_format=3,
                overwrite=True,
                config={"write_empty_chunks": True},
            )[...] = array

    def append_zarr(self, name: str, rows: NDArray[Any], about: dict[str, Any]) -> None:
        """Append a chunk of rows to a Zarr array for users; the first one creates it.

        All but the last must have as many rows as the first.

        Parameters
        ----------
        name : str
        rows : array (rows, columns)
        about : dict
            What is noted in the array's attributes.
        """
        place = _zarr_store(self.child(name).url)
        with room_for(self.child(name).url, rows.nbytes):
            if not self.exists(f"{name}/zarr.json"):
                zarr.create_array(
                    place,
                    shape=(0, *rows.shape[1:]),
                    dtype=rows.dtype,
                    chunks=rows.shape,
                    attributes=about,
                    zarr_format=3,
                    config={"write_empty_chunks": True},
                )
            zarr.open_array(place, mode="r+", config={"write_empty_chunks": True}).append(rows)

    def write_array(self, name: str, array: NDArray[Any]) -> None:
        """Write an array that is read as a whole: an .npy file, and the checksum of all that."""
        data = np.ascontiguousarray(array)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(data))
        content = data.reshape(-1).view(np.uint8)
        checksum = _checksum_bytes(header.getvalue(), content)
        self.write_bytes(f"{name}.npy", header.getvalue(), content.data, checksum)

    def read_array(self, name: str) -> NDArray[Any]:
        """Read what `write_array` has written."""
        try:
            content = self._read_buffer(f"{name}.npy")
        except FileNotFoundError:
            raise self.damaged("array", f"{name}.npy", "it is not there") from None
        except DamagedError as error:
            raise self.damaged("array", f"{name}.npy", error.what) from None
        content, checksum = np.split(content, [max(0, len(content) - CHECKSUM_NBYTES)])
        if _checksum_bytes(content) != checksum.tobytes():
            raise self.damaged("array", f"{name}.npy", "its checksum is wrong")
        try:
            start, shape, dtype = _parse_header(content[:HEADER_NBYTES].tobytes())
        except ValueError as error:
            raise self.damaged("array", f"{name}.npy", str(error)) from None
        return content[start:].view(dtype).reshape(shape)

    def write_rows(self, name: str, rows: NDArray[Any], n_missing: int = 0) -> None:
        """Write rows as plain bytes, for `RowFiles`, and beside them their checksums.

        Zeros take the place of `n_missing` further rows.
        """
        content = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        row_nbytes = math.prod(rows.shape[1:]) * rows.dtype.itemsize
        checksums = _checksums(content, np.array([len(content)]), row_nbytes)
        self.write_bytes(f"{CHECKS}/{name}", checksums.view(np.uint8).data)
        self.write_bytes(name, content.data, bytes(n_missing * row_nbytes))

    def _read_buffer(self, name: str) -> NDArray[np.uint8]:
        """Read the file of an array into memory that can be written to."""
        place = self._place(name)
        if self.is_local:
            return patiently(lambda: _read_file(place), self.url)
        files = self._files[0]
        begin = patiently(lambda: _cat_some(files, place, 0, PART_NBYTES), self.url)
        try:
            start, shape, dtype = _parse_header(begin[:HEADER_NBYTES])
        except ValueError:  # for the reader to tell
            return np.frombuffer(bytearray(begin), np.uint8)
        nbytes = start + math.prod(shape) * dtype.itemsize + CHECKSUM_NBYTES
        content = np.empty(nbytes, np.uint8)
        n_read = min(len(begin), nbytes)
        content[:n_read] = np.frombuffer(begin, np.uint8, n_read)
        if n_read < nbytes:
            rest = [(place, n_read, nbytes - n_read)]
            _fetch_parts(files, rest, content[n_read:].data, self.url)
        return content

    def read_parts(self, parts: list[Part], content: memoryview) -> None:
        """Fill `content` with parts of files: name, first byte and number of bytes of each."""
        files, path = self._files
        try:
            if self.is_local:
                patiently(lambda: _read_parts(path, parts, content), self.url)
            else:
                wanted = [(f"{path}/{name}", start, nbytes) for name, start, nbytes in parts]
                _fetch_parts(files, wanted, content, self.url)
        except FileNotFoundError:
            names = (name for name, _, _ in parts if not self.exists(name))
            raise self.damaged("file", next(names, parts[0][0]), "it is not there") from None
        except DamagedError as error:
            raise self.damaged("file", error.place.removeprefix(f"{path}/"), error.what) from None


@contextlib.contextmanager
def room_for(place: str, nbytes: int = 0) -> Iterator[None]:
    """Make one sentence of a disk that is full while something is written to a place."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FullDiskError) or error.errno not in NO_ROOM:
            raise
        raise full_disk(place, nbytes) from error


def full_disk(place: str, nbytes: int = 0) -> FullDiskError:
    """Return what to raise when there is no room at a place for some bytes."""
    there = place
    while there and not os.path.exists(there):
        there = os.path.dirname(there)
    free = f" ({shutil.disk_usage(there).free} bytes are free)" if there else ""
    what = f"{nbytes} bytes more" if nbytes else "more"
    return FullDiskError(
        f"There is no room to write {what} to {place!r}{free}: free some, or raise the quota, and "
        "call again to continue with what is done."
    )


def _checksum_of(value: Any) -> int:
    """Return the checksum of a document."""
    return zlib.crc32(json.dumps(value, indent=1).encode())


def _checksum_bytes(*parts: Any) -> bytes:
    """Return the checksum of an .npy file."""
    checksum = functools.reduce(lambda known, part: zlib.crc32(part, known), parts, 0)
    return checksum.to_bytes(CHECKSUM_NBYTES, "little")


def _block_rows(row_nbytes: int) -> int:
    """Return how many rows share a checksum."""
    return max(PAGE_ROWS, BLOCK_NBYTES // row_nbytes) if row_nbytes < 16 else PAGE_ROWS


def _checksums(
    content: NDArray[np.uint8], piece_nbytes: NDArray[np.int64], row_nbytes: int
) -> NDArray[np.uint32]:
    """Return the checksums of the blocks of pieces that begin with a block."""
    block_nbytes = _block_rows(row_nbytes) * row_nbytes
    found = np.empty(int((-(-piece_nbytes // block_nbytes)).sum()), np.uint32)
    # Loaded here, because a worker is prepared first, and reading documents needs no kernels.
    from spore_dask.kernels.checks import block_checksums

    block_checksums(content, piece_nbytes, block_nbytes, found)
    return found


class Pieces(NamedTuple):
    """Rows of files: an entry for each run of them in one file."""

    files: NDArray[np.int64]
    firsts: NDArray[np.int64]
    """The first row in the file."""
    lasts: NDArray[np.int64]

    def sizes(self) -> NDArray[np.int64]:
        """Return the number of rows of each."""
        return self.lasts - self.firsts


@dataclasses.dataclass(frozen=True)
class RowFiles:
    """Rows of numbers in files of plain bytes, one file behind the other."""

    folder: Folder
    names: tuple[str, ...]
    starts: NDArray[np.int64]
    """The first row of each file, and the number of rows."""
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.row_shape) * self.dtype.itemsize

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Read the rows [first, last)."""
        return self.read_ranges(np.array([first]), np.array([last]))

    def read_ranges(
        self,
        firsts: NDArray[np.int64],
        lasts: NDArray[np.int64],
        into: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Read the rows of some ranges, one behind the other, into an array if one is given.

        Whole blocks are read, since they are compared with their checksums.
        """
        n_rows = int((lasts - firsts).sum())
        found = np.empty((n_rows, *self.row_shape), self.dtype) if into is None else into[:n_rows]
        wanted = self._pieces(firsts, lasts)
        whole = self._whole_blocks(wanted)
        sizes = whole.sizes()
        if np.array_equal(wanted.sizes(), sizes):
            self._read(whole, found)
            return found
        rows = np.empty((int(sizes.sum()), *self.row_shape), self.dtype)
        self._read(whole, rows)
        starts = np.cumsum(sizes) - sizes + wanted.firsts - whole.firsts
        ends = np.cumsum(wanted.sizes())
        for start, n_here, end in zip(starts, wanted.sizes(), ends, strict=True):
            found[end - n_here : end] = rows[start : start + n_here]
        return found

    def _pieces(self, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> Pieces:
        """Return what ranges of rows are made of."""
        firsts, lasts = firsts[firsts < lasts], lasts[firsts < lasts]
        files = np.searchsorted(self.starts, firsts, side="right") - 1
        if (lasts > self.starts[files + 1]).any():  # cut them where files end
            bounds = [
                np.unique(np.clip(self.starts, first, last))
                for first, last in zip(firsts, lasts, strict=True)
            ]
            firsts = np.concatenate([cuts[:-1] for cuts in bounds])
            lasts = np.concatenate([cuts[1:] for cuts in bounds])
            files = np.searchsorted(self.starts, firsts, side="right") - 1
        return Pieces(files, firsts - self.starts[files], lasts - self.starts[files])

    def _whole_blocks(self, pieces: Pieces) -> Pieces:
        """Return the blocks that rows lie in."""
        step, n_rows = _block_rows(self.row_nbytes), np.diff(self.starts)[pieces.files]
        lasts = np.minimum(-(-pieces.lasts // step) * step, n_rows)
        return Pieces(pieces.files, pieces.firsts // step * step, lasts)

    def _read(self, pieces: Pieces, into: NDArray[Any]) -> None:
        """Fill an array with whole blocks, compared with their checksums."""
        content = into.reshape(-1).view(np.uint8)
        nbytes = pieces.sizes() * self.row_nbytes
        names = [self.names[file] for file in pieces.files.tolist()]
        starts = (pieces.firsts * self.row_nbytes).tolist()
        self.folder.read_parts(list(zip(names, starts, nbytes.tolist(), strict=True)), content.data)
        step = _block_rows(self.row_nbytes)
        n_blocks = -(-pieces.sizes() // step)
        wrong = _checksums(content, nbytes, self.row_nbytes) != self._known(
            pieces.files, pieces.firsts // step, n_blocks
        )
        if wrong.any():
            piece = np.searchsorted(np.cumsum(n_blocks), np.argmax(wrong), side="right")
            raise self.folder.damaged("file", names[int(piece)], "a checksum is wrong")

    def _known(
        self, files: NDArray[np.int64], firsts: NDArray[np.int64], n_blocks: NDArray[np.int64]
    ) -> NDArray[np.uint32]:
        """Return the checksums of some runs of blocks.

        They are small: of runs that ascend in a file, those between are read along.
        """
        if not len(files):
            return np.empty(0, np.uint32)
        lasts = firsts + n_blocks
        apart = (files[1:] != files[:-1]) | (firsts[1:] < lasts[:-1])
        group = np.append(0, np.cumsum(apart))
        begins = np.flatnonzero(np.append(True, apart))
        ends = np.append(begins[1:], len(files)) - 1
        sizes = lasts[ends] - firsts[begins]
        found = np.empty(int(sizes.sum()), np.uint32)
        parts = [
            (f"{CHECKS}/{self.names[file]}", CHECKSUM_NBYTES * first, CHECKSUM_NBYTES * size)
            for file, first, size in zip(
                files[begins].tolist(), firsts[begins].tolist(), sizes.tolist(), strict=True
            )
        ]
        self.folder.read_parts(parts, found.view(np.uint8).data)
        starts = (np.cumsum(sizes) - sizes - firsts[begins])[group] + firsts
        before = np.cumsum(n_blocks) - n_blocks
        return found[np.repeat(starts - before, n_blocks) + np.arange(int(n_blocks.sum()))]


@dataclasses.dataclass(frozen=True)
class RowArray(RowFiles):
    """A Zarr array whose chunks are rows without compression: files of plain bytes."""

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk, but for the last one."""
        return int(self.starts[1])

    def write(self, first: int, rows: NDArray[Any]) -> None:
        """Write the chunk that begins with row `first`."""
        file = int(np.searchsorted(self.starts, first))
        if self.starts[file] != first or self.starts[file + 1] != first + len(rows):
            raise ValueError(f"rows [{first}, {first + len(rows)}) are not one whole chunk")
        data = np.ascontiguousarray(rows, self.dtype.newbyteorder("<"))
        self.folder.write_rows(self.names[file], data, self.chunk_rows - len(rows))


def _parse_header(content: bytes) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """Return where the numbers of an .npy file begin, their shape and their dtype.

    Raises `ValueError` for what we have not written; Python objects, which would have to be
    unpickled, above all.
    """
    head = io.BytesIO(content)
    np.lib.format.read_magic(head)
    shape, _, dtype = np.lib.format.read_array_header_1_0(head)
    if dtype.hasobject:
        raise ValueError(f"its dtype, {dtype}, is not one of numbers")
    return head.tell(), shape, dtype


def _find(url: str) -> dict[str, dict[str, Any]]:
    """Return what is known of each file under an address, by its path."""
    files, path = _find_files(url)

    def find() -> dict[str, dict[str, Any]]:
        files.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            return dict(files.find(path, detail=True))
        return {}

    return patiently(find, url)


def _write_file(target: str, content: tuple[bytes | memoryview, ...]) -> None:
    """Write a file on this machine's disks under another name, and then give it its own."""
    partial = f"{target}.{uuid.uuid4().hex}{PARTIAL}"
    with room_for(target, sum(map(len, content))):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            with open(partial, "wb") as file:
                file.writelines(content)
            os.replace(partial, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise


def _read_file(path: str) -> NDArray[np.uint8]:
    """Read a file on this machine's disks."""
    with open(path, "rb") as file:
        content = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
        _read_into(file.fileno(), 0, content.data)
    return content


def _remove(files: Any, place: str, is_local: bool) -> None:
    """Remove a file or a folder."""
    if is_local:
        files.rm(place, recursive=True)
        return
    files.invalidate_cache()
    found = files.find(place)
    if found == [place]:
        files.rm_file(place)
    elif found:
        files.rm(place, recursive=True)
        if left := files.find(place):  # S3 removes what it can, and fails without a word
            raise OSError(errno.EBUSY, f"{len(left)} files are still there")


def _put_file(files: Any, target: str, content: tuple[bytes | memoryview, ...]) -> None:
    """Write a file to an object store: a large one in parts, which appear when all are there."""
    if sum(map(len, content)) <= 2 * PART_NBYTES:
        files.pipe_file(target, b"".join(content))
        return
    file = files.open(target, "wb", block_size=PART_NBYTES)
    try:
        for part in content:
            for first in range(0, len(part), PART_NBYTES):
                file.write(part[first : first + PART_NBYTES])
        file.close()
    except BaseException:
        file.closed = True  # else what was written so far would appear
        with contextlib.suppress(Exception):
            file.discard()
        raise


def _cat_some(files: Any, path: str, first: int, last: int) -> bytes:
    """Read those of the bytes [first, last) of a file that there are."""
    if first >= last:  # which HTTP has no words for
        return b""
    try:
        return bytes(files.cat_file(path, start=first, end=last))
    except OSError as error:  # so S3 tells of a file that ends before
        if error.errno != errno.EINVAL:
            raise
        return b""


def _cat_range(files: Any, path: str, first: int, last: int) -> bytes:
    """Read the bytes [first, last) of a file, all of them."""
    content = _cat_some(files, path, first, last)
    if len(content) == last - first:
        return content
    n_missing = last - max(first, int(files.info(path)["size"]))
    if n_missing > 0:
        raise _ends_early(path, n_missing)
    raise ConnectionError(f"{len(content)} of {last - first} bytes have come")


def _fetch_parts(files: Any, parts: list[Part], content: memoryview, url: str) -> None:
    """Fill `content` with parts (path, first byte, bytes) of files in an object store."""
    place = 0
    for batch in _batches(_merged(_cut(parts))):
        for group, part in zip(batch, _fetch(files, batch, url), strict=True):
            begin, view = group[0][1], memoryview(part)
            for _, start, nbytes in group:
                content[place : place + nbytes] = view[start - begin : start - begin + nbytes]
                place += nbytes


def _cut(parts: list[Part]) -> Iterator[Part]:
    """Cut what is too large for one request."""
    for path, start, nbytes in parts:
        for first in range(0, nbytes, PART_NBYTES):
            yield path, start + first, min(PART_NBYTES, nbytes - first)


def _merged(parts: Iterator[Part]) -> Iterator[list[Part]]:
    """Put parts together that follow each other closely in a file, and go into one request."""
    group: list[Part] = []
    end = 0
    for path, start, nbytes in parts:
        if group:
            before, begin, _ = group[0]
            fits = max(end, start + nbytes) - begin <= PART_NBYTES
            if not (path == before and begin <= start <= end + GAP_NBYTES and fits):
                yield group
                group = []
        end = max(end, start + nbytes) if group else start + nbytes
        group.append((path, start, nbytes))
    if group:
        yield group


def _end_of(group: list[Part]) -> int:
    """Return where parts that go into one request end."""
    return max(start + nbytes for _, start, nbytes in group)


def _batches(groups: Iterator[list[Part]]) -> Iterator[list[list[Part]]]:
    """Share out requests: those of a batch are under way at the same time."""
    batch: list[list[Part]] = []
    nbytes = 0
    for group in groups:
        more = _end_of(group) - group[0][1]
        if batch and (nbytes + more > PART_NBYTES or len(batch) == RANGES_AT_ONCE):
            yield batch
            batch, nbytes = [], 0
        batch.append(group)
        nbytes += more
    if batch:
        yield batch


def _fetch(files: Any, groups: list[list[Part]], url: str) -> list[bytes]:
    """Ask for some ranges at once; for those that fail again, one by one."""
    paths = [group[0][0] for group in groups]
    firsts = [group[0][1] for group in groups]
    lasts = [_end_of(group) for group in groups]
    found = patiently(lambda: files.cat_ranges(paths, firsts, lasts, on_error="return"), url)
    for i, part in enumerate(found):
        if isinstance(part, Exception) or len(part) != lasts[i] - firsts[i]:
            read = functools.partial(_cat_range, files, paths[i], firsts[i], lasts[i])
            found[i] = patiently(read, url)
    return list(found)


def _read_parts(path: str, parts: list[Part], content: memoryview) -> None:
    """Fill `content` with parts of files on this machine's disks."""
    name, place, file = "", 0, -1
    try:
        for wanted, start, nbytes in parts:
            if wanted != name:
                if file >= 0:
                    os.close(file)
                file = -1
                name, file = wanted, os.open(f"{path}/{wanted}", os.O_RDONLY)
            n_read = _read_into(file, start, content[place : place + nbytes])
            if n_read < nbytes:
                raise _ends_early(f"{path}/{wanted}", nbytes - n_read)
            place += nbytes
    finally:
        if file >= 0:
            os.close(file)


def _read_into(file: int, start: int, content: memoryview) -> int:
    """Fill `content` from a place in a file on, as far as it goes; return how far.

    One call may read no more than 2 GiB.
    """
    n_read = 0
    while n_read < len(content):
        n_new = os.preadv(file, [content[n_read:]], start + n_read)
        if n_new == 0:
            break
        n_read += n_new
    return n_read


def _ends_early(path: str, n_missing: int) -> DamagedError:
    return DamagedError(f"it ends {n_missing} bytes too early", path)


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
            return patiently(lambda: np.asarray(_open_zarr(self.url)[first:last]), self.url)
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
        array = _open_zarr(self.url)
        sizes = array.shards or array.chunks
        n_chunks = math.prod(-(-n // size) for n, size in zip(self.shape, sizes, strict=True))
        names = (name.rsplit("/", 1)[-1] for name in _find(self.url))
        n_stored = sum(name[-1:].isdigit() for name in names)  # others are about the array
        return max(0, n_chunks - n_stored), n_chunks

    def fingerprint(self) -> str:
        """Return a hash of the names, sizes and times of the files that the array is made of.

        Where a store tells a checksum of each file (its ETag), that counts instead of the time.
        """
        if self.identity is not None:
            return self.identity
        start = len(_find_files(self.url)[1])
        lines = [
            f"{name[start:]} {about['size']} "
            f"{next((about[kind] for kind in VERSIONS if about.get(kind)), None)}"
            for name, about in sorted(_find(self.url).items())
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


VERSIONS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")
"""By what file systems tell that a file has changed, the best first."""


def checksum_of(rows: NDArray[Any]) -> int:
    """Return the checksum of some rows."""
    return zlib.crc32(np.ascontiguousarray(rows).data)


def address(path: str | os.PathLike[str]) -> str:
    """Return the address of a path or URL that means the same in every process.

    One with secrets, which would be written into documents and sent with tasks, is refused.
    """
    text = os.fspath(path)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" not in text:
        return os.path.abspath(os.path.expanduser(text))
    for protocol, who, rest in re.findall(r"([\w+.-]*)://([^/@]*@)?([^:]*)", text):
        if who and (":" in who or protocol in FIRST_PART_MAY_BE_SECRET):
            raise InputError(
                f"The address {hide(text)!r} has a name or a password in it, which would be kept "
                "with the run: leave them out, and put credentials into the environment of every "
                "process (for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)."
            )
        if any(sign in rest.partition("/")[2] for sign in "?#*[]"):
            raise InputError(
                f"The address {hide(text)!r} has one of ? # * [ ] in it: give that of a folder, "
                "without any of them, and put credentials into the environment of every process."
            )
    return text.rstrip("/") if not text.endswith("://") else text


def hash_of(*parts: Any) -> str:
    """Return a short name for what some plain values say."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def open_source(url: str, component: str | None = None) -> Source:
    """Open the input by the address of its Zarr array, or of a group and the array's path in it."""
    url = address(url)
    _find_files(url)
    place = f"{url.rstrip('/')}/{component}" if component else url.rstrip("/")
    hint = ", or a group's path and component='name'"
    return describe(_open(place, lambda: hint + _arrays_in(url)), place)


def open_column(url: str) -> zarr.Array[Any]:
    """Open an array of one number a row by its address."""
    return _open(address(url), lambda: "")


def _open(place: str, hint: Callable[[], str]) -> zarr.Array[Any]:
    """Open an array, or say that there is none."""
    try:
        return _open_zarr(place)
    except InputError:
        raise
    except (FileNotFoundError, KeyError, ValueError, zarr.errors.BaseZarrError) as error:
        raise InputError(
            f"There is no Zarr array at {place!r} ({type(error).__name__}): give the path of an "
            f"array{hint()}; files of other kinds are to be imported first."
        ) from None


def open_zarr(url: str) -> zarr.Array[Any]:
    """Open any Zarr array by its address."""
    try:
        return _open_zarr(address(url))
    except InputError:
        raise
    except (FileNotFoundError, KeyError, ValueError, zarr.errors.BaseZarrError) as error:
        raise InputError(
            f"There is no Zarr array at {url!r} ({type(error).__name__}): check the path."
        ) from None


def _arrays_in(url: str) -> str:
    """Name the arrays of a group, for an error message."""
    try:
        group = zarr.open_group(_zarr_store(url), mode="r")
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
