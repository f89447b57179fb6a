"""Files on disks that this machine has mounted: they appear whole or not at all.

Memory: what is read or written.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from spore_dask.errors import FullDiskError
from spore_dask.store.files import Part, ends_early

PARTIAL = ".partial"
HALF = re.compile(r"\.[0-9a-f]{32}\.partial\Z")
"""How names of files end that are being written, by us or by Zarr."""
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
MAP_FIXED = 0x10
POPULATE_READ = 22
"""What Python's own module has no names for: a flag of mmap, and an advice of Linux 5.14 on."""


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


def write_file(target: str, content: Iterable[bytes | memoryview], nbytes: int) -> None:
    """Write a file on this machine's disks under another name, and then give it its own."""
    partial = f"{target}.{uuid.uuid4().hex}{PARTIAL}"
    with room_for(target, nbytes):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            with open(partial, "wb") as file:
                file.writelines(content)
            os.replace(partial, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise


def read_file(path: str) -> NDArray[np.uint8]:
    """Read a file on this machine's disks."""
    with open(path, "rb") as file:
        content = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
        _read_into(file.fileno(), 0, content.data)
    return content


MappedPart = tuple[str, int, int, int]
"""Name of a file, first byte in the array and first byte in the file, which pages begin with, and
number of bytes."""


class NotMappedError(Exception):
    """A file cannot be mapped; it may be possible to read it."""


def can_map(path: str) -> bool:
    """Tell whether files of a folder can be mapped, and are on a disk of this machine.

    Elsewhere reads fail that later succeed; a mapped file that cannot be read ends the process.
    """
    if sys.platform != "linux" or _kernel() < (5, 14):
        return False
    with contextlib.suppress(FileNotFoundError):
        return os.major(os.stat(path).st_dev) != 0
    return False


def _kernel() -> tuple[int, int]:
    """Return the version of Linux, as far as it matters."""
    major, minor = re.findall(r"\d+", os.uname().release)[:2]
    return int(major), int(minor)


def map_files(path: str, parts: list[MappedPart]) -> NDArray[np.uint8]:
    """Return parts of files in one array, in the memory that the system has them in.

    What is between them is 0. What is written to the array stays there. Only where the system can:
    see `can_map`.
    """
    n_bytes = max((start + nbytes for _, start, _, nbytes in parts), default=0)
    if not n_bytes:
        return np.empty(0, np.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    content = np.frombuffer(mmap.mmap(-1, n_bytes, flags=flags), np.uint8)
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    system.mmap.restype = ctypes.c_void_p
    system.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    access, fixed = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | MAP_FIXED
    for name, start, first, nbytes in parts:
        with open(f"{path}/{name}", "rb") as file:
            if (missing := first + nbytes - os.fstat(file.fileno()).st_size) > 0:
                raise ends_early(f"{path}/{name}", missing)
            place = content.ctypes.data + start
            if nbytes and (
                system.mmap(place, nbytes, access, fixed, file.fileno(), first) != place
                or system.madvise(place, nbytes, POPULATE_READ)  # here, errors end no process
            ):
                raise NotMappedError(ctypes.get_errno(), "cannot be mapped", f"{path}/{name}")
    return content


def read_files(path: str, parts: list[Part], content: memoryview) -> None:
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
                raise ends_early(f"{path}/{wanted}", nbytes - n_read)
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
