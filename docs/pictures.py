"""Draw the pictures of README and docs from generated data: `make pictures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from spore_dask import SPORE

HERE = Path(__file__).parent
THEMES = {"light": ("white", "#24292f"), "dark": ("#0d1117", "#e6edf3")}
NOISE_COLOR = "#8b949e"


def two_spirals_in_a_storm(seed: int = 7) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Draw spirals, a dense core, a sparse ring and blobs, at densities that differ by 100."""
    rng = np.random.default_rng(seed)

    def arc(n: int, turns: float, phase: float, spread: float) -> np.ndarray[Any, Any]:
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


def draw(axes: Axes, points: np.ndarray[Any, Any], colors: Any, title: str, ink: str) -> None:
    """Scatter the points under a title."""
    axes.scatter(*points.T, c=colors, s=0.6, linewidths=0, rasterized=True)
    axes.set_title(title, color=ink, fontsize=11)
    axes.set_axis_off()
    axes.set_aspect("equal")


def colors_of(labels: np.ndarray[Any, Any]) -> list[Any]:
    """Give each cluster a colour, noise grey."""
    tab10 = plt.get_cmap("tab10").colors
    palette = [*tab10[:7], *tab10[8:]]  # without its grey
    return [palette[label % 9] if label >= 0 else NOISE_COLOR for label in labels]


def main() -> None:
    """Write first.light.png and first.dark.png."""
    points = two_spirals_in_a_storm()
    model = SPORE(
        min_cluster_size=0.6, expansion_neighbors=60, retention_rate=0.3, z_percentile=70
    ).fit(points)
    skeleton = np.where(model.provenance_ == 0, model.labels_, -1)
    for theme, (paper, ink) in THEMES.items():
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 2.9), facecolor=paper)
        draw(left, points, NOISE_COLOR, f"{len(points):,} points, no labels", ink)
        draw(middle, points, colors_of(skeleton), "1. skeletons expand, densest first", ink)
        draw(right, points, colors_of(model.labels_), "2. fragments are voted in", ink)
        figure.subplots_adjust(0.005, 0.01, 0.995, 0.88, wspace=0.02)
        figure.savefig(HERE / f"first.{theme}.png", dpi=110, facecolor=paper)
    print(f"{model.n_clusters_} clusters, {np.mean(model.labels_ < 0):.1%} noise")


if __name__ == "__main__":
    main()
