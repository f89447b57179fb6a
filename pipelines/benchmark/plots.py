"""Pictures of a run, the paper's figures beside its own: `evaluation-*.{light,dark}.png`.

Needs matplotlib (`pip install '.[bench]'`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox
from PIL import Image

from pipelines.benchmark import paper
from pipelines.benchmark.statistics import (
    Evaluation,
    Point,
    anytime_curve,
    best_ari,
    n_trials_of,
    paper_anytime,
    paper_points,
    points,
)
from pipelines.benchmark.tables import counted

THEMES = {"light": ("white", "#24292f"), "dark": ("#0d1117", "#e6edf3")}
GRID_COLOR = "#8b949e"
DPI = 110

# Okabe and Ito's colours, told apart by colour-blind readers too; shapes tell the same.
STYLES = {
    "SPORE": ("#d55e00", "o"),
    "SPORE-ANN": ("#e69f00", "P"),
    "SPORE-MSR-0": ("#1f83d6", "v"),
    "SPORE-RandSeed": ("#009e73", "D"),
    "DBSCAN": ("#1f83d6", "s"),
    "HDBSCAN": ("#56b4e9", "^"),
    "KMeans": ("#8b949e", "X"),
    "DPC": ("#009e73", "D"),
    "SNN_DBSCAN": ("#cc79a7", "v"),
}
OTHER_STYLE = ("#8b949e", "*")


def style_of(method: str) -> tuple[str, str]:
    """Return colour and marker of a method."""
    return STYLES.get(method, OTHER_STYLE)


def save(draw: Callable[[Figure], None], size: tuple[float, float], path: Path) -> None:
    """Draw for light and for dark pages, and write PATH.light.png and PATH.dark.png."""
    for theme, (background, ink) in THEMES.items():
        colors: dict[Any, str] = dict.fromkeys(
            ["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], ink
        )
        with mpl.rc_context({**colors, "axes.facecolor": background, "font.size": 9}):
            figure = Figure(figsize=size, facecolor=background, layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure)
            buffer = io.BytesIO()
            figure.savefig(buffer, dpi=DPI, facecolor=background)
        # A palette keeps files small; this way of choosing it keeps the colours of small marks.
        image = Image.open(buffer).convert("RGB").quantize(method=Image.Quantize.MAXCOVERAGE)
        image.save(path.with_name(f"{path.name}.{theme}.png"), optimize=True)


def tidy(axes: Axes, title: str) -> None:
    """Set a title, a faint grid, and no box."""
    axes.set_title(title, fontsize=10)
    axes.grid(color=GRID_COLOR, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend_of_sources(axes: Axes, printed: bool) -> None:
    """Say what is filled and what is hollow."""
    ink = mpl.rcParams["text.color"]
    marks = [Line2D([], [], ls="", marker="o", color=ink, label="here")]
    if printed:
        marks.append(Line2D([], [], ls="", marker="o", mfc="none", color=ink, label="paper"))
    axes.legend(handles=marks, loc="lower left", frameon=False, handletextpad=0.2)


# Mean ARI against mean time.


def draw_pareto(evaluation: Evaluation, path: Path) -> None:
    """Draw mean ARI against mean time from scratch: baselines at the left, ablations right."""
    scaling = evaluation.scalings()[0]
    searched = evaluation.methods(scaling)
    groups = {
        "SPORE and the baselines": [m for m in searched if m not in paper.ABLATIONS],
        "SPORE and its ablations": [m for m in searched if m in (paper.SPORE, *paper.ABLATIONS)],
    }
    groups = {title: methods for title, methods in groups.items() if len(methods) > 1}

    def draw(figure: Figure) -> None:
        places = figure.subplots(1, len(groups) or 1, squeeze=False)[0]
        drawn = []
        for axes, (title, methods) in zip(places, groups.items(), strict=False):
            datasets = evaluation.common(scaling, methods)
            own = points(evaluation, scaling, methods)
            known = [m for m in methods if m in paper.METHODS]
            printed = paper_points(scaling, known, datasets)
            draw_points(axes, own, printed)
            tidy(axes, f"{title}, {counted(len(datasets), 'dataset')}")
            drawn.append((axes, own, printed))
        figure.draw_without_rendering()  # where marks are is known only then
        for axes, own, printed in drawn:
            place_labels(axes, own, printed)

    save(draw, (8.6, 3.7), path)


def draw_points(axes: Axes, own: Mapping[str, Point], printed: Mapping[str, Point]) -> None:
    """Draw a filled mark for each method, joined to a hollow one for the paper's figure."""
    for method, point in own.items():
        color, marker = style_of(method)
        axes.plot(point.seconds, point.ari, marker=marker, color=color, ms=8, ls="", zorder=3)
        if method in printed:
            other = printed[method]
            axes.plot(
                [point.seconds, other.seconds],
                [point.ari, other.ari],
                color=color,
                lw=0.8,
                alpha=0.6,
            )
            axes.plot(
                other.seconds,
                other.ari,
                marker=marker,
                mec=color,
                mfc=axes.get_facecolor(),
                mew=1.4,
                ms=7,
                ls="",
                zorder=3,
            )
    every = [*own.values(), *printed.values()]
    frame_points(axes, every)
    axes.set_xlabel("mean seconds from scratch")
    axes.set_ylabel("mean ARI")
    legend_of_sources(axes, bool(printed))


def frame_points(axes: Axes, every: Sequence[Point]) -> None:
    """Leave room around the marks, on a time axis with plain numbers."""
    axes.set_xscale("log")
    seconds = [max(point.seconds, 1e-4) for point in every]
    scores = [point.ari for point in every]
    decades = max(np.log10(max(seconds) / min(seconds)), 0.5)
    axes.set_xlim(min(seconds) / 10 ** (0.2 * decades), max(seconds) * 10 ** (0.25 * decades))
    height = max(max(scores) - min(scores), 0.05)
    axes.set_ylim(min(scores) - 0.3 * height, max(scores) + 0.15 * height)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if decades > 1.5 else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def place_labels(axes: Axes, own: Mapping[str, Point], printed: Mapping[str, Point]) -> None:
    """Write each name beside its mark, where it covers least of the others."""
    taken = [
        box for method, point in own.items() for box in covered(axes, point, printed.get(method))
    ]
    for method, point in own.items():
        text = axes.annotate(
            method,
            (point.seconds, point.ari),
            SIDES[0],
            textcoords="offset points",
            color=style_of(method)[0],
            in_layout=False,
        )
        boxes = [boxed(text, side) for side in SIDES]
        costs = [
            sum(box.overlaps(other) for other in taken) + 99 * (not inside(box, axes.bbox))
            for box in boxes
        ]
        taken.append(boxed(text, SIDES[int(np.argmin(costs))]))


SIDES = [(8, 0), (-8, 0), (0, 8), (0, -8), (6, 9), (6, -9), (-6, 9), (-6, -9)]
"""Where a name may stand, in points from its mark, the favoured first."""


def boxed(text: Annotation, side: tuple[float, float]) -> Bbox:
    """Move a name to a side of its mark; return what it covers."""
    across, up = side
    text.set_position(side)
    text.set_horizontalalignment("left" if across > 0 else "right" if across < 0 else "center")
    text.set_verticalalignment("bottom" if up > 0 else "top" if up < 0 else "center")
    return text.get_window_extent()


def covered(axes: Axes, point: Point, other: Point | None) -> list[Bbox]:
    """Return what a mark, the paper's, and the line between them cover."""
    ends = np.array([(one.seconds, one.ari) for one in (point, other or point)])
    start, end = axes.transData.transform(ends)
    steps = np.linspace(0, 1, 12)[:, None]
    return [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in start + steps * (end - start)]


def inside(box: Bbox, frame: Bbox) -> bool:
    """Tell whether a box lies within another."""
    return bool(
        frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 <= box.y1 <= frame.y1
    )


# The best so far.


def draw_anytime(evaluation: Evaluation, path: Path) -> None:
    """Draw the mean best ARI after each trial, a panel for each scaling."""
    scalings = evaluation.scalings()

    def draw(figure: Figure) -> None:
        places = figure.subplots(1, len(scalings), sharey=True, squeeze=False)[0]
        for axes, scaling in zip(places, scalings, strict=True):
            draw_curves(axes, evaluation, scaling)
        places[0].set_ylabel("mean of the best ARI so far")

    save(draw, (4.3 * max(len(scalings), 1.5), 4.0), path)


def draw_curves(axes: Axes, evaluation: Evaluation, scaling: str) -> None:
    """Draw the curves of a scaling, their names at the right end, the paper's points as marks."""
    methods = [m for m in evaluation.methods(scaling) if m not in paper.ABLATIONS]
    datasets = evaluation.common(scaling, methods)
    n_trials = n_trials_of(evaluation, scaling)
    at = np.arange(1, n_trials + 1)
    printed = paper_anytime(evaluation, scaling, datasets)
    ends = {}
    for method in methods if datasets else ():
        color, marker = style_of(method)
        curve = anytime_curve(
            (evaluation.searches[scaling, name, method] for name in datasets), n_trials
        )
        axes.plot(at, curve, color=color, lw=2.4 if method == paper.SPORE else 1.6)
        ends[method] = float(curve[-1])
        if method in printed:
            known = anytime_marks(printed[method])
            axes.plot(*known, color=color, marker=marker, mfc="none", ls="", ms=5, mew=1)
    axes.set_xlim(1 - 0.02 * n_trials, n_trials * 1.42)
    axes.set_xticks(np.unique(np.linspace(1, n_trials, 6).round().astype(int)))
    tidy(axes, f"{scaling}, {counted(len(datasets), 'dataset')}")
    axes.set_xlabel("trials")
    name_ends(axes, ends, n_trials)
    if printed:
        ink = mpl.rcParams["text.color"]
        marks = [
            Line2D([], [], color=ink, label="here"),
            Line2D([], [], ls="", marker="o", mfc="none", color=ink, ms=5, label="paper"),
        ]
        axes.legend(handles=marks, loc="lower right", frameon=False, ncols=2)


def anytime_marks(known: paper.Anytime) -> tuple[list[int], list[float]]:
    """Return the points of a curve that the paper's table gives away, each trial once."""
    marks = {1: known.default}
    for threshold, needed in known.needed.items():
        if needed is not None and needed > 1:
            marks[needed] = threshold
    marks[paper.N_TRIALS] = known.maximum
    return list(marks), list(marks.values())


def name_ends(axes: Axes, ends: Mapping[str, float], n_trials: int) -> None:
    """Write names at the right, moved apart where curves end together."""
    low, high = axes.get_ylim()
    step = (high - low) * 0.048
    at = None
    for method in sorted(ends, key=lambda name: -ends[name]):
        at = ends[method] if at is None else min(ends[method], at - step)
        axes.annotate(
            method,
            (n_trials, ends[method]),
            (n_trials * 1.06, at),
            color=style_of(method)[0],
            va="center",
            fontsize=8,
            arrowprops={"arrowstyle": "-", "color": style_of(method)[0], "lw": 0.5},
        )


# Each dataset.


def draw_datasets(evaluation: Evaluation, path: Path) -> None:
    """Draw the best ARI of SPORE and the baselines on each dataset, here and in the paper."""
    scaling = evaluation.scalings()[0]
    datasets = evaluation.datasets(scaling)
    methods = [m for m in evaluation.methods(scaling) if m not in paper.ABLATIONS]
    own = {
        method: {name: best_ari(one) for name, one in evaluation.of(scaling, method).items()}
        for method in methods
    }
    printed = {
        method: {name: paper.ARI[name][method] for name in datasets if name in paper.ARI}
        for method in methods
        if method in paper.METHODS and paper.is_main(scaling)
    }
    panels = {"here": own, "paper": printed} if printed else {"here": own}

    def draw(figure: Figure) -> None:
        places = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, scores) in zip(places, panels.items(), strict=True):
            draw_dots(axes, scores, datasets, title)
        marks = [
            Line2D([], [], ls="", marker=style_of(m)[1], color=style_of(m)[0], label=m)
            for m in methods
        ]
        figure.legend(handles=marks, loc="outside upper center", ncols=6, frameon=False)

    save(draw, (8.6, 1.4 + 0.19 * max(len(datasets), 6)), path)


def draw_dots(
    axes: Axes, scores: Mapping[str, Mapping[str, float]], datasets: Sequence[str], title: str
) -> None:
    """Draw a line of marks for each dataset, SPORE's large and below the others."""
    for method in reversed(list(scores)):
        color, marker = style_of(method)
        first = method == paper.SPORE
        rows = [datasets.index(name) for name in scores[method]]
        edge: dict[str, Any] = {"mec": axes.get_facecolor(), "mew": 0.6}
        axes.plot(
            list(scores[method].values()),
            rows,
            color=color,
            marker=marker,
            ms=10 if first else 5.5,
            ls="",
            zorder=3 if first else 4,
            **edge,
        )
    axes.set_yticks(range(len(datasets)), datasets)
    axes.set_ylim(len(datasets) - 0.5, -0.5)
    axes.set_xlim(-0.06, 1.04)
    tidy(axes, title)
    axes.set_xlabel("best ARI")
    axes.tick_params(axis="y", length=0)


PICTURES: dict[str, tuple[Callable[[Evaluation, Path], None], str]] = {
    "evaluation-pareto": (draw_pareto, "Mean ARI against mean seconds of each method"),
    "evaluation-anytime": (draw_anytime, "Mean of the best ARI so far against trials"),
    "evaluation-datasets": (draw_datasets, "Best ARI of each method on each dataset"),
}
"""How to draw each picture, and what it shows."""


def draw_pictures(evaluation: Evaluation, folder: Path) -> None:
    """Write all pictures, each for light and for dark pages."""
    for name, (draw, _) in PICTURES.items():
        draw(evaluation, folder / name)
