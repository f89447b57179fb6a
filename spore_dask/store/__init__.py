"""Where a run keeps its data: the only package that knows Zarr and file systems.

A `Folder` is a directory or a prefix in an object store, with Zarr arrays, .npy files, files of
rows and documents. Whatever is read of a run is compared with checksums first. A `Source` is the
input. What a store refuses for a moment is tried again, here and nowhere else: see `patience`.
From below: `files` (what an address leads to), `disks` and `objects` (the content of files),
`checksums`, `limits`, `zarrs`, `npy`, `plain` (folders of files and documents), `rows`, `folders`,
`owners` (what may be removed), `sources`.
"""

from spore_dask.store.checksums import checksum_of, hash_of
from spore_dask.store.disks import HALF, NO_ROOM, PARTIAL, full_disk
from spore_dask.store.files import address
from spore_dask.store.folders import Folder
from spore_dask.store.limits import FINITE, Limits, broken_form
from spore_dask.store.owners import (
    OUR_FOLDER,
    OUR_LOCK,
    OWNER,
    POINTERS,
    STAGES,
    check_owner,
    claim,
    disclaim,
    half_of,
    is_owned,
    known_sources,
    our_folders,
    refuse_inside_stage,
    remember,
    remove_ours,
    remove_stage,
    sweep_documents,
)
from spore_dask.store.rows import CHECKS, AtHand, RowFiles
from spore_dask.store.sources import (
    Source,
    address_of,
    chunks_of,
    open_column,
    open_source,
    open_zarr,
)

__all__ = [
    "CHECKS",
    "FINITE",
    "HALF",
    "NO_ROOM",
    "OUR_FOLDER",
    "OUR_LOCK",
    "OWNER",
    "PARTIAL",
    "POINTERS",
    "STAGES",
    "AtHand",
    "Folder",
    "Limits",
    "RowFiles",
    "Source",
    "address",
    "address_of",
    "broken_form",
    "check_owner",
    "checksum_of",
    "chunks_of",
    "claim",
    "disclaim",
    "full_disk",
    "half_of",
    "hash_of",
    "is_owned",
    "known_sources",
    "open_column",
    "open_source",
    "open_zarr",
    "our_folders",
    "refuse_inside_stage",
    "remember",
    "remove_ours",
    "remove_stage",
    "sweep_documents",
]
