"""What is told about a choice of parameters, and of what users should be warned. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spore_dask.params import Params, ResolvedParams

SURE, UNSURE = 0.3, 0.2
"""Scores from which on a choice was mostly right, and below which it was often wrong."""


def choice_sentence(told: Mapping[str, Any]) -> str:
    """Say which parameters were chosen, and how sure the choice is, given `Run.choice`."""
    given = ", ".join(words_of(told["params"])) or "the paper's defaults"
    among = f"Chose {given} among {told['n_trials']} configurations"
    if told.get("excerpt"):
        name, n_points = told["excerpt"]
        among += f" on a {name} excerpt of {n_points:,} points"
    score = told["score"]
    if score is None:
        return f"{among}: none has two clusters and at most half noise."
    sure = "fairly sure" if score >= SURE else "unsure" if score >= UNSURE else "very unsure"
    return f"{among}: {sure} (agreement {score:.2f})."


def words_of(params: Mapping[str, Any]) -> list[str]:
    """Return parameters that have a value as arguments of a call."""
    return [
        f"{name}={round(value, 4) if isinstance(value, float) else value!r}"
        for name, value in params.items()
        if value is not None and value == value  # NaN stands for none in a table
    ]


def one_pass(told: Mapping[str, Any]) -> str:
    """Return the arguments that repeat a choice in one pass."""
    exact = [f"{name}={value!r}" for name, value in told["params"].items() if value is not None]
    return ", ".join(['params="paper"', *exact])


MOST_SPREAD = 100
"""Ratio of the deviations of two columns from which on one of them hardly counts."""
MOST_COPIES = 0.9
MOST_NOISE = 0.9
LEAST_PIECE = 2
"""A piece of the graph is small if it has fewer points than this many expansion_neighbors."""


def data_warnings(
    asked: Params,
    resolved: ResolvedParams,
    smallest: int,
    noise: float,
    facts: Mapping[str, Any],
    is_scaled: bool,
) -> list[str]:
    """Return what a user should know about a result, a sentence each.

    Parameters
    ----------
    asked, resolved
        The parameters, and the counts that they came to.
    smallest : int
        The minimum size after SPORE has lowered it to that of the second largest skeleton.
    noise : float
        Share of the points that are noise.
    facts : dict
        What is known of `stages.scan.sample_facts`, and `n_pieces` of the graph.
    is_scaled : bool
        Whether the scales of the columns do not matter.
    """
    found = []
    n_points, ke = resolved.n_points, resolved.expansion_neighbors
    if not is_scaled and facts.get("spread", 0) >= MOST_SPREAD:
        found.append(
            f"Column {facts['widest']} varies {facts['spread']:,.0f} times as much as column "
            f"{facts['narrowest']}, which hardly counts: give scale='standard' or 'clip-minmax'."
        )
    if facts.get("copies", 0) >= MOST_COPIES:
        found.append(
            f"About {facts['copies']:.0%} of the rows are copies of others, so that distances say "
            "little: cluster the distinct rows, or more columns."
        )
    if noise >= MOST_NOISE:
        found.append(
            f"{noise:.1%} of the points are noise: lower min_cluster_size or retention_rate, or "
            "raise z_percentile."
        )
    if facts.get("n_pieces", 0) * LEAST_PIECE * ke > n_points:
        found.append(
            f"The neighbour graph falls into {facts['n_pieces']:,} pieces, so that larger clusters "
            "cannot be found whole: raise expansion_neighbors, or look for copies and rounded "
            "values in the data."
        )
    if smallest < resolved.min_cluster_size:
        found.append(
            f"min_cluster_size is {resolved.min_cluster_size}, but the second largest skeleton has "
            f"{smallest} points, so SPORE took {smallest}: ask for less."
        )
    for name in ("density_neighbors", "expansion_neighbors", "reassignment_neighbors"):
        wanted = getattr(asked, name)
        if wanted is not None and wanted > n_points - 1:
            found.append(
                f"{name} is {wanted}, but {n_points} points have only {n_points - 1} neighbours "
                "each: that many were used."
            )
    return found
