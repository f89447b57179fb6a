"""Generate clusters of varied size, density and shape, of any number of rows, in bounded memory.

Rows are drawn in units of fixed size, each from a seed of its own, so that the same rows come out
whatever is asked for at once. Reads nothing; writes a Zarr array, or a .npy file, and the true
labels as .npy. Memory: a few units. There are three families of data:

"shapes": two columns have blobs, stretched blobs, rings with or without a core, pairs of moons and
spirals. More columns have curved sheets, of 2 to 4 dimensions in up to 32 columns, and of 6 to 12
in more, where they lie in a space of 16 dimensions that is bent into all columns, as embeddings
are. Sizes vary by 20, densities by much more, and 3 % of the rows are background, label -1. Fewer
rows are the first of more.

"tails": Gaussian clouds that keep apart. Their sizes follow a power law from 60 rows to a tenth of
all: a million rows have about 1,900 clusters.

"clouds": eight large Gaussian clouds that overlap.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from scipy.spatial import KDTree

Floats = NDArray[np.float64]
Generator = np.random.Generator
Shape = Callable[[int, Generator], Floats]
"""Draws some points of a cluster, in the latent space."""

UNIT = 10_000
"""Rows that are drawn from one seed."""
CHUNK_NBYTES = 32 << 20
"""Size of a chunk of the Zarr array."""
BACKGROUND = -1
BACKGROUND_SHARE = 0.03
SIZE_RATIO = 20.0
"""Of the largest cluster to the smallest."""
N_PLACES = 24
"""Balls side by side; each holds one or two clusters."""
SHEETS_APART = 0.8
"""Distance of two parallel sheets, over their radius."""
SHEET_WIDTH = 0.05
"""Thickness of a sheet, over its radius."""
LATENT_COLUMNS = 16
"""Dimensions of the space that is bent into more than twice as many columns."""
NOISE = 0.02
"""What is added to each row of a bent space: its length, over that of the smallest radius."""
GAP = (1.15, 1.45)
"""Distance of neighbouring centres over the sum of their radii."""
FAMILIES = {"shapes": BACKGROUND_SHARE, "tails": 0.1, "clouds": 0.0}
"""Kinds of data, and the share of the background unless another is asked for."""
TAIL_EXPONENT = 1.94
TAIL_SMALLEST, TAIL_LARGEST = 60, 0.1
"""Rows of the smallest cluster of a tail, and the share of the largest."""
TAIL_SPREADS = (0.15, 0.45)
"""Deviations of these clusters."""
N_CLOUDS = 8
CLOUD_COLUMNS = 8
"""Dimensions of clouds at most; beyond, they are bent into more columns."""
CLOUD_SPREADS = (0.7, 1.2)


class Drawn:
    """Rows that are drawn in units."""

    n_columns: int

    @property
    def n_clusters(self) -> int:
        """Number of clusters; the background is none."""
        raise NotImplementedError

    def unit(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Draw the points and labels of one unit of rows."""
        raise NotImplementedError

    def rows(self, first: int, last: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Draw the rows from `first` up to `last`, always the same ones."""
        parts = []
        for number in range(first // UNIT, -(-last // UNIT)):
            part = slice(max(first - number * UNIT, 0), last - number * UNIT)
            points, labels = self.unit(number)
            parts.append((points[part], labels[part]))
        points, labels = zip(*parts, strict=True)
        return np.concatenate(points), np.concatenate(labels)


@dataclasses.dataclass(frozen=True)
class Mixture(Drawn):
    """Clusters, their shares, and the map from their space to the columns of the data."""

    n_columns: int
    seed: int
    shapes: list[Shape]
    shares: Floats
    """Of each cluster among the rows that are not background."""
    box: tuple[Floats, Floats]
    """Corners of the background, in the latent space."""
    embed: Callable[[Floats, Generator], NDArray[np.float32]]
    background: float = BACKGROUND_SHARE

    @property
    def n_clusters(self) -> int:
        """Number of shapes."""
        return len(self.shapes)

    def unit(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Draw each row from a shape, or from the background."""
        rng = np.random.default_rng((self.seed, self.n_columns, number))
        shares = np.append(self.shares * (1 - self.background), self.background)
        drawn = rng.choice(len(shares), UNIT, p=shares / shares.sum())
        latent = np.empty((UNIT, len(self.box[0])))
        for label, shape in enumerate(self.shapes):
            rows = np.flatnonzero(drawn == label)
            latent[rows] = shape(len(rows), rng)
        rows = np.flatnonzero(drawn == self.n_clusters)
        latent[rows] = rng.uniform(*self.box, (len(rows), latent.shape[1]))
        labels = np.where(drawn == self.n_clusters, BACKGROUND, drawn).astype(np.int32)
        return self.embed(latent, rng), labels


@dataclasses.dataclass(frozen=True)
class Clouds(Drawn):
    """Gaussian clouds, each with a given number of rows."""

    n_columns: int
    seed: int
    sizes: NDArray[np.int64]
    """Rows of each cloud, and at the end those of the background."""
    centres: Floats
    """(n_clusters, n_latent)"""
    spreads: Floats
    """Deviations: (n_clusters, n_latent)."""
    embed: Callable[[Floats, Generator], NDArray[np.float32]]

    @property
    def n_clusters(self) -> int:
        """Number of clouds."""
        return len(self.centres)

    def unit(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Draw the next rows of a fixed order that spreads each cloud over the whole data."""
        rng = np.random.default_rng((self.seed, self.n_columns, number))
        n_points = int(self.sizes.sum())
        steps = range(round(n_points * 0.618), n_points + 2)
        step = next(step for step in steps if math.gcd(step, n_points) == 1)
        places = np.arange(number * UNIT, (number + 1) * UNIT) * step % n_points
        labels = np.searchsorted(np.cumsum(self.sizes), places, "right").astype(np.int32)
        labels[labels == self.n_clusters] = BACKGROUND
        latent = self.centres[labels]
        latent += self.spreads[labels] * rng.standard_normal(latent.shape)
        rows = np.flatnonzero(labels == BACKGROUND)
        box = around(self.centres, 3 * self.spreads.max(axis=1))
        latent[rows] = rng.uniform(*box, (len(rows), latent.shape[1]))
        return self.embed(latent, rng), labels


def generated(
    family: str, n_columns: int, n_points: int, seed: int = 0, background: float | None = None
) -> Drawn:
    """Return data of a family, one of `FAMILIES`, with a share of background."""
    share = FAMILIES[family] if background is None else background
    if family == "tails":
        return tails(n_columns, n_points, share, seed)
    if family == "clouds":
        n_latent = min(n_columns, CLOUD_COLUMNS)
        return clouds(n_columns, n_points, share, seed, N_CLOUDS, 2.75 + 0.15 * n_latent)
    return dataclasses.replace(mixture(n_columns, seed), background=share)


def tails(n_columns: int, n_points: int, background: float, seed: int = 0) -> Clouds:
    """Return many clouds that keep apart, their sizes being a power law."""
    rng = np.random.default_rng((seed, n_columns, n_points))
    n_latent, embed = room(n_columns, 2 * LATENT_COLUMNS, rng)
    n_background = round(background * n_points)
    sizes = tail_sizes(n_points - n_background, int(TAIL_LARGEST * n_points))
    spreads = rng.uniform(*TAIL_SPREADS, (len(sizes), 1)) * np.ones(n_latent)
    gap = GAP[0] * 2 * TAIL_SPREADS[1] * (math.sqrt(n_latent) + 2)
    centres = scattered(len(sizes), n_latent, gap, rng)
    return Clouds(n_columns, seed, np.append(sizes, n_background), centres, spreads, embed)


def tail_sizes(n_points: int, largest: int) -> NDArray[np.int64]:
    """Return sizes at even quantiles of a power law, which add up to `n_points`."""
    power, low, high = 1 - TAIL_EXPONENT, TAIL_SMALLEST, max(largest, 10 * TAIL_SMALLEST)
    mass = high**power - low**power
    mean = (high ** (power + 1) - low ** (power + 1)) / mass * power / (power + 1)
    n_clusters = max(2, round(n_points / mean))
    quantiles = (np.arange(n_clusters) + 0.5) / n_clusters
    sizes = ((low**power + quantiles * mass) ** (1 / power)).astype(np.int64)
    sizes[-1] += n_points - sizes.sum()
    return sizes


def scattered(n_centres: int, n_columns: int, gap: float, rng: Generator) -> Floats:
    """Draw centres in a cube, which grows until they are a gap apart from each other."""
    side, places = gap * n_centres ** (1 / n_columns), rng.random((n_centres, n_columns))
    while True:
        distances, nearest = KDTree(side * places).query(side * places, 2)
        near = (distances[:, 1] < gap) & (nearest[:, 1] < np.arange(n_centres))
        if not near.any():
            return side * places
        places[near] = rng.random((near.sum(), n_columns))
        side *= 1.005


def clouds(
    n_columns: int, n_points: int, background: float, seed: int, n_clusters: int, apart: float
) -> Clouds:
    """Return a few large clouds whose centres are `apart`, in deviations, from the nearest."""
    rng = np.random.default_rng((seed, n_columns, n_clusters))
    n_latent, embed = room(n_columns, CLOUD_COLUMNS, rng)
    centres = packed(np.full(n_clusters, apart / 2 / GAP[0]), n_latent, rng)
    n_background = round(background * n_points)
    weights = rng.uniform(0.5, 2, n_clusters)
    ends = np.round(np.cumsum(weights) / weights.sum() * (n_points - n_background))
    sizes = np.append(np.diff(ends, prepend=0), n_background).astype(np.int64)
    spreads = rng.uniform(*CLOUD_SPREADS, (n_clusters, n_latent))
    return Clouds(n_columns, seed, sizes, centres, spreads, embed)


def room(n_columns: int, most: int, rng: Generator) -> tuple[int, Any]:
    """Return how many dimensions clouds have, and the map from these to the columns."""
    if n_columns <= most:
        return n_columns, plainly
    n_latent = min(most, LATENT_COLUMNS)
    return n_latent, bending(n_latent, n_columns, rng)


def mixture(n_columns: int, seed: int = 0) -> Mixture:
    """Return the clusters of generated data with so many columns.

    Parameters
    ----------
    n_columns : int
        2 for shapes in the plane; from 3 on sheets; beyond 32 these lie in a bent space.
    seed : int
        Seed of the clusters and of their points.
    """
    if n_columns < 2:
        raise ValueError(f"There are shapes in 2 columns and more, not in {n_columns}.")
    rng = np.random.default_rng((seed, n_columns))
    if n_columns == 2:
        shapes, box = plane(rng)
        return Mixture(2, seed, shapes, shares(len(shapes), rng), box, plainly)
    bent = n_columns > 2 * LATENT_COLUMNS
    n_latent = LATENT_COLUMNS if bent else n_columns
    dimensions = (6, 12) if bent else (2, 4)
    shapes, box = sheets(n_latent, dimensions, rng)
    embed = bending(n_latent, n_columns, rng) if bent else plainly
    return Mixture(n_columns, seed, shapes, shares(len(shapes), rng), box, embed)


def shares(n_clusters: int, rng: Generator) -> Floats:
    """Draw the share of each cluster, log-uniformly."""
    weights = rng.permutation(np.geomspace(1, SIZE_RATIO, n_clusters))
    return weights / weights.sum()


def packed(radii: Floats, n_columns: int, rng: Generator) -> Floats:
    """Place balls beside each other, with gaps, each near one that is already there."""
    centres = [np.zeros(n_columns)]
    for i in range(1, len(radii)):
        for _ in itertools.repeat(None, 10_000):
            beside = rng.integers(i)
            direction = rng.standard_normal(n_columns)
            away = rng.uniform(*GAP) * (radii[beside] + radii[i])
            centre = centres[beside] + away * direction / np.linalg.norm(direction)
            distances = np.linalg.norm(np.array(centres) - centre, axis=1)
            if (distances >= GAP[0] * (radii[:i] + radii[i])).all():
                centres.append(centre)
                break
        else:
            raise ValueError(f"There is no place for ball {i} of {len(radii)}.")
    return np.array(centres)


def around(centres: Floats, radii: Floats) -> tuple[Floats, Floats]:
    """Return the corners of a box around balls."""
    return (centres - radii[:, None]).min(axis=0), (centres + radii[:, None]).max(axis=0)


def plane(rng: Generator) -> tuple[list[Shape], tuple[Floats, Floats]]:
    """Place motifs of one or two clusters in the plane, their radii 8 times apart."""
    radii = rng.permutation(np.geomspace(0.25, 2, N_PLACES))
    centres = packed(radii, 2, rng)
    motifs = itertools.cycle((cored_ring, moons, stretched, spirals, blob, ring, moons, stretched))
    shapes = [
        shape
        for motif, centre, radius in zip(motifs, centres, radii, strict=False)
        for shape in motif(centre, radius, rng)
    ]
    return shapes, around(centres, radii)


def blob(centre: Floats, radius: float, rng: Generator) -> list[Shape]:
    """Return a round blob, of two and a half deviations."""
    return [lambda n, rng: centre + radius / 2.5 * rng.standard_normal((n, 2))]


def stretched(centre: Floats, radius: float, rng: Generator) -> list[Shape]:
    """Return two blobs ten times as long as wide, side by side."""
    angle = rng.uniform(0, np.pi)
    along, across = turned(angle)
    deviations = radius / 2.5 * np.array([1, 0.1])

    def half(side: int) -> Shape:
        shift = side * 0.4 * radius * across
        return lambda n, rng: (
            centre + shift + (deviations * rng.standard_normal((n, 2))) @ np.array([along, across])
        )

    return [half(-1), half(1)]


def turned(angle: float) -> Floats:
    """Return the two axes of a plane that is turned."""
    return np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])


def arc(centre: Floats, radius: float, angles: tuple[float, float], width: float) -> Shape:
    """Return an arc between two angles, its deviation across being `width` of its radius."""

    def draw(n: int, rng: Generator) -> Floats:
        angle = rng.uniform(*angles, n)
        length = radius * (1 + width * rng.standard_normal(n))
        return centre + length[:, None] * np.column_stack((np.cos(angle), np.sin(angle)))

    return draw


def ring(centre: Floats, radius: float, rng: Generator) -> list[Shape]:
    """Return a circle."""
    return [arc(centre, 0.85 * radius, (0, 2 * np.pi), 0.05)]


def cored_ring(centre: Floats, radius: float, rng: Generator) -> list[Shape]:
    """Return a circle, and a blob in it."""
    core: Shape = lambda n, rng: centre + radius / 8 * rng.standard_normal((n, 2))  # noqa: E731
    return [*ring(centre, radius, rng), core]


def moons(centre: Floats, radius: float, rng: Generator) -> list[Shape]:
    """Return two half circles, the second hooked into the first."""
    start = rng.uniform(0, 2 * np.pi)
    shift = turned(start).T @ np.array([0.28, 0.1]) * radius
    return [
        arc(centre - shift, 0.6 * radius, (start, start + np.pi), 0.06),
        arc(centre + shift, 0.6 * radius, (start + np.pi, start + 2 * np.pi), 0.06),
    ]


def spirals(centre: Floats, radius: float, rng: Generator) -> list[Shape]:
    """Return two spirals of a turn, one in the other."""
    start = rng.uniform(0, 2 * np.pi)

    def arm(phase: float) -> Shape:
        def draw(n: int, rng: Generator) -> Floats:
            at = np.sqrt(rng.uniform(0.06, 0.9, n))
            angle = phase + 2 * np.pi * at
            curve = at[:, None] * np.column_stack((np.cos(angle), np.sin(angle)))
            return centre + radius * (curve + 0.03 * rng.standard_normal((n, 2)))

        return draw

    return [arm(start), arm(start + np.pi)]


def sheets(
    n_columns: int, dimensions: tuple[int, int], rng: Generator
) -> tuple[list[Shape], tuple[Floats, Floats]]:
    """Place curved sheets of some dimensions in a space of more, their radii 4 times apart."""
    radii = rng.permutation(np.geomspace(0.5, 2, N_PLACES))
    centres = packed(radii, n_columns, rng)
    shapes = []
    for i, (centre, radius) in enumerate(zip(centres, radii, strict=True)):
        n_dimensions = int(rng.integers(dimensions[0], dimensions[1] + 1))
        shapes += sheet(centre, radius, n_dimensions, rng)[: 1 + i % 2]
    return shapes, around(centres, radii)


def sheet(centre: Floats, radius: float, n_dimensions: int, rng: Generator) -> list[Shape]:
    """Return two parallel sheets, long one way, short another, curved by a random tanh layer."""
    n_columns = len(centre)
    extents = np.geomspace(1, 0.2, n_dimensions)
    axes = np.linalg.qr(rng.standard_normal((n_columns, n_columns)))[0]
    flat, apart = axes[:n_dimensions], SHEETS_APART / 2 * axes[n_dimensions]
    inner = 2 * rng.standard_normal((n_dimensions, n_columns)) / math.sqrt(n_dimensions)
    outer = rng.standard_normal((n_columns, n_columns)) / n_columns

    def bend(at: Floats) -> Floats:
        return at @ flat + 0.5 * np.tanh(at @ inner) @ outer

    probe = bend(extents * rng.uniform(-1, 1, (2000, n_dimensions)))
    middle = probe.mean(axis=0)
    size = np.quantile(np.linalg.norm(probe - middle, axis=1), 0.99)

    def half(shift: Floats) -> Shape:
        def draw(n: int, rng: Generator) -> Floats:
            at = extents * rng.uniform(-1, 1, (n, n_dimensions))
            thick = SHEET_WIDTH / math.sqrt(n_columns) * rng.standard_normal((n, n_columns))
            return centre + radius * ((bend(at) - middle) / size + thick + shift)

        return draw

    return [half(apart), half(-apart)]


def plainly(latent: Floats, rng: Generator) -> NDArray[np.float32]:
    """Take the points as they are."""
    return latent.astype(np.float32)


def bending(
    n_latent: int, n_columns: int, rng: Generator
) -> Callable[[Floats, Generator], NDArray[np.float32]]:
    """Return a map to more columns: linear, plus a tanh layer, plus a little noise."""
    linear = np.linalg.qr(rng.standard_normal((n_columns, n_latent)))[0].T.astype(np.float32)
    inner = (rng.standard_normal((n_latent, n_columns)) / (2 * math.sqrt(n_latent))).astype("f4")
    scale = np.float32(1 / math.sqrt(n_columns))
    deviation = np.float32(NOISE * 0.5 / math.sqrt(n_columns))

    def embed(latent: Floats, rng: Generator) -> NDArray[np.float32]:
        at = latent.astype(np.float32)
        bent = at @ linear + scale * np.tanh(at @ inner)
        bent += deviation * rng.standard_normal(bent.shape, dtype=np.float32)
        return bent

    return embed


def blocks(n_points: int, block: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last row of each block."""
    for first in range(0, n_points, block):
        yield first, min(first + block, n_points)


def write_zarr(path: Path, drawn: Drawn, n_points: int, block: int | None = None) -> None:
    """Write the points as a Zarr array in chunks of `block` rows."""
    chunk = block or max(1, CHUNK_NBYTES // (4 * drawn.n_columns))
    shape = n_points, drawn.n_columns
    chunks = min(chunk, n_points), drawn.n_columns
    target: Any = zarr.create_array(str(path), shape=shape, chunks=chunks, dtype="f4")
    for first, last in blocks(n_points, chunk):
        target[first:last] = drawn.rows(first, last)[0]


def write_npy(path: Path, drawn: Drawn, n_points: int, block: int = 10 * UNIT) -> None:
    """Write the points as a .npy file."""
    shape = n_points, drawn.n_columns
    target = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    for first, last in blocks(n_points, block):
        target[first:last] = drawn.rows(first, last)[0]
    target.flush()


def write_labels(path: Path, drawn: Drawn, n_points: int, block: int = 10 * UNIT) -> None:
    """Write the true labels as a .npy file."""
    target = np.lib.format.open_memmap(path, mode="w+", dtype=np.int32, shape=(n_points,))
    for first, last in blocks(n_points, block):
        target[first:last] = drawn.rows(first, last)[1]
    target.flush()
