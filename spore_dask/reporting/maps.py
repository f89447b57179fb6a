"""The map: drawn rows in two dimensions, as a picture of all of them and dots of some.

Reads what `samples` reads. Memory: a few numbers for each drawn row, and the picture.
"""

from __future__ import annotations

import dataclasses
import io

import numpy as np
from numpy.typing import NDArray

from spore_dask.clusters import NOISE
from spore_dask.reporting.colors import NOISE_RGB, PALETTE_RGB, spread_colors
from spore_dask.reporting.samples import (
    Missing,
    Reader,
    SourceRows,
    find_coordinates,
    gather,
    published,
    thin,
)
from spore_dask.runs import Run
from spore_dask.store import Limits
from spore_dask.trials import LABELS, ROWS

N_DOTS = 20_000
"""Points that are drawn one by one, at most; beyond, all drawn rows make a picture."""
WIDTH, HEIGHT = 1280, 800
"""Pixels of the picture."""
LEVEL_WIDTH, LEVEL_HEIGHT = 480, 300
"""Pixels of the picture of a level."""
FAINTEST = 0.5
"""Opacity of a pixel with one point."""
N_SPREAD = 300_000
"""Drawn rows up to which each takes nine pixels, so that it is seen."""
MARGIN = 0.03
OUTLYING = 0.001, 0.999
MOST_EMPTY = 3.0
"""The view leaves out the outermost where they make it this many times as wide."""
STRETCH = 1.6
"""What an axis may grow by, so that both have the same units."""

Floats = NDArray[np.floating]


@dataclasses.dataclass(frozen=True)
class Map:
    """What is drawn."""

    x: Floats
    """Of each dot."""
    y: Floats
    rows: NDArray[np.int64]
    labels: NDArray[np.int32]
    provenance: NDArray[np.int16]
    view: tuple[float, float, float, float]
    """Left, right, bottom, top of the view, and of the picture."""
    axes: tuple[str, str]
    colors: NDArray[np.uint8]
    """Place in the palette of each cluster."""
    picture: bytes | None
    """A PNG of all drawn rows; None where the dots are all."""
    n_drawn: int
    n_outside: int
    """Drawn rows that are outside of the view."""
    remark: str
    """What a reader should know of how rows were drawn."""


def draw_map(run: Run) -> Map:
    """Return the map of a run, or raise `Missing` if its coordinates are gone."""
    reader = find_coordinates(run)
    rows = reader.rows(run.summary["n_points"])
    labels, provenance = published(run, rows)
    xy, axes = _project(reader, rows)
    view = _view(xy)
    clusters = run.clusters
    colors = spread_colors(_centers(xy, labels, len(clusters), view), clusters["size"])
    inside = _inside(xy, view)
    dots, picture = np.arange(len(rows)), None
    if len(rows) > N_DOTS:
        dots = _stratified(labels)
        picture = _picture(xy[inside], labels[inside], colors, view)
    return Map(
        x=xy[dots, 0],
        y=xy[dots, 1],
        rows=rows[dots],
        labels=labels[dots],
        provenance=provenance[dots],
        view=view,
        axes=axes,
        colors=colors,
        picture=picture,
        n_drawn=len(rows),
        n_outside=int((~inside).sum()),
        remark=_remark(reader),
    )


def draw_levels(run: Run) -> list[bytes]:
    """Return a small PNG of each level of a run whose parameters were chosen.

    Rows are those that were compared. Raises `Missing` if their coordinates or labels are gone.
    """
    choice = run.choice or {"levels": []}
    folder = run.folder.child(choice.get("tuning", ""))
    if choice.get("excerpt"):
        folder = folder.child(choice["excerpt"][0])
    if not choice["levels"] or not folder.exists(f"{ROWS}.npy"):
        raise Missing("the labels that were compared are gone")
    limits = Limits(0, run.summary["n_points"])
    rows = folder.read_array(ROWS, shape=(None,), dtype=np.int64, limits=limits)
    reader = find_coordinates(run)
    xy, _ = _project(reader, rows)
    view = _view(xy)
    inside = _inside(xy, view)
    found = []
    for level in choice["levels"]:
        name, size = str(level["trial"]), (len(rows),)
        labels = folder.child(LABELS).read_array(name, shape=size, dtype=np.int32)
        _, numbers, sizes = np.unique(labels[labels >= 0], return_inverse=True, return_counts=True)
        labels[labels >= 0] = numbers
        colors = spread_colors(_centers(xy, labels, len(sizes), view), sizes)
        found.append(
            _picture(xy[inside], labels[inside], colors, view, (LEVEL_WIDTH, LEVEL_HEIGHT))
        )
    return found


def _remark(reader: Reader) -> str:
    if not isinstance(reader, SourceRows):
        return ""
    parts = [f"from one in {reader.every} chunks of the source"] if reader.every > 1 else []
    if reader.transform is None and reader.scale is not None:
        parts.append(f"with the scale {reader.scale!r} measured on a sample")
    return ", ".join(parts)


def _project(reader: Reader, rows: NDArray[np.int64]) -> tuple[Floats, tuple[str, str]]:
    """Return two coordinates of each row, and what they are."""
    few = thin(rows, reader.n_columns)
    if isinstance(reader, SourceRows):
        reader = reader.measured(few)
    xy = np.zeros((len(rows), 2))
    if reader.n_columns <= 2:
        for places, points in reader.blocks(rows):
            xy[places, : reader.n_columns] = points
        if reader.n_columns == 2:
            return xy, ("column 0", "column 1")
        xy[:, 1] = np.random.default_rng(0).uniform(-1, 1, len(rows))
        return xy, ("column 0", "at random")
    from sklearn.decomposition import PCA

    with np.errstate(invalid="ignore"):  # points that are all the same have no variance
        axes = PCA(2, random_state=0).fit(gather(reader, few, np.float64))
    for places, points in reader.blocks(rows):
        if len(places):
            xy[places] = axes.transform(points.astype(np.float64))
    first, second = np.nan_to_num(axes.explained_variance_ratio_)
    return xy, (
        f"principal component 1 ({first:.0%} of the variance)",
        f"principal component 2 ({second:.0%})",
    )


def _view(xy: Floats) -> tuple[float, float, float, float]:
    """Return what the map shows at first: nearly everything, in equal units if that is near."""
    low, high = xy.min(axis=0), xy.max(axis=0)
    inner_low, inner_high = np.quantile(xy, OUTLYING, axis=0)
    inner = inner_high - inner_low
    crowded = (high - low > MOST_EMPTY * inner) & (inner > 0)
    low = np.where(crowded, inner_low - inner / 2, low)
    high = np.where(crowded, inner_high + inner / 2, high)
    size = np.where(high > low, high - low, 1.0)
    units = (size / (WIDTH, HEIGHT)).max() / (size / (WIDTH, HEIGHT))
    grown = size * (np.where(units <= STRETCH, units, 1.0) + 2 * MARGIN)
    middle = (low + high) / 2
    (left, bottom), (right, top) = middle - grown / 2, middle + grown / 2
    return float(left), float(right), float(bottom), float(top)


def _inside(xy: Floats, view: tuple[float, float, float, float]) -> NDArray[np.bool_]:
    """Tell which rows are in the view."""
    left, right, bottom, top = view
    x, y = xy.T
    inside: NDArray[np.bool_] = (x >= left) & (x < right) & (y >= bottom) & (y < top)
    return inside


def _centers(
    xy: Floats, labels: NDArray[np.int32], n_clusters: int, view: tuple[float, float, float, float]
) -> Floats:
    """Return where clusters are on the map, in units of its sides."""
    left, right, bottom, top = view
    own = labels != NOISE
    counts = np.bincount(labels[own], minlength=n_clusters)
    sums = [np.bincount(labels[own], axis[own], n_clusters) for axis in xy.T]
    means = np.column_stack(sums) / np.maximum(counts, 1)[:, None]
    scaled: Floats = (means - (left, bottom)) / (right - left, top - bottom)
    return scaled


def _stratified(labels: NDArray[np.int32]) -> NDArray[np.int64]:
    """Choose dots: of each cluster a number that grows with the root of its size; noise first."""
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, firsts, counts = np.unique(labels[by_label], return_index=True, return_counts=True)
    turn = np.arange(len(labels)) - np.repeat(firsts, counts)
    turn = (turn + rng.uniform(size=len(turn))) / np.repeat(np.sqrt(counts), counts)
    chosen = by_label[np.argsort(turn, kind="stable")[:N_DOTS]]
    chosen = np.sort(chosen)
    return np.concatenate([chosen[labels[chosen] == NOISE], chosen[labels[chosen] != NOISE]])


def _picture(
    xy: Floats,
    labels: NDArray[np.int32],
    colors: NDArray[np.uint8],
    view: tuple[float, float, float, float],
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> bytes:
    """Return a PNG: each pixel in the colour of most of its points, the more the denser."""
    left, right, bottom, top = view
    width, height = size
    column = ((xy[:, 0] - left) / (right - left) * width).astype(np.int64)
    row = ((top - xy[:, 1]) / (top - bottom) * height).astype(np.int64)
    pixel = np.clip(row, 0, height - 1) * width + np.clip(column, 0, width - 1)
    pixels, most, totals = _most_frequent(pixel, labels, len(colors))
    palette = np.vstack([PALETTE_RGB[colors], NOISE_RGB])  # label -1 is the last
    brightest = np.log1p(np.quantile(totals, 0.995)) if len(totals) else 1.0
    opacity = FAINTEST + (1 - FAINTEST) * np.minimum(1, np.log1p(totals) / brightest)
    image = np.zeros((height * width, 4), np.uint8)
    image[pixels, :3] = palette[most]
    image[pixels, 3] = np.rint(255 * opacity)
    square = image.reshape(height, width, 4)
    return _png(_spread(square) if len(xy) <= N_SPREAD else square)


def _most_frequent(
    pixel: NDArray[np.int64], labels: NDArray[np.int32], n_clusters: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the pixels that have points, the most frequent label of each, and its points."""
    keys, counts = np.unique(pixel * (n_clusters + 1) + labels + 1, return_counts=True)
    pixels, found = np.divmod(keys, n_clusters + 1)
    order = np.lexsort((found, counts, pixels))  # of a tie, noise is never the last
    last = np.flatnonzero(np.diff(pixels[order], append=-1))
    firsts = np.append(0, last[:-1] + 1)
    totals = np.add.reduceat(counts[order], firsts) if len(last) else counts
    return pixels[order][last], found[order][last] - 1, totals


def _spread(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Let every pixel that is drawn fill empty ones around it."""
    found, empty = image.copy(), image[..., 3] == 0
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            moved = np.roll(image, (down, right), axis=(0, 1))
            better = empty & (moved[..., 3] > found[..., 3])
            found[better] = moved[better]
    return found


def _png(image: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG", compress_level=9)
    return content.getvalue()
