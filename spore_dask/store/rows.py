"""Rows of numbers in files of plain bytes, read row by row, and Zarr arrays of such chunks.

The checksums of rows are beside them, in `checks/`, one for each block of a few rows. Memory: the
rows, and those of the same blocks; writing makes no copy of rows that lie one behind the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import mmap
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from spore_dask.store.checksums import CHECKSUM_NBYTES, block_rows, checksums_of_blocks
from spore_dask.store.disks import NotMappedError
from spore_dask.store.limits import Limits
from spore_dask.store.plain import PlainFolder
from spore_dask.threads import scratch

ROWS_APART = mmap.PAGESIZE // 4
"""Rows of numbers of 4 or 8 bytes that are whole pages of memory, whatever their length."""
MOST_MAPPED = 4096
"""Parts of files that are mapped at most: each takes two of the 65,530 that Linux allows."""
PART_NBYTES = 16 << 20
"""What is read at a time of rows that are not mapped, unless one piece is larger."""
STEP_NBYTES = 1 << 20
"""What is copied at a time of rows that are written in another order."""
CHECKS = "checks"
"""Folder of the checksums of files of rows, beside these."""


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

    folder: PlainFolder
    names: tuple[str, ...]
    starts: NDArray[np.int64]
    """The first row of each file, and the number of rows."""
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    limits: Limits | None = None
    """Numbers that they may have; whatever is read is compared with them."""

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.row_shape) * self.dtype.itemsize

    def without_limits(self) -> Self:
        """Return the same for a reader who looks at all numbers anyway, or only copies them."""
        return dataclasses.replace(self, limits=None)

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
        step, n_rows = block_rows(self.row_nbytes), np.diff(self.starts)[pieces.files]
        lasts = np.minimum(-(-pieces.lasts // step) * step, n_rows)
        return Pieces(pieces.files, pieces.firsts // step * step, lasts)

    def _read(self, pieces: Pieces, into: NDArray[Any]) -> None:
        """Fill an array with whole blocks, compared with their checksums."""
        content = into.reshape(-1).view(np.uint8)
        nbytes = pieces.sizes() * self.row_nbytes
        names = [self.names[file] for file in pieces.files.tolist()]
        starts = (pieces.firsts * self.row_nbytes).tolist()
        self.folder.read_parts(list(zip(names, starts, nbytes.tolist(), strict=True)), content.data)
        self.check(pieces, content)
        if self.limits is not None and self.limits.broken_by(into):
            ends = np.cumsum(pieces.sizes())
            for piece, (end, size) in enumerate(zip(ends, pieces.sizes(), strict=True)):
                self.refuse_outside(int(pieces.files[piece]), into[end - size : end])

    def refuse_outside(self, file: int, rows: NDArray[Any]) -> None:
        """Refuse rows of a file if they have a number that they may not have."""
        if self.limits is not None and (why := self.limits.broken_by(rows)):
            raise self.folder.damaged("file", self.names[file], why)

    def at_hand(self, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> AtHand:
        """Return the rows of some ranges in one array, which may have others between.

        Files on a disk here are mapped if they can be, not read: they take the memory that the
        system has its copy of them in, and no other. Mapping brings whole pages, so that short
        ranges are read.
        """
        wanted = self._pieces(firsts, lasts)
        whole = self._whole_blocks(wanted)
        before = whole.firsts % ROWS_APART
        is_little = before.sum() <= whole.sizes().sum() and len(whole.files) <= MOST_MAPPED
        if is_little and self.folder.can_map:
            with contextlib.suppress(NotMappedError):
                found = AtHand(self, wanted, whole, *self._map(whole))
                found.check()
                found.refuse_outside()
                return found
        ends = np.cumsum(whole.sizes())
        rows = np.empty((int(whole.sizes().sum()), *self.row_shape), self.dtype)
        for some in _runs(whole.sizes() * self.row_nbytes):
            into = rows[ends[some.start] - whole.sizes()[some.start] : ends[some.stop - 1]]
            self._read(Pieces(*(each[some] for each in whole)), into)
        return AtHand(self, wanted, whole, rows, ends - whole.sizes(), is_mapped=False)

    def all_at_hand(self) -> AtHand:
        """Return all rows in one array, as `at_hand` does."""
        return self.at_hand(self.starts[:-1], self.starts[1:])

    def _map(self, whole: Pieces) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Map pieces, each from the beginning of a page on; return where they begin."""
        firsts = whole.firsts // ROWS_APART * ROWS_APART
        room = -(-(whole.lasts - firsts) // ROWS_APART) * ROWS_APART
        begins = np.cumsum(room) - room
        numbers = begins, firsts, whole.lasts - firsts
        nbytes = ((number * self.row_nbytes).tolist() for number in numbers)
        names = [self.names[file] for file in whole.files.tolist()]
        content = self.folder.map_parts(list(zip(names, *nbytes, strict=True)))
        rows = content.view(self.dtype).reshape(-1, *self.row_shape)
        return rows, begins + whole.firsts - firsts

    def check(self, pieces: Pieces, content: NDArray[np.uint8]) -> None:
        """Compare the bytes of whole blocks with their checksums."""
        step = block_rows(self.row_nbytes)
        n_blocks = -(-pieces.sizes() // step)
        wrong = checksums_of_blocks(
            content, pieces.sizes() * self.row_nbytes, self.row_nbytes
        ) != self._known(pieces.files, pieces.firsts // step, n_blocks)
        if wrong.any():
            piece = np.searchsorted(np.cumsum(n_blocks), np.argmax(wrong), side="right")
            name = self.names[int(pieces.files[piece])]
            raise self.folder.damaged("file", name, "a checksum is wrong")

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


def _runs(nbytes: NDArray[np.int64]) -> Iterator[slice]:
    """Part pieces into runs of some MiB, so that checksums take little memory."""
    first, here = 0, 0
    for i, more in enumerate(nbytes.tolist()):
        if here and here + more > PART_NBYTES:
            yield slice(first, i)
            first, here = i, 0
        here += more
    if here:
        yield slice(first, len(nbytes))


@dataclasses.dataclass(frozen=True)
class AtHand:
    """Rows of some files in one array."""

    files: RowFiles
    wanted: Pieces
    """Rows that were asked for."""
    whole: Pieces
    """The blocks that they lie in."""
    rows: NDArray[Any]
    begins: NDArray[np.int64]
    """Where in the array each run of blocks begins; what is between is no row."""
    is_mapped: bool = True

    def places(self) -> NDArray[np.int64]:
        """Return where in the array the rows are that were asked for, one after another."""
        sizes = self.wanted.sizes()
        before = np.cumsum(sizes) - sizes
        begins = self.begins + self.wanted.firsts - self.whole.firsts
        return np.repeat(begins - before, sizes) + np.arange(int(sizes.sum()))

    def check(self) -> None:
        """Compare mapped rows with their checksums: also after use, since files can be changed."""
        if not self.is_mapped:
            return
        for i, (begin, size) in enumerate(zip(self.begins, self.whole.sizes(), strict=True)):
            piece = Pieces(*(each[i : i + 1] for each in self.whole))
            here = self.rows[begin : begin + size].reshape(-1).view(np.uint8)
            self.files.check(piece, here)

    def refuse_outside(self) -> None:
        """Refuse rows that have a number that they may not have."""
        for i, (begin, size) in enumerate(zip(self.begins, self.whole.sizes(), strict=True)):
            self.files.refuse_outside(int(self.whole.files[i]), self.rows[begin : begin + size])


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
        write_rows(self.folder, self.names[file], data, self.chunk_rows - len(rows))


def write_rows(folder: PlainFolder, name: str, rows: NDArray[Any], n_missing: int = 0) -> None:
    """Write rows as plain bytes, for `RowFiles`, and beside them their checksums.

    Zeros take the place of `n_missing` further rows.
    """
    content = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    row_nbytes = math.prod(rows.shape[1:]) * rows.dtype.itemsize
    checksums = checksums_of_blocks(content, np.array([len(content)]), row_nbytes)
    folder.write_bytes(f"{CHECKS}/{name}", checksums.view(np.uint8).data)
    folder.write_bytes(name, content.data, bytes(n_missing * row_nbytes))


def write_some_rows(
    folder: PlainFolder, name: str, rows: NDArray[Any], places: NDArray[np.int64]
) -> None:
    """Write the rows at some places, as `write_rows` does, without a copy of all of them."""
    row_shape, row_nbytes = rows.shape[1:], math.prod(rows.shape[1:]) * rows.dtype.itemsize
    block = block_rows(row_nbytes)
    step = block * max(1, STEP_NBYTES // (block * row_nbytes))
    checksums: list[NDArray[np.uint32]] = []

    def parts() -> Iterator[memoryview]:
        checksums.clear()
        for first in range(0, len(places), step):
            here = places[first : first + step]
            taken = scratch("rows", (len(here), *row_shape), rows.dtype)
            np.take(rows, here, 0, taken, "clip")  # which, unlike "raise", makes no copy
            content = taken.reshape(-1).view(np.uint8)
            checksums.append(checksums_of_blocks(content, np.array([len(content)]), row_nbytes))
            yield content.data

    folder.write_parts(name, parts, len(places) * row_nbytes)
    found = np.concatenate([np.empty(0, np.uint32), *checksums])
    folder.write_bytes(f"{CHECKS}/{name}", found.view(np.uint8).data)
