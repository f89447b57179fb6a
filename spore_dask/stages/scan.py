"""Scan: read the input once (twice with scaling), check it, and learn what partitioning needs.

Reads the source; writes `sample`, a drawn part of the rows in their input dtype. Leaves the
transform to working coordinates, the range of each column and a checksum of each part.
Memory: the chunks that one task reads, and two float64 blocks.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.coordinates import (
    Columns,
    Learned,
    Transform,
    check_extent,
    check_magnitude,
    column_deviations,
    fit_transform,
    measure_columns,
    refuse_zero_rows,
)
from spore_dask.engine import Engine
from spore_dask.partitions import sample_rows
from spore_dask.store import FINITE, Folder, Source, broken_form, checksum_of
from spore_dask.tasks import MARKER, Receipt, Work, run_stage, run_work

N_LOOKED_AT = 10_000
"""Rows of the sample that columns and copies are judged by, at most."""
SUSPICIOUS_NBYTES = 1 << 14
"""Chunks from this size on are rarely all zeros."""


@dataclasses.dataclass(frozen=True)
class ScanSpec:
    """What a scan is asked for."""

    source: Source
    rows_per_task: int
    sample_size: int
    scale: str | None
    metric: str
    seed: int
    needs_nbytes: int
    learned: Learned | None = None
    """What an earlier scan has learned of other points, which these are to be compared with."""

    @property
    def learns_scale(self) -> bool:
        """Whether the columns are measured to scale them."""
        return self.scale is not None and self.learned is None

    def ranges(self) -> list[tuple[int, int]]:
        """Return the rows [first, last) of each task."""
        n_rows, step = self.source.shape[0], self.rows_per_task
        return [(first, min(first + step, n_rows)) for first in range(0, n_rows, step)]


@dataclasses.dataclass(frozen=True)
class Scan:
    """What a finished scan knows."""

    folder: Folder
    transform: Transform
    checksum: str
    """Of the rows, in their order."""
    ranges: list[tuple[int, int]]
    """Rows [first, last) that each task has read."""
    checksums: list[int]
    """Of these rows."""
    sample_rows: NDArray[np.int64]
    """The rows that were drawn."""
    n_columns: int
    dtype: str
    """Of the source."""

    def sample(self) -> NDArray[np.floating]:
        """Return the working coordinates of the drawn rows."""
        size = len(self.sample_rows), self.n_columns
        sample = self.folder.read_array("sample", shape=size, dtype=self.dtype, limits=FINITE)
        return self.transform.apply(sample, self.sample_rows)


def scan(engine: Engine, folder: Folder, spec: ScanSpec) -> Scan:
    """Scan the source, or take up what an earlier scan has left."""
    summary = run_stage(engine, folder, functools.partial(_build, engine, spec))
    drawn = sample_rows(spec.source.shape[0], spec.sample_size, spec.seed)
    n_columns, dtype = spec.source.shape[1], np.dtype(spec.source.dtype).str
    transform, ranges = transform_of(folder, summary, n_columns), spec.ranges()
    with folder.understood(MARKER):
        checksum, checksums = str(summary["checksum"]), list(summary["checksums"])
        if len(checksums) != len(ranges):
            raise ValueError(f"{len(checksums)} checksums of {len(ranges)} parts")
    return Scan(folder, transform, checksum, ranges, checksums, drawn, n_columns, dtype)


def transform_of(folder: Folder, summary: Receipt, n_columns: int) -> Transform:
    """Return what makes working coordinates of so many columns, as a scan has learned it."""
    with folder.understood(MARKER):
        transform = Transform.from_json(summary["transform"])
        if transform.dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype is {transform.dtype}")
        for name in ("clip_low", "clip_high", "shift", "divisor"):
            values = getattr(transform, name)
            if values is not None and (why := broken_form(values, (n_columns,), "f8", FINITE)):
                raise ValueError(f"of {name}, {why}")
    return transform


def _build(engine: Engine, spec: ScanSpec, folder: Folder) -> Receipt:
    _warn_of_missing(spec.source)
    measure = functools.partial(_measure, spec, folder)
    receipts = run_work(engine, folder, Work("scan", measure, spec.ranges(), spec.needs_nbytes))
    columns = _columns(spec, receipts[0])
    for receipt in receipts[1:]:
        columns += _columns(spec, receipt)
    checksums = [r["checksum"] for r in receipts]
    known = spec.learned
    transform = known.transform if known else _learn(engine, spec, folder, columns, checksums)
    if spec.learned is not None:
        spec.learned.refuse_far(columns)
    if not folder.exists("sample.npy"):
        samples = folder.child("samples")
        drawn = [samples.read_array(str(r["first"])) for r in receipts if r["n_drawn"]]
        folder.write_array("sample", np.concatenate(drawn))
    folder.remove("samples")
    sample = folder.read_array("sample", shape=(None, spec.source.shape[1]), limits=FINITE)
    checksum = zlib.crc32(" ".join(map(str, checksums)).encode())
    facts = {"checksum": f"{checksum:08x}", "checksums": checksums}
    spec.source.confirm()
    return {"transform": transform.to_json(), **facts, **sample_facts(sample)}


def _warn_of_missing(source: Source) -> None:
    """Warn of chunks that are not stored: Zarr leaves out those of nothing but the fill value."""
    n_missing, n_chunks = source.n_missing()
    if n_missing and source.chunk_nbytes >= SUSPICIOUS_NBYTES:
        warnings.warn(
            f"{n_missing} of the {n_chunks} chunks of {source.url!r} are not stored, so that their "
            "rows all read as the fill value: if they should not be all the same, the data is "
            "incomplete.",
            stacklevel=2,
        )


def _learn(
    engine: Engine, spec: ScanSpec, folder: Folder, columns: Columns, checksums: list[int]
) -> Transform:
    """Return what makes working coordinates of the rows; scaling takes a second pass."""
    deviations = None
    if spec.scale is not None:
        check_magnitude(columns, spec.scale)
        deviate = functools.partial(_deviate, spec, columns.means())
        items = list(zip(spec.ranges(), checksums, strict=True))
        work = Work("scan-deviations", deviate, items, spec.needs_nbytes)
        totals = [[int(total) for total in r["deviations"]] for r in run_work(engine, folder, work)]
        deviations = [sum(column) for column in zip(*totals, strict=True)]
    dtype = np.dtype(spec.source.dtype)
    transform = fit_transform(dtype, columns, deviations, spec.scale, spec.metric)
    if spec.scale is None and spec.metric == "euclidean":
        check_extent(columns.low, columns.high, transform.dtype)
    return transform


def sample_facts(sample: NDArray[Any]) -> Receipt:
    """Return what a sample of the rows says of the whole.

    `widest` and `narrowest` are the columns with the largest and the smallest deviation that is not
    0, `spread` the ratio of the two, and `copies` the share of the rows that equal another.
    """
    sample = sample[:: -(-len(sample) // N_LOOKED_AT)]
    deviations = sample.std(axis=0, dtype=np.float64)
    varied = np.flatnonzero(deviations > 0)
    facts: Receipt = {"copies": _share_of_copies(sample)}
    if not len(varied):
        return facts
    widest = int(varied[np.argmax(deviations[varied])])
    narrowest = int(varied[np.argmin(deviations[varied])])
    spread = float(deviations[widest] / deviations[narrowest])
    return facts | {"widest": widest, "narrowest": narrowest, "spread": spread}


def _share_of_copies(sample: NDArray[Any]) -> float:
    """Return the share of the rows that equal another."""
    rows = np.ascontiguousarray(sample + 0)  # -0.0 equals 0.0
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
    counts = np.unique(keys, return_counts=True)[1]
    return float(counts[counts > 1].sum() / len(rows))


def _measure(spec: ScanSpec, folder: Folder, rows: tuple[int, int]) -> Receipt:
    """Check and measure some rows, and keep those of them that are in the sample."""
    first, last = rows
    data = spec.source.read(first, last)
    columns = measure_columns(data, first, with_sums=spec.learns_scale)
    if spec.metric == "cosine" and spec.scale is None:
        refuse_zero_rows(data, first)
    drawn = sample_rows(spec.source.shape[0], spec.sample_size, spec.seed)
    drawn = drawn[np.searchsorted(drawn, first) : np.searchsorted(drawn, last)]
    if len(drawn):
        folder.child("samples").write_array(str(first), data[drawn - first])
    return {
        "first": first,
        "n_rows": len(data),
        "n_drawn": len(drawn),
        "low": columns.low.tolist(),
        "high": columns.high.tolist(),
        "sums": columns.sums and [str(total) for total in columns.sums],
        "checksum": checksum_of(data),
    }


def _deviate(
    spec: ScanSpec, means: NDArray[np.float64], item: tuple[tuple[int, int], int]
) -> Receipt:
    """Sum up squared deviations from the means; exact, so that chunks do not matter."""
    rows, checksum = item
    deviations = column_deviations(spec.source.read_again(*rows, checksum), means)
    return {"deviations": [str(total) for total in deviations]}


def _columns(spec: ScanSpec, receipt: dict[str, Any]) -> Columns:
    """Return what one receipt says of the columns."""
    low, high = np.array(receipt["low"]), np.array(receipt["high"])
    sums = receipt["sums"] and [int(total) for total in receipt["sums"]]
    return Columns(receipt["n_rows"], low, high, sums)
