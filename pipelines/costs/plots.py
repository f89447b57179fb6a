"""Draw predicted time against the number of points, with the measured fits beside it.

Writes PATH.light.png and PATH.dark.png. Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.costs.fitting import Measured, Model
from pipelines.costs.predicting import Case, predict

THEMES = {"light": ("white", "#24292f"), "dark": ("#0d1117", "#e6edf3")}
COLORS = {2: "#4c9be8", 10: "#e3a008", 100: "#d1588a"}
"""By number of workers."""
POWERS = (4.7, 9.0)
TICKS = {1.0: "1 s", 60.0: "1 min", 3600.0: "1 h", 86400.0: "1 day", 864000.0: "10 days"}


def draw(model: Model, runs: Sequence[Measured], path: Path) -> None:
    """Write one panel for each number of columns, for light and for dark pages."""
    for theme, (paper, ink) in THEMES.items():
        figure = Figure(figsize=(12, 3.6), facecolor=paper)
        panels = figure.subplots(1, len(model.data), sharey=True, squeeze=False)[0]
        for axes, n_columns in zip(panels, model.data, strict=True):
            _draw_panel(axes, model, [run for run in runs if run.n_columns == n_columns], n_columns)
            _color(axes, paper, ink)
        panels[0].set_ylabel("time of the whole fit")
        panels[0].yaxis.label.set_color(ink)
        legend = panels[0].legend(frameon=False, fontsize=9, loc="upper left")
        for text in legend.get_texts():
            text.set_color(ink)
        figure.tight_layout()
        figure.savefig(f"{path}.{theme}.png", dpi=100, facecolor=paper)


def _draw_panel(axes: Axes, model: Model, runs: Sequence[Measured], n_columns: int) -> None:
    """Draw the lines of 2, 10 and 100 workers, and the fits with 2 as dots."""
    sizes = np.logspace(*POWERS, 40).astype(int).tolist()
    for n_workers, color in COLORS.items():
        times = [predict(model, Case(n, n_columns, n_workers)).whole_seconds for n in sizes]
        axes.plot(sizes, times, color=color, label=f"{n_workers} workers")
    measured = [run for run in runs if run.usual and run.n_workers == 2]
    axes.plot(
        [run.n_points for run in measured],
        [sum(run.seconds.values()) for run in measured],
        "o",
        color=COLORS[2],
        markersize=6,
        label="measured, 2 workers",
    )
    axes.axvspan(max(run.n_points for run in runs), sizes[-1], color="#8b949e", alpha=0.12, lw=0)
    axes.set(xscale="log", yscale="log", xlim=(sizes[0], sizes[-1]), xlabel="points")
    axes.set_yticks(list(TICKS), list(TICKS.values()))
    axes.minorticks_off()
    axes.set_title(f"{n_columns} columns", fontsize=11)


def _color(axes: Axes, paper: str, ink: str) -> None:
    """Give axes the colours of a theme."""
    axes.set_facecolor(paper)
    axes.title.set_color(ink)
    axes.xaxis.label.set_color(ink)
    axes.tick_params(colors=ink, labelsize=9)
    axes.grid(color="#8b949e", alpha=0.25)
    for spine in axes.spines.values():
        spine.set_color("#8b949e")
