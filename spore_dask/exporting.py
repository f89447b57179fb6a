"""`export_labels`: the labels of a run or a prediction, to a file that other tools read.

Reads the labels, and what is asked for beside them, in blocks; writes a file under another name
until it is whole. Memory: a block of 262144 rows.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from spore_dask.engine import open_engine
from spore_dask.errors import InputError, ParameterError
from spore_dask.formats.ids import Ids, open_ids
from spore_dask.formats.matrix import ranges, readable, require
from spore_dask.predictions import POINTER, Prediction
from spore_dask.progress import as_consumer
from spore_dask.runs import Run, open_run, read_published
from spore_dask.store import PARTIAL, Folder, address, refuse_inside_stage

BLOCK_ROWS = 1 << 18
COLUMNS = ("label", "provenance", "confidence")


def export_labels(
    run: Run | Prediction | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    ids: Any = None,
    id_column: str | None = None,
    provenance: bool = False,
    confidence: bool = False,
    overwrite: bool = False,
    progress: Any = None,
) -> str:
    """Write the labels of a run or a prediction to a file, a block at a time.

    Parameters
    ----------
    run : Run, Prediction, or the path of one
    out : path
        The file to write: .parquet, .csv or .npy (labels only).
    ids : path, zarr.Array or sequence, optional
        A name for each row, in the order of the rows: .parquet (a file, folder or pattern), .csv,
        .tsv, .npy, or a Zarr array. They are the first column, instead of `row`; those in text stay
        text.
    id_column : str, optional
        The column of `ids`, where that is a table of several.
    provenance : bool
        Whether to write how each row of a run got its label: 0 in Expansion, r in round r of
        reassignment, -1 noise.
    confidence : bool
        Whether to write the confidence of each label of a prediction.
    overwrite : bool
        Whether a file that is at `out` is replaced, when the new one is whole.
    progress
        As in `fit`.

    Returns
    -------
    str
        The path of the file. Its columns are `row` or the name of the id column, `label`, and
        `provenance` and `confidence` where asked.
    """
    consumer = as_consumer(progress)
    target, writer = _target(out, overwrite)
    table = _find_table(run, provenance, confidence)
    if writer is _write_npy and (ids is not None or len(table.columns) > 1):
        raise ParameterError(
            f"out is {target!r}, but an .npy file holds labels only: give a .parquet or .csv file "
            "for ids, provenance or confidence."
        )
    if id_column is not None and ids is None:
        raise ParameterError(f"id_column is {id_column!r}, but ids is not given: give both.")
    if ids is not None:
        table = dataclasses.replace(table, ids=_find_ids(ids, id_column, table.n_rows))
    partial = f"{target}.{uuid.uuid4().hex}{PARTIAL}"
    try:
        with (
            open_engine(None, 0, None, consumer) as engine,
            engine.here("export", -(-table.n_rows // BLOCK_ROWS)) as done,
        ):
            writer(partial, table, done)
        os.replace(partial, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)
    return target


@dataclasses.dataclass(frozen=True)
class Table:
    """What is written: columns of the same length."""

    columns: dict[str, Any]
    """The Zarr array of each column, `label` first."""
    ids: Ids | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.columns["label"].shape[0])

    def schema(self) -> Any:
        """Return Arrow's names and types of the columns."""
        pyarrow = require("pyarrow")
        first = ("row", pyarrow.int64()) if self.ids is None else (self.id_name, self.ids.type)
        types = [(name, pyarrow.from_numpy_dtype(a.dtype)) for name, a in self.columns.items()]
        return pyarrow.schema([first, *types])

    @property
    def id_name(self) -> str:
        """The name of the column of ids: not that of another column."""
        name = "row" if self.ids is None else self.ids.name
        return "id" if name in COLUMNS else name

    def batches(self) -> Iterator[Any]:
        """Yield blocks of rows."""
        pyarrow = require("pyarrow")
        schema = self.schema()
        ids = None if self.ids is None else _in_blocks(self.ids)
        for first, last in ranges(self.n_rows, BLOCK_ROWS):
            numbers = np.arange(first, last) if ids is None else next(ids)
            values = [read_published(array, first, last) for array in self.columns.values()]
            arrays = [pyarrow.array(column) for column in values]
            yield pyarrow.record_batch([pyarrow.array(numbers), *arrays], schema=schema)


def _in_blocks(ids: Ids) -> Iterator[Any]:
    """Yield ids in blocks of as many rows as are written together."""
    pyarrow = require("pyarrow")
    held: list[Any] = []
    for block in ids.blocks():
        values = pyarrow.array(block).cast(ids.type)
        while len(values):
            part = values.slice(0, BLOCK_ROWS - sum(map(len, held)))
            held, values = [*held, part], values.slice(len(part))
            if sum(map(len, held)) == BLOCK_ROWS:
                yield pyarrow.concat_arrays(held)
                held = []
    if held:
        yield pyarrow.concat_arrays(held)


def _write_parquet(path: str, table: Table, done: Callable[[], None]) -> None:
    with require("pyarrow.parquet").ParquetWriter(path, table.schema()) as writer:
        for batch in table.batches():
            writer.write_batch(batch)
            done()


def _write_csv(path: str, table: Table, done: Callable[[], None]) -> None:
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(table.schema().names)
    options = require("pyarrow.csv").WriteOptions(include_header=False, quoting_style="needed")
    with open(path, "wb") as file:
        file.write(header.getvalue().encode())
        with require("pyarrow.csv").CSVWriter(
            file, table.schema(), write_options=options
        ) as writer:
            for batch in table.batches():
                writer.write(batch)
                done()


def _write_npy(path: str, table: Table, done: Callable[[], None]) -> None:
    labels = table.columns["label"]
    about = {"descr": labels.dtype.str, "fortran_order": False, "shape": (table.n_rows,)}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, about)
        for first, last in ranges(table.n_rows, BLOCK_ROWS):
            file.write(np.ascontiguousarray(read_published(labels, first, last)).data)
            done()


WRITERS: dict[str, Callable[[str, Table, Callable[[], None]], None]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".npy": _write_npy,
}


def _target(out: str | os.PathLike[str], overwrite: bool) -> tuple[str, Any]:
    """Return the file to write and what writes it; refuse what is there already."""
    target = address(out)
    suffix = os.path.splitext(target)[1].lower()
    if suffix not in WRITERS or "://" in target:
        raise ParameterError(
            f"out is {target!r}, but it must be a file of this machine that ends with "
            f"{', '.join(WRITERS)}."
        )
    refuse_inside_stage(target)
    if not os.path.isdir(os.path.dirname(target)):
        raise InputError(f"There is no folder {os.path.dirname(target)!r}: create it first.")
    if os.path.lexists(target) and (not overwrite or os.path.isdir(target)):
        raise InputError(
            f"There is something at {target!r} already: give another out=, or overwrite=True for "
            "a file."
        )
    return target, WRITERS[suffix]


def _find_table(run: Any, provenance: bool, confidence: bool) -> Table:
    """Return the arrays that are asked for."""
    found = _find_labelled(run) if isinstance(run, str | os.PathLike) else run
    columns = {"label": found.labels}
    for name, wanted in (("provenance", provenance), ("confidence", confidence)):
        if wanted and not hasattr(found, name):
            kind = "prediction" if name == "provenance" else "run"
            raise ParameterError(f"{name} is True, but a {kind} has none: leave it out.")
        if wanted:
            columns[name] = getattr(found, name)
    return Table(columns)


def _find_labelled(path: str | os.PathLike[str]) -> Run | Prediction:
    """Open a run, or a prediction, by its path."""
    is_prediction = Folder(address(path)).exists(POINTER)
    return Prediction(path) if is_prediction else open_run(path)


def _find_ids(ids: Any, column: str | None, n_rows: int) -> Ids:
    """Open the ids; refuse another number of them than of labels."""
    with readable("ids" if not isinstance(ids, str | os.PathLike) else os.fspath(ids)):
        found = open_ids(ids, column)
    if found.n_rows != n_rows:
        raise InputError(
            f"There are {found.n_rows} ids, but {n_rows} labels: give one id for each row, in the "
            "order of the rows."
        )
    return found
