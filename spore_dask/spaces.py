"""The configurations that a tune compares: a space of parameters, and draws from it.

Pure: reads and writes nothing, holds the parameters of each trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spore_dask.errors import ParameterError
from spore_dask.params import RANGES, Params

OVERRULES = {"z": "z_percentile", "max_z": "max_z_percentile", "min_retained": "retention_rate"}
"""Parameters that a user may fix, and what is not worth drawing, or would overrule them, then."""


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
        left = fixed.keys() | {OVERRULES.get(name) for name in fixed}
    else:
        left = set(fixed)
        _check_space(space)
    found = paper_space(n_points) if space is None else space
    return {name: values for name, values in found.items() if name not in left}


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


def draw_trials(
    space: Mapping[str, Any], n_trials: int, seed: int, fixed: Mapping[str, Any]
) -> list[Params]:
    """Return the parameters of each trial: first those that are fixed and defaults, then draws.

    The draws are those of scikit-learn's `ParameterSampler` with the same seed, so that a search
    that was made with it can be made again. Where the space is a grid of fewer configurations,
    each is drawn once.
    """
    drawn = [{}, *_draw(space, n_trials - 1, seed)]
    return [Params.from_keywords({"seed": seed, **fixed, **values}) for values in drawn]


def _draw(space: Mapping[str, Any], n_draws: int, seed: int) -> list[dict[str, Any]]:
    """Draw configurations."""
    from sklearn.model_selection import ParameterGrid, ParameterSampler
    from sklearn.utils import check_random_state

    if n_draws == 0:
        return []
    if not space:
        raise ParameterError(
            f"n_trials is {n_draws + 1}, but every parameter of the space is fixed, so that there "
            "is nothing to choose from: fix fewer of them, give another space, or use fit."
        )
    if not any(hasattr(values, "rvs") for values in space.values()):
        grid: Any = {name: list(values) for name, values in space.items()}
        n_draws = min(n_draws, len(ParameterGrid(grid)))
    sampler = ParameterSampler(dict(space), n_iter=n_draws, random_state=check_random_state(seed))
    return list(sampler)
