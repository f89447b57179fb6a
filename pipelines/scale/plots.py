"""Draw time and memory against the number of points, a panel for each number of columns.

Reads results; writes PNG files, each for light and for dark pages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.scale.cells import ABSENT, NOT_TRIED, Result
from pipelines.scale.contestants import CONTESTANTS, OURS, PAPER

THEMES = {"light": ("white", "#24292f"), "dark": ("#0d1117", "#e6edf3")}
OUR_COLORS = {OURS: "#d6336c", PAPER: "#9c36b5"}
STYLES = {"density": "-", "sample": "--", "centres": ":"}
"""Lines of each kind of contestant."""
DPI = 110
Value = Callable[[Result], float | None]


def draw_time(folder: Path, name: str, results: list[Result]) -> str:
    """Draw seconds; return the name of the pictures, which begins with `name`."""
    value: Value = lambda r: r.seconds or r.stopped_seconds  # noqa: E731
    return _draw(folder, f"{name}_time", results, "seconds", value)


def draw_memory(folder: Path, name: str, results: list[Result]) -> str:
    """Draw the peak memory of a process, and the cap; return the name of the pictures."""
    return _draw(folder, f"{name}_memory", results, "GiB a process", _gib)


def _gib(result: Result) -> float | None:
    return result.peak_nbytes / 2**30 if result.peak_nbytes else None


def _draw(folder: Path, name: str, results: list[Result], unit: str, value: Value) -> str:
    """Draw a value of all results."""
    for theme, (paper, ink) in THEMES.items():
        columns = sorted({result.n_columns for result in results})
        figure, places = plt.subplots(
            1, len(columns), figsize=(12, 4.2), facecolor=paper, sharey=True, squeeze=False
        )
        for axes, n_columns in zip(places[0], columns, strict=True):
            here = [result for result in results if result.n_columns == n_columns]
            _panel(axes, here, value)
            if value is _gib and (limits := {r.memory_limit for r in here if r.memory_limit}):
                _draw_cap(axes, max(limits) / 2**30, ink)
            _dress(axes, f"{n_columns} columns", paper, ink)
        places[0][0].set_ylabel(unit, color=ink)
        _add_legend(figure, {result.contestant for result in results}, ink)
        figure.savefig(folder / f"{name}.{theme}.png", dpi=DPI, facecolor=paper)
        plt.close(figure)
    return name


def _draw_cap(axes: Axes, gib: float, ink: str) -> None:
    """Draw the memory that a process may have."""
    axes.axhline(gib, color=ink, linewidth=1, dashes=(2, 2))
    words = {"color": ink, "fontsize": 8, "transform": axes.get_yaxis_transform()}
    axes.text(0.02, gib * 0.96, "cap", va="top", **words)


def _panel(axes: Axes, results: list[Result], value: Value) -> None:
    """Draw a line for each contestant, and a cross where it did not finish."""
    for number, contestant in enumerate(CONTESTANTS.values()):
        mine = sorted((r for r in results if r.contestant == contestant.name), key=_n_points)
        tried = [r for r in mine if r.outcome not in (ABSENT, NOT_TRIED) and value(r)]
        done = [r for r in tried if r.done]
        color, width = color_of(contestant.name), 2.5 if contestant.ours else 1.3
        style = STYLES[contestant.kind]
        at, heights = [r.n_points for r in tried], [value(r) for r in tried]
        axes.plot(at, heights, style, color=color, linewidth=width, zorder=9 - number)
        axes.plot(
            [r.n_points for r in done], [value(r) for r in done], "o", color=color,
            markersize=5, zorder=19 - number,
        )  # fmt: skip
        lost = [r for r in tried if not r.done]
        axes.plot(
            [r.n_points for r in lost], [value(r) for r in lost], "X", color=color,
            markersize=9, zorder=29 - number,
        )  # fmt: skip


def _n_points(result: Result) -> int:
    return result.n_points


def color_of(name: str) -> Any:
    """Return the colour of a contestant."""
    tab10 = plt.get_cmap("tab10").colors
    palette = [*tab10[:3], *tab10[4:6], *tab10[7:]]
    peers = [each for each in CONTESTANTS if each not in OUR_COLORS]
    return OUR_COLORS.get(name) or palette[peers.index(name) % len(palette)]


def _dress(axes: Axes, title: str, paper: str, ink: str) -> None:
    """Set scales, colours and words of a panel."""
    axes.set(xscale="log", yscale="log", facecolor=paper)
    axes.set_title(title, color=ink, fontsize=11)
    axes.set_xlabel("points", color=ink)
    axes.tick_params(which="both", colors=ink)
    axes.grid(color=ink, alpha=0.15, linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_color(ink)
        spine.set_alpha(0.4)


def _add_legend(figure: Figure, names: set[str], ink: str) -> None:
    """Name the contestants below the panels."""
    lines = [
        plt.Line2D(
            [], [], color=color_of(contestant.name), marker="o", linestyle=STYLES[contestant.kind],
            linewidth=2.5 if contestant.ours else 1.3, label=contestant.title,
        )
        for contestant in CONTESTANTS.values()
        if contestant.name in names
    ]  # fmt: skip
    lost = {"color": ink, "marker": "X", "linestyle": "", "markersize": 9}
    lines.append(plt.Line2D([], [], **lost, label="did not finish"))
    figure.legend(
        handles=lines, loc="lower center", ncols=5, frameon=False, labelcolor=ink, fontsize=9
    )
    figure.subplots_adjust(left=0.06, right=0.99, top=0.92, bottom=0.31, wspace=0.08)
