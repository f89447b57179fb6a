"""What commands print: a run, an estimate, trials, in lines for people or one document.

Reads the table of clusters of a run, no labels.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from dask.utils import format_bytes

from spore_dask.cli.running import TIME_FORMAT
from spore_dask.formats.matrix import listed
from spore_dask.progress import Bar, Consumer, Event, duration, ignore
from spore_dask.store import open_zarr
from spore_dask.telling import choice_sentence, one_pass, words_of

if TYPE_CHECKING:  # imported when a command needs them
    from spore_dask.estimates import Estimate
    from spore_dask.graph import Graph
    from spore_dask.runs import Run

MOST_CLUSTERS = 10
MOST_TRIALS = 5
TICK_SECONDS = 1.0
PROGRESS = ("auto", "bar", "log", "json", "none")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command has found."""

    document: dict[str, Any]
    """For machines."""
    lines: list[str]
    """For people."""

    def show(self, as_json: bool, quiet: bool) -> None:
        """Print it."""
        if as_json:
            click.echo(json.dumps(_strict(self.document), allow_nan=False))
        elif self.lines and not quiet:
            click.echo("\n".join(self.lines))


def _strict(value: Any) -> Any:
    """Return what JSON can hold instead of a value that it cannot; NaN becomes null."""
    if isinstance(value, dict):
        return {str(name): _strict(each) for name, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _strict(value.tolist())
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float) else str(value)


class _Stamped(io.StringIO):
    """Standard error, each line with the time before it."""

    def write(self, text: str) -> int:
        return sys.stderr.write(time.strftime(TIME_FORMAT) + text)

    def flush(self) -> None:
        sys.stderr.flush()


class _Ticking:
    """A consumer that is told again, every second, how long the current stage has taken."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._last: tuple[float, Event] | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._tick, daemon=True).start()

    def __call__(self, event: Event) -> None:
        """Hear an event, and pass it on."""
        with self._lock:
            self._consumer(event)
            goes_on = event.kind in ("stage-start", "task-done")
            self._last = (time.monotonic(), event) if goes_on else None

    def _tick(self) -> None:
        while True:
            time.sleep(TICK_SECONDS)
            with self._lock:
                if self._last is not None and time.monotonic() - self._last[0] >= TICK_SECONDS:
                    heard, event = self._last
                    seconds = event.seconds + time.monotonic() - heard
                    later = dataclasses.replace(event, kind="task-done", seconds=seconds)
                    self._consumer(later)


def _as_json(event: Event) -> None:
    """Write an event as one line of JSON."""
    record = {"time": round(time.time(), 3), **dataclasses.asdict(event)}
    click.echo(json.dumps(record), err=True)


def consumer_of(progress: str, quiet: bool) -> Consumer:
    """Return who hears of progress: a bar on a terminal, lines with the time elsewhere."""
    if quiet or progress == "none":
        return ignore
    if progress == "json":
        return _as_json
    if progress == "bar" or (progress == "auto" and sys.stderr.isatty()):
        return _Ticking(Bar())
    return Bar(_Stamped())


def run_answer(run: Run, seconds: float | None = None) -> Answer:
    """Tell what a run has found, and what it took."""
    summary = run.summary
    n_points, noise = summary["n_points"], summary["n_noise"] / summary["n_points"]
    skeleton = summary["n_skeleton"] / n_points
    took = "" if seconds is None else f" in {duration(seconds)}"
    lines = [
        f"Clustered {n_points:,} points in {summary['n_columns']} columns{took}, with "
        f"{_neighbors(summary)} and at most {_peak(summary)} a process.",
        f"Found {run.n_clusters:,} clusters: {skeleton:.1%} of the points in their skeletons, "
        f"{max(0.0, 1 - skeleton - noise):.1%} reassigned, {noise:.1%} noise.",
        *choice_lines(run.choice),
        *_largest(run),
        f"Labels: {run.result.url}/labels (Zarr)",
    ]
    document = {"path": run.path, "id": run.id, "labels": f"{run.result.url}/labels", **summary}
    return Answer({**document, "choice": run.choice}, lines)


def choice_lines(choice: dict[str, Any] | None) -> list[str]:
    """Say which parameters were chosen, and how to repeat or change the choice."""
    if choice is None:
        return []
    lines = [choice_sentence(choice), f"The same in one pass: fit(source, {one_pass(choice)})"]
    if len(choice["levels"]) > 1:
        where = " on the excerpt" if choice.get("excerpt") else ""
        lines += [
            "",
            f"Levels{where}, from coarse to fine:",
            "  clusters   noise  largest  agreement",
        ]
        for level in choice["levels"]:
            mark = "  <- taken" if level["trial"] == choice["trial"] else ""
            lines.append(
                f"  {level['n_clusters']:8,} {level['noise']:7.1%} {level['largest']:8.1%} "
                f"{level['score']:10.2f}{mark}"
            )
    return lines


def _neighbors(summary: dict[str, Any]) -> str:
    """Say what graph was clustered."""
    recall, k = summary["recall"], summary["params"]["k"]
    if recall["certified"] == 1:
        return f"exact neighbours (K = {k})"
    later = summary["stages"].get("fragments", {}).get("recall")
    more = "" if later is None else f", of fragments {later:.3f}"
    return f"approximate neighbours (K = {k}, recall {recall['sampled']:.3f}{more})"


def _peak(summary: dict[str, Any]) -> str:
    """Say how much memory was used, and might have been."""
    limit, peak = format_bytes(summary["memory_limit"]), max(summary["peak_nbytes"].values())
    return f"{format_bytes(peak)} of {limit}"


def _largest(run: Run) -> list[str]:
    """Return a table of the largest clusters."""
    clusters = run.clusters
    if not len(clusters):
        return []
    lines = ["", "Largest clusters:", "  label         size     skeleton  mean distance"]
    for label in clusters["size"].argsort(kind="stable")[::-1][:MOST_CLUSTERS]:
        one = clusters[label]
        lines.append(
            f"  {label:5d} {one['size']:12,} {one['skeleton_size']:12,} {one['mean']:14.3g}"
        )
    return [*lines, ""]


def graph_answer(graph: Graph, seconds: float) -> Answer:
    """Tell what graph was built."""
    summary = graph.summary
    lines = [
        f"Built the graph of {graph.n_points:,} points with {graph.k} neighbours each in "
        f"{duration(seconds)}; {graph.recall}.",
        f"Graph: {graph.path}",
    ]
    return Answer({"path": graph.path, "name": graph.name, **summary}, lines)


def estimate_answer(estimate: Estimate) -> Answer:
    """Tell what a fit will take."""
    document = {
        "memory_nbytes": estimate.memory_nbytes,
        "memory_limit": estimate.memory_limit,
        "disk_nbytes": estimate.disk_nbytes,
        "most_disk_nbytes": estimate.most_disk_nbytes,
        "seconds": estimate.seconds,
        "stages": {name: dataclasses.asdict(one) for name, one in estimate.stages.items()},
    }
    return Answer(document, str(estimate).splitlines())


def tuning_answer(tuning: Any, seconds: float) -> Answer:
    """Tell which parameters were chosen, and what they give."""
    trials = tuning.trials
    table = _records(trials)
    found = run_answer(tuning.run)
    lines = [
        f"Compared {len(table)} configurations in {duration(seconds)}; the best of them:",
        *_best_trials(table),
        *found.lines,
    ]
    document = {"best_params": tuning.best_params, "trials": table}
    return Answer({**document, "run": found.document}, lines)


def _records(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a structured array by name."""
    return [dict(zip(table.dtype.names, row, strict=True)) for row in table.tolist()]


def _is_set(value: Any) -> bool:
    return value is not None and value == value  # NaN stands for none in a table


def _best_trials(table: list[dict[str, Any]]) -> list[str]:
    """Return the trials with the highest scores, and what they gave."""
    score = "ari" if any(_is_set(one["ari"]) for one in table) else "score"
    facts = ("trial", "n_clusters", "noise", "score", "ari", "seconds")
    best = sorted(
        (one for one in table if _is_set(one[score])), key=lambda one: one[score], reverse=True
    )
    lines = [f"  {score:>9} clusters  noise  parameters"]
    for one in best[:MOST_TRIALS]:
        words = words_of({name: value for name, value in one.items() if name not in facts})
        params = ", ".join(words) or "the defaults"
        row = f"  {one[score]:9.3f} {one['n_clusters']:8,} {one['noise']:6.1%}  {params}"
        lines.append(row)
    return lines


def prediction_answer(prediction: Any, seconds: float) -> Answer:
    """Tell what new points were given."""
    n_points = prediction.labels.shape[0]
    lines = [
        f"Labelled {n_points:,} points in {duration(seconds)}.",
        f"Labels and their confidence: {prediction.path} (Zarr)",
    ]
    return Answer({"path": prediction.path, **dict(prediction.summary)}, lines)


def import_answer(place: str) -> Answer:
    """Tell what was imported."""
    array = open_zarr(place)
    about: dict[str, Any] = dict(array.attrs)
    n_rows, n_columns = array.shape
    names, left_out = about.get("columns"), about.get("left_out") or []
    lines = [f"Data: {place}: {n_rows:,} rows, {n_columns:,} columns, {array.dtype}."]
    lines += [f"Columns: {listed(names)}."] if names else []
    lines += [f"Left out: {listed(left_out)}."] if left_out else []
    facts = {"n_rows": n_rows, "n_columns": n_columns, "dtype": str(array.dtype)}
    return Answer({"path": place, **facts, "columns": names, "left_out": left_out}, lines)
