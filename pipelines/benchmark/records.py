"""What the benchmark writes: one JSON file for each search, and one for the machine.

The files are OUT/machine.json and OUT/searches/SCALING/DATASET/METHOD.json.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.benchmark.methods import Config

DONE, OVER_TIME, OVER_MEMORY, FAILED = "done", "over time", "over memory", "failed"


@dataclasses.dataclass(frozen=True)
class Trial:
    """One configuration, run once."""

    number: int
    """0 is the default."""
    config: Config
    outcome: str
    reason: str = ""
    seconds: float | None = None
    """Of the configuration alone in a search, from scratch in a re-run."""
    ari: float | None = None
    nmi: float | None = None
    n_clusters: int | None = None
    noise: float | None = None
    """Share of the rows."""


@dataclasses.dataclass(frozen=True)
class Search:
    """All trials of a method on a dataset."""

    dataset: str
    scaling: str
    method: str
    n_points: int
    n_columns: int
    """Columns that are clustered, D' in the paper."""
    n_raw_columns: int
    n_classes: int
    n_wanted: int
    """Configurations that the protocol has; a search that runs out of time tries fewer."""
    limit_seconds: float
    """For one configuration."""
    budget_seconds: float
    """For the whole search."""
    shared_seconds: float
    """What configurations have in common, computed once."""
    trials: list[Trial]
    best: int | None
    """Number of the trial with the highest ARI, the faster of equals; None if none was done."""
    reruns: list[Trial]
    """The best configuration, from scratch."""
    seed: int = 42
    """Of the draws."""
    n_draws: int = 50
    """Draws that were asked for; a method without parameters has fewer configurations."""
    n_reruns: int = 10
    """Re-runs that were asked for; a slow configuration has fewer."""
    n_threads: int = 1
    """What a method could use."""
    memory_nbytes: int | None = None
    """What it could use; None in files that do not say."""


def path_of(out: Path, scaling: str, dataset: str, method: str) -> Path:
    """Return the file of a search."""
    return out / "searches" / scaling / dataset / f"{method}.json"


def write_search(out: Path, search: Search) -> None:
    """Write a search, whole or not at all."""
    path = path_of(out, search.scaling, search.dataset, search.method)
    write_json(path, dataclasses.asdict(search))


def read_searches(out: Path) -> Iterator[Search]:
    """Read all searches, in the order of their paths."""
    for path in sorted((out / "searches").glob("*/*/*.json")):
        found = json.loads(path.read_text())
        for part in ("trials", "reruns"):
            found[part] = [Trial(**trial) for trial in found[part]]
        yield Search(**found)


def write_json(path: Path, document: Any) -> None:
    """Write a document, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(part, path)
