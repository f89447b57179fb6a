"""Checksums of documents, files and rows, and names that are made of them.

What is read of a run is compared with them first. Memory: four bytes for each block of rows.
"""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.memory import PAGE_ROWS

CHECKSUM_NBYTES = 4
BLOCK_NBYTES = 1024
"""Rows of few bytes that share a checksum; of others, those of a page do."""


def document_checksum(value: Any) -> int:
    """Return the checksum of a document."""
    return zlib.crc32(json.dumps(value, indent=1).encode())


def file_checksum(*parts: Any) -> bytes:
    """Return the checksum of an .npy file."""
    checksum = functools.reduce(lambda known, part: zlib.crc32(part, known), parts, 0)
    return checksum.to_bytes(CHECKSUM_NBYTES, "little")


def block_rows(row_nbytes: int) -> int:
    """Return how many rows share a checksum."""
    return max(PAGE_ROWS, BLOCK_NBYTES // row_nbytes) if row_nbytes < 16 else PAGE_ROWS


def checksums_of_blocks(
    content: NDArray[np.uint8], piece_nbytes: NDArray[np.int64], row_nbytes: int
) -> NDArray[np.uint32]:
    """Return the checksums of the blocks of pieces that begin with a block."""
    block_nbytes = block_rows(row_nbytes) * row_nbytes
    found = np.empty(int((-(-piece_nbytes // block_nbytes)).sum()), np.uint32)
    # Loaded here, because a worker is prepared first, and reading documents needs no kernels.
    from spore_dask.kernels.checks import block_checksums

    block_checksums(content, piece_nbytes, block_nbytes, found)
    return found


def checksum_of(rows: NDArray[Any]) -> int:
    """Return the checksum of some rows."""
    return zlib.crc32(np.ascontiguousarray(rows).data)


def hash_of(*parts: Any) -> str:
    """Return a short name for what some plain values say."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
