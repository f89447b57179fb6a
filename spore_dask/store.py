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
Memory: what is read or written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import io
import json
import math
import os
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import fsspec
import numpy as np
import zarr
from numpy.typing import NDArray

from spore_dask.errors import DamagedError, FullDiskError, InputError
from spore_dask.kernels.checks import block_checksums
from spore_dask.memory import PAGE_ROWS

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
        with room_for(target, sum(len(part) for part in content)):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                with open(partial, "wb") as file:
                    file.writelines(content)
                os.replace(partial, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(partial)
                raise

    def read_bytes(self, name: str, first: int | None = None, last: int | None = None) -> bytes:
        """Read a file, or its bytes [first, last)."""
        files, path = self._files
        content: bytes = files.cat_file(f"{path}/{name}", start=first, end=last)
        return content

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
        except ValueError as error:
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
                    self.child(name).url,
                    shape=shape,
                    dtype=dtype,
                    chunks=(chunk_rows, *shape[1:]),
                    compressors=None,
                    fill_value=0,
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
        return zarr.open_array(self.child(name).url, mode="r")

    def write_zarr(
        self, name: str, array: NDArray[Any], chunk_rows: int, fill_value: Any = 0
    ) -> None:
        """Write a Zarr array for users: compressed, in chunks of rows; what was there goes.

        What is missing later reads as `fill_value`.
        """
        with room_for(self.child(name).url, array.nbytes):
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
        with room_for(place, rows.nbytes):
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
        content, checksum = np.split(content, [max(0, len(content) - CHECKSUM_NBYTES)])
        if _checksum_bytes(content) != checksum.tobytes():
            raise self.damaged("array", f"{name}.npy", "its checksum is wrong")
        head = io.BytesIO(content[:HEADER_NBYTES].tobytes())
        np.lib.format.read_magic(head)
        shape, _, dtype = np.lib.format.read_array_header_1_0(head)
        return content[head.tell() :].view(dtype).reshape(shape)

    def write_rows(self, name: str, rows: NDArray[Any], n_missing: int = 0) -> None:
        """Write rows as plain bytes, for `RowFiles`, and beside them their checksums.

        Zeros take the place of `n_missing` further rows.
        """
        content = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        row_nbytes = math.prod(rows.shape[1:]) * rows.dtype.itemsize
        checksums = _checksums(content, [len(content)], row_nbytes)
        self.write_bytes(f"{CHECKS}/{name}", checksums.view(np.uint8).data)
        self.write_bytes(name, content.data, bytes(n_missing * row_nbytes))

    def _read_buffer(self, name: str) -> NDArray[np.uint8]:
        """Read a file into memory that can be written to."""
        files, path = self._files
        if not self.is_local:
            return np.frombuffer(bytearray(files.cat_file(f"{path}/{name}")), np.uint8)
        with open(f"{path}/{name}", "rb") as file:
            content = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
            file.readinto(content.data)
        return content

    def read_parts(self, parts: list[tuple[str, int, int]], content: memoryview) -> None:
        """Fill `content` with parts of files: name, first byte and number of bytes of each."""
        files, path = self._files
        if self.is_local:
            self._read_local(path, parts, content)
            return
        found = files.cat_ranges(
            [f"{path}/{name}" for name, _, _ in parts],
            [start for _, start, _ in parts],
            [start + nbytes for _, start, nbytes in parts],
        )
        place = 0
        for (name, _, nbytes), part in zip(parts, found, strict=True):
            if isinstance(part, FileNotFoundError):
                raise self.damaged("file", name, "it is not there")
            if isinstance(part, Exception):
                raise part
            if len(part) != nbytes:
                raise self.damaged("file", name, f"it ends {nbytes - len(part)} bytes too early")
            content[place : place + nbytes] = part
            place += nbytes

    def _read_local(
        self, path: str, parts: list[tuple[str, int, int]], content: memoryview
    ) -> None:
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
                    why = f"it ends {nbytes - n_read} bytes too early"
                    raise self.damaged("file", wanted, why)
                place += nbytes
        except FileNotFoundError:
            raise self.damaged("file", wanted, "it is not there") from None
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
    content: NDArray[np.uint8], piece_nbytes: list[int], row_nbytes: int
) -> NDArray[np.uint32]:
    """Return the checksums of the blocks of pieces that begin with a block."""
    block_nbytes = _block_rows(row_nbytes) * row_nbytes
    n_blocks = sum(-(-nbytes // block_nbytes) for nbytes in piece_nbytes)
    found = np.empty(n_blocks, np.uint32)
    block_checksums(content, np.array(piece_nbytes, np.int64), block_nbytes, found)
    return found


class Piece(NamedTuple):
    """Rows [first, last) of a file."""

    file: int
    first: int
    last: int


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
        whole = [self._whole_blocks(piece) for piece in wanted]
        if whole == wanted:
            self._read(whole, found)
            return found
        rows = np.empty((sum(p.last - p.first for p in whole), *self.row_shape), self.dtype)
        self._read(whole, rows)
        place, start = 0, 0
        for piece, around in zip(wanted, whole, strict=True):
            n_here, skipped = piece.last - piece.first, piece.first - around.first
            found[place : place + n_here] = rows[start + skipped : start + skipped + n_here]
            place, start = place + n_here, start + around.last - around.first
        return found

    def _pieces(self, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> list[Piece]:
        """Return what ranges of rows are made of."""
        pieces = []
        files = np.searchsorted(self.starts, firsts, side="right") - 1
        for first, last, file in zip(firsts.tolist(), lasts.tolist(), files.tolist(), strict=True):
            while first < last:
                start, end = int(self.starts[file]), min(last, int(self.starts[file + 1]))
                if first < end:
                    pieces.append(Piece(file, first - start, end - start))
                first, file = end, file + 1
        return pieces

    def _whole_blocks(self, piece: Piece) -> Piece:
        """Return the blocks that rows lie in."""
        step = _block_rows(self.row_nbytes)
        n_rows = int(self.starts[piece.file + 1] - self.starts[piece.file])
        last = min(-(-piece.last // step) * step, n_rows)
        return Piece(piece.file, piece.first // step * step, last)

    def _read(self, pieces: list[Piece], into: NDArray[Any]) -> None:
        """Fill an array with whole blocks, compared with their checksums."""
        step, nbytes = _block_rows(self.row_nbytes), self.row_nbytes
        content = into.reshape(-1).view(np.uint8)
        sizes = [(piece.last - piece.first) * nbytes for piece in pieces]
        n_blocks = [-(-(piece.last - piece.first) // step) for piece in pieces]
        known = np.empty(sum(n_blocks), np.uint32)
        names = [self.names[piece.file] for piece in pieces]
        starts = [piece.first * nbytes for piece in pieces]
        self.folder.read_parts(list(zip(names, starts, sizes, strict=True)), content.data)
        checks = [
            (f"{CHECKS}/{name}", CHECKSUM_NBYTES * (piece.first // step), CHECKSUM_NBYTES * n)
            for name, piece, n in zip(names, pieces, n_blocks, strict=True)
        ]
        self.folder.read_parts(checks, known.view(np.uint8).data)
        wrong = _checksums(content, sizes, nbytes) != known
        if wrong.any():
            piece = int(np.searchsorted(np.cumsum(n_blocks), np.argmax(wrong), side="right"))
            raise self.folder.damaged("file", names[piece], "a checksum is wrong")


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
        if self.identity is not None:  # a copy, which a run has written
            place, _, name = self.url.rpartition("/")
            dtype = np.dtype(self.dtype).newbyteorder("<")
            rows = Folder(place).known_rows(name, self.shape, dtype, self.chunk_rows)
            return rows.read(first, last)
        try:
            return np.asarray(zarr.open_array(self.url, mode="r")[first:last])
        except UNREADABLE as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the disk or the network, not of what is there
            raise InputError(
                f"Rows {first} to {last - 1} of the data at {self.url!r} cannot be decoded "
                f"({type(error).__name__}: {error}): a chunk of {self.chunk_rows} rows there is "
                "damaged; restore it with its time (cp -p), and call again."
            ) from error

    def read_again(self, first: int, last: int, checksum: int) -> NDArray[Any]:
        """Read rows whose checksum is known; a chunk that is gone reads as zeros."""
        data = self.read(first, last)
        if checksum_of(data) != checksum:
            raise InputError(
                f"Rows {first} to {last - 1} of the data at {self.url!r} are no longer what they "
                "were when the run first read them: restore what has changed, or is missing, with "
                "its time (cp -p), or give another `out`; then call again."
            )
        return data

    def n_missing(self) -> tuple[int, int]:
        """Return how many chunks are not stored, and how many there should be."""
        if self.identity is not None:
            return 0, 0
        array = zarr.open_array(self.url, mode="r")
        return max(0, array.nchunks - array.nchunks_initialized), array.nchunks

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


def checksum_of(rows: NDArray[Any]) -> int:
    """Return the checksum of some rows."""
    return zlib.crc32(np.ascontiguousarray(rows).data)


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
