"""`estimate`: what a fit will take in memory, disk and time, before it starts.

Reads a few chunks of the source and fits few and many of their rows (`sample_fits`): how long each
stage took there for what it had to do (`costs`) gives its pace (`paces`), and that leads to the
whole. Memory is what is likely, where the plan, which may refuse, has the most. Memory of this
process: that of a fit of the sample.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np
from dask.utils import format_bytes
from numpy.typing import NDArray

from spore_dask import costs, memory
from spore_dask.costs import Pace, Size
from spore_dask.errors import ParameterError
from spore_dask.graph import Graph
from spore_dask.inputs import is_dask
from spore_dask.jobs import Job, find_job, place_beside
from spore_dask.memory import Shape
from spore_dask.paces import on_workers
from spore_dask.pilot import CELLS, EXACT, PRODUCTS, compared_by_cells
from spore_dask.plan import FitPlan
from spore_dask.sample_fits import Pilot, Sample, fit_samples
from spore_dask.store import Source
from spore_dask.threads import n_threads

SAMPLE_POINTS = 100_000
SAMPLE_NBYTES = 32 << 20
SAMPLE_CHUNKS = 16
"""Rows of the sample at most, their bytes, and the chunks that they are read from."""
START_SECONDS = 1.0
"""What it takes to start local workers."""
LOAD_SECONDS = 0.7
"""What the first task takes on a new worker, to load libraries."""
PAGES_AGAIN = 2.0
"""How often Expansion reads each page that it reads one by one, at most: more in eight columns than
in two."""
UNSURE = 2.0
"""Factor by which the share of fragments may differ from that of the sample."""

Span = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class StageEstimate:
    """What one stage will take."""

    memory_nbytes: int
    """The likely peak of a process that does its tasks; of the coordinator, if it has none."""
    disk_nbytes: Span
    """What it leaves on disk, from least to most."""
    passing_nbytes: Span
    """What it has on disk beside while it runs: files of an exchange, lists of a search."""
    seconds: Span
    """From least to most: the same where the share of fragments does not matter."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a fit will take. Printed, it says so."""

    stages: dict[str, StageEstimate]
    other_seconds: float
    """Time between the stages: starting workers, and pilots."""
    memory_limit: int

    @property
    def seconds(self) -> Span:
        """The time of the whole, from least to most."""
        low = sum(stage.seconds[0] for stage in self.stages.values())
        high = sum(stage.seconds[1] for stage in self.stages.values())
        return low + self.other_seconds, high + self.other_seconds

    @property
    def disk_nbytes(self) -> Span:
        """What all stages leave on disk."""
        low = sum(stage.disk_nbytes[0] for stage in self.stages.values())
        return low, sum(stage.disk_nbytes[1] for stage in self.stages.values())

    @property
    def most_disk_nbytes(self) -> Span:
        """The most that is on disk at any time, before the end, when `keep` decides what stays."""
        return self._most_disk_nbytes(0), self._most_disk_nbytes(1)

    def _most_disk_nbytes(self, end: int) -> float:
        left = most = 0.0
        for stage in self.stages.values():
            left += stage.disk_nbytes[end]
            most = max(most, left + stage.passing_nbytes[end])
        return most

    @property
    def memory_nbytes(self) -> int:
        """The likely peak of the largest process."""
        return max(stage.memory_nbytes for stage in self.stages.values())

    def __str__(self) -> str:
        lines = [f"{'stage':<10}{'memory a process':>18}{'disk':>26}{'time':>20}"]
        for name, stage in self.stages.items():
            lines.append(
                f"{name:<10}{format_bytes(stage.memory_nbytes):>18}"
                f"{_span(stage.disk_nbytes, _size):>26}{_span(stage.seconds, _time):>20}"
            )
        total = _span(self.seconds, _time)
        disk = _span(self.most_disk_nbytes, _size)
        lines.append(f"{'whole':<10}{format_bytes(self.memory_nbytes):>18}{disk:>26}{total:>20}")
        return "\n".join(lines)


def _size(nbytes: float) -> str:
    return format_bytes(round(nbytes))


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _span(span: Span, text: Any) -> str:
    low, high = text(span[0]), text(span[1])
    return low if low == high else f"{low} to {high}"


def estimate(source: Any, out: Any = None, **options: Any) -> Estimate:
    """Say what `fit` would take in memory, disk and time with the same arguments.

    Reads a few chunks and clusters a sample of them; writes nothing that stays. What the first fit
    on a machine compiles, for up to a minute, is not counted. With a `client`, give the
    `memory_limit` of its workers, and their number as `n_workers`.

    Parameters
    ----------
    source, out, **options
        The arguments of `fit`.
    """
    client = options.pop("client", None)
    n_workers = options.pop("n_workers", None)
    memory_limit = options.pop("memory_limit", None)
    if options.get("params") is not None:
        raise ParameterError(
            f"params is {options['params']!r}, but `estimate` tells what a fit with given "
            "parameters takes: leave it out."
        )
    for name in ("progress", "resume", "params", "n_trials"):
        options.pop(name, None)
    place = out or place_beside(source) or f"{tempfile.gettempdir()}/spore_dask-estimate"
    job = find_job(source, place, **options)
    plan = job.plan(memory_limit, None if client is not None else n_workers)
    drawn = _draw(job.data.source, job.data.content)
    n_workers = n_threads() if n_workers is None else n_workers
    starts_workers = client is None and n_workers > 0
    pilot = fit_samples(job, plan, drawn.rows)
    stages = _project(job, plan, pilot, drawn.row_seconds, n_workers, starts_workers)
    between = START_SECONDS if starts_workers else 0.0
    if job.data.is_computed:  # before the first stage
        n_chunks = -(-job.data.source.shape[0] // job.data.source.chunk_rows)
        share = costs.largest_share(n_chunks, n_workers) if is_dask(job.data.content) else 1.0
        between += drawn.row_seconds * job.data.source.shape[0] * share
    return Estimate(stages, between + pilot.many.between_seconds, plan.memory_limit)


class Drawn(NamedTuple):
    """Some rows of the source."""

    rows: NDArray[Any]
    row_seconds: float
    """What it took to read one, or to compute it."""


def _draw(source: Source, content: Any) -> Drawn:
    """Read or compute some rows, from chunks all over the source."""
    n_rows = source.shape[0]
    row_nbytes = source.shape[1] * np.dtype(source.dtype).itemsize
    wanted = min(n_rows, max(2, min(SAMPLE_POINTS, SAMPLE_NBYTES // row_nbytes)))
    if isinstance(content, np.ndarray) or source.chunk_rows >= n_rows:
        firsts, step = [0], n_rows
    else:
        step = source.chunk_rows
        chunks = np.unique(np.linspace(0, n_rows // step - 1, SAMPLE_CHUNKS).astype(int))
        firsts = (chunks * step).tolist()
    ends = np.linspace(0, wanted, len(firsts) + 1).astype(int)
    parts, seconds, n_read = [], 0.0, 0
    for first, n_here in zip(firsts, np.diff(ends), strict=True):
        last = min(first + step, n_rows)
        rows = np.linspace(0, last - first - 1, min(n_here, last - first)).astype(int)
        started = time.perf_counter()
        block: Any = source.read(first, last) if content is None else content[first:last]
        block = block.compute(scheduler="synchronous") if is_dask(block) else np.asarray(block)
        seconds, n_read = seconds + time.perf_counter() - started, n_read + last - first
        parts.append(block[rows])
    return Drawn(np.concatenate(parts), seconds / n_read)


def _project(
    job: Job,
    plan: FitPlan,
    pilot: Pilot,
    row_seconds: float,
    n_workers: int,
    starts_workers: bool,
) -> dict[str, StageEstimate]:
    """Project what the stages took for the sample to all points."""
    many, n_points = pilot.many, job.resolved.n_points
    plan = _plan_of_whole(job, plan, many)
    shape = plan.shape if job.graph is None else job.graph.shape
    size = _whole_size(plan, shape, pilot)
    factor = n_points / many.size.shape.n_points
    unsure = UNSURE if factor > 1 else 1.0
    sizes = [
        dataclasses.replace(size, n_fragments=min(n_points, round(n)))
        for n in (size.n_fragments / unsure, size.n_fragments * unsure)
    ]
    needs = _memory(plan, shape, size.n_fragments)
    skipped = ("scan", "points", "graph") if job.graph is not None else ()
    paces = {stage: pace for stage, pace in pilot.paces().items() if stage not in skipped}
    reading = row_seconds * n_points * costs.largest_share(size.n_input_tasks, n_workers)
    n_passes = {"scan": 1 if job.options.scale is None else 2, "points": 1}
    if job.data.content is not None:  # what is written first is read as samples are
        n_passes = {}
    projected = {}
    for i, (stage, pace) in enumerate(paces.items()):
        if starts_workers and i == 0:
            pace = dataclasses.replace(pace, fixed=pace.fixed + LOAD_SECONDS)
        pace = dataclasses.replace(pace, fixed=pace.fixed + n_passes.get(stage, 0) * reading)
        disk = many.run.summary["stages"][stage]["nbytes"] * factor
        if stage == "scan":  # the drawn rows
            disk = plan.input_shape.sample_size * plan.input_shape.row_nbytes
        span = unsure if stage in ("fragments", "reassign") else 1.0
        disks = disk / span, disk * span
        low, high = (_seconds(stage, pace, one, n_workers, starts_workers) for one in sizes)
        passing = _passing_nbytes(plan, stage, disks)
        projected[stage] = StageEstimate(needs[stage], disks, passing, (low, high))
    return projected


def _seconds(stage: str, pace: Pace, size: Size, n_workers: int, starts_workers: bool) -> float:
    """Return how long a stage takes."""
    if n_workers > 0:
        pace = on_workers(stage, pace, size, crowded=starts_workers and n_workers > 1)
    return pace.seconds(costs.loads(size)[stage], n_workers)


def _plan_of_whole(job: Job, plan: FitPlan, sample: Sample) -> FitPlan:
    """Return the plan of a search like the sample's, unless a graph is given."""
    if job.graph is not None:
        return plan
    plan = plan.exact() if Graph(*sample.run.graph).summary["search"] in EXACT else plan
    return plan.whole() if sample.size.has_long_rows else plan


def _whole_size(plan: FitPlan, shape: Shape, pilot: Pilot) -> Size:
    """Return how large the whole fit is, given that of the sample."""
    sample, n_points = pilot.many.size, shape.n_points
    factor = n_points / sample.shape.n_points
    few, many = (Graph(*each.run.graph) for each in (pilot.few, pilot.many))
    growth = _search_growth(few, many, n_points) if factor > 1 else 1.0
    compared = sample.compared * growth
    if sample.n_rounds is not None:
        n_probes = many.summary["found"]["n_probes"]
        compared = costs.probed(n_points, shape.n_columns, n_probes, sample.n_rounds, growth)
    fits = plan.coordinator_cache_nbytes >= n_points * shape.row_nbytes
    return Size(
        shape,
        -(-n_points // plan.input_shape.rows_per_task),
        compared,
        round(sample.n_fragments * factor),
        sample.fragment_compared * growth,
        sample.n_rounds,
        0 if fits else round(PAGES_AGAIN * n_points / memory.PAGE_ROWS),
        sample.orders_seeds,
    )


def _search_growth(few: Graph, many: Graph, n_points: int) -> float:
    """Return how much longer a point of the whole is searched for than one of the sample."""
    if many.summary["search"] == PRODUCTS:
        return n_points / many.n_points
    if many.summary["search"] != CELLS:
        return costs.reach_growth(_reach(few), _reach(many), n_points)
    points = many.points
    coordinates = np.ascontiguousarray(points.coordinates(0, int(points.firsts[-1])))
    k = min(many.k, len(coordinates) - 1)
    here = compared_by_cells(coordinates, k, len(coordinates), "exact")
    return compared_by_cells(coordinates, k, n_points, "exact") / here


def _reach(graph: Graph) -> tuple[int, float]:
    """Return how many points a graph has, and in how many cells most of a point's neighbours."""
    return graph.n_points, graph.summary["found"]["reach"]


def _passing_nbytes(plan: FitPlan, stage: str, disk_nbytes: Span) -> Span:
    """Return what a stage has on disk beside what it leaves, while it runs."""
    if stage == "fragments":  # all rows are there twice while they are put in order
        return disk_nbytes
    most = {
        "points": memory.points_disk_nbytes(plan.shape) + plan.copied_nbytes,
        "graph": plan.search_disk_nbytes - disk_nbytes[0] if plan.may_approximate else 0,
        "density": plan.order_disk_nbytes - disk_nbytes[0],
        "expand": plan.shape.n_points * memory.CHECKPOINT_NBYTES,
        "reassign": plan.shape.n_points * memory.CHECKPOINT_NBYTES,
    }.get(stage, 0)
    return max(0, most), max(0, most)


def _memory(plan: FitPlan, shape: Shape, n_fragments: int) -> dict[str, int]:
    """Return the likely peak of a process in each stage, its cache as full as it can be."""
    known = {stage: memory.likely_nbytes(nbytes) for stage, nbytes in plan.memory().items()}
    points_nbytes = shape.n_points * shape.point_nbytes
    lists_nbytes = memory.lists_nbytes(shape) if plan.may_approximate else 0
    points, lists = (
        min(plan.cache_nbytes, nbytes) for nbytes in (points_nbytes, points_nbytes + lists_nbytes)
    )
    cache = plan.coordinator_cache_nbytes
    coordinator = memory.likely_coordinator_nbytes(
        shape,
        min(cache, shape.n_points * shape.row_nbytes),
        min(cache, memory.held_nbytes(shape, n_fragments)),
    )
    return {
        "scan": known.get("scan", 0),
        "points": max(known.get("exchange", 0), known.get("partition", 0)),
        "graph": known.get("neighbors", 0) + lists,
        "density": known["density"] + points,
        "fragments": known["fragments"] + points,
        **{stage: nbytes + plan.store_nbytes for stage, nbytes in coordinator.items()},
    }
