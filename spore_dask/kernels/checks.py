"""Checksums of blocks of bytes, many small ones in one go."""

from __future__ import annotations

import numpy as np

from spore_dask.kernels.compiling import kernel

SEED = np.uint32(0x85EBCA6B)
STEP = np.uint32(0x9E3779B2)
"""Even, so that every weight is odd: a byte that changes changes the sum."""


@kernel
def block_checksums(content, piece_nbytes, block_nbytes, checksums):
    """Fill in the checksum of each block of some pieces that lie one behind the other.

    A piece is cut into blocks of `block_nbytes`, the last one of which may be shorter. A checksum
    is a sum of bytes, each with an odd weight of its place in the block, modulo 2**32; that of
    zeros is not zero.
    """
    place, number = np.uint64(0), np.uint64(0)
    for piece in range(len(piece_nbytes)):
        end = place + np.uint64(piece_nbytes[piece])
        while place < end:
            last = min(place + np.uint64(block_nbytes), end)
            total, weight = SEED, np.uint32(1)
            for i in range(place, last):
                total += np.uint32(content[i]) * weight
                weight += STEP
            checksums[number] = total
            place = last
            number += np.uint64(1)
