"""Draw the pictures of README and docs from generated data: `make pictures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from spore_dask import SPORE

Array = np.ndarray[Any, Any]

HERE = Path(__file__).parent
THEMES = {"light": ("white", "#24292f"), "dark": ("#0d1117", "#e6edf3")}
NOISE_COLOR = "#8b949e"


def two_spirals_in_a_storm(seed: int = 7) -> Array:
    """Draw spirals, a dense core, a sparse ring and blobs, at densities that differ by 100."""
    rng = np.random.default_rng(seed)

    def arc(n: int, turns: float, phase: float, spread: float) -> Array:
        at = np.sqrt(rng.uniform(0.06, 1, n))
        angle = turns * 2 * np.pi * at + phase
        curve = np.column_stack((np.cos(angle), np.sin(angle))) * at[:, None]
        return curve + rng.normal(scale=spread, size=(n, 2))

    angle = rng.uniform(0, 2 * np.pi, 2500)
    ring = np.column_stack((np.cos(angle), np.sin(angle))) * 1.45
    parts = [
        arc(9000, 1.1, 0.0, 0.02),
        arc(9000, 1.1, np.pi, 0.02),
        ring + rng.normal(scale=0.05, size=ring.shape),
        rng.normal((-2.2, 1.0), 0.05, (5000, 2)),
        rng.normal((-2.1, 0.3), 0.16, (2500, 2)),
        rng.normal((2.2, -0.9), (0.28, 0.08), (3000, 2)),
        rng.normal((2.3, -0.3), (0.28, 0.08), (3000, 2)),
        rng.normal((2.1, 0.9), 0.3, (1200, 2)),
        rng.uniform((-3, -1.7), (3, 1.7), (700, 2)),
    ]
    return np.concatenate(parts)


def draw(axes: Axes, points: Array, colors: Any, title: str, ink: str) -> None:
    """Scatter the points under a title."""
    axes.scatter(*points.T, c=colors, s=0.6, linewidths=0, rasterized=True)
    axes.set_title(title, color=ink, fontsize=11)
    axes.set_axis_off()
    axes.set_aspect("equal")


def colors_of(labels: Array) -> list[Any]:
    """Give each cluster a colour, noise grey."""
    tab10 = plt.get_cmap("tab10").colors
    palette = [*tab10[:7], *tab10[8:]]  # without its grey
    return [palette[label % 9] if label >= 0 else NOISE_COLOR for label in labels]


GOOD = {
    "min_cluster_size": 0.6,
    "expansion_neighbors": 60,
    "retention_rate": 0.3,
    "z_percentile": 70,
}
SWEEPS = {
    "min_cluster_size": (0.4, 0.6, 0.75),
    "expansion_neighbors": (15, 60, 200),
    "retention_rate": (0.0, 0.3, 0.6),
    "z_percentile": (5, 70, 99),
}


def draw_first(points: Array) -> None:
    """Draw points, skeletons and clusters, for README."""
    model = SPORE(**GOOD).fit(points)
    skeleton = np.where(model.provenance_ == 0, model.labels_, -1)
    panels = [
        (NOISE_COLOR, f"{len(points):,} points, no labels"),
        (colors_of(skeleton), "1. skeletons expand, densest first"),
        (colors_of(model.labels_), "2. fragments are voted in"),
    ]
    save("first", points, panels, dpi=110)


def draw_sweep(points: Array, name: str) -> None:
    """Draw what one parameter does, all others being equal."""
    panels = []
    for value in SWEEPS[name]:
        model = SPORE(**{**GOOD, name: value}).fit(points)
        noise = np.mean(model.labels_ < 0)
        title = f"{name} = {value}: {model.n_clusters_} clusters, {noise:.0%} noise"
        panels.append((colors_of(model.labels_), title))
    save(name, points, panels, dpi=80)


def save(name: str, points: Array, panels: list[tuple[Any, str]], dpi: int) -> None:
    """Write panels side by side, for light and for dark pages."""
    for theme, (paper, ink) in THEMES.items():
        figure, places = plt.subplots(1, len(panels), figsize=(12, 2.9), facecolor=paper)
        for axes, (colors, title) in zip(places, panels, strict=True):
            draw(axes, points, colors, title, ink)
        figure.subplots_adjust(0.005, 0.01, 0.995, 0.88, wspace=0.02)
        figure.savefig(HERE / f"{name}.{theme}.png", dpi=dpi, facecolor=paper)
        plt.close(figure)


def main() -> None:
    """Write all pictures, each for light and for dark pages."""
    points = two_spirals_in_a_storm()
    draw_first(points)
    for name in SWEEPS:
        draw_sweep(points, name)


if __name__ == "__main__":
    main()
