"""Generated data with known clusters: shapes in the plane, bodies in space, clouds in many columns.

Small sets of 150 to 3,000 points that differ in shape, density, size, overlap, noise and dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_circles, make_classification, make_moons, make_s_curve

Points = NDArray[np.float64]
Labelled = tuple[Points, NDArray[np.int64]]
TURN = 2 * np.pi


class Draw:
    """Draws parts of datasets."""

    def __init__(self, seed: list[int]) -> None:
        self.rng = np.random.default_rng(seed)

    def blob(self, size: int, centre: Any, spread: Any, n_columns: int = 2) -> Points:
        """Return a Gaussian cloud."""
        return np.asarray(centre) + spread * self.rng.standard_normal((size, n_columns))

    def arc(
        self, size: int, centre: Any, radius: float, ends: tuple[float, float], thick: float
    ) -> Points:
        """Return a part of a circle."""
        angle = self.rng.uniform(*ends, size)
        line = np.column_stack((np.cos(angle), np.sin(angle)))
        return np.asarray(centre) + radius * line + self.blob(size, 0, thick)

    def ring(self, size: int, radius: float, thick: float, centre: Any = (0, 0)) -> Points:
        """Return a circle."""
        return self.arc(size, centre, radius, (0, TURN), thick)

    def disk(self, size: int, centre: Any, radius: float) -> Points:
        """Return points that fill a circle evenly."""
        angle, far = self.rng.uniform(0, TURN, size), radius * np.sqrt(self.rng.random(size))
        return np.asarray(centre) + np.column_stack((far * np.cos(angle), far * np.sin(angle)))

    def box(self, size: int, low: Any, high: Any) -> Points:
        """Return points that fill a box evenly."""
        return self.rng.uniform(low, high, (size, len(low)))

    def curve(self, size: int, low: float, high: float, thick: float, f: Callable) -> Points:
        """Return points around the graph of a function."""
        x = self.rng.uniform(low, high, size)
        return np.column_stack((x, f(x))) + self.blob(size, 0, thick)

    def worm(self, size: int, n_steps: int, thick: float) -> Points:
        """Return points along a random walk."""
        steps = 0.3 * (self.rng.standard_normal((n_steps, 2)) + self.rng.standard_normal(2))
        path = np.cumsum(steps, axis=0) + self.rng.uniform(-12, 12, 2)
        at = self.rng.uniform(0, n_steps - 1, size)
        places = [np.interp(at, np.arange(n_steps), column) for column in path.T]
        return np.column_stack(places) + self.blob(size, 0, thick)

    def sphere(self, size: int, radius: float, thick: float) -> Points:
        """Return the shell of a ball."""
        away = self.rng.standard_normal((size, 3))
        far = radius + thick * self.rng.standard_normal((size, 1))
        return far * away / np.linalg.norm(away, axis=1, keepdims=True)

    def hoop(self, size: int, axes: list[int], shift: Any) -> Points:
        """Return a circle in space."""
        flat = np.column_stack((self.ring(size, 1, 0.08), 0.08 * self.rng.standard_normal(size)))
        return flat[:, axes] + np.asarray(shift)

    def blobs(
        self, n_points: int, n_blobs: int, n_columns: int, spread: tuple[float, float], ratio: float
    ) -> Labelled:
        """Return stretched clouds of sizes that vary by a ratio, anywhere in a cube."""
        shares = ratio ** self.rng.random(n_blobs)
        sizes = np.maximum(n_points * shares / shares.sum(), 8).astype(int)
        parts = []
        for size in sizes:
            stretch = self.rng.uniform(*spread) * self.rng.uniform(0.6, 1.6, n_columns)
            parts.append(self.blob(size, self.rng.random(n_columns), stretch, n_columns))
        return joined(*parts)

    def sheets(self, n_points: int, n_sheets: int, n_columns: int, n_inner: int) -> Labelled:
        """Return bent sheets of few inner dimensions in many columns."""
        parts = []
        for _ in range(n_sheets):
            inner = self.rng.standard_normal((n_points // n_sheets, n_inner))
            bent = np.tanh(0.6 * inner @ self.rng.standard_normal((n_inner, 12)))
            centre = 0.35 * self.rng.standard_normal(n_columns)
            outer = centre + bent @ self.rng.standard_normal((12, n_columns)) / 4
            parts.append(outer + 0.12 * self.rng.standard_normal(outer.shape))
        return joined(*parts)

    def classes(self, n_points: int, n_columns: int, n_classes: int, apart: float) -> Labelled:
        """Return scikit-learn's classes, half of whose columns tell nothing."""
        return make_classification(
            n_points,
            n_columns,
            n_informative=n_columns // 2,
            n_redundant=0,
            n_classes=n_classes,
            n_clusters_per_class=1,
            class_sep=apart,
            flip_y=0,
            random_state=int(self.rng.integers(1 << 30)),
        )

    def counts(self, n_points: int, n_columns: int, n_kinds: int) -> Labelled:
        """Return logarithms of counts, as of genes in kinds of cells."""
        y = np.sort(self.rng.integers(0, n_kinds, n_points))
        rates = self.rng.gamma(0.4, 2.0, (n_kinds, n_columns))
        return np.log1p(self.rng.poisson(rates[y])), y


def joined(*parts: Points) -> Labelled:
    """Return clusters as one set, numbered in their order."""
    return np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def _turned(points: Points, angle: float) -> Points:
    cosine, sine = np.cos(angle), np.sin(angle)
    return points @ np.array([[cosine, -sine], [sine, cosine]])


CORNERS = [(3, 3), (-3, 3), (3, -3), (-3, -3)]
FLOWER = [
    (far * np.cos(TURN * i / 7), far * np.sin(TURN * i / 7)) for far in (2.2, 5) for i in range(7)
]

SHAPES: dict[str, Callable[[Draw], Labelled]] = {
    "moons": lambda d: make_moons(1000, noise=0.07, random_state=int(d.rng.integers(99))),
    "moons, overlap": lambda d: make_moons(1500, noise=0.12, random_state=int(d.rng.integers(99))),
    "moons, densities": lambda d: joined(
        d.arc(900, (0, 0), 1, (0, np.pi), 0.05), d.arc(150, (1, 0.4), 1, (np.pi, TURN), 0.1)
    ),
    "circles": lambda d: make_circles(
        1000, noise=0.05, factor=0.5, random_state=int(d.rng.integers(99))
    ),
    "three rings": lambda d: joined(
        d.ring(200, 0.5, 0.06), d.ring(500, 1.2, 0.06), d.ring(900, 2.2, 0.06)
    ),
    "ring around blob": lambda d: joined(d.blob(300, 0, 0.25), d.ring(500, 1.6, 0.12)),
    "target": lambda d: joined(
        d.disk(400, (0, 0), 0.5), d.ring(360, 2.4, 0.05), *(d.blob(12, c, 0.06) for c in CORNERS)
    ),
    "boxes and disk": lambda d: joined(
        d.box(200, (0, 0), (1, 4)), d.box(150, (1.6, 0), (4, 1)), d.disk(150, (3.2, 3.2), 0.8)
    ),
    "diamonds": lambda d: joined(
        *(
            _turned(d.box(400, (-0.7, -0.7), (0.7, 0.7)), np.pi / 4) + shift
            for shift in ([-1.02, 0], [1.02, 0])
        )
    ),
    "two overlapping": lambda d: joined(
        d.blob(1000, (0, 0), (1, 2)), d.blob(1000, (3.3, 0), (1, 1))
    ),
    "flower": lambda d: joined(*(d.blob(40, c, 0.3) for c in [(0, 0), *FLOWER])),
    "20 blobs": lambda d: d.blobs(2500, 20, 2, (0.016, 0.022), 1),
    "15 blobs": lambda d: d.blobs(2500, 15, 2, (0.02, 0.03), 1),
    "12 wide blobs": lambda d: d.blobs(2500, 12, 2, (0.04, 0.06), 1),
    "31 blobs": lambda d: d.blobs(3000, 31, 2, (0.015, 0.02), 1),
    "unbalanced": lambda d: joined(
        *(d.blob(600, c, 0.03) for c in [(0, 0), (0.25, 0.1), (0.1, 0.3)]),
        *(d.blob(40, c, 0.05) for c in [(1.2, 0), (1.5, 0.3), (1.2, 0.6), (1.6, 0.8), (1.8, 0.1)]),
    ),
    "densities": lambda d: joined(
        d.blob(800, (0, 0), 0.1),
        d.blob(300, (1.2, 0), 0.35),
        d.blob(100, (3, 1.5), 0.6),
        d.blob(200, (0, 1.5), 0.15),
    ),
    "dense in sparse": lambda d: joined(
        d.blob(300, 0, 0.08), d.disk(600, (0, 0), 1.5), d.blob(200, (3, 0), 0.2)
    ),
    "stripes": lambda d: joined(*(d.box(500, (0, i), (6, i + 0.6)) for i in range(4))),
    "lines": lambda d: joined(
        *(d.curve(250, 0, 5, 0.08, lambda x, i=i: 0.4 * x + i) for i in range(3))
    ),
    "worms": lambda d: joined(*(d.worm(130, 60, 0.12) for _ in range(12))),
    "spirals": lambda d: joined(
        *(
            (lambda t: np.column_stack((t * np.cos(t + s), t * np.sin(t + s))))(
                d.rng.uniform(2, 12, 500)
            )
            + d.blob(500, 0, 0.25)
            for s in (0, np.pi)
        )
    ),
    "zigzags": lambda d: joined(
        *(
            d.curve(120, 0, 3, 0.04, lambda x, i=i: 1.8 * abs(x % 1 - 0.5) + 1.3 * i)
            for i in range(3)
        )
    ),
    "parabolas": lambda d: joined(
        d.curve(400, -1, 1, 0.06, lambda x: x**2),
        d.curve(400, -0.3, 1.7, 0.06, lambda x: 1.25 - (x - 0.7) ** 2),
    ),
    "cross": lambda d: joined(
        d.box(400, (-3, -0.25), (-0.5, 0.25)),
        d.box(400, (0.5, -0.25), (3, 0.25)),
        d.box(400, (-0.25, 0.6), (0.25, 3)),
        d.box(400, (-0.25, -3), (0.25, -0.6)),
    ),
    "noise between": lambda d: joined(
        d.arc(300, (0, 0), 1, (0, np.pi), 0.04),
        d.arc(300, (1, 0.4), 1, (np.pi, TURN), 0.04),
        d.blob(250, (3, 1), 0.12),
        d.blob(250, (3, -0.6), 0.15),
        d.box(120, (-1.5, -1.5), (4, 2)),
    ),
    "worms in noise": lambda d: joined(
        *(d.worm(260, 25, 0.35) for _ in range(7)), d.box(150, (-18, -18), (18, 18))
    ),
    "slanted": lambda d: joined(
        *(
            d.blob(400, c, 0.4) @ np.array([[0.6, -0.6], [-0.4, 0.8]])
            for c in [(-3, 0), (0, 4), (3, -1)]
        )
    ),
    "turned": lambda d: joined(
        *(
            _turned(d.blob(350, 0, (1.2, 0.18)), angle) + c
            for angle, c in [(0.3, (0, 0)), (1.4, (1.9, 1.2)), (2.4, (-1.9, 0.9))]
        )
    ),
    "one large": lambda d: joined(
        d.disk(1500, (0, 0), 2), d.blob(60, (2.6, 0.5), 0.12), d.blob(60, (-2.5, -1.1), 0.12)
    ),
    "arc and disk": lambda d: joined(
        d.arc(110, (0, 0), 1, (0, np.pi), 0.09), d.disk(130, (0, -0.1), 0.45)
    ),
    "shell and core": lambda d: joined(d.sphere(500, 5, 0.2), d.blob(500, 0, 0.35, 3)),
    "seven in space": lambda d: joined(
        *(d.blob(35, c, 0.42, 3) for c in [np.zeros(3), *3 * np.eye(3), *-3 * np.eye(3)])
    ),
    "hoops": lambda d: joined(
        d.hoop(400, [0, 1, 2], (0, 0, 0)),
        d.hoop(400, [0, 2, 1], (1, 0, 0)),
        d.hoop(400, [0, 2, 1], (-1.2, 0, 0.2)),
    ),
    "two cubes": lambda d: joined(
        d.box(500, (0, 0, 0), (1, 1, 1)), d.box(500, (1.15, 0, 0), (2.15, 1, 1))
    ),
    "two bands": lambda d: joined(
        *(
            make_s_curve(600, noise=0.05, random_state=int(d.rng.integers(99)))[0] * [1, s, 1] + t
            for s, t in ((1, 0), (0.5, [1.2, 0, 0.6]))
        )
    ),
    "blobs, 4 columns": lambda d: d.blobs(1500, 5, 4, (0.05, 0.16), 10),
    "blobs, 5 columns": lambda d: d.blobs(1500, 8, 5, (0.1, 0.15), 5),
    "blobs, 8 columns": lambda d: d.blobs(1500, 12, 8, (0.12, 0.2), 6),
    "blobs, 10 columns": lambda d: d.blobs(1500, 6, 10, (0.2, 0.3), 1),
    "blobs, 16 columns": lambda d: d.blobs(1500, 3, 16, (0.3, 0.42), 2),
    "blobs, 32 columns": lambda d: d.blobs(1500, 5, 32, (0.3, 0.45), 3),
    "blobs, 64 columns": lambda d: d.blobs(1500, 10, 64, (0.3, 0.5), 6),
    "few points": lambda d: d.blobs(150, 3, 4, (0.12, 0.2), 2),
    "few points, 7 columns": lambda d: d.blobs(240, 4, 7, (0.14, 0.24), 5),
    "sheets, 8 columns": lambda d: d.sheets(800, 4, 8, 2),
    "sheets, 16 columns": lambda d: d.sheets(1500, 6, 16, 2),
    "sheets, 32 columns": lambda d: d.sheets(2400, 8, 32, 4),
    "sheets, 64 columns": lambda d: d.sheets(2500, 10, 64, 3),
    "classes, 10 columns": lambda d: d.classes(1200, 10, 4, 2.2),
    "classes, 20 columns": lambda d: d.classes(1200, 20, 6, 2.5),
    "classes, 30 columns": lambda d: d.classes(1200, 30, 5, 3.0),
    "counts": lambda d: d.counts(1500, 60, 7),
    "heavy tails": lambda d: joined(
        *(c + 0.1 * d.rng.standard_t(3, (300, 6)) for c in d.rng.random((5, 6)))
    ),
    "skewed": lambda d: joined(
        *(c + 0.25 * d.rng.gamma(1.2, 0.5, (250, 4)) for c in 1.2 * d.rng.random((5, 4)))
    ),
}


def generated(seed: int) -> Iterator[tuple[str, Points, NDArray[np.int64]]]:
    """Draw each set, its rows shuffled."""
    for number, (name, make) in enumerate(SHAPES.items()):
        draw = Draw([seed, number])
        x, y = make(draw)
        order = draw.rng.permutation(len(x))
        yield name, x[order], y[order]
