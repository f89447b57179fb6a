"""Fits of samples, in this process and in temporary folders, to learn how long stages take.

They search as the whole will be searched, though fewer points would rather be searched otherwise.
Memory: that of a fit of the sample.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spore_dask import costs, memory
from spore_dask.coordinates import working_coordinates
from spore_dask.costs import Pace, Size
from spore_dask.engine import Engine
from spore_dask.errors import InputError
from spore_dask.fitting import Fit
from spore_dask.graph import Graph, settled_index
from spore_dask.jobs import Job, find_job, place_of_run
from spore_dask.opening import opened
from spore_dask.paces import Timed, find_paces
from spore_dask.pilot import EXACT, PYNNDESCENT, choose_search, compared_by_cells
from spore_dask.plan import FitPlan
from spore_dask.runs import Run
from spore_dask.stages.scan import Scan

FEW_POINTS = 6000
"""Points of small fits: enough for an approximate search."""
SPLIT = 8
"""Partitions of some of them; the others have one."""
LEAST_SPLIT = 64
"""Points that such a partition has at least."""
REPEATS = 3
"""How often each fit is repeated, while all of its kind take no longer than this:"""
REPEAT_SECONDS = 5.0


class Search(NamedTuple):
    """How points are searched."""

    way: str
    """One of those in `pilot`."""
    long_rows: bool | None
    """Whether all rows have K neighbours; None if the share of fragments decides."""


def search_of_whole(job: Job, plan: FitPlan, sample: NDArray[Any]) -> Search:
    """Return how a fit will search, or has searched if a graph is given."""
    if job.graph is not None:
        return Search(job.graph.summary["search"], job.graph.k >= job.longest_k)
    options, shape = plan.options, plan.shape
    way = settled_index(plan)
    if way is None:
        coordinates = working_coordinates(sample, options.scale, options.metric)
        k = min(shape.k, len(coordinates) - 1)
        compared = compared_by_cells(coordinates, k, shape.n_points, options.knn)
        way = choose_search(options.knn, compared, shape.n_points, shape.n_columns)
    return Search(way, None)


class SampleFit(Fit):
    """A fit that searches as it is told."""

    def __init__(self, engine: Engine, job: Job, plan: FitPlan, search: Search) -> None:
        super().__init__(engine, job, plan, resume=True)
        self._search = search

    def _find_search(self, plan: FitPlan, scanned: Scan) -> str:
        return self._search.way

    def _few_fragments(self, plan: FitPlan, scanned: Scan, search: str) -> bool:
        if self._search.long_rows is None:
            return super()._few_fragments(plan, scanned, search)
        return not self._search.long_rows


@dataclasses.dataclass(frozen=True)
class Sample:
    """Equal fits: one of them, and how long their stages took at least, and what is between them.

    What else the machine does can only add to that.
    """

    run: Run
    stages: dict[str, float]
    between_seconds: float

    @property
    def size(self) -> Size:
        """How large they are."""
        return size_of(self.run)

    @property
    def timed(self) -> dict[str, Timed]:
        """What each stage had to do, and how long it took."""
        loads = costs.loads(self.size)
        return {stage: Timed(loads[stage], took) for stage, took in self.stages.items()}


@dataclasses.dataclass(frozen=True)
class Pilot:
    """Fits of a few points, of the same in more partitions, and of many."""

    few: Sample
    split: Sample
    many: Sample

    def paces(self) -> dict[str, Pace]:
        """Return how long each stage takes for what it has to do."""
        few, split = self.few.timed, self.split.timed
        if self.few.size.has_long_rows != self.many.size.has_long_rows:
            few.pop("fragments", None)  # which were searched in one, and copied in the other
        return find_paces(few, split, self.many.timed)


def fit_samples(job: Job, plan: FitPlan, sample: NDArray[Any]) -> Pilot:
    """Fit few and many rows of a sample, after a fit that loads what is compiled.

    The partitions of many have as many points as those of the whole.
    """
    search, given = search_of_whole(job, plan, sample), _options(job)
    n_few = min(FEW_POINTS, len(sample))
    few = sample[np.linspace(0, len(sample) - 1, n_few).astype(int)]
    n_split = SPLIT if n_few >= SPLIT * LEAST_SPLIT else 1
    n_many = max(1, round(plan.shape.n_partitions * len(sample) / plan.shape.n_points))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _fit(job, few, given, search, 1)
        return Pilot(
            _repeat(job, few, given, search, 1),
            _repeat(job, few, given, search, n_split),
            _repeat(job, sample, given, search, n_many),
        )


def _options(job: Job) -> dict[str, Any]:
    """Return the arguments of fits of samples, but for what depends on their size."""
    params = job.resolved
    names = ("recall_target", "metric", "scale", "seed")
    return {
        **{name: getattr(job.options, name) for name in names},
        **dataclasses.asdict(job.params),
        "density_neighbors": params.density_neighbors,
        "expansion_neighbors": params.expansion_neighbors,
        "reassignment_neighbors": params.reassignment_neighbors,
        "cache_limit": job.cache_limit,
        "keep": "all",
    }


def _repeat(
    job: Job, rows: NDArray[Any], given: dict[str, Any], search: Search, n_partitions: int
) -> Sample:
    """Fit some rows again and again; keep the first result."""
    kept: Run | None = None
    stages: list[dict[str, float]] = []
    took: list[float] = []
    while len(took) < REPEATS and sum(took) <= REPEAT_SECONDS:
        started = time.perf_counter()
        run = _fit(job, rows, given, search, n_partitions)
        took.append(time.perf_counter() - started)
        known = run.summary["stages"]
        stages.append({name: stage["seconds"] for name, stage in known.items()})
        kept = kept or run
    assert kept is not None
    least = {name: min(one[name] for one in stages) for name in stages[0]}
    between = (whole - sum(one.values()) for whole, one in zip(took, stages, strict=True))
    return Sample(kept, least, max(0.0, min(between)))


def _fit(
    whole: Job, rows: NDArray[Any], given: dict[str, Any], search: Search, n_partitions: int
) -> Run:
    """Fit some rows, in as many partitions as they can have."""
    exponent = math.log(whole.resolved.min_cluster_size) / math.log(whole.resolved.n_points)
    options = {
        **given,
        "knn": "exact" if search.way in EXACT else "approximate",
        "knn_index": "pynndescent" if search.way == PYNNDESCENT else None,
        "min_cluster_size": max(1, math.floor(len(rows) ** exponent)),
        "n_partitions": n_partitions,
    }
    where: dict[str, Any] = {"memory_limit": None, "client": None, "n_workers": 0, "progress": None}
    try:
        with place_of_run(rows, None) as (place, keep_place):
            job = find_job(rows, place, **options)
            with opened(job.folder, f"fit-{job.id}", job.plan, **where) as (engine, plan):
                run = SampleFit(engine, job, plan, search).run()
            keep_place(run)
            return run
    except InputError:  # so many are the same that few partitions can hold them
        if n_partitions == 1:
            raise
    return _fit(whole, rows, given, search, 1)


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
    expanded = summary["stages"].get("expand", {})
    return Size(
        shape,
        n_input_tasks,
        compared,
        n_fragments,
        searched / max(1, n_fragments),
        n_rounds,
        _n_pages(expanded, shape),
        costs.SEEDS in summary["stages"],
    )


def _n_pages(expanded: dict[str, Any], shape: memory.Shape) -> int:
    """Return how many pages Expansion has read one by one."""
    if not expanded or expanded["cache_nbytes"] >= expanded["graph_nbytes"]:
        return 0
    return int(expanded["read_nbytes"]) // (memory.PAGE_ROWS * shape.row_nbytes)
