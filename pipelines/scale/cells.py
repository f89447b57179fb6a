"""What the runs write: one JSON file for each contestant in each cell, and one for the machine.

The files are OUT/machine.json and OUT/cells/{columns}x{points}/{contestant}.json.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from pipelines.benchmark.records import DONE, FAILED, OVER_MEMORY, OVER_TIME, write_json
from pipelines.machine import processor

__all__ = ["ABSENT", "DONE", "FAILED", "NOT_TRIED", "OVER_MEMORY", "OVER_TIME"]

ABSENT, NOT_TRIED = "absent", "not tried"
PACKAGES = ("dask", "numba", "numpy", "scikit-learn", "spore-dask", "zarr")


@dataclasses.dataclass(frozen=True)
class Result:
    """What a contestant did in a cell."""

    contestant: str
    title: str
    kind: str
    """"density" if it is density-based, "sample" if on a sample, "centres" for K-means."""
    ours: bool
    n_points: int
    n_columns: int
    outcome: str
    reason: str = ""
    version: str = ""
    limit_seconds: float | None = None
    memory_limit: int | None = None
    """Bytes that each process might use."""
    factor: float | None = None
    """Times what ours took, that the others might take."""
    seed: int | None = None
    """Of the data."""
    family: str = "shapes"
    """Kind of the data."""
    background: float = 0.03
    """Share of the rows that belong to no cluster."""
    seconds: float | None = None
    """From the start of clustering, with loading, without imports and compilation."""
    stopped_seconds: float | None = None
    """The same until it was ended, or failed."""
    wall_seconds: float | None = None
    """With these."""
    cpu_seconds: float | None = None
    """Processor time of all processes in `seconds`: on an idle machine up to two a second."""
    peak_nbytes: int | None = None
    """Private memory of the largest process, seen from outside."""
    resident_nbytes: int | None = None
    """Peak of all resident memory of the main process, mapped files included."""
    own_peak_nbytes: int | None = None
    """Peak resident memory of the largest process as ours says it in its summary."""
    n_processes: int | None = None
    ari: float | None = None
    """Over rows that are not background."""
    n_clusters: int | None = None
    noise: float | None = None
    """Share of the rows that have no cluster."""
    recall: float | None = None
    """Of the neighbours that ours has found."""
    n_true: int | None = None
    """Clusters that the data has."""
    found: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    """For each class of sizes, how many true clusters were found, of how many."""
    choice: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What ours has chosen: `params`, their `score`, and `n_trials`."""
    stage_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """What each of our stages took; "trials" is all that compares configurations."""

    @property
    def done(self) -> bool:
        """Whether it has finished."""
        return self.outcome == DONE


def folder_of(out: Path, n_columns: int, n_points: int) -> Path:
    """Return the folder of a cell."""
    return out / "cells" / f"{n_columns}x{n_points}"


def write_result(out: Path, result: Result) -> None:
    """Write a result, whole or not at all."""
    folder = folder_of(out, result.n_columns, result.n_points)
    write_json(folder / f"{result.contestant}.json", dataclasses.asdict(result))


def read_results(out: Path) -> list[Result]:
    """Read all results, by columns, then points."""
    found = [Result(**json.loads(path.read_text())) for path in (out / "cells").glob("*/*.json")]
    return sorted(found, key=lambda r: (r.n_columns, r.n_points, not r.ours, r.contestant))


def read_result(out: Path, n_columns: int, n_points: int, contestant: str) -> Result | None:
    """Read one result; None if there is none."""
    path = folder_of(out, n_columns, n_points) / f"{contestant}.json"
    return Result(**json.loads(path.read_text())) if path.exists() else None


def write_machine(out: Path, arguments: Iterable[str]) -> None:
    """Write what the runs had: cores, memory, versions, the last date, and all commands."""
    path = out / "machine.json"
    command = shlex.join(["python", "-m", "pipelines.scale", *map(_nameless, arguments)])
    earlier = json.loads(path.read_text())["commands"] if path.exists() else []
    machine: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "commands": list(dict.fromkeys([*earlier, command])),
        "n_cores": os.cpu_count(),
        "memory_nbytes": psutil.virtual_memory().total,
        "processor": processor(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
    write_json(path, machine)


def _nameless(argument: str) -> str:
    """Leave the folders out of a path, also in --option=path: they differ between machines."""
    option, sign, value = argument.partition("=") if argument[:1] == "-" else ("", "", argument)
    return option + sign + (Path(value).name if Path(value).is_absolute() else value)
