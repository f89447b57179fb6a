"""Where a run keeps its data: the only package that knows Zarr and file systems.

A `Folder` is a directory or a prefix in an object store, with Zarr arrays, .npy files, files of
rows and documents. Whatever is read of a run is compared with checksums first. A `Source` is the
input. What a store refuses for a moment is tried again, here and nowhere else: see `patience`.
From below: `files` (what an address leads to), `disks` and `objects` (the content of files),
`checksums`, `zarrs`, `npy`, `plain` (folders of files and documents), `rows`, `folders`, `sources`.
"""

from spore_dask.store.checksums import checksum_of, hash_of
from spore_dask.store.disks import NO_ROOM, PARTIAL, full_disk
from spore_dask.store.files import address
from spore_dask.store.folders import Folder
from spore_dask.store.rows import CHECKS, AtHand, RowFiles
from spore_dask.store.sources import (
    Source,
    address_of,
    describe,
    open_column,
    open_source,
    open_zarr,
)

__all__ = [
    "CHECKS",
    "NO_ROOM",
    "PARTIAL",
    "AtHand",
    "Folder",
    "RowFiles",
    "Source",
    "address",
    "address_of",
    "checksum_of",
    "describe",
    "full_disk",
    "hash_of",
    "open_column",
    "open_source",
    "open_zarr",
]
