"""Write the figures of docs/scale.md, between its marks, from a file of measured runs.

Reads the file and the page; writes the page and its picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from pipelines.costs.fitting import (
    OTHER,
    Document,
    Measured,
    Miss,
    Model,
    extrapolate,
    fit_model,
    leave_one_out,
    runs_of,
    typical_factor,
)
from pipelines.costs.plots import draw
from pipelines.costs.predicting import EXACT_COLUMNS, Case, Prediction, predict, traffic_of
from pipelines.sections import listed, picture, replace_section
from spore_dask.costs import STAGES
from spore_dask.memory import n_ranges

NAME = "costs"
PICTURE = "scale"
SIZES = (10**8, 10**9)
WORKERS = (10, 100)
UNITS = {
    "scan": "coordinate, five times that if it is drawn",
    "points, exact": "point",
    "points, approximate": "coordinate",
    "graph, exact": "coordinate compared",
    "graph, approximate": "coordinate compared",
    "density": "distance, four times that a coordinate",
    "expand": "distance",
    "fragments, exact": "coordinate compared",
    "fragments, approximate": "coordinate compared",
    "reassign": "point or vote",
    "publish": "point",
    f"{OTHER}, exact": "partition",
    f"{OTHER}, approximate": "partition",
}
"""What the work of each stage is counted in."""


def write_page(document: Document, docs: Path) -> None:
    """Write the figures and the picture into a folder of pages."""
    runs, sent = runs_of(document), document["dispatch_seconds"]
    model = fit_model(runs, sent)
    draw(model, runs, docs / PICTURE)
    parts = [
        _about(document, runs),
        picture(PICTURE, "Time against points for 2, 10 and 100 workers"),
        "Lines are the model, dots are fits; grey is beyond what was measured.",
        "### Constants",
        _constants(model),
        "### Errors",
        _errors(leave_one_out(runs, sent), extrapolate(runs, sent)),
        _checks(document, runs),
        "### What the data was like",
        _data(model),
        "### 10^8 and 10^9 points",
        _predictions(model),
        "### Counts at these sizes",
        _counts(model),
    ]
    replace_section(docs / "scale.md", NAME, "\n\n".join(parts))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def time_of(seconds: float) -> str:
    """Return a time in words, to two digits or so."""
    for limit, unit, factor in ((100, "s", 1), (6000, "min", 60), (48 * 3600, "h", 3600)):
        if seconds < limit:
            return f"{seconds / factor:.{1 if seconds / factor < 10 else 0}f} {unit}"
    return f"{seconds / 86400:.1f} days"


def size_of(nbytes: float) -> str:
    """Return a number of bytes in words."""
    for limit, unit in ((1e6, "KB"), (1e9, "MB"), (1e12, "GB")):
        if nbytes < limit:
            return f"{nbytes / limit * 1000:.3g} {unit}"
    return f"{nbytes / 1e12:.1f} TB"


def _about(document: Document, runs: Sequence[Measured]) -> str:
    """Say what was measured, where and when."""
    machine = document["machine"]
    largest = [
        f"{max(run.n_points for run in runs if run.n_columns == n):,} x {n}"
        for n in sorted({run.n_columns for run in runs})
    ]
    workers = listed(str(n) for n in sorted({run.n_workers for run in runs}))
    return (
        f"{len(runs)} fits of generated float32 data with {workers} workers, up to "
        f"{', '.join(largest)}; {machine['n_cores']} cores ({machine['processor']}), Python "
        f"{machine['python']}, {machine['date']}: `python -m pipelines.costs measure --out FILE && "
        "python -m pipelines.costs page --out FILE --docs docs`. A task that does nothing takes "
        f"{1000 * document['dispatch_seconds']:.1f} ms of the coordinator, the scheduler and the "
        f"disk for its receipt. An exact search was asked for in up to {EXACT_COLUMNS} columns, an "
        "approximate one in more."
    )


def _constants(model: Model) -> str:
    """Return the fitted constants of each stage."""
    rows = []
    for name, pace in model.paces.items():
        rows.append(
            [
                name,
                f"{pace.fixed:.2f}",
                f"{_short(pace.per_work)} a {UNITS[name]}",
            ]
        )
    text = table(["stage", "fixed, s", "work"], rows)
    shared, alone = model.paces["density"], model.paces["expand"]
    return (
        f"A task takes a worker {_short(shared.per_task)} beside its work, a piece of an exchange "
        f"{_short(shared.per_piece)}, and a page the coordinator {_short(alone.per_piece)}.\n\n"
        f"{text}"
    )


def _short(seconds: float) -> str:
    """Return a time below a second in words."""
    for factor, unit in ((1e9, "ns"), (1e6, "us")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{1000 * seconds:.3g} ms"


def _errors(left_out: Sequence[Miss], extrapolated: Sequence[Miss]) -> str:
    """Say how far predictions were from what was measured, as far as there are any."""
    if not left_out:
        return "There are too few fits to predict any of them from the others."
    ways = [left_out, extrapolated] if extrapolated else [left_out]
    rows = []
    for stage in (*STAGES, OTHER):
        factors = [typical_factor(_ratios(misses, stage)) for misses in ways]
        share = f"{np.mean(_shares(left_out, stage)):.0%}"
        rows.append([stage, *(f"{factor:.2f}" for factor in factors), share])
    whole = [typical_factor([miss.factor for miss in misses]) for misses in ways]
    rows.append(["whole", *(f"{factor:.2f}" for factor in whole), "100%"])
    names = ["left out: factor", "larger: factor"][: len(ways)]
    larger = ", and the larger half of the sizes from the smaller half (larger)"
    return (
        "Half of the predictions are within this factor of what was measured: each run predicted "
        f"from all others (left out){larger if extrapolated else ''}.\n\n"
        + table(["stage", *names, "share of the time"], rows)
        + _larger([miss for miss in extrapolated if miss.run.usual])
    )


def _larger(misses: Sequence[Miss]) -> str:
    """List what was said of larger fits, and say in which direction that was off."""
    if not misses:
        return ""
    lines = [
        f"- {miss.run.name}: said {time_of(sum(miss.said.values()))}, took "
        f"{time_of(sum(miss.run.seconds.values()))}"
        for miss in misses
    ]
    head = "\n\nThe larger half, predicted from the smaller:\n\n" + "\n".join(lines)
    return f"{head}\n\n{_direction([miss.factor for miss in misses])}"


def _direction(factors: Sequence[float]) -> str:
    """Say how many predictions were too low and too high, and how far the farthest was."""
    low, high = [f for f in factors if f < 1], [f for f in factors if f > 1]
    parts = []
    if low:
        parts.append(f"{len(low)} of these {len(factors)} are too low, down to {min(low):.1f}")
    if high:
        parts.append(f"{len(high)} of these {len(factors)} are too high, up to {max(high):.1f}")
    if not parts:
        return "None of them is off."
    more = "" if high else ": expect larger fits to take longer than is said here"
    return f"{' and '.join(parts)} times what was measured{more}."


def _ratios(misses: Sequence[Miss], stage: str) -> list[float]:
    """Return what was said of a stage over what it took, for each run."""
    return [miss.said[stage] / max(miss.run.seconds[stage], 1e-3) for miss in misses]


def _shares(misses: Sequence[Miss], stage: str) -> list[float]:
    """Return the part of the time that a stage takes in each run."""
    return [miss.run.seconds[stage] / sum(miss.run.seconds.values()) for miss in misses]


def _checks(document: Document, runs: Sequence[Measured]) -> str:
    """Compare bytes and peaks with what was projected, for the largest run of each width."""
    rows = []
    for n_columns in sorted({run.n_columns for run in runs}):
        at = max(
            (i for i, run in enumerate(runs) if run.n_columns == n_columns and run.usual),
            key=lambda i: runs[i].n_points,
        )
        raw, run = document["runs"][at], runs[at]
        moved = sum(
            stage.get("in_nbytes", 0) + stage.get("out_nbytes", 0)
            for stage in raw["stages"].values()
        )
        rows.append(
            [
                run.name,
                size_of(moved),
                size_of(sum(traffic_of(run.size).values())),
                size_of(raw["worker_nbytes"]),
                size_of(raw["coordinator_nbytes"]),
                f"{raw['recall']['sampled']:.3f}",
            ]
        )
    header = ["run", "read and written", "by formula", "worker", "coordinator", "recall"]
    return "Bytes and peaks of the largest runs, caches included:\n\n" + table(header, rows)


def _data(model: Model) -> str:
    """Say what predictions take from the data."""
    rows = []
    for n_columns, data in model.data.items():
        exact = data.n_rounds is None
        rows.append(
            [
                str(n_columns),
                f"{data.compared.value:,.0f} at {data.compared.n_points:,}" if exact else "",
                f"{data.compared.power:.2f}" if exact else "",
                "" if exact else f"{data.n_probes} and {data.n_rounds}",
                f"{data.fragment_share:.0%}",
                f"{data.pages_again:.2f}",
            ]
        )
    header = [
        "columns",
        "coordinates compared a point",
        "power of N",
        "probes and rounds",
        "fragments",
        "reads of a page",
    ]
    return table(header, rows)


def _predictions(model: Model) -> str:
    """Return what the model says of large fits."""
    parts = []
    for n_points in SIZES:
        cases = [
            predict(model, Case(n_points, n_columns, n_workers))
            for n_columns in model.data
            for n_workers in WORKERS
        ]
        power = len(str(n_points)) - 1
        header = [
            f"10^{power} points",
            *(f"x {said.case.n_columns}, {said.case.n_workers} workers" for said in cases),
        ]
        parts.append(table(header, [[name, *map(show, cases)] for name, show in _rows()]))
    return "\n\n".join(parts)


def _counts(model: Model) -> str:
    """Return what there are many of, which follows from the sizes alone."""
    cases = [Case(n_points, n_columns, 1) for n_points in SIZES for n_columns in model.data]
    header = ["", *(f"10^{len(str(c.n_points)) - 1} x {c.n_columns}" for c in cases)]
    rows: dict[str, Callable[[Case], str]] = {
        "neighbours of a row, of a fragment": lambda c: f"{c.shape.k}, {c.shape.longest_k}",
        "partitions": lambda c: f"{c.shape.n_partitions:,}",
        "tasks that read the input": lambda c: f"{_n_input_tasks(c):,}",
        "sampled rows a partition": lambda c: f"{c.shape.sample_size // c.shape.n_partitions:,}",
        "ranges of the order": lambda c: f"{n_ranges(c.shape.n_shards):,}",
        "pairs of a shard and a range": lambda c: (
            f"{c.shape.n_shards * n_ranges(c.shape.n_shards) / 1e6:,.1f} million"
        ),
        "numbering sent with a task": lambda c: size_of(8 * c.shape.n_partitions),
        "bytes of a number": lambda c: str(c.shape.number_nbytes),
    }
    return table(header, [[name, *map(show, cases)] for name, show in rows.items()])


def _n_input_tasks(case: Case) -> int:
    """Return how many tasks read the input."""
    return -(-case.n_points // case.input_shape.rows_per_task)


def _rows() -> list[tuple[str, Callable[[Prediction], str]]]:
    """Return the rows of a table of predictions."""

    def stage_row(stage: str) -> tuple[str, Callable[[Prediction], str]]:
        return stage, lambda said: time_of(said.seconds[stage])

    return [
        *(stage_row(stage) for stage in (*STAGES, OTHER)),
        ("**whole**", lambda said: f"**{time_of(said.whole_seconds)}**"),
        ("a worker's memory", lambda said: size_of(said.worker_nbytes)),
        ("the coordinator's memory", lambda said: size_of(said.coordinator_nbytes)),
        ("disk", lambda said: size_of(said.disk_nbytes)),
        ("read and written", lambda said: size_of(said.traffic_nbytes)),
        ("tasks", lambda said: f"{said.n_tasks:,}"),
        ("pieces of files", lambda said: f"{said.n_pieces / 1e6:,.0f} million"),
    ]
