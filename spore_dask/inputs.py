"""What a user may give as data, made into a `Source` that every process can open.

A Zarr array with an address is used where it is. Anything else (a numpy array, a dask array, a Zarr
array in memory) is written into the run's folder once, a block of rows at a time, and removed when
the points have been partitioned. Memory: one block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import dask.base
import numpy as np
import zarr
from numpy.typing import NDArray

from spore_dask.coordinates import check_array, refuse_masked
from spore_dask.engine import Engine
from spore_dask.errors import InputError, ParameterError, SporeError
from spore_dask.formats.ids import open_ids
from spore_dask.formats.kinds import suffix_of
from spore_dask.store import (
    Folder,
    Source,
    address_of,
    describe,
    hash_of,
    open_column,
    open_source,
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
        return is_dask(self.content)

    @property
    def is_written(self) -> bool:
        """Whether something of the content has been written, and not removed."""
        return self.content is not None and self.folder.exists()

    def known(self, engine: Engine, needs_nbytes: int) -> Input:
        """Return the same with the source's identity known.

        What a dask array will give cannot be told beforehand: it is computed and written now.
        """
        if not self.is_computed:
            return self
        self.remove()
        self.write(engine, needs_nbytes)
        receipts = self.folder.child("receipts-input")
        names = sorted(receipts.names(), key=lambda name: int(name.removesuffix(".json")))
        identity = hash_of([receipts.read_json(name)["checksum"] for name in names])
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
    was_known = folder.exists(_memory_of(source))
    check_unchanged(folder, source, remember=True)
    try:
        yield
    except InputError:
        if not was_known:
            folder.remove(_memory_of(source))
        raise


def _memory_of(source: Source) -> str:
    """Return the name of the document that remembers a source."""
    return f"source-{hash_of(source.url)}.json"


def check_unchanged(folder: Folder, source: Source, remember: bool = False) -> None:
    """Refuse a source whose files are not those that a run's folder remembers."""
    if source.identity is not None:  # another content has another address
        return
    name = _memory_of(source)
    known, fingerprint = folder.read_json(name), source.fingerprint()
    if known is None and remember:
        folder.write_json(name, {"url": source.url, "fingerprint": fingerprint})
    elif known is not None and known["fingerprint"] != fingerprint:
        raise InputError(
            f"The data at {source.url!r} has changed since the run at {folder.url!r} began, which "
            "would mix old and new points: give another `out`, or remove this one."
        )


def find_input(source: Any, component: str | None, folder: Folder, least_rows: int = 2) -> Input:
    """Find the data that a user means.

    Parameters
    ----------
    source : path, URL, zarr.Array, dask array or numpy array
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
        elif "://" in address:  # as workers will, with what their environment says
            found = Input(open_source(address))
        else:
            found = Input(describe(source, address))
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


def labels_of_rows(y: Any, n_rows: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
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
        values = array.oindex[rows] if isinstance(array, zarr.Array) else array[rows]
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


def _copied(content: Any, folder: Folder, least_rows: int) -> Input:
    """Return an input that has to be written first."""
    if not (isinstance(content, zarr.Array) or is_dask(content)):
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
    else:
        identity = _content_hash(content)
    n_rows, n_columns = map(int, content.shape)
    row_nbytes = n_columns * content.dtype.itemsize
    chunk_rows = min(n_rows, max(1, BLOCK_NBYTES // row_nbytes))
    if is_dask(content):
        chunk_rows = max(content.chunks[0])  # what a task computes at least
    name = hash_of("input", identity, content.shape, content.dtype.str)
    source = Source(
        url=folder.child(f"input-{name}/data").url,
        shape=(n_rows, n_columns),
        dtype=content.dtype.str,
        chunk_rows=chunk_rows,
        chunk_nbytes=chunk_rows * row_nbytes,
        identity=name,
    )
    return Input(source, content)


def is_dask(content: Any) -> bool:
    """Tell a dask array, without the import of its module: whoever has one has done that."""
    arrays = sys.modules.get("dask.array")
    return arrays is not None and isinstance(content, arrays.Array)


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
        run_work(engine, folder, Work("input", write, items, needs_nbytes))
    else:
        for first, last in ranges:
            target.write(first, np.asarray(content[first:last]))
    return {"n_rows": source.shape[0]}


def _write_computed(folder: Folder, item: tuple[int, int, Any]) -> Receipt:
    """Compute some rows of a dask array, and write them."""
    first, last, block = item
    data = np.ascontiguousarray(block.compute(scheduler="synchronous"))
    folder.open_rows("data").write(first, data)
    return {"n_rows": last - first, "checksum": zlib.crc32(data.data)}
