"""Colours of clusters: few enough to tell apart, given out so that neighbours differ. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PALETTE = (
    "#4c7fd1",
    "#e8833a",
    "#3fa66b",
    "#d9534f",
    "#8e6bbf",
    "#d3a625",
    "#2ba6b5",
    "#d86aa8",
    "#93a83d",
    "#a8714a",
    "#6b78d8",
    "#e0705a",
    "#36a893",
    "#b85c9e",
    "#c28f2c",
    "#5b9bd5",
    "#7aa35a",
    "#b3596b",
)
"""Told apart from each other, and readable on white and on nearly black."""
NOISE_COLOR = "#8b929c"
N_SPREAD = 2000
"""Clusters, the largest, whose neighbours are looked at."""


def _rgb(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


PALETTE_RGB = np.array([_rgb(color) for color in PALETTE], np.uint8)
NOISE_RGB = np.array([_rgb(NOISE_COLOR)], np.uint8)


def spread_colors(
    centers: NDArray[np.floating] | None, sizes: NDArray[np.integer]
) -> NDArray[np.uint8]:
    """Give each cluster a place in the palette.

    Parameters
    ----------
    centers : array (n_clusters, 2), optional
        Where the clusters are on the map, if there is one.
    sizes : array (n_clusters,)

    Returns
    -------
    uint8 array (n_clusters,)
        The largest clusters have different colours; then each has the one whose clusters are
        farthest away.
    """
    order = np.argsort(-sizes, kind="stable")
    colors = np.empty(len(sizes), np.uint8)
    colors[order] = np.arange(len(sizes)) % len(PALETTE)
    if centers is None:
        return colors
    for i in range(len(PALETTE), min(len(sizes), N_SPREAD)):
        before, cluster = order[:i], order[i]
        distances = ((centers[before] - centers[cluster]) ** 2).sum(axis=1)
        nearest = np.full(len(PALETTE), np.inf)
        np.minimum.at(nearest, colors[before], distances)
        colors[cluster] = np.argmax(nearest)
    return colors


def color_of(label: int, colors: NDArray[np.uint8]) -> str:
    """Return the colour of a label."""
    return NOISE_COLOR if label < 0 else PALETTE[int(colors[label])]
