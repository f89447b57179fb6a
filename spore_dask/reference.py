"""Whether clusters are better than chance: a comparison with data that has none.

A sample of the rows is clustered with the trials of a choice, and so are clouds of as many points
without clusters, as long and as wide as the sample: Gaussians and evenly filled boxes. Where the
trials agree on the sample hardly more than on the clouds, there may be nothing to find.
Pure: reads and writes nothing. Memory: three copies of the sample, its graph, and four bytes per
row and configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.choosing import Votes, choose, degenerate
from spore_dask.spaces import draw, find_trials
from spore_dask.voters import voter_labels

Points = NDArray[np.floating]

N_TRIALS, N_VOTERS = 31, 50
"""Configurations that are drawn, and those that only contribute to the scores."""
N_CLOUDS = 3
"""Clouds of each of the two kinds."""
FACTOR, MARGIN = 1.4, 0.01
"""Clusters are better than chance where the score is above FACTOR * (that of clouds) + MARGIN."""


def reference_score(sample: Points, number: int, seed: int, fixed: Mapping[str, Any]) -> float:
    """Return the highest score on a sample of the rows (number 0), or on one of its clouds.

    Parameters
    ----------
    sample : float32 or float64 array (n_rows, n_columns), C-contiguous, at least 2 rows
        Working coordinates of a uniform sample of the rows; 5,000 are enough.
    number : int
        0, or from 1 to 2 * N_CLOUDS.
    seed : int
    fixed : dict
        Parameters that are the same in all configurations.
    """
    points = sample if number == 0 else cloud(sample, number, seed)
    trials = find_trials(None, len(points), N_TRIALS, seed, fixed)
    voters = draw(None, len(points), N_VOTERS, seed + 1, fixed)
    labels = voter_labels(points, [one.params for one in (*trials, *voters)])
    tried, voted = labels[: len(trials)], labels[len(trials) :]
    if degenerate(tried).all():
        return 0.0
    weights = np.array([voter.weight for voter in voters])
    votes = [Votes(np.arange(len(points)), voted, weights)]
    counts, factors = [trial.weight for trial in trials], [trial.factor for trial in trials]
    return float(choose(tried, counts, votes=votes, factors=factors).scores.max())


def cloud(sample: Points, number: int, seed: int) -> Points:
    """Return a Gaussian of the sample's covariance (odd numbers), or a box along its main axes.

    Both are in the coordinates of the main axes: turning them back would change no distance.
    """
    rng = np.random.default_rng([seed, number])
    centred = sample - sample.mean(axis=0, dtype=np.float64)
    _, axes = np.linalg.eigh(centred.T @ centred)
    along = centred @ axes
    if number % 2:
        found = rng.standard_normal(along.shape) * along.std(axis=0)
    else:
        found = rng.uniform(along.min(axis=0), along.max(axis=0), along.shape)
    return np.ascontiguousarray(found, sample.dtype)


def chance_of(scores: Sequence[float]) -> float:
    """Return the score of data without clusters, given those of the clouds in their order."""
    pairs = np.array(scores).reshape(N_CLOUDS, 2)
    return float(pairs.max(axis=1).mean())


def is_better(found: float, by_chance: float) -> bool:
    """Tell whether the clusters of the sample are better than chance."""
    return found > FACTOR * by_chance + MARGIN
