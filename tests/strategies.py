"""Hypothesis strategies shared by the tests: small awkward point sets, and parameters."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

MAX_POINTS = 60
MAX_COLUMNS = 4


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    """Draw (N, D), with N tiny, any, or large enough for skeletons and fragments."""
    n_points = st.integers(2, 6) | st.integers(2, MAX_POINTS) | st.integers(30, MAX_POINTS)
    return st.tuples(n_points, st.integers(1, MAX_COLUMNS))


def generators() -> st.SearchStrategy[np.random.Generator]:
    """Draw a seeded generator, for coordinates that need no shrinking."""
    return st.integers(0, 2**32 - 1).map(np.random.default_rng)


@st.composite
def blobs(draw: st.DrawFn) -> np.ndarray:
    """Draw one to four normal blobs, each with its own density."""
    n_points, n_columns = draw(shapes())
    rng = draw(generators())
    widths = np.array(
        draw(st.lists(st.sampled_from([0.01, 0.1, 1.0, 5.0]), min_size=1, max_size=4))
    )
    centers = rng.uniform(-10, 10, (len(widths), n_columns))
    blob = rng.integers(len(widths), size=n_points)
    return centers[blob] + widths[blob, None] * rng.standard_normal((n_points, n_columns))


def grids() -> st.SearchStrategy[np.ndarray]:
    """Draw small integers: tied distances, tied densities, some duplicates."""
    return shapes().flatmap(
        lambda shape: hnp.arrays(np.float64, shape, elements=st.integers(-4, 4).map(float))
    )


@st.composite
def full_grids(draw: st.DrawFn) -> np.ndarray:
    """Draw every node of a square grid, in shuffled rows: almost all distances tie."""
    side = draw(st.integers(2, 7))
    nodes = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 2)
    return draw(generators()).permutation(nodes).astype(np.float64)


@st.composite
def duplicates(draw: st.DrawFn) -> np.ndarray:
    """Draw a few places that hold all the points, often more than K+1 points in one."""
    places = draw(blobs() | grids())[: draw(st.integers(2, 6))]
    n_points = draw(st.integers(2, MAX_POINTS))
    weights = 0.2 ** np.arange(len(places))
    return places[draw(generators()).choice(len(places), n_points, p=weights / weights.sum())]


@st.composite
def lines(draw: st.DrawFn) -> np.ndarray:
    """Draw points on a line through the origin, at uneven steps."""
    n_points, n_columns = draw(shapes())
    steps = draw(st.lists(st.integers(-20, 20), min_size=n_points, max_size=n_points))
    direction = draw(
        st.lists(st.sampled_from([0.1, 1.0, 3.0]), min_size=n_columns, max_size=n_columns)
    )
    return np.outer(steps, direction)


@st.composite
def identical(draw: st.DrawFn) -> np.ndarray:
    """Draw one point, repeated."""
    return np.full(draw(shapes()), draw(st.sampled_from([0.0, 0.1, -3.0])))


@st.composite
def point_sets(draw: st.DrawFn) -> np.ndarray:
    """Draw working coordinates: float32 or float64, N 2 to 60, D 1 to 4, finite, no -0.0.

    Magnitudes vary, within a range where no squared difference overflows.
    """
    kinds = st.one_of(blobs(), grids(), full_grids(), duplicates(), lines(), identical())
    points: np.ndarray = draw(kinds).copy()
    n_columns = points.shape[1]
    if n_columns > 1 and draw(st.integers(0, 4)) == 4:
        points[:, draw(st.integers(0, n_columns - 1))] = 7.0
    if draw(st.integers(0, 4)) == 4:
        points += 1000.0  # float32 keeps few digits of what is left: near-ties become ties
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    largest = 8 if dtype == np.float32 else 100
    exponent = draw(st.just(0) | st.integers(-largest, largest))
    return (points * 10.0**exponent).astype(dtype) + 0.0


COUNTS = st.integers(1, 8) | st.integers(1, MAX_POINTS + 5)
PERCENTILES = st.sampled_from([0, 50, 100]) | st.floats(0, 100)
THRESHOLDS = st.sampled_from([0.0, 1.0]) | st.floats(-2, 5)

PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "min_cluster_size": st.floats(0, 0.95) | COUNTS,
    "density_neighbors": COUNTS,
    "expansion_neighbors": COUNTS,
    "reassignment_neighbors": COUNTS,
    "max_connectivity": COUNTS,
    "min_connectivity": COUNTS,
    "retention_rate": st.floats(0, 1),
    "min_retained": st.integers(1, 6),
    "z": THRESHOLDS,
    "z_percentile": PERCENTILES,
    "max_z": THRESHOLDS,
    "max_z_percentile": PERCENTILES,
    "max_scr_rounds": st.integers(0, 10),
    "seeding_order": st.sampled_from(["density", "random", "none"]),
    "post_reassignment_policy": st.sampled_from(["noise", "none"]),
}


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw parameters as a user gives them: mostly a few, and always a `seed`."""
    names = draw(st.lists(st.sampled_from(list(PARAMETERS)), unique=True))
    config = {name: draw(PARAMETERS[name]) for name in names}
    return config | {"seed": draw(st.integers(0, 2**32 - 1))}
