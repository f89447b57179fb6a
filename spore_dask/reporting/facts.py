"""What a run says of itself, as text for the page. Reads the summary and the table of clusters."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from dask.utils import format_bytes
from numpy.typing import NDArray

from spore_dask.clusters import NOISE
from spore_dask.recall import Recall
from spore_dask.reporting.colors import NOISE_COLOR, color_of
from spore_dask.runs import Run
from spore_dask.tasks import MARKER

N_LARGEST = 25
N_LEGEND = 14
STAGES = {
    "scan": "read and check",
    "points": "share out the points",
    "graph": "search for neighbours",
    "density": "order by density",
    "seeds": "order of the seeds",
    "expand": "grow skeletons",
    "fragments": "fragment neighbours",
    "reassign": "reassign fragments",
    "publish": "write labels",
}


@dataclasses.dataclass(frozen=True)
class Fact:
    """A number of the page: exact for machines, and as people read it."""

    name: str
    title: str
    value: Any
    text: str
    note: str = ""


def headline(run: Run) -> list[Fact]:
    """Return the numbers at the top of the page."""
    summary = run.summary
    n_points, n_noise = summary["n_points"], summary["n_noise"]
    seconds = sum(stage.get("seconds", 0.0) for stage in summary["stages"].values())
    peak, limit = max(summary["peak_nbytes"].values()), summary["memory_limit"]
    return [
        Fact("n_points", "Points", n_points, f"{n_points:,}"),
        Fact("n_columns", "Columns", summary["n_columns"], f"{summary['n_columns']:,}"),
        Fact("n_clusters", "Clusters", summary["n_clusters"], f"{summary['n_clusters']:,}"),
        Fact("n_noise", "Noise", n_noise, f"{n_noise / n_points:.1%}", f"{n_noise:,} points"),
        _recall(run),
        Fact("seconds", "Time", seconds, duration(seconds), "all stages"),
        Fact(
            "peak_nbytes",
            "Peak memory",
            peak,
            short_bytes(peak),
            f"of {short_bytes(limit)} a process",
        ),
    ]


def short_bytes(nbytes: int) -> str:
    """Return a number of bytes in at most three digits."""
    number, _, unit = format_bytes(nbytes).partition(" ")
    return f"{float(number):.3g} {unit}" if float(number) < 999.5 else f"{float(number):.0f} {unit}"


def _recall(run: Run) -> Fact:
    recall = Recall(**run.summary["recall"])
    if recall.certified == 1:
        return Fact("recall", "Recall", recall.sampled, "exact", "every row certified")
    target = run.summary["asked"]["recall_target"]
    note = f"standard error {recall.error:.2%}; {recall.certified:.0%} certified"
    later = run.summary["stages"].get("fragments", {}).get("recall")
    if later is not None:
        note = f"{later:.1%} for fragments; {note}"
    if recall.sampled < target:
        note = f"below the target {target:g}; {note}"
    text = f"{recall.sampled:.1%} ± {recall.error:.1%}"
    return Fact("recall", "Recall", recall.sampled, text, note)


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"


@dataclasses.dataclass(frozen=True)
class Bar:
    """A row of a table with a bar."""

    name: str
    title: str
    value: float
    text: str
    share: float
    """Length of the bar, in [0, 1]."""
    note: str = ""
    kind: str = ""
    """Class of its colour in the style sheet."""


def provenance_bars(counts: dict[int, int]) -> list[Bar]:
    """Return where the points' labels come from."""
    total = sum(counts.values())
    bars = []
    for number in sorted(counts, key=lambda number: math.inf if number == NOISE else number):
        share = counts[number] / total
        kind = {NOISE: "noise", 0: "skeleton"}.get(number, f"round round-{min(number, 6)}")
        note = f"{counts[number]:,}"
        title = provenance_text(number)
        bars.append(Bar(str(number), title, counts[number], f"{share:.2%}", share, note, kind))
    return bars


def provenance_text(number: int) -> str:
    """Say what a provenance means."""
    return {NOISE: "noise", 0: "skeleton"}.get(number, f"round {number}")


def stage_bars(run: Run) -> list[Bar]:
    """Return the time and the disk of each stage."""
    stages = run.summary["stages"]
    longest = max(stage.get("seconds", 0.0) for stage in stages.values()) or 1.0
    bars = []
    for name, stage in stages.items():
        seconds = stage.get("seconds", 0.0)
        kept = run.folder.child(stage["name"]).exists(MARKER)
        disk = format_bytes(stage["nbytes"]) + ("" if kept else ", removed")
        title = STAGES.get(name, name)
        bars.append(Bar(name, title, seconds, duration(seconds), seconds / longest, disk))
    return bars


def memory_bars(run: Run) -> list[Bar]:
    """Return the peak of each process against its limit."""
    limit = run.summary["memory_limit"]
    peaks = run.summary["peak_nbytes"]
    bars = []
    for name in sorted(peaks, key=lambda name: (-peaks[name], name)):
        share = peaks[name] / limit
        kind = "over" if share > 1 else ""
        text = f"{share:.0%}"
        bars.append(
            Bar(name, name, peaks[name], text, min(1, share), format_bytes(peaks[name]), kind)
        )
    return bars


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster in a list."""

    label: int
    color: str
    size: int
    share: float
    skeleton_size: int
    mean: float
    std: float
    seed_row: int


def largest(run: Run, colors: NDArray[np.uint8]) -> list[Cluster]:
    """Return the largest clusters, the largest first."""
    table, n_points = run.clusters, run.summary["n_points"]
    order = np.argsort(-table["size"], kind="stable")[:N_LARGEST]
    return [
        Cluster(
            int(label),
            color_of(int(label), colors),
            int(table["size"][label]),
            int(table["size"][label]) / n_points,
            *(table[name][label].item() for name in ("skeleton_size", "mean", "std", "seed_row")),
        )
        for label in order
    ]


@dataclasses.dataclass(frozen=True)
class LegendEntry:
    """A line of the map's legend."""

    color: str
    title: str
    share: str


def legend(run: Run, clusters: list[Cluster]) -> list[LegendEntry]:
    """Return the map's legend: the largest clusters, all others, noise."""
    shown = clusters[:N_LEGEND]
    n_others = run.n_clusters - len(shown)
    entries = [LegendEntry(c.color, f"{c.label}", f"{c.share:.1%}") for c in shown]
    n_points, n_noise = run.summary["n_points"], run.summary["n_noise"]
    if n_others:
        left = n_points - n_noise - sum(c.size for c in shown)
        entries.append(LegendEntry("", f"{n_others:,} more", f"{left / n_points:.1%}"))
    if n_noise:
        entries.append(LegendEntry(NOISE_COLOR, "noise", f"{n_noise / n_points:.1%}"))
    return entries
