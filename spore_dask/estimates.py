"""`estimate`: what a fit will take in memory, disk and time, before it starts.

Reads a few chunks of the source and fits a few and many of their rows in this process, in temporary
folders: how long each stage took there for what it had to do (`costs`) gives its pace, and that
leads to the whole. Few and many differ in their work, few and split in the number of tasks; tasks
of many are as large as those of the whole. Memory comes from the plan. Memory: that of a fit of the
sample.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from dask.utils import format_bytes
from numpy.typing import NDArray

from spore_dask import costs, memory
from spore_dask.api import fit
from spore_dask.coordinates import working_coordinates
from spore_dask.costs import ALONE, Pace, Size
from spore_dask.graph import Graph
from spore_dask.jobs import Job, find_job, place_beside
from spore_dask.pilot import CELLS, EXACT, choose_search, compared_by_cells
from spore_dask.plan import FEW_COLUMNS, FitPlan
from spore_dask.runs import Run
from spore_dask.store import Source
from spore_dask.threads import n_threads

SAMPLE_POINTS = 100_000
SAMPLE_NBYTES = 32 << 20
FEW_POINTS = 6000
"""Points of a small fit: enough for an approximate search."""
SPLIT = 8
"""Partitions of another fit of as few points; the others have one."""
REPEATS = 3
"""How often each fit is repeated, while all of its kind take no longer than this:"""
REPEAT_SECONDS = 5.0
SAMPLE_CHUNKS = 16
"""Chunks that the sample is read from."""
START_SECONDS = 1.0
"""What it takes to start local workers."""
LOAD_SECONDS = 0.7
"""What the first task takes on a new worker, to load libraries."""
CROWDED = 1.2
"""How much longer work takes where workers share a machine, and so its caches and its memory."""
LISTS = {"scan": 1, "points": 3, "graph": 1, "density": 3, "fragments": 1}
"""How often a stage sends a list of tasks to workers, and waits for all of them.

Before those of `points` the coordinator takes as long once more, to grow the tree of partitions.
"""
LIST_SECONDS = 0.03
"""What such a list takes at least: workers begin it, and end it, not all at once."""
SENT_SECONDS = 0.002
"""What it takes the coordinator and the scheduler to send a task and to hear of its end."""
PIECE_SECONDS = 2e-5
"""What a part of a file takes in an exchange, beside its bytes."""
PAGE_SECONDS = 6e-6
"""What a page of rows takes that Expansion reads because its cache is smaller than the graph."""
LEAST_SECONDS = {"expand": 5e-9, "reassign": 1.5e-8, "publish": 5e-8}
"""What a unit of work takes the coordinator at least: samples may fit in a processor's cache."""
PAGES_AGAIN = 2.0
"""How often it reads each of them then, at most: more in eight columns than in two."""
UNSURE = 2.0
"""Factor by which the share of fragments may differ from that of the sample."""

Span = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class StageEstimate:
    """What one stage will take."""

    memory_nbytes: int
    """Peak of a process."""
    disk_nbytes: Span
    """What it leaves on disk, from least to most."""
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
    def memory_nbytes(self) -> int:
        """The peak of the largest process."""
        return max(stage.memory_nbytes for stage in self.stages.values())

    def __str__(self) -> str:
        lines = [f"{'stage':<10}{'memory a process':>18}{'disk':>24}{'time':>20}"]
        for name, stage in self.stages.items():
            lines.append(
                f"{name:<10}{format_bytes(stage.memory_nbytes):>18}"
                f"{_span(stage.disk_nbytes, _size):>24}{_span(stage.seconds, _time):>20}"
            )
        total = _span(self.seconds, _time)
        disk = _span(self.disk_nbytes, _size)
        lines.append(f"{'whole':<10}{format_bytes(self.memory_nbytes):>18}{disk:>24}{total:>20}")
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

    Reads a few chunks and clusters a sample of them; writes nothing that stays. With a `client`,
    give the `memory_limit` of its workers, and their number as `n_workers`.

    Parameters
    ----------
    source, out, **options
        The arguments of `fit`.
    """
    client = options.pop("client", None)
    n_workers = options.pop("n_workers", None)
    memory_limit = options.pop("memory_limit", None)
    for name in ("progress", "resume"):
        options.pop(name, None)
    place = out or place_beside(source) or f"{tempfile.gettempdir()}/spore_dask-estimate"
    job = find_job(source, place, **options)
    plan = job.plan(memory_limit, None if client is not None else n_workers)
    sample = _sample(job.data.source, job.data.content)
    n_workers = n_threads() if n_workers is None else n_workers
    starts_workers = client is None and n_workers > 0
    pilot = _measure(job, sample, options, plan.shape.n_partitions)
    stages = _project(job, plan, pilot, n_workers, starts_workers)
    between = START_SECONDS if starts_workers else 0.0
    return Estimate(stages, between + pilot.between_seconds, plan.memory_limit)


def _sample(source: Source, content: Any) -> NDArray[Any]:
    """Read some rows, from chunks all over the source."""
    n_rows = source.shape[0]
    row_nbytes = source.shape[1] * np.dtype(source.dtype).itemsize
    wanted = min(n_rows, max(2, min(SAMPLE_POINTS, SAMPLE_NBYTES // row_nbytes)))
    if content is not None or source.chunk_rows >= n_rows:
        firsts, step = [0], n_rows
    else:
        step = source.chunk_rows
        chunks = np.unique(np.linspace(0, n_rows // step - 1, SAMPLE_CHUNKS).astype(int))
        firsts = (chunks * step).tolist()
    parts = []
    for first in firsts:
        last = min(first + step, n_rows)
        every = max(1, len(firsts) * (last - first) // wanted)
        if content is None:
            parts.append(source.read(first, last)[::every])
        else:
            parts.append(np.asarray(content[first:last:every]))
    return np.concatenate(parts)[:wanted]


@dataclasses.dataclass(frozen=True)
class Pilot:
    """Fits of a few points, of few in more partitions, and of many points.

    Of each there are some that are equal.
    """

    few: Sequence[Run]
    split: Sequence[Run]
    many: Sequence[Run]
    between_seconds: float
    """Time that a fit of many spent between its stages."""

    def pace(self, stage: str, with_workers: bool) -> Pace:
        """Return how long a stage takes for what it has to do, here and with workers."""
        (few, few_load), (split, split_load), (many, many_load) = (
            (_seconds(runs, stage), costs.loads(size_of(runs[0]))[stage])
            for runs in (self.few, self.split, self.many)
        )
        more_tasks = split_load.n_tasks - few_load.n_tasks
        per_task = max(0.0, split - few) / more_tasks if more_tasks else 0.0
        few, many = few - per_task * few_load.n_tasks, many - per_task * many_load.n_tasks
        more_work = many_load.work - few_load.work
        per_work = many / many_load.work
        if self.same_search and more_work > 0:
            per_work = (many - few) / more_work
        per_work = max(0.0, per_work)
        fixed = max(0.0, many - per_work * many_load.work)
        per_work = max(per_work, LEAST_SECONDS.get(stage, 0.0))
        if stage in ALONE:
            return Pace(fixed, per_work, per_piece=PAGE_SECONDS)
        if not with_workers:
            return Pace(fixed, per_work, per_task)
        fixed += LIST_SECONDS * LISTS[stage]
        return Pace(fixed, per_work, per_task, SENT_SECONDS, PIECE_SECONDS)

    @property
    def same_search(self) -> bool:
        """Whether few and many points are searched in the same way."""
        few, many = (size_of(runs[0]).n_rounds is None for runs in (self.few, self.many))
        return few == many


def _seconds(runs: Sequence[Run], stage: str) -> float:
    """Return how long a stage took in the middle one of equal fits."""
    took = [run.summary["stages"].get(stage, {}).get("seconds", 0.0) for run in runs]
    return float(statistics.median(took))


def size_of(run: Run, n_input_tasks: int = 1) -> Size:
    """Return how large a finished fit was, in what its stages had to do."""
    graph, summary = Graph(*run.graph), run.summary
    shape, found = graph.shape, graph.summary["found"]
    n_fragments = shape.n_points - summary["n_skeleton"]
    searched = summary["stages"].get("fragments", {}).get("coordinates_compared", 0)
    n_rounds = found.get("n_rounds")
    compared = found.get("coordinates_compared", 0) / shape.n_points
    if n_rounds is not None:
        compared = costs.probed(shape.n_points, shape.n_columns, found["n_probes"], n_rounds)
    return Size(
        shape,
        n_input_tasks,
        compared,
        n_fragments,
        searched / max(1, n_fragments),
        n_rounds,
        _n_pages(summary["stages"].get("expand", {}), shape),
        summary["stages"].get("expand", {}).get("cache_nbytes"),
    )


def _n_pages(expanded: dict[str, Any], shape: memory.Shape) -> int:
    """Return how many pages Expansion has read one by one."""
    if not expanded or expanded["cache_nbytes"] >= expanded["graph_nbytes"]:
        return 0
    return int(expanded["read_nbytes"]) // (memory.PAGE_ROWS * shape.row_nbytes)


def _measure(job: Job, sample: NDArray[Any], options: dict[str, Any], n_partitions: int) -> Pilot:
    """Fit few and many rows of the sample, after a fit that loads what is compiled.

    The partitions of many have as many points as those of the whole.
    """
    params = job.resolved
    n_partitions = max(1, round(n_partitions * len(sample) / params.n_points))
    exponent = math.log(params.min_cluster_size) / math.log(params.n_points)
    names = inspect.signature(fit).parameters.keys() & options.keys()
    given = {name: options[name] for name in names - {"graph", "resume", "component", "keep"}}
    given |= {
        **dataclasses.asdict(job.params),
        "density_neighbors": params.density_neighbors,
        "expansion_neighbors": params.expansion_neighbors,
        "reassignment_neighbors": params.reassignment_neighbors,
        "knn": _knn_of_whole(job, sample),
        "n_workers": 0,
        "keep": "all",
    }

    def run(rows: NDArray[Any], n_partitions: int = 1) -> Run:
        size = max(1, math.floor(len(rows) ** exponent))
        changed = {"min_cluster_size": size, "n_partitions": min(n_partitions, len(rows))}
        return fit(rows, **given | changed)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        few = sample[:: max(1, len(sample) // FEW_POINTS)][:FEW_POINTS]
        run(few)
        small, _ = _repeat(functools.partial(run, few))
        split, _ = _repeat(functools.partial(run, few, SPLIT))
        large, seconds = _repeat(functools.partial(run, sample, n_partitions))
    took = sum(_seconds(large, stage) for stage in large[0].summary["stages"])
    return Pilot(small, split, large, max(0.0, seconds - took))


def _repeat(run: Callable[[], Run]) -> tuple[list[Run], float]:
    """Return equal fits, and how long one took."""
    runs: list[Run] = []
    took: list[float] = []
    while len(runs) < REPEATS and sum(took) <= REPEAT_SECONDS:
        started = time.perf_counter()
        runs.append(run())
        took.append(time.perf_counter() - started)
    return runs, statistics.median(took)


def _knn_of_whole(job: Job, sample: NDArray[Any]) -> str:
    """Return what to ask for so that a sample is searched as the whole will be."""
    options, (n_points, n_columns) = job.options, job.data.source.shape
    if job.graph is not None:
        return "exact" if job.graph.summary["search"] in EXACT else "approximate"
    if options.knn_index == "pynndescent" or n_columns <= FEW_COLUMNS:
        return options.knn
    coordinates = working_coordinates(sample, options.scale, options.metric)
    k = min(job.head_k, len(coordinates) - 1)
    compared = compared_by_cells(coordinates, k, n_points, options.knn)
    found = choose_search(options.knn, compared, n_points, n_columns)
    return "exact" if found in EXACT else "approximate"


def _project(
    job: Job, plan: FitPlan, pilot: Pilot, n_workers: int, starts_workers: bool
) -> dict[str, StageEstimate]:
    """Project what the stages took for the sample to all points."""
    run, n_points = pilot.many[0], job.resolved.n_points
    graph = Graph(*run.graph)
    factor = n_points / graph.n_points
    size = _whole_size(job, plan, run)
    unsure = UNSURE if factor > 1 else 1.0
    few, many = (
        costs.loads(dataclasses.replace(size, n_fragments=min(n_points, round(n))))
        for n in (size.n_fragments / unsure, size.n_fragments * unsure)
    )
    projected = {}
    for name, nbytes in _memory(plan, graph, round(size.n_fragments * unsure)).items():
        stage = run.summary["stages"].get(name)
        if stage is None or (job.graph is not None and name in ("scan", "points", "graph")):
            continue
        pace = pilot.pace(name, with_workers=n_workers > 0)
        if starts_workers and n_workers > 1 and name not in ALONE:
            pace = dataclasses.replace(pace, per_work=CROWDED * pace.per_work)
        if name == "scan" and starts_workers:
            pace = dataclasses.replace(pace, fixed=pace.fixed + LOAD_SECONDS)
        disk = stage["nbytes"] * factor
        if name == "scan":  # the drawn rows
            disk = plan.input_shape.sample_size * plan.input_shape.row_nbytes
        span = unsure if name in ("fragments", "reassign") else 1.0
        projected[name] = StageEstimate(
            nbytes,
            (disk / span, disk * span),
            (pace.seconds(few[name], n_workers), pace.seconds(many[name], n_workers)),
        )
    return projected


def _whole_size(job: Job, plan: FitPlan, run: Run) -> Size:
    """Return how large the whole fit is, given that of the sample."""
    sample, graph, n_points = size_of(run), Graph(*run.graph), job.resolved.n_points
    factor = n_points / graph.n_points
    growth = _search_growth(job, graph) if factor > 1 else 1.0
    compared = sample.compared * growth
    if sample.n_rounds is not None:
        n_probes = graph.summary["found"]["n_probes"]
        compared = costs.probed(n_points, sample.shape.n_columns, n_probes, sample.n_rounds)
    shape = plan.shape if graph.k < sample.shape.longest_k else plan.whole().shape
    fits = plan.coordinator_cache_nbytes >= n_points * shape.row_nbytes
    return Size(
        shape,
        -(-n_points // plan.input_shape.rows_per_task),
        compared,
        round(sample.n_fragments * factor),
        sample.fragment_compared * growth,
        sample.n_rounds,
        0 if fits else round(PAGES_AGAIN * n_points / memory.PAGE_ROWS),
        plan.coordinator_cache_nbytes,
    )


def _search_growth(job: Job, graph: Graph) -> float:
    """Return how much longer a point of the whole is searched for than one of the sample."""
    if graph.summary["search"] != CELLS:
        return 1.0
    points = graph.points
    coordinates = np.ascontiguousarray(points.coordinates(0, int(points.firsts[-1])))
    k = min(graph.k, len(coordinates) - 1)
    here = compared_by_cells(coordinates, k, len(coordinates), "exact")
    return compared_by_cells(coordinates, k, job.resolved.n_points, "exact") / here


def _memory(plan: FitPlan, graph: Graph, n_fragments: int) -> dict[str, int]:
    """Return the peak of a process in each stage, its cache included as far as it can be full."""
    shape = plan.shape if graph.summary["k"] < graph.summary["longest_k"] else plan.whole().shape
    known = plan.memory()
    points = min(plan.cache_nbytes, shape.n_points * shape.point_nbytes)
    rows = min(plan.coordinator_cache_nbytes, shape.n_points * shape.row_nbytes)
    beside = memory.coordinator_nbytes(shape)
    voting = memory.held_nbytes(shape, n_fragments)
    return {
        "scan": known.get("scan", 0),
        "points": max(known.get("exchange", 0), known.get("partition", 0)),
        "graph": known.get("neighbors", 0) + points,
        "density": known["density"] + points,
        "expand": beside + rows,
        "fragments": known["fragments"] + points,
        "reassign": beside + min(plan.coordinator_cache_nbytes, voting),
        "publish": beside,
    }
