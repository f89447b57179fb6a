"""The steps of an approximate search in many dimensions: probes, then rounds of refinement.

Each step works for one home partition, in one thread, and meets the points of others one partition
at a time through an `Index`, in memory or on disk. Points carry numbers, partition after partition;
lists hold rough squared distances until `measure_rows` puts direct ones in their place.
Memory: two partitions, the lists of one with their buffers and candidates, and the centres of the
cells near its own.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spore_dask.kernels import joins, probes
from spore_dask.kernels.columns import column_limits
from spore_dask.kernels.probes import Lists, Part, new_buffers, new_lists
from spore_dask.memory import LIST_MARGIN, MOST_PROBES

NEAR_CELLS = 256
"""Cells that a home cell keeps in view, beside `NEAR_FACTOR` times the probes of a point."""
NEAR_FACTOR = 4
MARGIN = LIST_MARGIN
"""Entries of a list beyond k, for what rough distances may get wrong."""
FEWEST_PROBES = 8
START_RECALL = 0.7
"""Recall of the probes alone from which refinement gets on."""
MAX_ROUNDS = 4
LEAST_GAIN = 0.003
"""Recall that a round must have brought for another one like it to be made."""
CELLS_PER_PASS = 128
"""Home cells that meet the neighbours of their neighbours together."""
OVERLAP = 1.0
"""Points of others that pynndescent gets, over those of the partition."""


class Index(Protocol):
    """Points in partitions and cells around centres; partitions may be empty."""

    @property
    def firsts(self) -> NDArray[np.int64]:
        """Number of the first point of each partition, and the number of all points."""

    def part(self, partition: int) -> Part:
        """Return the points of a partition."""

    def centers(self, partition: int) -> NDArray[np.floating]:
        """Return the centres of its cells."""

    def starts(self, partition: int) -> NDArray[np.int64]:
        """Return where its cells start, and the end."""

    def rows(self, partition: int) -> NDArray[Any]:
        """Return the input rows of its points."""


HeadsOf = Callable[[NDArray[np.integer], int], tuple[NDArray[np.integer], NDArray[np.bool_]]]
"""What brings the first entries of the lists of some points, ascending, and which are fresh."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much a round of refinement looks at."""

    n_near: int
    """Entries of a list whose own lists are followed."""
    n_heads: int
    """Entries of those lists that become candidates."""
    n_candidates: int
    """Candidates of a cell, at most."""


EASY = Effort(10, 20, 16384)
HARD = Effort(30, 50, 32768)


def next_effort(effort: Effort | None, n_probes: int, gain: float) -> Effort | None:
    """Return the effort of the next round, None where another would hardly help.

    Rounds begin easy where the fewest probes got far enough, and become hard when they stop paying.
    """
    if effort is None:
        return EASY if n_probes <= FEWEST_PROBES else HARD
    if gain >= LEAST_GAIN:
        return effort
    return HARD if effort == EASY else None


def full_partitions(index: Index) -> list[int]:
    """Return the partitions that are not empty."""
    found: list[int] = np.flatnonzero(np.diff(index.firsts)).tolist()
    return found


def number_dtype(n_points: int) -> np.dtype[Any]:
    """Return the type of numbers in lists, which are signed."""
    return np.dtype(np.int32 if n_points < 2**31 else np.int64)


def meet_all(
    index: Index, p: int, sample: NDArray[np.floating], numbers: NDArray[np.int64], k: int
) -> Lists:
    """Return the nearest of sampled points in one partition, with direct distances.

    `numbers` are their own, so that they are not offered themselves. The lists hold distances, not
    squares.
    """
    part = index.part(p)
    own = numbers[:, None].astype(number_dtype(int(index.firsts[-1])))
    lists = new_lists(len(sample), k + MARGIN, sample.dtype, own.dtype)
    buffers = new_buffers(len(sample), k + MARGIN, sample.dtype, own.dtype)
    n_cells = len(part.starts) - 1
    probers = np.tile(np.arange(len(sample), dtype=np.int32), n_cells)
    starts = np.arange(n_cells + 1) * len(sample)
    apart = -1 - len(sample)  # so that no place in the sample is taken for a point's number
    probes.search_part(sample, apart, probers, starts, part, own, lists.numbers.shape[1], buffers)
    probes.write_lists(buffers, lists)
    distances = np.full(lists.numbers.shape, np.inf, sample.dtype)
    rows = np.full(lists.numbers.shape, np.iinfo(np.int64).max)
    probes.measure_lists(
        sample, lists.numbers, part.points, part.first, index.rows(p), distances, rows
    )
    probes.rank_lists(distances, rows, lists.numbers)
    return Lists(lists.numbers, distances, lists.fresh)


def nearest_of(found: Sequence[Lists], k: int) -> Lists:
    """Return the k nearest of lists of the same points from different partitions."""
    squares = np.concatenate([each.squares for each in found], axis=1)
    numbers = np.concatenate([each.numbers for each in found], axis=1)
    order = np.argsort(squares, axis=1, kind="stable")[:, :k]
    squares = np.take_along_axis(squares, order, axis=1)
    numbers = np.take_along_axis(numbers, order, axis=1)
    return Lists(numbers, squares, np.zeros(squares.shape, bool))


def found_shares(
    lists: Lists, neighbors: NDArray[np.integer], distances: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return the share of its true neighbours that each list has.

    `neighbors` and `distances` (n, k) are the true ones. Any entry at distance 0 counts where all
    of these are at 0: which of many copies are listed does not matter.
    """
    found = np.array(
        [
            np.isin(true, listed).mean()
            for true, listed in zip(neighbors, lists.numbers, strict=True)
        ]
    )
    copies = distances[:, -1] == 0
    k = neighbors.shape[1]
    found[copies] = np.minimum(1, (lists.squares[copies] == 0).sum(axis=1) / k)
    return found


def probe_ranks(
    index: Index, sample: NDArray[np.floating], neighbors: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Return, for each true neighbour of sampled points, how many cells are nearer than its own."""
    own = np.zeros(neighbors.shape, np.float64)
    ranks = np.zeros(neighbors.shape, np.int64)
    for step in ("own", "count"):
        for p in full_partitions(index):
            squares = center_squares(sample, index.centers(p))
            if step == "own":
                places = neighbors - index.firsts[p]
                here = (places >= 0) & (neighbors < index.firsts[p + 1])
                cells = np.searchsorted(index.starts(p), places[here], side="right") - 1
                own[here] = squares[np.nonzero(here)[0], cells]
            else:
                squares.sort(axis=1)
                for i in range(len(sample)):
                    ranks[i] += np.searchsorted(squares[i], own[i])
    return ranks


def center_squares(
    points: NDArray[np.floating], centers: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return squared distances of points and centres, in float64."""
    near, far = points.astype(np.float64), centers.astype(np.float64)
    middle = far.mean(axis=0)
    near, far = near - middle, far - middle
    found = (near**2).sum(axis=1)[:, None] + (far**2).sum(axis=1) - 2 * near @ far.T
    return np.asarray(found)


def enough_probes(ranks: NDArray[np.int64], start_recall: float = START_RECALL) -> int:
    """Return the smallest of 8, 16, ... 128 probes that reaches a recall by itself, or the last."""
    n_probes = FEWEST_PROBES
    while np.mean(ranks < n_probes) < start_recall and n_probes < MOST_PROBES:
        n_probes *= 2
    return n_probes


def reach_of(ranks: NDArray[np.int64]) -> float:
    """Return in how many cells, the nearest first, `START_RECALL` of the true neighbours are."""
    return float(np.quantile(ranks, START_RECALL)) + 1


@dataclasses.dataclass(frozen=True)
class Probes:
    """Which cells the points of a partition probe."""

    cells: NDArray[np.int32]
    """(n, probes): numbers of cells, over all partitions that are not empty."""
    first_cells: NDArray[np.int64]
    """Number of the first cell of each of these, and the number of cells."""


def choose_probes(index: Index, home: int, own: Part, n_probes: int, n_wanted: int) -> Probes:
    """Choose the cells that each point of a partition, or of some of it, probes.

    They hold `n_wanted` other points at least.
    """
    full = full_partitions(index)
    starts = [index.starts(p) for p in full]
    first_cells = np.cumsum([0, *(len(each) - 1 for each in starts)])
    n_cells = int(first_cells[-1])
    fewest = probes.fewest_probes(np.concatenate([np.diff(each) for each in starts]), n_wanted)
    n_probes = min(n_cells, max(n_probes, fewest))
    n_near = min(n_cells, NEAR_CELLS + NEAR_FACTOR * n_probes)
    home_first = sorted(enumerate(full), key=lambda place: place[1] != home)
    centers = ((int(first_cells[i]), index.centers(p)) for i, p in home_first)
    near = probes.near_cells(own.centers, centers, n_near)
    wanted, places = np.unique(near, return_inverse=True)
    edges = np.searchsorted(wanted, first_cells)
    gathered = [
        index.centers(p)[wanted[edges[i] : edges[i + 1]] - first_cells[i]]
        for i, p in enumerate(full)
        if edges[i] < edges[i + 1]
    ]
    places = places.reshape(near.shape).astype(np.int32)
    chosen = probes.choose_probes(
        own.points, own.starts, own.centers, places, np.concatenate(gathered), n_probes
    )
    return Probes(wanted[chosen], first_cells)


def probe(index: Index, home: int, n_probes: int, width: int) -> Lists:
    """Make the lists of one partition from the cells that its points probe."""
    own = index.part(home)
    known = np.empty((len(own.points), 0), number_dtype(int(index.firsts[-1])))
    return probe_beside(index, home, own, known, n_probes, width)


def probe_beside(
    index: Index, home: int, own: Part, known: NDArray[np.integer], n_probes: int, width: int
) -> Lists:
    """Make lists of a partition, or of some of it, from cells, without what is known already.

    `known` (n, any) has the numbers that each point does not take, beside its own.
    """
    full = full_partitions(index)
    chosen = choose_probes(index, home, own, n_probes, width + known.shape[1])
    first_cells = chosen.first_cells
    probers, starts = probes.group_probers(chosen.cells, int(first_cells[-1]))
    lists = new_lists(len(own.points), width, own.points.dtype, known.dtype)
    buffers = new_buffers(len(own.points), width, own.points.dtype, known.dtype)
    # Home first: that rules out most of the rest.
    for i, p in sorted(enumerate(full), key=lambda place: place[1] != home):
        here = starts[first_cells[i] : first_cells[i + 1] + 1]
        if here[0] < here[-1]:
            part = index.part(p)
            probes.search_part(own.points, own.first, probers, here, part, known, width, buffers)
    probes.write_lists(buffers, lists)
    return lists


def descend(index: Index, home: int, n_probes: int, width: int, seed: int) -> Lists:
    """Make the lists of one partition with pynndescent, over its points and near ones of others.

    Others come by whole cells, those that most of its points would probe first.
    """
    own = index.part(home)
    numbers, points = _with_overlap(index, home, choose_probes(index, home, own, n_probes, width))
    places = _run_descent(points, width, seed)[: len(own.points)]
    found = np.where(places < 0, -1, numbers[places]).astype(number_dtype(int(index.firsts[-1])))
    found[found == own.first + np.arange(len(found))[:, None]] = -1
    ranked, distances = measure_rows(index, home, found, slice(0, len(found)))
    short = (ranked[:, :width] < 0).any(axis=1)
    lists = Lists(
        np.ascontiguousarray(ranked[:, :width]),
        np.ascontiguousarray(distances[:, :width] ** 2),
        np.ones((len(ranked), width), bool),
    )
    if short.any():
        probed = probe(index, home, n_probes, width)
        for array, full in zip(lists, probed, strict=True):
            array[short] = full[short]
    return lists


def _with_overlap(
    index: Index, home: int, chosen: Probes
) -> tuple[NDArray[np.int64], NDArray[np.floating]]:
    """Return numbers and coordinates of a partition's points, and then of those it overlaps."""
    own, full = index.part(home), full_partitions(index)
    counts = np.bincount(chosen.cells.ravel(), minlength=int(chosen.first_cells[-1]))
    i = full.index(home)
    counts[chosen.first_cells[i] : chosen.first_cells[i + 1]] = 0
    numbers = [np.arange(own.first, own.first + len(own.points))]
    points, left = [own.points], OVERLAP * len(own.points)
    starts = {p: index.starts(p) for p in full}
    taken: dict[int, list[int]] = {}
    for cell in np.argsort(-counts, kind="stable").tolist():
        place = int(np.searchsorted(chosen.first_cells, cell, side="right")) - 1
        inside = cell - int(chosen.first_cells[place])
        left -= int(np.diff(starts[full[place]])[inside])
        if left < 0 or counts[cell] == 0:
            break
        taken.setdefault(full[place], []).append(inside)
    for p, cells in sorted(taken.items()):
        part = index.part(p)
        rows = [np.arange(part.starts[cell], part.starts[cell + 1]) for cell in sorted(cells)]
        places = np.concatenate(rows)
        numbers.append(part.first + places)
        points.append(part.points[places])
    return np.concatenate(numbers), np.concatenate(points)


def _run_descent(points: NDArray[np.floating], width: int, seed: int) -> NDArray[np.int32]:
    """Return the places of the nearest of each point, itself included, -1 where there is none."""
    from pynndescent import NNDescent  # compiles for seconds: only where it is used

    low, high = column_limits(points)
    spread = float(np.max(high - low)) or 1.0
    scaled = ((points - low) / spread).astype(np.float32)  # all that it computes in
    n_neighbors = min(width + 1, len(points) - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that it leaves short are completed by probes
        index = NNDescent(scaled, n_neighbors=n_neighbors, random_state=seed % 2**32, n_jobs=1)
    found: NDArray[np.int32] = index.neighbor_graph[0]
    if found.shape[1] <= width:
        found = np.pad(found, ((0, 0), (0, width + 1 - found.shape[1])), constant_values=-1)
    return found


def join_partition(
    index: Index, home: int, lists: Lists, heads_of: HeadsOf, effort: Effort
) -> Lists:
    """Return lists of one partition that have met the neighbours of their neighbours."""
    joined = Lists(*(array.copy() for array in lists))
    for cells, rows in passes(index.part(home)):
        here = Lists(*(array[rows] for array in joined))
        near = here.numbers[:, : effort.n_near]
        start = Start(near, here.fresh, here.numbers.copy())
        join_cells(index, cells, here, start, heads_of, effort)
    return joined


def passes(own: Part) -> Iterator[tuple[Part, slice]]:
    """Part the cells of a partition among passes; return those of each, and their points."""
    for first in range(0, len(own.centers), CELLS_PER_PASS):
        starts = own.starts[first : first + CELLS_PER_PASS + 1]
        rows = slice(int(starts[0]), int(starts[-1]))
        centers = own.centers[first : first + CELLS_PER_PASS]
        yield Part(own.first + rows.start, own.points[rows], starts - starts[0], centers), rows


class Start(NamedTuple):
    """What some points look for neighbours of neighbours from."""

    near: NDArray[np.integer]
    """(n, any): the neighbours whose own are followed."""
    fresh: NDArray[np.bool_]
    """(n, at least as many): which of them have not been before."""
    known: NDArray[np.integer]
    """(n, any): numbers that are not offered, among them those in the lists."""


def join_cells(
    index: Index, own: Part, lists: Lists, start: Start, heads_of: HeadsOf, effort: Effort
) -> None:
    """Offer neighbours of neighbours to the lists of the points of some cells, and change them."""
    wanted, middles = np.unique(start.near, return_inverse=True)
    heads = heads_of(wanted, effort.n_heads)
    candidates, starts = joins.cell_candidates(
        start.fresh, own.starts, middles.reshape(start.near.shape), *heads, effort.n_candidates
    )
    n_rows, width = lists.numbers.shape
    buffers = new_buffers(n_rows, width, lists.squares.dtype, lists.numbers.dtype)
    joins.open_lists(lists, buffers)
    for p in partitions_of(index, candidates):
        part = index.part(p)
        joins.join_part(
            own, candidates, starts, part.points, part.first, start.known, buffers, width
        )
    joins.close_lists(buffers, lists)


def partitions_of(index: Index, numbers: NDArray[np.integer]) -> list[int]:
    """Return the partitions of some numbers; those below 0 have none."""
    found = np.searchsorted(index.firsts, numbers.ravel(), side="right") - 1
    counts = np.bincount(found[found >= 0], minlength=len(index.firsts) - 1)
    partitions: list[int] = np.flatnonzero(counts).tolist()
    return partitions


def measure_rows(
    index: Index, home: int, numbers: NDArray[np.integer], rows: slice | NDArray[np.int64]
) -> tuple[NDArray[np.integer], NDArray[np.floating]]:
    """Return numbers and direct distances of lists, by (distance, input row); -1 comes last.

    `numbers` are the lists of the points `rows` of partition `home`.
    """
    points = index.part(home).points[rows]
    distances = np.full(numbers.shape, np.inf, points.dtype)
    entry_rows = np.full(numbers.shape, np.iinfo(np.int64).max)
    ranked = np.ascontiguousarray(numbers).copy()
    for p in partitions_of(index, numbers):
        part = index.part(p)
        into = distances, entry_rows
        probes.measure_lists(points, ranked, part.points, part.first, index.rows(p), *into)
    probes.rank_lists(distances, entry_rows, ranked)
    return ranked, distances
