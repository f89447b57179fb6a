"""SPORE's parameters: what a user may ask for, and the counts it resolves to for N points.

Pure: reads and writes nothing, holds a few numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from spore_dask.errors import ParameterError

LARGEST_COUNT = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Range:
    """What one parameter may be."""

    text: str
    """The allowed values, for the reader."""
    allows: Callable[[Any], bool]
    """Whether a value is allowed."""
    convert: Callable[[Any], Any] = str
    """What makes a plain Python value of an allowed one."""
    optional: bool = False
    """Whether None is allowed."""
    choices: tuple[str, ...] = ()
    """The words that are allowed, if only some are."""

    def check(self, name: str, value: Any) -> Any:
        """Return `value` as a plain Python value, or raise `ParameterError`."""
        if value is None and self.optional:
            return None
        if self.allows(value):
            return self.convert(value)
        allowed = f"{self.text} or None" if self.optional else self.text
        raise ParameterError(f"{name} is {value!r}, but it must be {allowed}.")


def _is_count(value: Any, at_least: int = 1) -> bool:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole and at_least <= int(value) <= LARGEST_COUNT


def _is_real(value: Any) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def count(at_least: int = 1, optional: bool = True) -> Range:
    """Allow whole numbers from one on."""
    text = f"a whole number in [{at_least}, 2**63)"
    return Range(text, lambda v: _is_count(v, at_least), int, optional)


def _interval(low: float, high: float, optional: bool) -> Range:
    text = f"a number in [{low:g}, {high:g}]"
    return Range(text, lambda v: _is_real(v) and low <= v <= high, float, optional)


def one_of(*choices: str, optional: bool = False) -> Range:
    """Allow exactly these words."""
    text = "one of " + ", ".join(map(repr, choices))
    return Range(text, lambda v: isinstance(v, str) and v in choices, str, optional, choices)


def _is_cluster_size(value: Any) -> bool:
    if not _is_real(value):
        return False
    return 0 <= value < 1 or (1 <= value <= LARGEST_COUNT and float(value).is_integer())


def _cluster_size(value: Any) -> float:
    return int(value) if value >= 1 else float(value)


_NUMBER = Range("a finite number", _is_real, float, optional=True)

RANGES = {
    "min_cluster_size": Range(
        "an exponent in [0, 1) or a whole number in [1, 2**63)", _is_cluster_size, _cluster_size
    ),
    "density_neighbors": count(),
    "expansion_neighbors": count(),
    "reassignment_neighbors": count(),
    "max_connectivity": count(),
    "min_connectivity": count(optional=False),
    "retention_rate": _interval(0, 1, optional=True),
    "min_retained": count(optional=False),
    "z_percentile": _interval(0, 100, optional=False),
    "z": _NUMBER,
    "max_z_percentile": _interval(0, 100, optional=False),
    "max_z": _NUMBER,
    "max_scr_rounds": count(at_least=0, optional=False),
    "seeding_order": one_of("density", "random", "none"),
    "post_reassignment_policy": one_of("noise", "none"),
    "seed": count(at_least=0, optional=False),
}


@dataclasses.dataclass(frozen=True)
class Params:
    """SPORE's parameters as a user gives them, checked on creation; None means the default.

    The names are those of the author's package, so that its users can switch.
    """

    min_cluster_size: float = 0.45
    """In [0, 1) an exponent, M = floor(N**value); from 1 on a count M."""
    density_neighbors: int | None = None
    """Rank kd of the neighbour whose distance gives the density order."""
    expansion_neighbors: int | None = None
    """Neighbours ke that an expanding point looks at."""
    reassignment_neighbors: int | None = None
    """Neighbours kr that vote in Small-Cluster Reassignment."""
    max_connectivity: int | None = None
    """Upper limit of the three counts above and of K; None means N - 1."""
    min_connectivity: int = 1
    """Lower limit of K."""
    retention_rate: float | None = None
    """Share of ke that must survive for a point to expand; wins over `min_retained`."""
    min_retained: int = 1
    """Survivors that a point needs to expand."""
    z_percentile: float = 50
    """Expansion threshold, a percentile of the upper ke-th neighbour distances."""
    z: float | None = None
    """Expansion threshold in standard deviations; wins over `z_percentile`."""
    max_z_percentile: float = 100
    """Gate of reassignment, a percentile like `z_percentile`."""
    max_z: float | None = None
    """Gate of reassignment in standard deviations; wins over `max_z_percentile`."""
    max_scr_rounds: int = 10
    """Passes of Small-Cluster Reassignment at most."""
    seeding_order: str = "density"
    """Order of the seeds: "density", "random" or "none" (input order)."""
    post_reassignment_policy: str = "noise"
    """What becomes of clusters that stay smaller than M: "noise" (-1) or "none" (kept)."""
    seed: int = 42
    """Seed of the "random" seeding order, and of every other random choice."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            plain = RANGES[field.name].check(field.name, field.default if value is None else value)
            object.__setattr__(self, field.name, plain)

    @classmethod
    def from_keywords(cls, keywords: dict[str, Any]) -> Params:
        """Build from keyword arguments, naming any that is not a parameter."""
        unknown = sorted(set(keywords) - set(RANGES))
        if unknown:
            raise ParameterError(
                f"There is no parameter {unknown[0]!r}; the parameters are {', '.join(RANGES)}."
            )
        return cls(**keywords)

    def resolve(self, n_points: int) -> ResolvedParams:
        """Return the counts and thresholds that these parameters mean for `n_points` points."""
        if not _is_count(n_points, 2):
            raise ParameterError(f"n_points is {n_points!r}, but clustering needs at least 2.")
        n_points = int(n_points)
        limit = min(self.max_connectivity or n_points - 1, n_points - 1)
        size = _resolve_cluster_size(self.min_cluster_size, n_points)
        kd, ke, kr = self._resolve_neighbors(n_points, size, limit)
        retained = self.min_retained
        if self.retention_rate is not None:
            retained = max(math.floor(self.retention_rate * ke), 1)
        return ResolvedParams(
            n_points=n_points,
            min_cluster_size=size,
            density_neighbors=kd,
            expansion_neighbors=ke,
            reassignment_neighbors=kr,
            k=min(limit, max(kd, ke, kr, self.min_connectivity)),
            min_retained=retained,
            z_percentile=self.z_percentile,
            z=self.z,
            max_z_percentile=self.max_z_percentile,
            max_z=self.max_z,
            max_scr_rounds=self.max_scr_rounds,
            seeding_order=self.seeding_order,
            post_reassignment_policy=self.post_reassignment_policy,
            seed=self.seed,
        )

    def _resolve_neighbors(self, n_points: int, size: int, limit: int) -> tuple[int, int, int]:
        """Return kd, ke and kr, each at most `limit` before the next is derived from it."""
        kd, ke, kr = self.density_neighbors, self.expansion_neighbors, self.reassignment_neighbors
        if kd is None:
            log2_n = max(1, n_points.bit_length() - 1)
            kd = min(size, log2_n) if ke is None else max(1, ke // 2)
        kd = min(limit, kd)
        ke = min(limit, min(size, 2 * kd) if ke is None else ke)
        kr = min(limit, min(size, 2 * ke) if kr is None else kr)
        return kd, ke, kr


@dataclasses.dataclass(frozen=True)
class ResolvedParams:
    """Parameters for one number of points: counts are final, percentiles await the distances."""

    n_points: int
    """N."""
    min_cluster_size: int
    """M, a count."""
    density_neighbors: int
    """kd."""
    expansion_neighbors: int
    """ke."""
    reassignment_neighbors: int
    """kr."""
    k: int
    """K, the neighbours that the graph must have."""
    min_retained: int
    """Survivors that a point needs to expand."""
    z_percentile: float
    """Used where `z` is None."""
    z: float | None
    """Expansion threshold in deviations, if given."""
    max_z_percentile: float
    """Used where `max_z` is None."""
    max_z: float | None
    """Gate of reassignment in deviations, if given."""
    max_scr_rounds: int
    """Passes of reassignment at most."""
    seeding_order: str
    """"density", "random" or "none"."""
    post_reassignment_policy: str
    """"noise" or "none"."""
    seed: int
    """Seed of every random choice."""


def _resolve_cluster_size(value: float, n_points: int) -> int:
    if value >= 1:
        return int(value)
    size: float = float(n_points) ** float(value)
    return max(1, math.floor(size))
