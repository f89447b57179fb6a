"""The files of arrays that are read as a whole: .npy files with a checksum at the end.

Memory: the array.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.patience import patiently
from spore_dask.store.checksums import CHECKSUM_NBYTES
from spore_dask.store.objects import cat_begin, fetch_parts

HEADER_NBYTES = 4096
"""More than the header of any .npy file of ours."""


def header_of(data: NDArray[Any]) -> bytes:
    """Return what the .npy file of an array begins with."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(data))
    return header.getvalue()


def parse_header(content: bytes) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
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


def as_array(content: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the array that an .npy file holds, without a copy; raise `ValueError` as above."""
    start, shape, dtype = parse_header(content[:HEADER_NBYTES].tobytes())
    return content[start:].view(dtype).reshape(shape)


def fetch_npy(files: Any, path: str, url: str) -> NDArray[np.uint8]:
    """Read the file of an array in an object store into memory that can be written to."""
    begin = patiently(lambda: cat_begin(files, path), url)
    try:
        start, shape, dtype = parse_header(begin[:HEADER_NBYTES])
    except ValueError:  # for the reader to tell
        return np.frombuffer(bytearray(begin), np.uint8)
    nbytes = start + math.prod(shape) * dtype.itemsize + CHECKSUM_NBYTES
    content = np.empty(nbytes, np.uint8)
    n_read = min(len(begin), nbytes)
    content[:n_read] = np.frombuffer(begin, np.uint8, n_read)
    if n_read < nbytes:
        rest = [(path, n_read, nbytes - n_read)]
        fetch_parts(files, rest, content[n_read:].data, url)
    return content
