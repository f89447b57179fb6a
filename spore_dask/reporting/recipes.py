"""How to get the same again, as text for the page: parameters, thresholds, calls, versions.

Reads the summary.
"""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

import spore_dask
from spore_dask.params import Params
from spore_dask.plan import Options
from spore_dask.reporting.distances import Gates
from spore_dask.reporting.samples import in_memory
from spore_dask.runs import Run

NONE = "\N{EN DASH}"
"""What stands for a parameter that is not given."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter, as asked for and as it was used."""

    name: str
    asked: str
    used: str
    default: bool
    """Whether what was asked for is the default."""


def asked(run: Run) -> dict[str, Any]:
    """Return the parameters and options of the call; not what others are resolved to."""
    known: dict[str, Any] = run.summary["asked"]
    return {name: value for name, value in known.items() if name not in ("k", "longest_k")}


def defaults() -> dict[str, Any]:
    """Return the value of each parameter and option that is not given."""
    return dataclasses.asdict(Options()) | {"knn_index": "cells"} | dataclasses.asdict(Params())


def parameters(run: Run) -> list[Parameter]:
    """Return the parameters of the call, and K."""
    resolved, usual = run.summary["params"], defaults()
    decided = {name: run.summary["thresholds"][name] for name in ("z", "max_z")}
    found = [
        Parameter(
            name,
            _plain(value),
            _plain(decided.get(name, resolved.get(name, value))),
            name in usual and usual[name] == value,
        )
        for name, value in asked(run).items()
    ]
    return [*found, Parameter("k", _plain(None), _plain(resolved["k"]), True)]


def _plain(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return NONE if value is None else f"{value:g}" if isinstance(value, float) else str(value)


@dataclasses.dataclass(frozen=True)
class Threshold:
    """A threshold, and the distances that it comes to."""

    name: str
    value: str
    meaning: str


def thresholds(run: Run, gates: Gates) -> list[Threshold]:
    """Return the numbers that distances were measured with."""
    found = run.thresholds
    start = found.start_mean + found.z * found.start_std
    rows = [
        Threshold("extent", f"{found.extent:.4g}", "norm of the ranges of the columns"),
        Threshold(
            "start",
            f"{found.start_mean:.4g} ± {found.start_std:.4g}",
            "mean and deviation of distances that every cluster starts with",
        ),
        Threshold(
            "z",
            f"{found.z:.4g}",
            "deviations above its mean that a growing cluster admits: "
            f"{_up_to(start)} at its start{_range(gates.expansion)}",
        ),
        Threshold(
            "max_z",
            f"{found.max_z:.4g}",
            "deviations above its mean from which a cluster gets no vote in reassignment"
            f"{_range(gates.reassignment)}",
        ),
    ]
    return rows


def _up_to(distance: float) -> str:
    return f"distances up to {distance:.4g}" if distance >= 0 else "no distance at all"


def _range(gate: tuple[float, float, float] | None) -> str:
    if gate is None:
        return ""
    low, middle, high = gate
    return f"; in final clusters {low:.4g} to {high:.4g}, median {middle:.4g}"


def python_call(run: Run) -> str:
    """Return the call that gives the same labels."""
    data = "x" if in_memory(run) else repr(run.summary["source"])
    lines = [f"    {data},{'  # the array that was in memory' if data == 'x' else ''}"]
    lines += [f"    {run.path!r},"]
    lines += [f"    {name}={value!r}," for name, value in _given(run).items()]
    return "\n".join(["import spore_dask", "", "run = spore_dask.fit(", *lines, ")"])


def command_line(run: Run) -> str:
    """Return the command that gives the same labels."""
    source = "SOURCE" if in_memory(run) else shlex.quote(run.summary["source"])
    words = ["spore-dask fit", source, shlex.quote(run.path)]
    words += [
        f"--{name.replace('_', '-')} {shlex.quote(str(value))}"
        for name, value in _given(run).items()
    ]
    return " \\\n    ".join(words)


def _given(run: Run) -> dict[str, Any]:
    """Return what leads to the same labels in one pass: parameters, and an earlier graph."""
    usual = defaults()
    given = {"params": "paper"} | {
        name: value for name, value in asked(run).items() if usual.get(name) != value
    }
    path, _ = run.summary["graph"]
    is_given = path is not None or run.summary.get("graph_given", False)
    return given | ({"graph": path or run.path} if is_given else {})


def versions(run: Run) -> dict[str, str]:
    """Return the versions that made the run; where it does not say, the one that makes the page."""
    return run.summary.get("versions") or {"spore-dask": spore_dask.__version__}
