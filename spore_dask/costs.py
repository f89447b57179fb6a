"""What each stage of a fit has to do, and how long that takes at a given pace.

Pure arithmetic. `estimate` learns the paces of a machine and of some data from fits of samples;
`python -m pipelines.costs` from fits of many sizes: see docs/scale.md.
"""

from __future__ import annotations

import dataclasses
import math

from spore_dask.memory import Shape, n_ranges

STAGES = ("scan", "points", "graph", "density", "expand", "fragments", "reassign", "publish")
SEEDS = "seeds"
"""One more stage, after the density, where seeds have an order of their own."""
ALONE = (SEEDS, "expand", "reassign", "publish")
"""Stages that the coordinator does itself."""
ENTRY_COORDINATES = 150
"""What an entry of a row takes to be selected, ordered and written, in coordinates compared."""
LIST_COORDINATES = 1500
"""What an entry of a list takes in each exchange of an approximate search, in the same unit."""
POINTS_PER_PROBE = 64
"""Points that a probe meets: those of a cell around a centre."""
PROBES_PER_ROUND = 32
"""What a round of refinement takes for a point, in probes."""
REACH_POWER = 0.65
"""How fast what probes and rounds meet grows with the cells that hold the neighbours of a point."""
MOST_REACH = 1024
"""Cells from which on that grows no more: a round has as many candidates as it may have."""
DRAWN_COORDINATES = 4
"""What a coordinate of a drawn row takes more than another to be scanned: it is written twice."""
MOVED_COORDINATES = 4
"""What a coordinate takes in the density's exchange, in distances that are read."""
EXCHANGED = 0.4
"""The part of sorting points into partitions that is done where the input is read."""
LIGHT_TASKS = 16
"""Light tasks that travel together where there are many."""


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a fit is, in what its stages have to do."""

    shape: Shape
    """With the k that the graph's rows have."""
    n_input_tasks: int
    """Tasks that read the input."""
    compared: float
    """Coordinates compared for a point of the graph: see `probed` for approximate searches."""
    n_fragments: int
    """Points outside of the large clusters before reassignment."""
    fragment_compared: float = 0.0
    """Coordinates compared for a fragment, where the graph's rows are too short for the vote."""
    n_rounds: int | None = None
    """Rounds of refinement of an approximate search; None if the search is exact."""
    n_pages: int = 0
    """Pages of rows that Expansion reads one by one; none where its cache holds the graph."""
    orders_seeds: bool = False
    """Whether seeds have an order of their own."""

    @property
    def has_long_rows(self) -> bool:
        """Whether the rows of fragments are those of the graph, which are long enough."""
        return self.shape.k >= self.shape.longest_k


@dataclasses.dataclass(frozen=True)
class Load:
    """What a stage has to do."""

    work: float
    """What grows with the data, in a unit of the stage's own."""
    n_tasks: int = 0
    n_sent: int = 0
    """Messages that take the tasks to workers."""
    n_pieces: int = 0
    """Parts of files that are read, each by itself."""
    alone: bool = False
    """Whether the coordinator does it all."""
    n_first: int = 0
    """Tasks of a first list, which do the part `EXCHANGED` of the work before others begin."""

    def most_tasks(self, n_workers: int) -> int:
        """Return how many tasks the worker with the most of them gets."""
        if self.alone:
            return self.n_tasks
        lists = self.n_first, self.n_tasks - self.n_first
        return sum(-(-n_tasks // max(1, n_workers)) for n_tasks in lists)

    def share(self, n_workers: int) -> float:
        """Return the part of the work that the worker with the most to do gets."""
        if self.alone or self.n_tasks == 0:
            return 1.0
        rest = largest_share(self.n_tasks - self.n_first, n_workers)
        if self.n_first == 0:
            return rest
        return EXCHANGED * largest_share(self.n_first, n_workers) + (1 - EXCHANGED) * rest


@dataclasses.dataclass(frozen=True)
class Pace:
    """How long a stage takes for what it has to do, in seconds."""

    fixed: float
    per_work: float
    per_task: float = 0.0
    """Of the worker that does the task."""
    per_sent: float = 0.0
    """Of the coordinator and the scheduler, for a message to a worker."""
    per_piece: float = 0.0

    def seconds(self, load: Load, n_workers: int) -> float:
        """Return how long the stage takes."""
        shared = self.per_work * load.work + self.per_piece * load.n_pieces
        own = self.per_task * load.most_tasks(n_workers) + load.share(n_workers) * shared
        return self.fixed + self.per_sent * load.n_sent + own


def largest_share(n_tasks: int, n_workers: int) -> float:
    """Return the part of some tasks that the worker with the most of them gets."""
    return math.ceil(n_tasks / max(1, n_workers)) / n_tasks


def probed(
    n_points: int, n_columns: int, n_probes: int, n_rounds: int, growth: float = 1.0
) -> float:
    """Return the coordinates that an approximate search compares for a point.

    Those of the cells that it probes and those of each round, `growth` times as many as they were
    where the probes and rounds were counted; and its share in the comparison of every cell's centre
    with every other, which grows with the number of points.
    """
    centers = n_points / POINTS_PER_PROBE**3
    n_cells = growth * (n_probes + PROBES_PER_ROUND * n_rounds) + centers
    return n_columns * POINTS_PER_PROBE * n_cells


def reach_growth(few: tuple[int, float], many: tuple[int, float], n_points: int) -> float:
    """Return how much more an approximate search meets for a point than it did in a sample.

    The reach, cells that hold the neighbours of a point, grows as it grew from few points of the
    sample to many, both given with their number.
    """
    (n_few, few_reach), (n_many, many_reach) = few, many
    power = 0.5
    if n_many >= 2 * n_few:
        power = min(1.0, max(0.0, math.log(many_reach / few_reach, n_many / n_few)))
    reach = many_reach * (n_points / n_many) ** power
    growth: float = max(1.0, min(MOST_REACH, reach) / many_reach) ** REACH_POWER
    return growth


def loads(size: Size) -> dict[str, Load]:
    """Return what each stage has to do for a fit of some size."""
    shape, n_points = size.shape, size.shape.n_points
    n_partitions, n_shards = shape.n_partitions, shape.n_shards
    ranges, n_read = n_ranges(n_shards), size.n_input_tasks
    gathered = min(ranges, -(-size.n_fragments // shape.shard_rows))
    steps = 1 if size.n_rounds is None else 7 + 3 * size.n_rounds + (not size.has_long_rows)
    votes = shape.longest_k + 1
    found: dict[str, Load] = {
        "scan": Load(
            (n_points + DRAWN_COORDINATES * shape.sample_size) * shape.n_columns, n_read, n_read
        ),
        "points": Load(
            n_points if size.n_rounds is None else n_points * shape.n_columns,
            n_read + n_partitions,
            n_read + n_partitions,
            2 * min(n_read * n_partitions, n_points),
            n_first=n_read,
        ),
        "graph": Load(n_points * _search_work(size), steps * n_shards, steps * n_shards),
        "density": Load(
            n_points * (shape.k + 1 + MOVED_COORDINATES * shape.n_columns),
            2 * n_shards + ranges,
            2 * _messages(n_shards) + _messages(ranges),
            min(n_shards * ranges, n_points),
        ),
        "expand": Load(n_points * (shape.k + 1), n_pieces=size.n_pages, alone=True),
        "fragments": Load(
            _fragment_work(size),
            n_shards + gathered,
            n_shards + gathered,
            3 * min(n_shards * gathered, size.n_fragments),
        ),
        "reassign": Load(n_points + size.n_fragments * votes, alone=True),
        "publish": Load(n_points, alone=True),
    }
    if size.orders_seeds:
        found[SEEDS] = Load(n_points, alone=True)
    return found


def _messages(n_light: int) -> int:
    """Return the messages that take light tasks to workers."""
    return -(-n_light // LIGHT_TASKS)


def _search_work(size: Size) -> float:
    """Return what it takes to find the neighbours of a point, in coordinates compared."""
    n_entries = size.shape.k + 1
    if size.n_rounds is None:
        return size.compared + ENTRY_COORDINATES * n_entries
    return size.compared + LIST_COORDINATES * n_entries * (size.n_rounds + 1)


def _fragment_work(size: Size) -> float:
    """Return what the rows of fragments take: a search, or a copy of rows that are long enough."""
    shape = size.shape
    if size.has_long_rows:
        return float(shape.n_points * (shape.k + 1))
    entries = ENTRY_COORDINATES * (shape.longest_k + 1)
    return size.n_fragments * (size.fragment_compared + entries)
