"""Choose one of many clusterings of the same rows without labels: the one that the others agree on.

Pure arithmetic on the labels of the trials. Reads and writes nothing; memory beside the labels:
eight bytes a row and trial, and the contingency table of one pair.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spore_dask.errors import InputError

Floats = NDArray[np.float64]

MAX_NOISE = 0.5
CELLS_PER_ROW = 64  # beyond, sorting is faster than an empty table
DECIMALS = 9  # equal trials have equal scores, whatever the order of the sums


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which trial is best, and how good each is."""

    best: int
    """Number of the chosen trial."""
    scores: Floats
    """(n_trials,), higher is better; -inf for trials that are degenerate."""


def choose(labels: ArrayLike) -> Choice:
    """Choose the trial whose result the other trials agree with most.

    Parameters
    ----------
    labels : integer array (n_trials, n_rows)
        Labels of the same rows in each trial, -1 for noise.

    Returns
    -------
    Choice
        Of equal trials, the first. Trials with fewer than two clusters or more than half noise
        are chosen only where all trials are like that.
    """
    trials = _as_trials(labels)
    pairs = agreement(trials)
    np.fill_diagonal(pairs, 0.0)
    scores = pairs.sum(axis=1) / max(len(trials) - 1, 1)
    usable = ~degenerate(trials)
    if usable.any():
        scores[~usable] = -np.inf
    scores = scores.round(DECIMALS)
    return Choice(int(np.argmax(scores)), scores)


def degenerate(labels: ArrayLike) -> NDArray[np.bool_]:
    """Return which trials have fewer than two clusters or more than half noise."""
    trials = _as_trials(labels)
    noise = (trials < 0).mean(axis=1)
    n_clusters = np.array([len(np.unique(row[row >= 0])) for row in trials])
    useless: NDArray[np.bool_] = (n_clusters < 2) | (noise > MAX_NOISE)
    return useless


def agreement(labels: ArrayLike) -> Floats:
    """Return the adjusted Rand index of each pair of trials; noise counts as one more cluster.

    Parameters
    ----------
    labels : integer array (n_trials, n_rows)

    Returns
    -------
    float64 array (n_trials, n_trials)
        Symmetric, 1 on the diagonal.
    """
    trials = _as_trials(labels)
    n_trials, n_rows = trials.shape
    numbered = [np.unique(row, return_inverse=True)[1] for row in trials]
    same = np.zeros((n_trials, n_trials))
    for first in range(n_trials):
        for second in range(first + 1):
            same[first, second] = same[second, first] = _same_pairs(
                numbered[first], numbered[second]
            )
    return _adjusted_rand(same, n_rows)


def _as_trials(labels: ArrayLike) -> NDArray[np.integer]:
    """Return the labels as an array, or say what is wrong with its shape."""
    trials = np.asarray(labels)
    if trials.ndim != 2 or not trials.size or trials.dtype.kind not in "iu":
        raise InputError(
            f"labels has shape {trials.shape} and dtype {trials.dtype}, but it must be integers of "
            "shape (n_trials, n_rows) with at least one of each."
        )
    return trials


def _same_pairs(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Return the sum of the squares of the contingency table of two trials."""
    n_names = int(second.max()) + 1
    cells = first * n_names + second
    if (int(first.max()) + 1) * n_names <= CELLS_PER_ROW * len(cells):
        counts = np.bincount(cells)
    else:
        counts = np.diff(np.flatnonzero(np.diff(np.sort(cells), prepend=-1, append=-1)))
    return float(np.square(counts, dtype=np.float64).sum())


def _adjusted_rand(same: Floats, n_rows: int) -> Floats:
    """Turn sums of squared contingency tables, a trial with a trial, into adjusted Rand indices."""
    own = np.diag(same)
    both = same - n_rows
    first, second = own[:, None] - same, own[None, :] - same
    neither = n_rows * n_rows - n_rows - both - first - second
    top = 2 * (both * neither - first * second)
    bottom = (both + first) * (first + neither) + (both + second) * (second + neither)
    equal = (first == 0) & (second == 0)
    return np.where(equal, 1.0, top / np.where(equal, 1.0, bottom))
