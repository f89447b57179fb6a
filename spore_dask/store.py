"""Where a run keeps its data: the only module that knows Zarr and file systems.

A `Folder` is a directory or a prefix in an object store. Arrays that many tasks write, or that
users read, are Zarr. Those of a graph are not compressed, because what a run writes is read again
soon and hardly shrinks; a chunk then is just the bytes of its rows, which a `RowArray` writes
without a copy and reads row by row. The checksum of each chunk is in its task's receipt.
Arrays that one task writes and others read as a whole are .npy files with a checksum, which open
ten times as fast. Whole chunks are written at once, and on local disks files appear whole or not at
all.
A `Source` is the input: a Zarr array that every process can open by its address.
Memory: what is read or written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import math
import os
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import fsspec
import numpy as np
import zarr
from numpy.typing import NDArray

from spore_dask.errors import DamagedError, InputError

PARTIAL = ".partial"
CHECKSUM_NBYTES = 4
HEADER_NBYTES = 4096
"""More than the header of any .npy file of ours."""


@functools.lru_cache(maxsize=256)
def _find_files(url: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path there."""
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InputError(f"{url!r} cannot be opened: {str(error).rstrip('.')}.") from None
    return files, path.rstrip("/")


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
        protocol = self._files[0].protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def child(self, name: str) -> Folder:
        """Return a folder in this one."""
        return Folder(f"{self.url.rstrip('/')}/{name}")

    def exists(self, name: str = "") -> bool:
        """Tell whether there is something of this name."""
        files, path = self._files
        return bool(files.exists(f"{path}/{name}".rstrip("/")))

    def names(self) -> list[str]:
        """List what is in this folder."""
        files, path = self._files
        files.invalidate_cache()
        if not files.exists(path):
            return []
        entries = files.ls(path, detail=False)
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries)

    def arrays(self) -> list[str]:
        """List the arrays that `write_array` has written, in this folder and those in it."""
        files, path = self._files
        files.invalidate_cache()
        found = files.find(path) if files.exists(path) else []
        return sorted(
            name[len(path) + 1 :].removesuffix(".npy") for name in found if name.endswith(".npy")
        )

    def remove(self, name: str = "") -> None:
        """Remove something, if it is there."""
        files, path = self._files
        with contextlib.suppress(FileNotFoundError):
            files.rm(f"{path}/{name}".rstrip("/"), recursive=True)

    def nbytes(self) -> int:
        """Return the size of everything in this folder."""
        files, path = self._files
        return int(sum(files.find(path, detail=False) and files.sizes(files.find(path))))

    def sweep(self) -> None:
        """Remove what writers that were killed have left behind."""
        files, path = self._files
        for entry in files.find(path):
            if PARTIAL in entry.rsplit("/", 1)[-1]:
                with contextlib.suppress(FileNotFoundError):
                    files.rm(entry)

    def write_bytes(self, name: str, *content: bytes | memoryview) -> None:
        """Write a file, whole or not at all."""
        files, path = self._files
        if not self.is_local:
            files.pipe_file(f"{path}/{name}", b"".join(content))
            return
        target = f"{path}/{name}"
        partial = f"{target}.{uuid.uuid4().hex}{PARTIAL}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(partial, "wb") as file:
            file.writelines(content)
        os.replace(partial, target)

    def read_bytes(self, name: str, first: int | None = None, last: int | None = None) -> bytes:
        """Read a file, or its bytes [first, last)."""
        files, path = self._files
        content: bytes = files.cat_file(f"{path}/{name}", start=first, end=last)
        return content

    def write_json(self, name: str, value: Any) -> None:
        """Write a document."""
        self.write_bytes(name, json.dumps(value, indent=1).encode())

    def read_json(self, name: str) -> Any:
        """Read a document; None if it is not there."""
        try:
            return json.loads(self.read_bytes(name))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DamagedError(
                f"The document {name!r} in {self.url!r} is damaged ({error}): remove it, or its "
                "stage's folder, and run again."
            ) from None

    def create_rows(
        self, name: str, shape: tuple[int, ...], dtype: Any, chunk_rows: int
    ) -> RowArray:
        """Create a Zarr array in chunks of rows, each written by one task; once is enough."""
        chunk_rows = max(1, min(chunk_rows, shape[0]))
        if not self.exists(f"{name}/zarr.json"):
            zarr.create_array(
                self.child(name).url,
                shape=shape,
                dtype=dtype,
                chunks=(chunk_rows, *shape[1:]),
                compressors=None,
                fill_value=0,
            )
        return self.known_rows(name, shape, dtype, chunk_rows)

    def open_rows(self, name: str) -> RowArray:
        """Open what `create_rows` has created."""
        array = self.open_array(name)
        return self.known_rows(name, array.shape, array.dtype, array.chunks[0])

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
        return zarr.open_array(self.child(name).url, mode="r")

    def write_zarr(
        self, name: str, array: NDArray[Any], chunk_rows: int, fill_value: Any = 0
    ) -> None:
        """Write a Zarr array for users: compressed, in chunks of rows; what was there goes.

        What is missing later reads as `fill_value`.
        """
        zarr.create_array(
            self.child(name).url,
            shape=array.shape,
            dtype=array.dtype,
            chunks=(max(1, min(chunk_rows, len(array))), *array.shape[1:]),
            fill_value=fill_value,
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
        place = self.child(name).url
        if not self.exists(f"{name}/zarr.json"):
            zarr.create_array(
                place,
                shape=(0, *rows.shape[1:]),
                dtype=rows.dtype,
                chunks=rows.shape,
                attributes=about,
                config={"write_empty_chunks": True},
            )
        zarr.open_array(place, mode="r+", config={"write_empty_chunks": True}).append(rows)

    def write_array(self, name: str, array: NDArray[Any]) -> None:
        """Write an array that is read as a whole: an .npy file, and its checksum at the end."""
        data = np.ascontiguousarray(array)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(data))
        content = data.reshape(-1).view(np.uint8).data
        checksum = zlib.crc32(content).to_bytes(CHECKSUM_NBYTES, "little")
        self.write_bytes(f"{name}.npy", header.getvalue(), content, checksum)

    def read_array(self, name: str) -> NDArray[Any]:
        """Read what `write_array` has written."""
        content = self._read_buffer(f"{name}.npy")
        head = io.BytesIO(content[:HEADER_NBYTES].tobytes())
        np.lib.format.read_magic(head)
        shape, _, dtype = np.lib.format.read_array_header_1_0(head)
        data = content[head.tell() : len(content) - CHECKSUM_NBYTES]
        checksum = content[len(content) - CHECKSUM_NBYTES :].tobytes()
        if zlib.crc32(data.data).to_bytes(CHECKSUM_NBYTES, "little") != checksum:
            raise DamagedError(
                f"The array {name!r} in {self.url!r} is damaged (its checksum is wrong): remove "
                "its stage's folder and run again."
            )
        return data.view(dtype).reshape(shape)

    def _read_buffer(self, name: str) -> NDArray[np.uint8]:
        """Read a file into memory that can be written to."""
        files, path = self._files
        if not self.is_local:
            return np.frombuffer(bytearray(files.cat_file(f"{path}/{name}")), np.uint8)
        with open(f"{path}/{name}", "rb") as file:
            content = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
            file.readinto(content.data)
        return content


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
        """Read the rows of some ranges, one behind the other, into an array if one is given."""
        n_rows = int((lasts - firsts).sum())
        found = np.empty((n_rows, *self.row_shape), self.dtype) if into is None else into[:n_rows]
        pieces = self._pieces(firsts, lasts)
        content = found.reshape(-1).view(np.uint8)
        files, path = self.folder._files
        if self.folder.is_local:
            _read_pieces(path, pieces, content.data)
            return found
        parts = files.cat_ranges(
            [f"{path}/{name}" for name, _, _ in pieces],
            [start for _, start, _ in pieces],
            [start + nbytes for _, start, nbytes in pieces],
        )
        content[:] = np.frombuffer(b"".join(parts), np.uint8)
        return found

    def _pieces(
        self, firsts: NDArray[np.int64], lasts: NDArray[np.int64]
    ) -> list[tuple[str, int, int]]:
        """Return file, first byte and number of bytes of what ranges of rows are made of."""
        pieces = []
        files = np.searchsorted(self.starts, firsts, side="right") - 1
        for first, last, file in zip(firsts.tolist(), lasts.tolist(), files.tolist(), strict=True):
            while first < last:
                row, n_rows = first - self.starts[file], min(last, self.starts[file + 1]) - first
                nbytes = int(n_rows) * self.row_nbytes
                pieces.append((self.names[file], int(row) * self.row_nbytes, nbytes))
                first, file = first + int(n_rows), file + 1
        return pieces


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
        missing = bytes((self.chunk_rows - len(rows)) * self.row_nbytes)
        self.folder.write_bytes(self.names[file], data.reshape(-1).view(np.uint8).data, missing)


def _read_pieces(path: str, pieces: list[tuple[str, int, int]], content: memoryview) -> None:
    """Fill `content` with pieces of files on this machine's disks."""
    name, place, file = "", 0, -1
    try:
        for wanted, start, nbytes in pieces:
            if wanted != name:
                if file >= 0:
                    os.close(file)
                name, file = wanted, os.open(f"{path}/{wanted}", os.O_RDONLY)
            _read_into(file, start, content[place : place + nbytes])
            place += nbytes
    finally:
        if file >= 0:
            os.close(file)


def _read_into(file: int, start: int, content: memoryview) -> None:
    """Fill `content` from a place in a file on; one call may read no more than 2 GiB."""
    n_read = 0
    while n_read < len(content):
        n_new = os.preadv(file, [content[n_read:]], start + n_read)
        if n_new == 0:
            raise DamagedError(
                f"A file of the run ends {len(content) - n_read} bytes too early: remove its "
                "stage's folder and run again."
            )
        n_read += n_new


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

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Read the rows [first, last)."""
        return np.asarray(zarr.open_array(self.url, mode="r")[first:last])

    def fingerprint(self) -> str:
        """Return a hash of the names, sizes and times of the files that the array is made of."""
        if self.identity is not None:
            return self.identity
        files, path = fsspec.core.url_to_fs(self.url)
        files.invalidate_cache()
        found = files.find(path, detail=True)
        lines = [
            f"{name[len(path) :]} {info['size']} "
            f"{info.get('ETag') or info.get('mtime') or info.get('LastModified')}"
            for name, info in sorted(found.items())
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def address(path: str | os.PathLike[str]) -> str:
    """Return the address of a path or URL that means the same in every process."""
    text = os.fspath(path)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


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
        return zarr.open_array(place, mode="r")
    except (FileNotFoundError, KeyError, ValueError, zarr.errors.BaseZarrError) as error:
        raise InputError(
            f"There is no Zarr array at {place!r} ({type(error).__name__}): give the path of an "
            f"array{hint()}; files of other kinds are to be imported first."
        ) from None


def open_zarr(url: str) -> zarr.Array[Any]:
    """Open any Zarr array by its address."""
    try:
        return zarr.open_array(url, mode="r")
    except (FileNotFoundError, KeyError, ValueError, zarr.errors.BaseZarrError) as error:
        raise InputError(
            f"There is no Zarr array at {url!r} ({type(error).__name__}): check the path."
        ) from None


def _arrays_in(url: str) -> str:
    """Name the arrays of a group, for an error message."""
    try:
        group = zarr.open_group(url, mode="r")
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
    return f"{root}/{path}".rstrip("/")
