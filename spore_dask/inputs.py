"""What a user may give as data, made into a `Source` that every process can open.

A Zarr array with an address is used where it is. Anything else (a numpy array, a dask array, a Zarr
array in memory, what xarray or h5py has opened) is written into the run's folder once, a block of
rows at a time, and removed when the points have been partitioned. Memory: one block, and the chunks
that it lies in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import dask.base
import numpy as np
import zarr
from dask.utils import format_bytes
from numpy.typing import NDArray

from spore_dask import memory
from spore_dask.coordinates import check_array, refuse_masked
from spore_dask.engine import Engine
from spore_dask.errors import InputError, LimitError, ParameterError, SporeError
from spore_dask.formats.ids import open_ids
from spore_dask.formats.kinds import suffix_of
from spore_dask.formats.matrix import listed
from spore_dask.memory import Chunks
from spore_dask.store import (
    Folder,
    Source,
    address_of,
    check_owner,
    chunks_of,
    hash_of,
    known_sources,
    open_column,
    open_source,
    refuse_inside_stage,
    remember,
)
from spore_dask.tasks import MARKER, Receipt, Work, run_stage, run_work

BLOCK_NBYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class Input:
    """The data of a run: a source, and what has to be written before it can be read."""

    source: Source
    content: Any = None
    """The array to write; None where the source is there already."""

    @property
    def folder(self) -> Folder:
        """Where the content is written."""
        return Folder(self.source.url.rsplit("/", 1)[0])

    @property
    def is_computed(self) -> bool:
        """Whether the content has to be computed before it is known what it is."""
        return self.content is not None and not isinstance(self.content, np.ndarray)

    @property
    def is_written(self) -> bool:
        """Whether something of the content has been written, and not removed."""
        return self.content is not None and self.folder.exists()

    def known(self, engine: Engine, needs_nbytes: int) -> Input:
        """Return the same with the source's identity known.

        What is not in memory is not read before a plan has allowed for it: it is written now.
        """
        if not self.is_computed:
            return self
        self.remove()
        self.write(engine, needs_nbytes)
        identity = hash_of(self.folder.read_json(MARKER)["checksums"])
        return dataclasses.replace(self, source=dataclasses.replace(self.source, identity=identity))

    def write(self, engine: Engine, needs_nbytes: int) -> None:
        """Write the content to where the source says, unless it is there."""
        if self.content is not None:
            run_stage(engine, self.folder, functools.partial(_write, engine, self, needs_nbytes))

    @contextlib.contextmanager
    def removed_when_done(self) -> Iterator[None]:
        """Remove what `write` has written when it is no longer needed, or proved to be bad."""
        try:
            yield
        except SporeError:
            self.remove()
            raise
        self.remove()

    def remove(self) -> None:
        """Remove what `write` has written; first what says that it is there."""
        if self.content is not None:
            self.folder.remove(MARKER)
            self.folder.remove("receipts-input")
            self.folder.remove()


@contextlib.contextmanager
def remembered(folder: Folder, source: Source) -> Iterator[None]:
    """Remember the source in a run's folder, unless it proves to be bad."""
    check_unchanged(folder, source)
    is_new = remember_source(folder, source)
    try:
        yield
    except InputError:
        if is_new:
            remember(folder, source.url, None)
        raise


def remember_source(folder: Folder, source: Source) -> bool:
    """Remember a source in a run's folder; return whether it was not known there."""
    is_new = not source.is_copy and source.url not in known_sources(folder)
    if is_new:
        remember(folder, source.url, source.identity)
    return is_new


def check_unchanged(folder: Folder, source: Source) -> None:
    """Refuse a source that is not what a run's folder remembers."""
    if source.is_copy:  # another content has another address
        return
    if known_sources(folder).get(source.url, source.identity) != source.identity:
        raise InputError(
            f"The data at {source.url!r} has changed since the run at {folder.url!r} began, which "
            "would mix old and new points: give another `out`, or remove this one."
        )


def find_input(source: Any, component: str | None, folder: Folder, least_rows: int = 2) -> Input:
    """Find the data that a user means.

    Parameters
    ----------
    source : path, URL, zarr.Array, dask array or DataFrame, xarray.DataArray or numpy array
    component : str, optional
        Path of the array in the group at `source`.
    folder : Folder
        Where the run is.
    least_rows : int
        How many rows there must be.
    """
    if isinstance(source, (str, os.PathLike)):
        found = Input(open_source(os.fspath(source), component))
    elif component is not None:
        raise InputError(
            f"component is {component!r} although the data is a {type(source).__name__}; it names "
            "an array inside the group at a path, so leave it out."
        )
    elif isinstance(source, zarr.Array):
        address = address_of(source)
        if address is None:
            found = _copied(source, folder, least_rows)
        else:  # as workers will open it, with what their environment says
            found = Input(open_source(address))
    else:
        found = _copied(source, folder, least_rows)
    _check_place(folder, found.source.url)
    check_array(found.source.shape, np.dtype(found.source.dtype), least_rows)
    return found


def _check_place(folder: Folder, source: str) -> None:
    """Refuse to write a run into the data, or into any other array."""
    inside = f"{folder.url}/".startswith(f"{source}/")
    if inside or any(folder.exists(name) for name in ("zarr.json", ".zarray", ".zgroup")):
        raise ParameterError(
            f"out is {folder.url!r}, which is {'the source' if inside else 'Zarr data'}: give a "
            "folder of its own."
        )
    refuse_inside_stage(folder.url)
    check_owner(folder)


def labels_of_rows(
    y: Any, n_rows: int, rows: NDArray[np.int64], memory_limit: int
) -> NDArray[np.int64]:
    """Return the labels of some ascending rows, as numbers from 0 on in the order they are met.

    `y` is an array of N labels of any kind, or a Zarr array of them by itself or its path, or the
    path of an .npy file or of a table with one column.
    """
    if isinstance(y, (str, os.PathLike)) and suffix_of(os.fspath(y)):
        labels = open_ids(y, None)
        _check_labels((labels.n_rows,), n_rows)
        values: Any = _pick(labels.blocks(), rows)
    else:
        y = open_column(os.fspath(y)) if isinstance(y, (str, os.PathLike)) else y
        array = y if isinstance(y, zarr.Array) else np.asarray(y)
        _check_labels(array.shape, n_rows)
        if isinstance(array, zarr.Array):
            values = _pick_stored(array, rows, memory_limit)
        else:
            values = array[rows]
    try:
        _, met, numbers = np.unique(np.asarray(values), return_index=True, return_inverse=True)
    except TypeError as error:
        raise InputError(
            f"The labels in y cannot be compared with each other ({error}): give numbers, or texts."
        ) from None
    places: NDArray[np.int64] = np.argsort(np.argsort(met))[numbers]
    return places


def _check_labels(shape: tuple[int, ...], n_rows: int) -> None:
    """Refuse labels of another number of rows."""
    if shape != (n_rows,):
        raise InputError(
            f"y has shape {shape}, but it must be ({n_rows},): one label for each row of the data."
        )


def _pick(blocks: Iterator[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return the values of some ascending rows, from blocks of all of them."""
    found, first = [], 0
    for block in blocks:
        low, high = np.searchsorted(rows, (first, first + len(block)))
        found.append(np.asarray(block)[rows[low:high] - first])
        first += len(block)
    return np.concatenate(found)


def _pick_stored(
    array: zarr.Array[Any], rows: NDArray[np.int64], memory_limit: int
) -> NDArray[Any]:
    """Return the values of some ascending rows of a Zarr array, read a few chunks at a time."""
    chunks, itemsize = chunks_of(array), array.dtype.itemsize
    needed = memory.reading_nbytes(chunks.rows * itemsize, chunks.decoding_nbytes)
    if needed > memory_limit:
        raise LimitError(
            f"memory_limit is {format_bytes(memory_limit)}, but reading y needs "
            f"{format_bytes(needed)} for chunks of {chunks.rows} labels "
            f"({format_bytes(chunks.nbytes)} decoded): raise it, or give y in smaller chunks."
        )
    n_rows, decoding_nbytes = array.shape[0], chunks.decoding_nbytes
    step = memory.rows_together(n_rows, itemsize, chunks.rows, decoding_nbytes, BLOCK_NBYTES)
    found = []
    for first, last in _blocks(array, step):
        here = rows[slice(*np.searchsorted(rows, (first, last)))]
        if len(here):
            found.append(np.asarray(array[first:last])[here - first])
    return np.concatenate(found)


def _copied(content: Any, folder: Folder, least_rows: int) -> Input:
    """Return an input that has to be written first."""
    content = _unwrapped(content)
    if not is_lazy(content):
        refuse_masked(content)
        content = np.asarray(content)
    check_array(content.shape, content.dtype, least_rows)
    if is_dask(content):
        if np.isnan(content.shape[0]):
            raise InputError(
                "The dask array does not know how many rows it has; call compute_chunk_sizes() "
                "on it first."
            )
        identity = dask.base.tokenize(content)
    elif is_lazy(content):
        identity = ""  # `Input.known` finds it when the content is read
    else:
        identity = _content_hash(content)
    blocks = _blocks_of(content)
    name = _name_of(identity, content)
    source = Source(
        url=folder.child(f"input-{name}/data").url,
        shape=(int(content.shape[0]), int(content.shape[1])),
        dtype=content.dtype.str,
        chunk_rows=blocks.rows,
        chunk_nbytes=blocks.nbytes,
        decoding_nbytes=blocks.decoding_nbytes,
        identity=name,
        is_copy=True,
    )
    return Input(source, content)


def _name_of(identity: str, content: Any) -> str:
    """Return what a copy is called."""
    return hash_of("input", identity, content.shape, content.dtype.str)


def _unwrapped(content: Any) -> Any:
    """Return the array that a DataFrame of dask or an object of xarray has, but read nothing."""
    if _is_a(content, "xarray", "Dataset"):
        raise InputError(
            f"The data is an xarray.Dataset with the variables {listed(map(str, content))}: give "
            "one of them, such as data['name']."
        )
    if _is_a(content, "xarray", "DataArray") and (_in_memory(content) or content.chunks):
        return content.data
    if _is_a(content, "dask.dataframe", "DataFrame"):
        for name, dtype in content.dtypes.items():
            if not (isinstance(dtype, np.dtype) and dtype.kind in "fiub"):
                raise InputError(
                    f"Column {name!r} of the dask DataFrame has dtype {dtype}, but it must hold "
                    "numbers of numpy: leave it out, or convert it with data.astype('float64')."
                )
        with dask.config.set(num_workers=1):  # counts rows, without a cluster one part at a time
            return content.to_dask_array(lengths=True)
    return content


def _in_memory(content: Any) -> bool:
    """Tell whether an xarray.DataArray has its values at hand, and not in a file or in dask."""
    return bool(getattr(content, "_in_memory", False))


def is_lazy(content: Any) -> bool:
    """Tell what holds no values itself, or cannot be used as it is, and is read in blocks."""
    return (
        isinstance(content, zarr.Array)
        or is_dask(content)
        or _is_a(content, "dask.dataframe", "DataFrame")
        or (_is_a(content, "xarray", "DataArray") and not _in_memory(content))
        or _is_a(content, "h5py", "Dataset")
    )


def is_dask(content: Any) -> bool:
    """Tell a dask array."""
    return _is_a(content, "dask.array", "Array")


def _is_a(content: Any, module: str, name: str) -> bool:
    """Tell an object's class, without the import of its module: whoever has one has done that."""
    found = sys.modules.get(module)
    return found is not None and isinstance(content, getattr(found, name))


def _blocks_of(content: Any) -> Chunks:
    """Return what is read and written together: whole chunks of what the content is stored in."""
    n_rows, n_columns = map(int, content.shape)
    itemsize = content.dtype.itemsize
    if is_dask(content):  # a task computes as much at least
        return Chunks.of(content.shape, itemsize, (max(content.chunks[0]), n_columns))
    stored = _stored_chunks(content)
    rows = memory.rows_together(
        n_rows, n_columns * itemsize, stored.rows, stored.decoding_nbytes, BLOCK_NBYTES
    )
    n_chunks = -(-rows // stored.rows)
    written = Chunks.of(content.shape, itemsize, (rows, n_columns))
    decoding_nbytes = max(n_chunks * stored.decoding_nbytes, written.decoding_nbytes)
    return Chunks(rows, n_chunks * stored.nbytes, decoding_nbytes)


def _stored_chunks(content: Any) -> Chunks:
    """Return the chunks that an array is stored in; single rows, if it is in none."""
    shape, itemsize = content.shape, content.dtype.itemsize
    sizes = None
    if isinstance(content, zarr.Array):
        return chunks_of(content)
    if _is_a(content, "h5py", "Dataset"):
        sizes = content.chunks
    elif _is_a(content, "xarray", "DataArray"):
        stored = content.encoding.get("preferred_chunks")
        sizes = stored and [stored.get(name, 1) for name in content.dims]
    row_nbytes = shape[1] * itemsize
    return Chunks.of(shape, itemsize, sizes) if sizes else Chunks(1, row_nbytes, 2 * row_nbytes)


def _blocks(content: Any, step: int) -> list[tuple[int, int]]:
    return [(i, min(i + step, content.shape[0])) for i in range(0, content.shape[0], step)]


def _content_hash(content: Any) -> str:
    """Return a hash of the rows, read a block at a time."""
    row_nbytes = content.shape[1] * content.dtype.itemsize
    digest = hashlib.blake2b(digest_size=16)
    for first, last in _blocks(content, max(1, BLOCK_NBYTES // row_nbytes)):
        digest.update(np.ascontiguousarray(content[first:last]).data)
    return digest.hexdigest()


def _write(engine: Engine, data: Input, needs_nbytes: int, folder: Folder) -> Receipt:
    """Write the content, a chunk at a time: an array here, a dask array on the workers."""
    source, content = data.source, data.content
    target = folder.create_rows("data", source.shape, source.dtype, source.chunk_rows)
    ranges = _blocks(content, source.chunk_rows)
    if is_dask(content):
        optimize: Any = dask.base.optimize  # so that a task is sent only what it computes
        items = [(*rows, optimize(content[slice(*rows)])[0]) for rows in ranges]
        write = functools.partial(_write_computed, folder)
        receipts = run_work(engine, folder, Work("input", write, items, needs_nbytes))
        checksums = [receipt["checksum"] for receipt in receipts]
    else:
        checksums, digest = [], hashlib.blake2b(digest_size=16)
        for first, last in ranges:
            block = np.array(content[first:last], order="C")  # nobody else can change it
            target.write(first, block)
            if data.is_computed:
                checksums.append(_hash_of_rows(block))
            else:
                digest.update(block.data)
        if not (data.is_computed or _name_of(digest.hexdigest(), content) == source.identity):
            raise InputError(
                "The array changed while this call worked on it, so nothing was claimed for it: "
                "call again with an array that stays as it is, or with a copy."
            )
    return {"n_rows": source.shape[0], "checksums": checksums}


def _write_computed(folder: Folder, item: tuple[int, int, Any]) -> Receipt:
    """Compute some rows of a dask array, and write them."""
    first, last, block = item
    data = np.ascontiguousarray(block.compute(scheduler="synchronous"))
    folder.open_rows("data").write(first, data)
    return {"n_rows": last - first, "checksum": _hash_of_rows(data)}


def _hash_of_rows(rows: NDArray[Any]) -> str:
    return hashlib.blake2b(rows.data, digest_size=16).hexdigest()
