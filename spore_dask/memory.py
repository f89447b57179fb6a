"""How large everything is: shards, partitions, and the memory and disk that each stage needs.

Pure arithmetic in Python's whole numbers. The shape of a run is a function of the data's shape, k
and what the user asked for, never of memory limits or workers: those are only compared with it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

PAGE_ROWS = 8
"""Rows of the graph that Expansion reads together; shards are made of whole pages."""
POINTS_PER_SHARD = 1 << 16
SHARD_NBYTES = 32 << 20
PARTITION_NBYTES = 24 << 20
LEAST_PARTITIONS = 16
LEAST_POINTS = 4096
LARGEST_PARTITION = 2
"""A partition may be this many times as large as the mean; more where samples are few."""
SAMPLES_PER_PARTITION = 1024
LEAST_SAMPLE = 1 << 16
SAMPLE_NBYTES = 64 << 20
ENOUGH_SAMPLES = 128
SAMPLE_POINT_NBYTES = 4
"""Bytes of a sample; beyond that a partition gets no more than enough rows, and these no more bytes
for each point than so many. Held four times, they are not more than the coordinator has later."""
UNEVEN = 10
"""How far partitions are from equal, over the root of the sampled rows that each has."""
INPUT_TASKS = 64
TASK_NBYTES = 2 << 20
MOST_TASK_NBYTES = 32 << 20
"""Input that a task takes at least, and at most if chunks are smaller."""
MOST_CHUNK_NBYTES = 16 << 20
"""A chunk of data that is imported, at most."""
CHUNK_NBYTES = 4 << 10
"""What Zarr has in memory for each chunk that it reads, beside its bytes."""
PLACED_NBYTES = 32
"""What it has for each chunk of a shard, read or not: where it is, encoded and decoded."""
DECODERS = 32
"""Threads that decode chunks at the same time, at most."""

FLOAT_BLOCK_NBYTES = 16 << 20
BUFFERS_NBYTES = 8 << 20
QUERIES = 4096
"""Points that are compared with all others at a time, where boxes do not prune."""

PASS_NBYTES = 32 << 20
"""Buffers of the new points that meet fitted ones together, at most."""

LIST_MARGIN = 4
MOST_PROBES = 128
"""Cells that a point probes at most, unless cells are too small to fill a list."""

MOST_RANGES = 4096
KEYS_PER_RANGE = 256
LEAST_KEYS = 16
"""Keys drawn for each range of the total order; fewer where all of them would be too large."""
SORT_NBYTES = 64
"""What sorting takes for each point, beside the keys."""
POINT_NBYTES = 64
"""What tasks have in memory for a point beside its row: numbers, places, orders."""

HELD_NBYTES = 32
"""What a fragment at hand takes beside its row: its number twice, and the place of its row."""
POINT_STATE_NBYTES = 16
"""What the coordinator may have in memory for a point, beside its cache of rows."""
LABEL_NBYTES = 6
"""A label, and the round in which a point got it."""
CHECKPOINT_NBYTES = 16
"""What checkpoints have on disk for a point: its state, for a moment twice."""
PREDICTED_NBYTES = 12
"""What the coordinator has in memory for a new point: its label, and the confidence, twice."""
PLACE_NBYTES = 16
"""What it takes to note where a bucket begins in a file, for a moment twice."""
LEAST_CACHE_NBYTES = 8 << 20
FETCH_NBYTES = 32 << 20
"""What the coordinator takes to find out which rows to read next."""
CLUSTERING_NBYTES = 100
"""What clustering in memory takes for each point, beside its row and the point itself."""
CLUSTER_NBYTES = 40
"""What it holds for each cluster that stays."""

EXCERPT_POINTS = 1 << 17
EXCERPT_NBYTES = 704 << 20
"""Points of an excerpt on which parameters are chosen, and the bytes that it takes, at most."""

COMPILING_NBYTES = 240 << 20
"""What a worker that runs trials takes, once, to compile the kernels of clustering."""
INTERPRETER_NBYTES = 320 << 20
"""A process with numba, Zarr and distributed loaded and kernels compiled."""
LOADED_NBYTES = 240 << 20
"""The same as it is found, mostly: with few kernels 200 MiB, more after an approximate search."""
SCATTER_NBYTES = 4 << 20
"""What labels on their way to the order of rows take."""
STORE_NBYTES = 128 << 20
"""What a process takes to reach object stores: libraries, and parts of files on their way."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of one graph."""

    n_points: int
    n_columns: int
    itemsize: int
    """Bytes of a working coordinate or distance."""
    k: int
    """Neighbours of each row of the graph."""
    longest_k: int
    """Neighbours of the rows of points that have copies, at least k."""
    n_partitions: int
    shard_rows: int
    """Points in a shard, the part of the graph that one task writes."""

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return -(-self.n_points // self.shard_rows)

    @property
    def number_nbytes(self) -> int:
        """Bytes of a row or point number."""
        return 4 if self.n_points <= 2**32 else 8

    @property
    def listed_nbytes(self) -> int:
        """Bytes of a neighbour in the lists of an approximate search, where numbers have signs."""
        return 4 if self.n_points < 2**31 else 8

    @property
    def point_nbytes(self) -> int:
        """Bytes of a point with its row."""
        return self.n_columns * self.itemsize + self.number_nbytes

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row of the graph."""
        return self.entries_nbytes(self.k)

    def entries_nbytes(self, k: int) -> int:
        """Return the bytes of a row with k neighbours."""
        return (k + 1) * (self.itemsize + self.number_nbytes)

    @property
    def longer_nbytes(self) -> int:
        """Bytes of the longer row of a point that has copies; 0 where no row is longer."""
        return self.entries_nbytes(self.longest_k) if self.longest_k > self.k else 0

    @property
    def key_nbytes(self) -> int:
        """Bytes of a point's key in the total order: density, row, number and coordinates."""
        return 8 + self.number_nbytes + self.point_nbytes

    @property
    def partition_nbytes(self) -> int:
        """Bytes of the largest partition that a plan allows for, in cells with their boxes."""
        columns_nbytes = self.n_columns * self.itemsize
        return math.ceil(self.most_points * (self.point_nbytes + columns_nbytes / 8))

    @property
    def most_points(self) -> int:
        """Points of the largest partition that a plan allows for."""
        mean = -(-self.n_points // self.n_partitions)
        n_drawn = self.sample_size / self.n_partitions
        factor = max(LARGEST_PARTITION, 1 + UNEVEN / math.sqrt(n_drawn))
        return min(self.n_points, max(math.ceil(factor * mean), 2 * self.longest_k + LEAST_POINTS))

    @property
    def sample_size(self) -> int:
        """Rows that are drawn to grow the tree of partitions on."""
        wanted = max(SAMPLES_PER_PARTITION * self.n_partitions, LEAST_SAMPLE)
        row_nbytes = self.n_columns * self.itemsize
        enough = ENOUGH_SAMPLES * self.n_partitions
        affordable = min(enough, SAMPLE_POINT_NBYTES * self.n_points // row_nbytes)
        limit = max(1024, SAMPLE_NBYTES // row_nbytes, affordable)
        return min(self.n_points, wanted, limit)


def shape_of(
    n_points: int,
    n_columns: int,
    itemsize: int,
    k: int,
    n_partitions: int | None = None,
    longest_k: int | None = None,
) -> Shape:
    """Return the sizes of a graph."""
    probe = Shape(n_points, n_columns, itemsize, k, max(k, longest_k or k), 1, 1)
    if n_partitions is None:
        most = min(
            POINTS_PER_SHARD,
            PARTITION_NBYTES // probe.point_nbytes,
            SHARD_NBYTES // probe.entries_nbytes(probe.longest_k),
        )
        n_partitions = -(-n_points // max(1, most))
        n_partitions = max(1, n_partitions, min(LEAST_PARTITIONS, n_points // LEAST_POINTS))
    shard_rows = -(-n_points // n_partitions // PAGE_ROWS) * PAGE_ROWS
    return dataclasses.replace(probe, n_partitions=n_partitions, shard_rows=shard_rows)


class Chunks(NamedTuple):
    """What is read together of an array that is stored in chunks, since no chunk is read in part.

    Chunks are decoded with what they have beyond the array's last row and column.
    """

    rows: int
    """Rows that share chunks, or shards; no more than there are."""
    nbytes: int
    """Bytes of these chunks, decoded."""
    decoding_nbytes: int
    """What decoding them takes, beside the rows that are made of them."""

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        itemsize: int,
        chunks: Sequence[int],
        shards: Sequence[int] | None = None,
        n_copies: int = 2,
    ) -> Chunks:
        """Count those of an array; of a shard, only the chunks that hold rows are decoded.

        They are in memory at once in `n_copies`: encoded, decoded, and what codecs keep beside.
        The threads that decode the chunks of a shard have one more each.
        """
        whole = chunks if shards is None else shards
        rows = min(whole[0], max(1, shape[0]))
        here = rows, *shape[1:]
        n_chunks = [-(-n // size) for n, size in zip(here, chunks, strict=True)]
        nbytes = itemsize * math.prod(n * size for n, size in zip(n_chunks, chunks, strict=True))
        n_placed = math.prod(-(-n // size) for n, size in zip(here, whole, strict=True))
        n_placed *= math.prod(-(-n // size) for n, size in zip(whole, chunks, strict=True))
        beside = CHUNK_NBYTES * math.prod(n_chunks) + PLACED_NBYTES * n_placed
        if shards is not None:
            beside += min(math.prod(n_chunks), DECODERS) * itemsize * math.prod(chunks)
        return cls(rows, nbytes, n_copies * nbytes + beside)


def reading_nbytes(rows_nbytes: int, decoding_nbytes: int) -> int:
    """Return the projected peak of a process that reads rows, and what decoding them takes."""
    return INTERPRETER_NBYTES + rows_nbytes + decoding_nbytes


def rows_together(
    n_rows: int, row_nbytes: int, chunk_rows: int, decoding_nbytes: int, wanted: int
) -> int:
    """Return how many rows to read at a time for so many bytes: whole chunks, one at least.

    `decoding_nbytes` is what those of `chunk_rows` rows take: much more than the rows where they
    are mostly padding, or tiny.
    """
    n_chunks = min(wanted // (chunk_rows * row_nbytes), 4 * wanted // max(1, decoding_nbytes))
    return min(n_rows, chunk_rows * max(1, n_chunks))


def rows_per_task(n_rows: int, row_nbytes: int, chunk_rows: int, decoding_nbytes: int) -> int:
    """Return how many input rows a task reads: whole chunks, several where they are small."""
    wanted = min(max(TASK_NBYTES, n_rows * row_nbytes // INPUT_TASKS), MOST_TASK_NBYTES)
    return rows_together(n_rows, row_nbytes, chunk_rows, decoding_nbytes, wanted)


def imported_rows(n_rows: int, row_nbytes: int) -> int:
    """Return how many rows a chunk of imported data has: what a task reads, or a part of it."""
    wanted = min(max(TASK_NBYTES, n_rows * row_nbytes // INPUT_TASKS), MOST_CHUNK_NBYTES)
    return max(1, wanted // row_nbytes)


def import_nbytes(chunk_rows: int, from_nbytes: int, to_nbytes: int, reading_nbytes: int) -> int:
    """Return the projected peak of a process that imports data.

    Parameters
    ----------
    chunk_rows : int
        Rows of a chunk of what is written.
    from_nbytes, to_nbytes : int
        Bytes of a row as it is read, with what that takes, and as it is written.
    reading_nbytes : int
        What reading takes beside.
    """
    chunks_nbytes = chunk_rows * (2 * from_nbytes + 4 * to_nbytes)
    return INTERPRETER_NBYTES + BUFFERS_NBYTES + chunks_nbytes + reading_nbytes


@dataclasses.dataclass(frozen=True)
class InputShape:
    """The sizes of the input."""

    rows_per_task: int
    row_nbytes: int
    """Bytes of an input row."""
    sample_size: int
    """Rows that are drawn."""
    decoding_nbytes: int = 0
    """What decoding the chunks of a task's rows takes, beside the rows."""

    @property
    def task_nbytes(self) -> int:
        """Bytes of the rows of a task."""
        return self.rows_per_task * self.row_nbytes


def input_shape_of(
    n_rows: int, row_nbytes: int, chunk_rows: int, decoding_nbytes: int, sample_size: int
) -> InputShape:
    """Return the sizes of an input whose rows lie in chunks of `chunk_rows`."""
    rows = rows_per_task(n_rows, row_nbytes, chunk_rows, decoding_nbytes)
    n_chunks = -(-rows // chunk_rows)
    return InputShape(rows, row_nbytes, sample_size, n_chunks * decoding_nbytes)


def scan_nbytes(data: InputShape) -> int:
    """Return the projected peak of a process that scans.

    Its rows and what it takes to decode them; or the rows, what is left of that, and blocks.
    """
    measuring = INTERPRETER_NBYTES + 3 * data.task_nbytes + 2 * FLOAT_BLOCK_NBYTES
    reading = reading_nbytes(data.task_nbytes, data.decoding_nbytes)
    return max(measuring, reading) + 24 * data.sample_size


def exchange_nbytes(data: InputShape, shape: Shape) -> int:
    """Return the projected peak of a process that sorts input rows by partition."""
    working = data.rows_per_task * (2 * shape.n_columns * shape.itemsize + 48)
    sorting = INTERPRETER_NBYTES + 2 * data.task_nbytes + working + FLOAT_BLOCK_NBYTES
    return max(sorting, reading_nbytes(data.task_nbytes, data.decoding_nbytes))


def gather_nbytes(shape: Shape) -> int:
    """Return the projected peak of a process that builds a partition."""
    return INTERPRETER_NBYTES + 4 * shape.partition_nbytes + 24 * shape.most_points


def neighbors_nbytes(shape: Shape) -> int:
    """Return the projected peak of a process that searches, but for its cache of partitions.

    Every point of a shard may have copies; the longer rows are searched when the others are
    written.
    """
    graph = shape.shard_rows * max(3 * shape.row_nbytes, 2 * shape.longer_nbytes)
    return INTERPRETER_NBYTES + graph + _search_nbytes(shape, shape.longest_k)


def _search_nbytes(shape: Shape, k: int) -> int:
    """Return what a search for k neighbours has in memory beside rows: partitions and buffers."""
    buffers = 2 * BUFFERS_NBYTES + QUERIES * (3 * k + 16) * (shape.itemsize + 8)
    return 4 * shape.partition_nbytes + buffers


def fragments_nbytes(shape: Shape, k: int, range_rows: int) -> int:
    """Return the projected peak of a process that gathers fragments, but for its cache.

    Every point of a shard, or of a range of `range_rows` points of the order, may be a fragment
    with k neighbours. A shard's rows are searched in place, or cut from rows of the graph, a block
    at a time; those of a piece, which is no more than a range or a shard, are read or mapped.
    """
    row_nbytes = shape.entries_nbytes(k) + POINT_NBYTES
    search = shape.shard_rows * row_nbytes + _search_nbytes(shape, k)
    return INTERPRETER_NBYTES + max(search, 2 * range_rows * row_nbytes)


def held_nbytes(shape: Shape, n_fragments: int) -> int:
    """Return what the rows of fragments take where the coordinator holds them all."""
    return n_fragments * (shape.entries_nbytes(shape.longest_k) + HELD_NBYTES)


def approximate_nbytes(shape: Shape) -> int:
    """Return the projected peak of a process that searches approximately, but for its cache.

    Two partitions, lists three times, their buffers, the probes, and one shard of the graph.
    """
    width, n_points = shape.k + LIST_MARGIN, shape.most_points
    entry = shape.itemsize + shape.listed_nbytes
    lists = n_points * width * (3 * entry + 3 * (entry + 1))
    points = 2 * n_points * shape.n_columns * shape.itemsize
    graph = 2 * shape.shard_rows * shape.row_nbytes
    return INTERPRETER_NBYTES + lists + points + 8 * MOST_PROBES * n_points + graph


def lists_nbytes(shape: Shape) -> int:
    """Return the bytes of the lists of all points in an approximate search."""
    entry = shape.itemsize + shape.listed_nbytes + 1
    return shape.n_points * (shape.k + LIST_MARGIN) * entry


def extend_nbytes(shape: Shape) -> int:
    """Return the projected peak of a process that extends approximate rows, but for its cache.

    Every point of a shard may be extended: its row, its coordinates, its list, with the buffers and
    probes that it comes from or its entries as they are measured; two partitions, the rows of one
    shard, and what a pass over neighbours of neighbours takes.
    """
    width, listed = shape.longest_k + LIST_MARGIN, shape.listed_nbytes
    entry = shape.itemsize + listed
    row = 2 * shape.entries_nbytes(shape.longest_k) + 2 * (shape.k + 1) * listed
    searching = 3 * width * entry + 8 * MOST_PROBES
    measuring = width * (2 * entry + 9) + 24 * (shape.longest_k - shape.k)
    point = row + width * (entry + 1) + max(searching, measuring) + shape.point_nbytes
    partitions = 2 * shape.most_points * shape.point_nbytes
    held = shape.shard_rows * (shape.k + 1) * shape.number_nbytes
    return INTERPRETER_NBYTES + shape.shard_rows * point + partitions + held + 2 * PASS_NBYTES


def keys_per_range(n_ranges: int, key_nbytes: int) -> int:
    """Return how many keys are drawn for each range of the total order."""
    return max(LEAST_KEYS, min(KEYS_PER_RANGE, SAMPLE_NBYTES // (n_ranges * key_nbytes)))


def n_ranges(n_shards: int) -> int:
    """Return the number of ranges of the total order: as many as shards, but not too many.

    Whoever plans the exchange holds a number for each pair of a shard and a range.
    """
    return min(n_shards, MOST_RANGES)


def most_in_range(shape: Shape) -> int:
    """Return the points of the largest range of the total order that a plan allows for."""
    ranges = n_ranges(shape.n_shards)
    factor = 1 + 5 / math.sqrt(keys_per_range(ranges, shape.key_nbytes))
    return min(shape.n_points, math.ceil(factor * shape.n_points / ranges))


def density_nbytes(shape: Shape) -> int:
    """Return the projected peak of a process that ranks points, but for its cache.

    Two partitions, a shard of distances, longer rows for all its points, and three times its keys;
    or the keys of a range. Sorting copies coordinates where densities tie.
    """
    coordinates = shape.n_columns * shape.itemsize
    rows = (shape.k + 1) * shape.itemsize
    if shape.longest_k > shape.k:
        rows += (shape.longest_k + 1) * (shape.itemsize + shape.number_nbytes)
    keys = 3 * shape.key_nbytes + 2 * coordinates + SORT_NBYTES
    shard = 2 * shape.partition_nbytes + shape.shard_rows * (rows + keys)
    whole_range = most_in_range(shape) * (2 * shape.key_nbytes + coordinates + SORT_NBYTES)
    return INTERPRETER_NBYTES + max(shard, whole_range)


def density_driver_nbytes(shape: Shape) -> int:
    """Return the projected peak of the process that drives it: drawn keys, and bucket sizes."""
    ranges = n_ranges(shape.n_shards)
    n_keys = ranges * keys_per_range(ranges, shape.key_nbytes)
    places = PLACE_NBYTES * ranges * shape.n_shards
    return INTERPRETER_NBYTES + n_keys * (4 * shape.key_nbytes + SORT_NBYTES) + places


def coordinator_nbytes(shape: Shape) -> int:
    """Return the projected peak of the process that grows and votes, but for its cache of rows.

    Its state of every point, and the seeds or clusters of one range of the order, or the fragments
    of one piece.
    """
    state = shape.n_points * POINT_STATE_NBYTES * (1 if shape.n_points < 2**31 else 2)
    piece = most_in_range(shape) * (2 * shape.entries_nbytes(shape.longest_k) + POINT_NBYTES)
    return INTERPRETER_NBYTES + state + piece + LEAST_CACHE_NBYTES + FETCH_NBYTES


def likely_nbytes(projected_nbytes: int) -> int:
    """Return what a process is likely to have at its peak, where so much is projected at most."""
    return projected_nbytes - INTERPRETER_NBYTES + LOADED_NBYTES


def likely_coordinator_nbytes(shape: Shape, rows_nbytes: int, held_nbytes: int) -> dict[str, int]:
    """Return what the coordinator is likely to have at its peak in each of its own stages.

    What it holds for each point there, and rows: of the graph while clusters grow, of fragments
    while they vote.
    """
    label = 4 if shape.n_points < 2**31 else 8
    n_points = shape.n_points
    has = {
        "seeds": n_points * (shape.number_nbytes + 8),
        "expand": n_points * 2 * label + n_points // 2 + rows_nbytes,
        "reassign": n_points * (label + 3) + held_nbytes,
        "publish": n_points * (LABEL_NBYTES + 1) + SCATTER_NBYTES,
    }
    return {stage: LOADED_NBYTES + nbytes for stage, nbytes in has.items()}


def predict_nbytes(fitted: Shape, new: Shape, n_clusters: int) -> int:
    """Return the projected peak of a process that predicts, but for its cache of partitions.

    A partition of new points twice, fitted ones as in a search, the buffers, rows and probes of a
    pass, what is known of the cells, and what every cluster is gated by.
    """
    own = 2 * new.partition_nbytes + new.most_points * POINT_NBYTES
    meeting = 4 * fitted.partition_nbytes + 2 * BUFFERS_NBYTES + 3 * PASS_NBYTES
    cells = fitted.n_points // 2
    return INTERPRETER_NBYTES + own + meeting + cells + 2 * CLUSTER_NBYTES * n_clusters


def scatter_nbytes(new: Shape) -> int:
    """Return the projected peak of the process that puts predictions in the order of rows."""
    return INTERPRETER_NBYTES + PREDICTED_NBYTES * new.n_points + 24 * new.most_points


def trial_nbytes(shape: Shape) -> int:
    """Return the projected peak of a process that clusters a whole graph in memory.

    The rows, the points, once more as they are read and where densities tie, and what clustering
    takes for each point; or what compiling it takes, before.
    """
    data = shape.n_points * _trial_point_nbytes(shape) + shape.partition_nbytes
    return INTERPRETER_NBYTES + max(data, COMPILING_NBYTES)


def excerpt_points(shape: Shape) -> int | None:
    """Return the points of an excerpt on which parameters are chosen; None for all points."""
    whole_nbytes = shape.n_points * _trial_point_nbytes(shape)
    if shape.n_points <= EXCERPT_POINTS and whole_nbytes <= EXCERPT_NBYTES:
        return None
    return min(EXCERPT_POINTS, EXCERPT_NBYTES // _excerpt_point_nbytes(shape))


def excerpt_nbytes(shape: Shape) -> int:
    """Return the projected peak of a process that searches and clusters an excerpt."""
    data = (excerpt_points(shape) or 0) * _excerpt_point_nbytes(shape)
    return INTERPRETER_NBYTES + max(data, COMPILING_NBYTES)


def _excerpt_point_nbytes(shape: Shape) -> int:
    """Return what a process takes for each point that it searches and clusters in memory.

    An approximate search has up to three lists of the length of a row.
    """
    return _trial_point_nbytes(shape) + 3 * shape.entries_nbytes(shape.longest_k)


def _trial_point_nbytes(shape: Shape) -> int:
    """Return what a process takes for each point of a graph that it clusters in memory."""
    row_nbytes = shape.entries_nbytes(shape.longest_k)
    return row_nbytes + 3 * shape.point_nbytes + CLUSTERING_NBYTES


def driver_nbytes(data: InputShape, shape: Shape, may_approximate: bool = False) -> int:
    """Return the projected peak of the process that drives the run.

    The sample, four times; or where each partition begins in each file of an exchange: of tasks
    that read the input, and in an approximate search of partitions.
    """
    sample = 4 * data.sample_size * max(data.row_nbytes, shape.n_columns * shape.itemsize)
    n_files = -(-shape.n_points // data.rows_per_task)
    if may_approximate:
        n_files = max(n_files, shape.n_partitions)
    return INTERPRETER_NBYTES + max(sample, PLACE_NBYTES * n_files * shape.n_partitions)


def points_disk_nbytes(shape: Shape) -> int:
    """Return what partitioned points have on disk, and the sample that they are cut by."""
    points = shape.n_points * shape.point_nbytes * 21 // 20
    return points + shape.sample_size * shape.point_nbytes


def search_disk_nbytes(shape: Shape, may_approximate: bool) -> int:
    """Return the most that a search has on disk beside the points.

    The graph; an approximate search has its lists twice, and their edges, before it. Longer rows of
    points that have copies, of which there may be none, are beside.
    """
    graph = shape.n_points * (shape.row_nbytes + shape.number_nbytes)
    if not may_approximate:
        return graph
    lists = lists_nbytes(shape)
    return max(graph + lists, 3 * lists)


def order_disk_nbytes(shape: Shape) -> int:
    """Return the most that the total order has on disk.

    The key, the density and the range of each point, and its distance to the last neighbour.
    """
    return shape.n_points * (shape.key_nbytes + 10 + shape.itemsize)


def disk_nbytes(shape: Shape, copied_nbytes: int, may_approximate: bool) -> int:
    """Return the most that a graph has on disk: points twice, or points and what searches take.

    `copied_nbytes` is what of the input has to be written first, and goes with the exchange.
    """
    points = points_disk_nbytes(shape)
    return points + max(points + copied_nbytes, search_disk_nbytes(shape, may_approximate))
