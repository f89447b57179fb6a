"""Partition: renumber the points so that neighbours are near each other on disk.

A tree grown on the sample says which partition a point belongs to. First every task sorts some
input rows by partition and writes them, one file with a bucket for each partition; then every task
gathers the buckets of one partition and sorts them into cells. Copies of heavy points keep only
their rows. Reads the source and the scan's sample; writes `partitions/`, `boxes` and `copies`.
Memory: the chunks that one task reads and twice their working coordinates, or three times one
partition.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.coordinates import Transform
from spore_dask.engine import Engine
from spore_dask.errors import InputError
from spore_dask.exact import build_cells, number_dtype
from spore_dask.kernels.columns import column_limits
from spore_dask.kernels.means import cluster_cells
from spore_dask.kernels.probes import Part
from spore_dask.memory import Shape
from spore_dask.orders import end_exchange, keep_counts, places_in_files, plan_exchange
from spore_dask.partitions import (
    MeansTree,
    Tree,
    build_means_tree,
    build_tree,
    find_heavy,
    heavy_points,
)
from spore_dask.points import BOXES, Points, write_cells, write_part, write_tree
from spore_dask.store import FINITE, Folder, Limits, RowFiles, Source
from spore_dask.tasks import MARKER, Receipt, Work, run_stage, run_work
from spore_dask.threads import one_product_thread

COPIES_PER_TASK = 1 << 20


@dataclasses.dataclass(frozen=True)
class PartitionSpec:
    """What partitioning is asked for."""

    source: Source
    rows_per_task: int
    transform: Transform
    shape: Shape
    kind: str
    seed: int
    exchange_nbytes: int
    """Projected peak of a task that sorts input rows."""
    gather_nbytes: int
    """Projected peak of a task that builds a partition."""

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """Type of input rows."""
        return number_dtype(self.shape.n_points)


def partition(
    engine: Engine,
    folder: Folder,
    spec: PartitionSpec,
    sample: NDArray[np.floating],
    checksums: list[int],
) -> Points:
    """Share out the points among partitions, or take up what was done before.

    The rows that each task reads must have the checksum that they had when they were scanned.
    """
    build = functools.partial(_build, engine, spec, sample, checksums)
    summary = run_stage(engine, folder, build)
    points, shape = Points.from_summary(folder, summary), spec.shape
    if (points.n_points, points.n_columns) != (shape.n_points, shape.n_columns):
        found = f"{points.n_points} points of {points.n_columns} columns"
        raise folder.damaged("document", MARKER, f"it says: {found}")
    return points


def _build(
    engine: Engine,
    spec: PartitionSpec,
    sample: NDArray[np.floating],
    checksums: list[int],
    folder: Folder,
) -> Receipt:
    heavy = heavy_points(sample)
    tree = _grow_tree(spec, sample[find_heavy(sample, heavy) < 0])
    if isinstance(tree, MeansTree):
        write_tree(folder, tree)
    n_rows, step = spec.shape.n_points, spec.rows_per_task
    ranges = [(first, min(first + step, n_rows)) for first in range(0, n_rows, step)]
    exchange = functools.partial(_exchange, spec, folder, tree, heavy)
    numbers = range(len(ranges))
    items = list(zip(numbers, ranges, checksums, strict=True))
    work = Work("exchange", exchange, items, spec.exchange_nbytes)
    run_work(engine, folder, work)
    buckets = Buckets(
        folder,
        spec.transform.dtype,
        spec.shape.n_columns,
        spec.row_dtype,
        n_rows,
        len(ranges),
        tree.n_partitions,
        len(heavy),
    )
    plan_exchange(folder, buckets.n_files, buckets.n_buckets)
    numbering = _number(spec, tree, heavy, *np.split(buckets.sizes(), [tree.n_partitions]))
    gather = functools.partial(_gather, spec, buckets, heavy, numbering)
    full = np.flatnonzero(np.diff(numbering.firsts)).tolist()
    built = run_work(engine, folder, Work("partition", gather, full, spec.gather_nbytes))
    _keep_copies(engine, spec, buckets, numbering)
    boxes = np.zeros((2, spec.shape.n_partitions, spec.shape.n_columns), spec.transform.dtype)
    leaders = {}
    for p, receipt in zip(full, built, strict=True):
        boxes[:, p] = receipt["low"], receipt["high"]
        leaders.update({int(h): leader for h, leader in receipt["leaders"].items()})
    folder.write_array("boxes", boxes)
    end_exchange(folder)
    return {
        "kind": spec.kind,
        "n_points": spec.shape.n_points,
        "n_columns": spec.shape.n_columns,
        "dtype": spec.transform.dtype.str,
        "firsts": numbering.firsts.tolist(),
        "copy_starts": numbering.copy_starts.tolist(),
        "leaders": [leaders[h] for h in range(len(heavy))],
    }


def _grow_tree(spec: PartitionSpec, sample: NDArray[np.floating]) -> Tree | MeansTree:
    """Grow the tree that shares out the points: cuts of columns, or hyperplanes between means."""
    if spec.kind == BOXES or not len(sample):
        return build_tree(sample, spec.shape.n_partitions)
    with one_product_thread():
        return build_means_tree(sample, spec.shape.n_partitions, spec.seed)


@dataclasses.dataclass(frozen=True)
class Numbering:
    """Which numbers partitions and copies get."""

    firsts: NDArray[np.int64]
    """Number of the first point of each partition, and of the first copy."""
    copy_starts: NDArray[np.int64]
    """Number of the first copy of each heavy point that is not searched, and the end."""
    homes: NDArray[np.int64]
    """Partition of each heavy point."""
    n_searched: NDArray[np.int64]
    """Copies of each heavy point that are searched like other points."""


def _number(
    spec: PartitionSpec,
    tree: Tree | MeansTree,
    heavy: NDArray[np.floating],
    n_points: NDArray[np.int64],
    n_copies: NDArray[np.int64],
) -> Numbering:
    """Number the partitions, and behind them the copies that need no search.

    `n_points` are those of each partition, `n_copies` those of each heavy point. Of identical
    points, only the first longest_k + 1 can be anybody's neighbours.
    """
    n_searched = np.minimum(n_copies, spec.shape.longest_k + 1)
    homes = tree.assign(heavy)
    sizes = n_points + np.bincount(homes, n_searched, tree.n_partitions).astype(np.int64)
    limit = spec.shape.most_points
    if sizes.max() > limit:
        raise InputError(
            f"A partition has {sizes.max()} points, but with {tree.n_partitions} partitions the "
            f"plan allows {limit}: too many points are nearly the same; ask for more partitions "
            "(n_partitions) or remove copies."
        )
    firsts = np.append(0, np.cumsum(sizes))
    copy_starts = firsts[-1] + np.append(0, np.cumsum(n_copies - n_searched))
    return Numbering(firsts, copy_starts, homes, n_searched)


def _exchange(
    spec: PartitionSpec,
    folder: Folder,
    tree: Tree | MeansTree,
    heavy: NDArray[np.floating],
    item: tuple[int, tuple[int, int], int],
) -> Receipt:
    """Sort some input rows by partition, and write them with a bucket for each.

    Copies of heavy points come last, and only their rows are written.
    """
    number, (first, last), checksum = item
    points = spec.transform.apply(spec.source.read_again(first, last, checksum), first)
    heavy_of = find_heavy(points, heavy)
    n_partitions = tree.n_partitions
    bucket = np.where(heavy_of < 0, tree.assign(points), n_partitions + heavy_of)
    order = np.argsort(bucket, kind="stable")
    sizes = np.bincount(bucket, minlength=n_partitions + len(heavy))
    n_points = int(sizes[:n_partitions].sum())
    rows = (first + order).astype(spec.row_dtype)
    buckets = folder.child("buckets")
    buckets.write_rows(f"{number}.rows", rows)
    buckets.write_rows(f"{number}.points", points[order[:n_points]])
    keep_counts(folder, number, sizes)
    return {"n_points": n_points}


@dataclasses.dataclass(frozen=True)
class Buckets:
    """The files of the exchange: each has the points of every partition, one after another.

    Behind the rows of the points come those of the copies of each heavy point.
    """

    folder: Folder
    dtype: np.dtype[Any]
    n_columns: int
    row_dtype: np.dtype[Any]
    n_rows: int
    """Rows of the input."""
    n_files: int
    n_partitions: int
    n_heavy: int

    @property
    def n_buckets(self) -> int:
        """Buckets of each file."""
        return self.n_partitions + self.n_heavy

    def sizes(self) -> NDArray[np.int64]:
        """Return how many points or copies each bucket has in all files; kept when these go."""
        if not self.folder.exists("sizes.npy"):
            found, buckets = np.zeros(self.n_buckets, np.int64), self.folder.child("buckets")
            for i in range(self.n_files):
                found += buckets.read_array(f"{i}.counts", shape=found.shape, dtype=np.uint32)
            self.folder.write_array("sizes", found)
        limits = Limits(0, self.n_rows + 1)
        return self.folder.read_array(
            "sizes", shape=(self.n_buckets,), dtype=np.int64, limits=limits
        )

    def _read(
        self,
        name: str,
        n_rows: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Read "points" or "rows" from a place to another in each file, which has so many."""
        form: tuple[Any, ...] = (), self.row_dtype, Limits(0, self.n_rows)
        if name == "points":
            form = (self.n_columns,), self.dtype, FINITE
        names = tuple(f"{i}.{name}" for i in range(self.n_files))
        starts = np.append(0, np.cumsum(n_rows))
        files = RowFiles(self.folder.child("buckets"), names, starts, *form)
        return files.read_ranges(starts[:-1] + begins, starts[:-1] + ends)

    def partition(self, p: int) -> tuple[NDArray[np.floating], NDArray[Any]]:
        """Return the points of one partition and their rows, which ascend."""
        here = places_in_files(self.folder, p, self.n_files, self.n_buckets)
        n_points = places_in_files(
            self.folder, self.n_partitions - 1, self.n_files, self.n_buckets
        ).ends
        points = self._read("points", n_points, here.begins, here.ends)
        return points, self._read("rows", here.sizes, here.begins, here.ends)

    def copies(self, h: int, first: int, last: int) -> NDArray[Any]:
        """Return the rows of the copies [first, last) of one heavy point, which ascend."""
        here = places_in_files(self.folder, self.n_partitions + h, self.n_files, self.n_buckets)
        n_here = here.ends - here.begins
        passed = np.cumsum(n_here) - n_here
        lows = np.clip(first - passed, 0, n_here)
        highs = np.clip(last - passed, 0, n_here)
        return self._read("rows", here.sizes, here.begins + lows, here.begins + highs)


def _gather(
    spec: PartitionSpec, buckets: Buckets, heavy: NDArray[np.floating], numbering: Numbering, p: int
) -> Receipt:
    """Gather the points of one partition, and sort them into cells."""
    points, rows = buckets.partition(p)
    own = np.flatnonzero(numbering.homes == p).tolist()
    copies = {h: buckets.copies(h, 0, int(numbering.n_searched[h])) for h in own}
    if copies:
        points = np.concatenate(
            [points, *(np.tile(heavy[h], (len(c), 1)) for h, c in copies.items())]
        )
        rows = np.concatenate([rows, *copies.values()])
        order = np.argsort(rows, kind="stable")
        points, rows = points[order], rows[order]
    first = int(numbering.firsts[p])
    if spec.kind == BOXES:
        cells = build_cells(points, rows, first, n_threads=1)
        rows = cells.rows
        write_cells(buckets.folder, p, cells)
    else:
        groups = cluster_cells(points, spec.seed)
        rows = rows[groups.order]
        part = Part(first, points[groups.order], groups.starts, groups.centers)
        write_part(buckets.folder, p, part, rows)
    leaders = {h: first + int(np.flatnonzero(rows == c[-1])[0]) for h, c in copies.items()}
    low, high = column_limits(points)
    return {"low": low.tolist(), "high": high.tolist(), "leaders": leaders}


def _keep_copies(
    engine: Engine, spec: PartitionSpec, buckets: Buckets, numbering: Numbering
) -> None:
    """Write the rows of the copies that need no search, in the order of their numbers."""
    n_copies = int(numbering.copy_starts[-1] - numbering.copy_starts[0])
    if n_copies == 0:
        return
    buckets.folder.create_rows("copies", (n_copies,), spec.row_dtype, COPIES_PER_TASK)
    write = functools.partial(_write_copies, buckets, numbering)
    items = [(i, min(i + COPIES_PER_TASK, n_copies)) for i in range(0, n_copies, COPIES_PER_TASK)]
    run_work(engine, buckets.folder, Work("copies", write, items, spec.gather_nbytes))


def _write_copies(buckets: Buckets, numbering: Numbering, item: tuple[int, int]) -> Receipt:
    """Write the rows of some copies."""
    first, last = item
    starts = numbering.copy_starts - numbering.copy_starts[0]
    parts = []
    for h, n_searched in enumerate(numbering.n_searched.tolist()):
        low, high = max(first, int(starts[h])), min(last, int(starts[h + 1]))
        if low < high:
            shift = n_searched - int(starts[h])
            parts.append(buckets.copies(h, low + shift, high + shift))
    buckets.folder.open_rows("copies").write(first, np.concatenate(parts))
    return {"n_copies": last - first}
