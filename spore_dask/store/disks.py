"""Files on disks that this machine has mounted: they appear whole or not at all.

Memory: what is read or written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from spore_dask.errors import FullDiskError
from spore_dask.store.files import Part, ends_early

PARTIAL = ".partial"
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


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


def write_file(target: str, content: tuple[bytes | memoryview, ...]) -> None:
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


def read_file(path: str) -> NDArray[np.uint8]:
    """Read a file on this machine's disks."""
    with open(path, "rb") as file:
        content = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
        _read_into(file.fileno(), 0, content.data)
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
