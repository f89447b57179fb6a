"""How far points reach: the distribution of the distance to the last expansion neighbour.

Reads what the density stage has kept, one shard at a time. Memory: one shard.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.clusters import Thresholds
from spore_dask.runs import Run
from spore_dask.store import Folder
from spore_dask.tasks import is_done

N_BINS = 120


@dataclasses.dataclass(frozen=True)
class Reach:
    """A histogram of distances above 0, in bins of equal ratio."""

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    n_zero: int
    """Points whose distance is 0: they have at least that many copies."""


def count_reach(run: Run) -> Reach | None:
    """Return the histogram of a run, or None if its density stage was not kept."""
    stage = run.summary["stages"].get("density")
    folder = run.folder.child(stage["name"]) if stage else None
    if folder is None or not is_done(folder):
        return None
    low, high, n_zero = np.inf, 0.0, 0
    for reach in _shards(folder):
        above = reach[reach > 0]
        n_zero += len(reach) - len(above)
        if len(above):
            low, high = min(low, float(above.min())), max(high, float(above.max()))
    if high == 0:
        return Reach(np.array([1.0, 2.0]), np.zeros(1, np.int64), n_zero)
    edges = np.geomspace(low * (1 - 1e-6), high * (1 + 1e-6), N_BINS + 1)
    counts = np.zeros(N_BINS, np.int64)
    for reach in _shards(folder):
        counts += np.histogram(reach.astype(np.float64), edges)[0]
    return Reach(edges, counts, n_zero)


def _shards(folder: Folder) -> Iterator[NDArray[np.floating]]:
    """Go through the distances that were kept."""
    reach = folder.child("reach")
    for name in sorted(reach.arrays(), key=int):
        yield reach.read_array(name)


@dataclasses.dataclass(frozen=True)
class Mark:
    """A threshold as a distance."""

    name: str
    value: float
    meaning: str
    color: str
    """Its colour in the style sheet."""


def marks_of(run: Run) -> list[Mark]:
    """Return the thresholds that can be read as distances to the last expansion neighbour."""
    found, params = run.thresholds, run.summary["params"]
    stage = run.summary["stages"].get("density", {})
    if "reach_mean" not in stage:
        return []
    mean, std = stage["reach_mean"], stage["reach_std"]
    marks = [
        Mark("mean", mean, "mean of these distances", "muted"),
        Mark(
            "z",
            mean + found.z * std,
            _how(params, "z", "z") + f", {found.z:.3g} deviations above the mean",
            "accent",
        ),
        Mark(
            "start",
            found.start_mean + found.z * found.start_std,
            "largest distance that a new cluster expands over "
            f"(starting mean {found.start_mean:.3g} + z x {found.start_std:.3g})",
            "good",
        ),
        Mark(
            "max_z",
            mean + found.max_z * std,
            _how(params, "max_z", "max_z") + f", {found.max_z:.3g} deviations above the mean",
            "warn",
        ),
    ]
    return [mark for mark in marks if 0 < mark.value < np.inf]


def _how(params: dict[str, Any], name: str, text: str) -> str:
    """Say where a threshold comes from."""
    if params[name] is not None:
        return f"{text} as given"
    return f"{text}: percentile {params[name + '_percentile']:g} of the distances above the mean"


@dataclasses.dataclass(frozen=True)
class Gates:
    """The distances that final clusters admit, at their ends: least, median, largest."""

    expansion: tuple[float, float, float] | None
    reassignment: tuple[float, float, float] | None


def gates_of(clusters: NDArray[Any], thresholds: Thresholds) -> Gates:
    """Return the distances that thresholds come to in final clusters."""
    if not len(clusters):
        return Gates(None, None)

    def spread(z: float) -> tuple[float, float, float]:
        gates = clusters["mean"] + z * clusters["std"]
        return float(gates.min()), float(np.median(gates)), float(gates.max())

    return Gates(spread(thresholds.z), spread(thresholds.max_z))
