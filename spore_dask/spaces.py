"""The configurations that are compared: draws from a space of parameters, and a ladder.

Pure: reads and writes nothing, holds the parameters of each trial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from spore_dask.choosing import LARGE
from spore_dask.errors import ParameterError
from spore_dask.params import RANGES, Params

OVERRULES = {"z": "z_percentile", "max_z": "max_z_percentile", "min_retained": "retention_rate"}
"""Parameters that a user may fix, and what is not worth drawing, or would overrule them, then."""
CAP = 5000
"""Minimum sizes are drawn as for this many points at most: more would lose small clusters."""
UNCAPPED = slice(10, 20)
"""Draws without the cap where there are many points."""
LADDER_SIZE = 25
LADDER_PERCENTILES = (65, 80, 90, 97)
LADDER_RETENTION = {None: 0.99, 0.2: 1.0}
"""Rates, and what the scores are multiplied by. Without a rate, clusters are more often joined over
a background, so a trial with a rate wins where two scores are nearly equal."""


class Trial(NamedTuple):
    """A configuration that is compared with others."""

    params: Params
    weight: float
    """How much it counts in the scores of others; 0 for one that can only be chosen."""
    factor: float = 1.0
    """What its own score is multiplied by."""


def paper_space(n_points: int) -> dict[str, Any]:
    """Return the space that the paper searches, for a number of points."""
    from scipy.stats import randint, uniform  # type: ignore[import-untyped]

    log2_n = max(1, n_points.bit_length() - 1)
    return {
        "z_percentile": uniform(12.5, 87.5),
        "retention_rate": uniform(0, 0.875),
        "min_cluster_size": uniform(0.3, 0.4),
        "expansion_neighbors": randint(log2_n, 3 * log2_n),
    }


def find_space(
    space: Mapping[str, Any] | None, n_points: int, fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the space to draw from: the one given or the paper's, without what is fixed.

    Raises `ParameterError` where a name is no parameter, or nothing can be drawn for one.
    """
    if space is None:
        found: Mapping[str, Any] = paper_space(n_points)
    else:
        _check_space(space)
        found = space
    left = _left_out(fixed) if space is None else set(fixed)
    return {name: values for name, values in found.items() if name not in left}


def is_open(fixed: Mapping[str, Any]) -> bool:
    """Tell whether any parameter of the default space is left to choose."""
    return bool(find_space(None, 2, fixed))


def _left_out(fixed: Mapping[str, Any]) -> set[str]:
    """Return the parameters that need no values beside those that are fixed."""
    return {*fixed, *(OVERRULES[name] for name in fixed if name in OVERRULES)}


def _check_space(space: Mapping[str, Any]) -> None:
    """Refuse names that are no parameters, and values that nothing can be drawn from."""
    if not isinstance(space, Mapping) or not space:
        raise ParameterError(
            f"space is {space!r}, but it must be a dictionary from names of parameters to lists "
            "of values or distributions of scipy.stats."
        )
    for name, values in space.items():
        if name not in RANGES:
            raise ParameterError(
                f"There is no parameter {name!r}, which is in space; the parameters are "
                f"{', '.join(RANGES)}."
            )
        listed = hasattr(values, "__len__") and not isinstance(values, str | bytes | Mapping)
        if not hasattr(values, "rvs") and not (listed and len(values)):
            raise ParameterError(
                f"space has {values!r} for {name!r}, but it must be a list of values that is not "
                "empty, or a distribution of scipy.stats."
            )


def find_trials(
    space: Mapping[str, Any] | None,
    n_points: int,
    n_trials: int,
    seed: int,
    fixed: Mapping[str, Any],
) -> list[Trial]:
    """Return the trials to run, each once, the default configuration first.

    A given space has `n_trials` trials at most. Without one, a ladder of small minimum sizes and
    generous thresholds is added, which does not vote. Beyond 20,000 points ten of the draws have no
    cap on their minimum size.
    """
    drawn = draw(space, n_points, n_trials - 1, seed, fixed)
    if space is None:
        if n_points > LARGE:
            uncapped = draw(space, n_points, n_trials - 1, seed, fixed, cap=n_points)
            drawn[UNCAPPED] = uncapped[UNCAPPED]
        drawn += _ladder(n_points, seed, fixed)
    default = Params.from_keywords({"seed": seed, **fixed})
    first: dict[Params, Trial] = {}
    for trial in [Trial(default, _weight(default)), *drawn]:
        first.setdefault(trial.params, trial)
    return list(first.values())


def draw(
    space: Mapping[str, Any] | None,
    n_points: int,
    n_draws: int,
    seed: int,
    fixed: Mapping[str, Any],
    cap: int = CAP,
) -> list[Trial]:
    """Draw configurations as scikit-learn's `ParameterSampler` does with the same seed.

    In the default space, the exponent of the minimum size is drawn, and applied to no more points
    than the cap. Where the space is a grid of fewer configurations, each is drawn once.
    """
    from sklearn.model_selection import ParameterGrid, ParameterSampler
    from sklearn.utils import check_random_state

    found = find_space(space, n_points, fixed)
    if n_draws < 1:
        return []
    if not found:
        raise ParameterError(
            f"n_trials is {n_draws + 1}, but every parameter of the space is fixed, so there is "
            "nothing to choose from: fix fewer of them, give another space, or use fit."
        )
    if not any(hasattr(values, "rvs") for values in found.values()):
        grid: Any = {name: list(values) for name, values in found.items()}
        n_draws = min(n_draws, len(ParameterGrid(grid)))
    trials = []
    for values in ParameterSampler(
        found, n_iter=n_draws, random_state=check_random_state(seed % 2**32)
    ):
        if space is None and "min_cluster_size" in values:
            size = math.floor(min(n_points, cap) ** values["min_cluster_size"])
            values["min_cluster_size"] = max(1, size)
        params = Params.from_keywords({"seed": seed, **fixed, **values})
        trials.append(Trial(params, _weight(params)))
    return trials


def _weight(params: Params) -> float:
    """Return how much a trial counts: the more must be retained, the less."""
    return 1 - (params.retention_rate or 0.0)


def _ladder(n_points: int, seed: int, fixed: Mapping[str, Any]) -> list[Trial]:
    """Return trials with a small minimum size, from strict to generous thresholds."""
    log2_n = max(1, n_points.bit_length() - 1)
    trials = []
    for percentile in LADDER_PERCENTILES:
        for rate, factor in LADDER_RETENTION.items():
            rung = {
                "min_cluster_size": LADDER_SIZE,
                "expansion_neighbors": 2 * log2_n,
                "z_percentile": percentile,
                "retention_rate": rate,
            }
            kept = {name: rung[name] for name in rung.keys() - _left_out(fixed)}
            params = Params.from_keywords({"seed": seed, **fixed, **kept})
            trials.append(Trial(params, 0.0, factor if "retention_rate" in kept else 1.0))
    return trials
