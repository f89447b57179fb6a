"""Measure fits of generated data of several sizes, stage by stage.

Writes one JSON file, again after each fit, so that a command that was stopped continues; data and
runs go to a temporary folder. Needs 6 GB of disk there, 1 GB with the small sizes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.benchmark.records import write_json
from pipelines.costs.predicting import EXACT_COLUMNS
from pipelines.graphs import generate
from pipelines.machine import processor
from spore_dask import Run, connect, fit
from spore_dask.costs import ALONE
from spore_dask.datasets import blobs_and_shapes
from spore_dask.engine import open_engine
from spore_dask.graph import Graph
from spore_dask.progress import Event
from spore_dask.sample_fits import size_of
from spore_dask.store import Folder
from spore_dask.tasks import Work, run_work

Document = dict[str, Any]
MEMORY_LIMIT = "2GiB"
"""Of each process, in every fit."""
EMPTY_TASKS = 1000
"""Tasks that do nothing, which tell what a task costs whoever sends it."""
WARM_POINTS = 30_000
"""Points of the fits that let processes load what they need: enough for an approximate search."""
STAGE_OF = {
    "scan": "scan",
    "exchange": "points",
    "partition": "points",
    "copies": "points",
    "density": "density",
    "ranges": "density",
    "order": "density",
    "expand": "expand",
    "fragments": "fragments",
    "gather": "fragments",
    "reassign": "reassign",
    "publish": "publish",
}
"""The stage of a run that each step belongs to; those of a search are `graph`."""
OUTSIDE = ("pilot", "percentiles-0", "percentiles-1", "percentiles-2", "percentiles-3")
"""Steps between the stages."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One fit to be measured."""

    n_points: int
    n_columns: int
    n_workers: int = 2
    n_partitions: int | None = None
    """More of them than usual show what tasks and exchanges cost."""
    expansion_neighbors: int | None = None
    cache_limit: str | None = None
    """Less than the graph shows what Expansion takes that reads it from disk."""

    @property
    def name(self) -> str:
        """What it is called in the file."""
        more = {
            "partitions": self.n_partitions,
            "neighbors": self.expansion_neighbors,
            "of cache": self.cache_limit,
        }
        extra = "".join(f", {value} {name}" for name, value in more.items() if value)
        return f"{self.n_points:,} x {self.n_columns}, {self.n_workers} workers{extra}"

    @property
    def is_usual(self) -> bool:
        """Whether partitions and neighbours are as by default."""
        return not (self.n_partitions or self.expansion_neighbors or self.cache_limit)

    @property
    def options(self) -> Document:
        """What the fit is asked for: exact in few columns, approximate in many."""
        knn = "exact" if self.n_columns <= EXACT_COLUMNS else "approximate"
        names = ("n_partitions", "expansion_neighbors", "cache_limit")
        asked = {name: getattr(self, name) for name in names}
        return {"knn": knn, **{name: value for name, value in asked.items() if value}}


CASES = [
    Case(100_000, 2, 1),
    Case(300_000, 2, 1),
    Case(1_000_000, 2, 1),
    Case(100_000, 8, 1),
    Case(300_000, 8, 1),
    Case(60_000, 64, 1),
    Case(120_000, 64, 1),
    Case(200_000, 2, 1, 256),
    Case(100_000, 2),
    Case(300_000, 2),
    Case(1_000_000, 2),
    Case(3_000_000, 2),
    Case(10_000_000, 2),
    Case(300_000, 2, expansion_neighbors=16),
    Case(300_000, 2, expansion_neighbors=100),
    Case(100_000, 8),
    Case(300_000, 8),
    Case(1_000_000, 8),
    Case(60_000, 64),
    Case(120_000, 64),
    Case(240_000, 64),
    Case(200_000, 2, 2, 128),
    Case(200_000, 2, 2, 512),
    Case(100_000, 8, 2, 128),
    Case(60_000, 64, 2, 96),
    Case(1_000_000, 2, cache_limit="30MB"),
    Case(300_000, 8, cache_limit="9MB"),
]
SMALL_CASES = [
    Case(50_000, 2, 1),
    Case(200_000, 2, 1),
    Case(50_000, 8, 1),
    Case(50_000, 2),
    Case(100_000, 2),
    Case(200_000, 2),
    Case(400_000, 2),
    Case(50_000, 8),
    Case(100_000, 8),
    Case(30_000, 64),
    Case(60_000, 64),
    Case(50_000, 2, 2, 128),
    Case(100_000, 2, expansion_neighbors=16),
    Case(200_000, 2, cache_limit="6MB"),
]


def measure(cases: list[Case], out: Path, tell: Callable[[str], None] = print) -> None:
    """Measure the cases that are not yet in a file, and write it again after each."""
    known = read(out) if out.exists() else {"machine": _machine(), "runs": []}
    done = {run["name"] for run in known["runs"]}
    left = [case for case in cases if case.name not in done]
    with tempfile.TemporaryDirectory() as place:
        for n_workers in sorted({case.n_workers for case in left}):
            with _cluster(n_workers) as client:
                if "dispatch_seconds" not in known or n_workers == 2:
                    known["dispatch_seconds"] = _dispatch_seconds(client, Path(place))
                for case in left:
                    if case.n_workers == n_workers:
                        known["runs"].append(_measure_fit(case, client, Path(place)))
                        write_json(out, known)
                        tell(_line(known["runs"][-1]))


def read(path: Path) -> Document:
    """Read the file that `measure` has written."""
    found: Document = json.loads(path.read_text())
    return found


def _machine() -> Document:
    """Return what figures depend on, and when they were taken."""
    return {
        "processor": processor(),
        "n_cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


@contextlib.contextmanager
def _cluster(n_workers: int) -> Iterator[Any]:
    """Start workers like a fit's own, and let them and this process load what fits need."""
    asked = {"kind": "local", "n_workers": n_workers, "memory_limit": MEMORY_LIMIT}
    with connect(asked) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of recall: what was reached is in the file
        for n_columns, knn in ((2, "exact"), (8, "exact"), (64, "approximate")):
            x, _ = blobs_and_shapes(WARM_POINTS, n_columns, dtype=np.float32)
            for _ in range(2):
                fit(x, client=client, knn=knn, params="paper")
        yield client


def _nothing(item: int) -> Document:
    """Do nothing."""
    return {}


def _dispatch_seconds(client: Any, place: Path) -> float:
    """Return what a task costs that does nothing but leave its receipt."""
    with tempfile.TemporaryDirectory(dir=place) as folder, open_engine(client) as engine:
        for name in ("first", "second"):
            started = time.perf_counter()
            work = Work(name, _nothing, range(EMPTY_TASKS), 0)
            run_work(engine, Folder(folder), work)
        return (time.perf_counter() - started) / EMPTY_TASKS


class Watch:
    """Count, for each step, its tasks, and what processes read and wrote."""

    def __init__(self, client: Any) -> None:
        self._pids = [os.getpid(), *client.run(os.getpid).values()]
        self._before = (0, 0)
        self.steps: dict[str, Document] = {}

    def __call__(self, event: Event) -> None:
        """Take note of where a step begins and ends."""
        if event.kind == "stage-start":
            self._before = self._totals()
        if event.kind == "stage-end":
            taken, left = np.subtract(self._totals(), self._before).tolist()
            self.steps[event.stage] = {
                "n_tasks": event.n_tasks,
                "seconds": event.seconds,
                "in_nbytes": taken,
                "out_nbytes": left,
            }

    def _totals(self) -> tuple[int, int]:
        """Return what all processes have read and written so far."""
        totals = [0, 0]
        for pid in self._pids:
            with contextlib.suppress(OSError):  # systems without it
                lines = Path(f"/proc/{pid}/io").read_text().splitlines()
                totals[0] += int(lines[0].split()[1])
                totals[1] += int(lines[1].split()[1])
        return totals[0], totals[1]

    def of_stages(self) -> dict[str, Document]:
        """Return the sums over the steps of each stage."""
        found: dict[str, Document] = {}
        for name, step in self.steps.items():
            if name not in OUTSIDE:
                stage = found.setdefault(STAGE_OF.get(name, "graph"), {})
                for fact in ("n_tasks", "in_nbytes", "out_nbytes"):
                    stage[fact] = stage.get(fact, 0) + step[fact]
        return found


def _measure_fit(case: Case, client: Any, place: Path) -> Document:
    """Fit generated data once, and return all that there is to know."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        source = generate(Path(folder) / "x.zarr", case.n_points, case.n_columns)
        watch = Watch(client)
        started = time.perf_counter()
        run = fit(
            source,
            client=client,
            memory_limit=MEMORY_LIMIT,
            progress=watch,
            keep="all",
            params="paper",
            **case.options,
        )
        seconds = time.perf_counter() - started
        return {"name": case.name, **_facts(case, run, watch), "seconds": seconds}


def _facts(case: Case, run: Run, watch: Watch) -> Document:
    """Return what a run tells of itself."""
    summary, graph = run.summary, Graph(*run.graph)
    stages = {name: dict(facts) for name, facts in summary["stages"].items()}
    for name, counted in watch.of_stages().items():
        stages[name] |= counted
    size = size_of(run, watch.steps["scan"]["n_tasks"])
    return {
        "n_workers": case.n_workers,
        "usual": case.is_usual,
        "size": dataclasses.asdict(size),
        "search": graph.summary["search"],
        "n_probes": graph.summary["found"].get("n_probes"),
        "recall": summary["recall"],
        "worker_nbytes": max(
            facts["peak_nbytes"] for name, facts in stages.items() if name not in ALONE
        ),
        "coordinator_nbytes": max(facts["coordinator_nbytes"] for facts in stages.values()),
        "stages": stages,
        "steps": watch.steps,
    }


def _line(run: Document) -> str:
    """Say what a fit took."""
    stages = ", ".join(
        f"{name} {stage['seconds']:.2f}"
        for name, stage in run["stages"].items()
        if "seconds" in stage
    )
    return f"{run['name']}: {run['seconds']:.1f} s: {stages}"
