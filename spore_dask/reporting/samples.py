"""The rows that the report's map shows, and where their coordinates are read.

Reads a run's points, in working coordinates, if they were kept and are not too many bytes; else
the source, if it is as it was. Memory: a few numbers a drawn row, and one partition, chunk of the
source or chunk of labels at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spore_dask.clusters import NOISE
from spore_dask.coordinates import (
    Transform,
    column_deviations,
    fit_transform,
    measure_columns,
)
from spore_dask.errors import InputError
from spore_dask.graph import Graph
from spore_dask.partitions import sample_rows
from spore_dask.points import CACHE, Points
from spore_dask.runs import Run, read_published, read_published_rows
from spore_dask.stages.scan import transform_of
from spore_dask.store import Folder, Limits, Source, open_source
from spore_dask.tasks import MARKER

N_ROWS = 1_000_000
"""Rows that are drawn at most."""
N_MEASURED = 20_000
MEASURED_NBYTES = 64 << 20
"""Rows, and bytes of them, that axes (and a scale that was not kept) are measured on."""
READ_NBYTES = 16 << 30
"""Bytes of points or of the source that are read at most, if there is a choice."""
BLOCK_NBYTES = 16 << 20
PROVENANCE = Limits(NOISE, 1 << 15)

Block = tuple[NDArray[np.int64], NDArray[np.floating]]
"""Places among the drawn rows, and the coordinates of what is there."""


class Reader(Protocol):
    """What gives the coordinates of rows."""

    @property
    def n_columns(self) -> int:
        """Number of columns."""

    def rows(self, n_points: int) -> NDArray[np.int64]:
        """Draw rows, ascending."""

    def blocks(self, rows: NDArray[np.int64]) -> Iterator[Block]:
        """Go through the coordinates of ascending rows, in any order."""


@dataclasses.dataclass(frozen=True)
class PointRows:
    """Rows of a run's own points, in working coordinates."""

    points: Points

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.points.n_columns

    def rows(self, n_points: int) -> NDArray[np.int64]:
        """Draw rows, ascending."""
        return sample_rows(n_points, N_ROWS, 0)

    def blocks(self, rows: NDArray[np.int64]) -> Iterator[Block]:
        """Go through the coordinates of ascending rows, a partition at a time."""
        points = self.points
        try:
            for p in range(points.n_partitions):
                first, last = int(points.firsts[p]), int(points.firsts[p + 1])
                if first < last:
                    yield self._found(rows, points.rows(p), first, last)
                CACHE.clear()  # nothing is read twice
            step = max(1, BLOCK_NBYTES // (8 * points.n_columns))
            for first in range(int(points.firsts[-1]), points.n_points, step):
                last = min(first + step, points.n_points)
                yield self._found(rows, points.copy_rows(first, last), first, last)
        finally:
            CACHE.clear()

    def _found(self, rows: NDArray[np.int64], here: NDArray[Any], first: int, last: int) -> Block:
        """Return those of the points [first, last), from input rows `here`, that are wanted."""
        places = np.searchsorted(rows, here)
        wanted = rows.take(places, mode="clip") == here
        return places[wanted], self.points.coordinates(first, last)[wanted]


@dataclasses.dataclass(frozen=True)
class SourceRows:
    """Rows of the source, made into working coordinates if the transform is known."""

    source: Source
    scale: str | None
    metric: str
    transform: Transform | None = None

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.source.shape[1]

    def rows(self, n_points: int) -> NDArray[np.int64]:
        """Draw rows, ascending; of evenly spaced chunks where all would be too many bytes."""
        rows = sample_rows(n_points, N_ROWS, 0)
        every = self.every
        return rows if every == 1 else rows[rows // self.source.chunk_rows % every == 0]

    @property
    def every(self) -> int:
        """One in how many chunks is read."""
        n_rows, n_columns = self.source.shape
        nbytes = n_rows * n_columns * np.dtype(self.source.dtype).itemsize
        return max(1, -(-nbytes // READ_NBYTES))

    def measured(self, rows: NDArray[np.int64]) -> SourceRows:
        """Return the same with a transform, measured on some rows unless it is known."""
        if self.transform is not None:
            return self
        dtype = np.dtype(self.source.dtype)
        data = gather(self, rows, dtype)
        columns = measure_columns(data, with_sums=self.scale is not None)
        deviations = None if self.scale is None else column_deviations(data, columns.means())
        made = fit_transform(dtype, columns, deviations, self.scale, self.metric)
        return dataclasses.replace(self, transform=made)

    def blocks(self, rows: NDArray[np.int64]) -> Iterator[Block]:
        """Go through the coordinates of ascending rows, a chunk at a time."""
        for first in np.unique(rows // self.source.chunk_rows) * self.source.chunk_rows:
            last = min(first + self.source.chunk_rows, self.source.shape[0])
            places = np.arange(*np.searchsorted(rows, (first, last)))
            data = self.source.read(int(first), int(last))[rows[places] - first]
            yield places, data if self.transform is None else self.transform.apply(data)


def gather(reader: Reader, rows: NDArray[np.int64], dtype: Any) -> NDArray[Any]:
    """Return the coordinates of ascending rows, which must be few."""
    found = np.empty((len(rows), reader.n_columns), dtype)
    for places, coordinates in reader.blocks(rows):
        found[places] = coordinates
    return found


def thin(rows: NDArray[np.int64], n_columns: int) -> NDArray[np.int64]:
    """Return evenly spaced ones of the drawn rows, to measure axes on."""
    most = max(1024, min(N_MEASURED, MEASURED_NBYTES // (8 * n_columns)))
    return rows[:: -(-len(rows) // most)]


class Missing(InputError):
    """The coordinates are no longer there; says why."""


def find_coordinates(run: Run) -> Reader:
    """Return what can read a run's coordinates, or raise `Missing`."""
    points = _find_points(run)
    if points is not None and _nbytes(points) <= READ_NBYTES:
        return PointRows(points)
    try:
        return _find_source(run)
    except Missing as reason:
        if points is not None:
            return PointRows(points)
        raise Missing(f"the run's points were not kept, and {reason}") from None


def _find_points(run: Run) -> Points | None:
    """Return the points that were clustered, if they were kept."""
    try:
        return Graph(*run.graph).points
    except InputError:
        return None


def _nbytes(points: Points) -> int:
    return points.n_points * points.n_columns * np.dtype(points.dtype).itemsize


def _find_source(run: Run) -> SourceRows:
    """Return the source, if it is what was clustered."""
    summary = run.summary
    url, shape = summary["source"], (summary["n_points"], summary["n_columns"])
    if in_memory(run):
        raise Missing("the data was given in memory")
    try:
        source = open_source(url)
    except InputError:
        raise Missing(f"the data is no longer at {url!r}") from None
    if source.shape != shape:
        raise Missing(f"the data at {url!r} now has shape {source.shape} instead of {shape}")
    if source.identity != summary.get("identity"):
        raise Missing(f"the data at {url!r} has changed since the run")
    asked = summary["asked"]
    return SourceRows(source, asked["scale"], asked["metric"], _transform(run))


def in_memory(run: Run) -> bool:
    """Tell whether the data was given in memory, and so was in the run's folder for a while."""
    return bool(run.summary["source"].startswith(f"{run.path}/input-"))


def _transform(run: Run) -> Transform | None:
    """Return what made working coordinates of the source, if it was kept."""
    path, name = run.graph
    graph = Folder(path).child(name).read_json("graph.json")
    folder = Folder(path).child(graph["scan"]) if graph else None
    scanned = folder.read_json(MARKER) if folder else None
    return transform_of(folder, scanned, run.summary["n_columns"]) if folder and scanned else None


class Found(NamedTuple):
    """What was published of drawn rows."""

    labels: NDArray[np.int32]
    provenance: NDArray[np.int16]


def published(run: Run, rows: NDArray[np.int64]) -> Found:
    """Return labels and provenance of ascending rows."""
    labels = Limits(NOISE, len(run.clusters))
    return Found(
        read_published_rows(run.labels, rows, labels),
        read_published_rows(run.provenance, rows, PROVENANCE),
    )


def count_provenance(run: Run) -> dict[int, int]:
    """Return how many points have each provenance: -1 noise, 0 skeleton, r a round."""
    array, counts = run.provenance, np.zeros(1, np.int64)
    for first in range(0, array.shape[0], array.chunks[0]):
        values = read_published(array, first, first + array.chunks[0], PROVENANCE)
        here = np.bincount(values.astype(np.int64) + 1)
        counts = np.pad(counts, (0, max(0, len(here) - len(counts))))
        counts[: len(here)] += here
    return {i - 1: n for i, n in enumerate(counts.tolist()) if n}
