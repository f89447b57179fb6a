"""Fit the paces of `spore_dask.costs` on measured runs, and tell how far to trust them.

Pure: takes what `measuring` has written. Non-negative least squares on relative errors, so that
short stages count as much as long ones and no constant is below 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from spore_dask.costs import ALONE, STAGES, Load, Pace, Size, loads
from spore_dask.estimates import PAGES_AGAIN
from spore_dask.memory import PAGE_ROWS, Shape

OTHER = "other"
"""What a fit does between its stages: pilots, percentiles, cleaning up."""
BY_SEARCH = ("points", "graph", "fragments", OTHER)
"""Stages that do something else in an approximate search."""
BEYOND = 0.5
"""Beyond what was measured, comparisons grow half as fast, as the pilot of a fit has it too."""
Document = dict[str, Any]
Seconds = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Measured:
    """One fit: what it had to do, and how long that took."""

    name: str
    size: Size
    n_workers: int
    seconds: Seconds
    """Of each stage, and of what is between them."""
    n_probes: int | None
    usual: bool
    """Whether partitions and neighbours were the default's."""

    @property
    def n_points(self) -> int:
        """Number of points."""
        return self.size.shape.n_points

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.size.shape.n_columns


@dataclasses.dataclass(frozen=True)
class Growth:
    """What grows as a power of the number of points, half as fast beyond what was measured."""

    n_points: int
    """The most that it was measured for."""
    value: float
    power: float

    def at(self, n_points: int) -> float:
        """Return what it is for some number of points."""
        power = self.power * (BEYOND if n_points > self.n_points else 1)
        return float(self.value * (n_points / self.n_points) ** power)


@dataclasses.dataclass(frozen=True)
class Data:
    """What was found for generated data with some number of columns."""

    compared: Growth
    fragment_compared: Growth
    fragment_share: float
    n_probes: int | None
    n_rounds: int | None
    pages_again: float
    """How often Expansion reads a page where its cache is smaller than the graph."""


@dataclasses.dataclass(frozen=True)
class Model:
    """How long everything takes on a machine, and what the measured data was like."""

    paces: dict[str, Pace]
    data: dict[int, Data]
    """By number of columns."""

    def seconds(self, size: Size, n_workers: int) -> Seconds:
        """Return how long each stage of a fit takes, and what is between them."""
        return {
            stage: self.paces[pace_name(stage, size)].seconds(load, n_workers)
            for stage, load in all_loads(size).items()
        }


def pace_name(stage: str, size: Size) -> str:
    """Return the name of the pace of a stage, which may depend on the search."""
    kind = "exact" if size.n_rounds is None else "approximate"
    return f"{stage}, {kind}" if stage in BY_SEARCH else stage


def all_loads(size: Size) -> dict[str, Load]:
    """Return what each stage has to do, and what there is between them."""
    return loads(size) | {OTHER: Load(size.shape.n_partitions, alone=True)}


def runs_of(document: Document) -> list[Measured]:
    """Return the runs of a file."""
    found = []
    for run in document["runs"]:
        size = dict(run["size"])
        size["shape"] = Shape(**size["shape"])
        seconds = {name: run["stages"][name]["seconds"] for name in STAGES}
        seconds[OTHER] = max(0.0, run["seconds"] - sum(seconds.values()))
        found.append(
            Measured(
                run["name"],
                Size(**size),
                run["n_workers"],
                seconds,
                run["n_probes"],
                run["usual"],
            )
        )
    return found


def fit_model(runs: Sequence[Measured], sent_seconds: float) -> Model:
    """Fit the paces of all stages on runs.

    Each stage has constants of its own, but a task and a piece cost the same in all.

    Parameters
    ----------
    runs : sequence of Measured
    sent_seconds : float
        What a task costs whoever sends it, which was measured by itself.
    """
    rows = [_row_of(run, stage) for run in runs for stage in run.seconds]
    names = list(dict.fromkeys(row.name for row in rows))
    matrix = np.zeros((len(rows), 2 * len(names) + 3))
    for i, row in enumerate(rows):
        place = 2 * names.index(row.name)
        matrix[i, place : place + 2] = row.own
        matrix[i, -3:] = row.common
    seconds = np.array([row.seconds for row in rows])
    known = sent_seconds * np.array([row.n_sent for row in rows])
    matrix /= seconds[:, None]
    scale = matrix.max(axis=0)
    scale[scale == 0] = 1
    found = nnls(matrix / scale, np.maximum(0, 1 - known / seconds))[0] / scale
    task, piece, page = found[-3:].tolist()
    own = found[:-3].reshape(-1, 2).tolist()
    paces = {
        name: Pace(fixed, work, task, sent_seconds, page if name in ALONE else piece)
        for name, (fixed, work) in zip(names, own, strict=True)
    }
    return Model(paces, _data_of(runs))


@dataclasses.dataclass(frozen=True)
class Row:
    """What a stage of a run had to do for its busiest worker, and how long it took."""

    name: str
    own: tuple[float, float]
    """Of the constants that are the stage's own: once, and work."""
    common: tuple[float, float, float]
    """Of those that all have in common: tasks, pieces of exchanges, pages of Expansion."""
    n_sent: int
    seconds: float


def _row_of(run: Measured, stage: str) -> Row:
    """Return what a stage of a run had to do."""
    load = all_loads(run.size)[stage]
    share = load.share(run.n_workers)
    pieces = (0.0, load.n_pieces) if load.alone else (share * load.n_pieces, 0.0)
    return Row(
        pace_name(stage, run.size),
        (1.0, share * load.work),
        (load.most_tasks(run.n_workers), *pieces),
        load.n_sent,
        max(run.seconds[stage], 1e-6),
    )


def _data_of(runs: Sequence[Measured]) -> dict[int, Data]:
    """Return what the data was like, from the runs with default parameters."""
    found = {}
    for n_columns in sorted({run.n_columns for run in runs}):
        here = [run for run in runs if run.n_columns == n_columns and run.usual]
        if not here:
            continue
        largest = max(here, key=lambda run: run.n_points)
        found[n_columns] = Data(
            _growth({run.n_points: run.size.compared for run in here}),
            _growth({run.n_points: run.size.fragment_compared for run in here}),
            largest.size.n_fragments / largest.n_points,
            largest.n_probes,
            largest.size.n_rounds,
            _pages_again([run for run in runs if run.n_columns == n_columns]),
        )
    return found


def _pages_again(runs: Sequence[Measured]) -> float:
    """Return how often Expansion read a page in the largest run that read them one by one."""
    paged = [run for run in runs if run.size.n_pages]
    if not paged:
        return PAGES_AGAIN
    largest = max(paged, key=lambda run: run.n_points)
    return largest.size.n_pages * PAGE_ROWS / largest.n_points


def _growth(values: dict[int, float]) -> Growth:
    """Return the power of the number of points that values follow, from 0 to 1."""
    most = max(values)
    if len(values) == 1 or min(values.values()) <= 0:
        return Growth(most, values[most], 0.0)
    logs = np.log(np.array(sorted(values.items())))
    power = float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])
    return Growth(most, values[most], min(1.0, max(0.0, power)))


@dataclasses.dataclass(frozen=True)
class Miss:
    """What a model said of a run that it had not seen, beside what the run took."""

    run: Measured
    said: Seconds

    @property
    def factor(self) -> float:
        """The time that was said over that which the whole run took."""
        return sum(self.said.values()) / sum(self.run.seconds.values())


def leave_one_out(runs: Sequence[Measured], sent_seconds: float) -> list[Miss]:
    """Predict each run from all others, as far as these tell of such a search."""
    misses = []
    for run in runs:
        others = [other for other in runs if other is not run]
        if not others:
            continue
        model = fit_model(others, sent_seconds)
        if all(pace_name(stage, run.size) in model.paces for stage in BY_SEARCH):
            misses.append(Miss(run, model.seconds(run.size, run.n_workers)))
    return misses


def extrapolate(runs: Sequence[Measured], sent_seconds: float) -> list[Miss]:
    """Predict the larger half of the runs of each number of columns from the smaller half."""
    small, large = [], []
    for n_columns in sorted({run.n_columns for run in runs}):
        here = [run for run in runs if run.n_columns == n_columns]
        sizes = sorted({run.n_points for run in here})
        cut = sizes[(len(sizes) - 1) // 2]
        small += [run for run in here if run.n_points <= cut]
        large += [run for run in here if run.n_points > cut]
    model = fit_model(small, sent_seconds)
    return [Miss(run, model.seconds(run.size, run.n_workers)) for run in large]


def typical_factor(factors: Sequence[float]) -> float:
    """Return the factor, at least 1, that half of them are within, up or down."""
    return math.exp(float(np.median(np.abs(np.log(np.maximum(factors, 1e-9))))))
