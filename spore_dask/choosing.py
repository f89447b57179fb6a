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
EXPONENT = 1.5  # above 1, a few trials that agree well count more than many that agree a little
CELLS_PER_ROW = 64  # beyond, sorting is faster than an empty table
DECIMALS = 9  # equal trials have equal scores, whatever the order of the sums


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which trial is best, and how good each is."""

    best: int
    """Number of the chosen trial."""
    scores: Floats
    """(n_trials,) in [0, 1], higher is better; -inf for trials that are degenerate."""


def choose(
    labels: ArrayLike,
    retention: ArrayLike | None = None,
    *,
    voters: ArrayLike | None = None,
    voter_retention: ArrayLike | None = None,
    usable: ArrayLike | None = None,
) -> Choice:
    """Choose the trial whose result the other trials agree with most.

    A trial's score is the weighted mean of its agreement with all others: the adjusted Rand index,
    0 where it is negative, to the power of 1.5. The vote of a trial weighs 1 minus its retention
    rate: the more neighbours must survive, the more of a result is left to reassignment, and the
    worse it is on average.

    Parameters
    ----------
    labels : integer array (n_trials, n_rows)
        Labels of the same rows in each trial, -1 for noise; a sample of 5,000 rows is enough.
    retention : float array (n_trials,), optional
        Retention rate of each trial, in [0, 1], 0 where it has none; all votes weigh the same
        without it.
    voters : integer array (n_voters, n_rows), optional
        Labels of these rows in results that vote, but cannot be chosen: they help where there are
        few trials.
    voter_retention : float array (n_voters,), optional
        Retention rate of each of these.
    usable : bool array (n_trials,), optional
        Which trials may be chosen; by default those that are not degenerate on these rows.

    Returns
    -------
    Choice
        Of equal trials, the first. Trials with fewer than two clusters or more than half noise
        are chosen only where all trials are like that.
    """
    trials = _as_labels("labels", labels)
    n_trials, n_rows = trials.shape
    weights = _weights("retention", retention, n_trials)
    others = trials
    if voters is not None:
        extra = _as_labels("voters", voters, n_rows)
        weights = np.append(weights, _weights("voter_retention", voter_retention, len(extra)))
        others = np.concatenate([trials, extra])
    scores = _mean_of_others(agreement(trials, others), weights).round(DECIMALS)
    allowed = ~degenerate(trials) if usable is None else np.asarray(usable, np.bool_)
    if allowed.any():
        scores[~allowed] = -np.inf
    return Choice(int(np.argmax(scores)), scores)


def degenerate(labels: ArrayLike) -> NDArray[np.bool_]:
    """Return which trials have fewer than two clusters or more than half noise."""
    trials = _as_labels("labels", labels)
    noise = (trials < 0).mean(axis=1)
    n_clusters = np.array([len(np.unique(row[row >= 0])) for row in trials])
    useless: NDArray[np.bool_] = (n_clusters < 2) | (noise > MAX_NOISE)
    return useless


def agreement(labels: ArrayLike, others: ArrayLike | None = None) -> Floats:
    """Return the adjusted Rand index of each pair of trials; noise counts as one more cluster.

    Parameters
    ----------
    labels : integer array (n_trials, n_rows)
    others : integer array (n_others, n_rows), optional
        What to compare the trials with; themselves by default.

    Returns
    -------
    float64 array (n_trials, n_others)
        1 where two trials are the same up to names.
    """
    trials = _as_labels("labels", labels)
    first = [_numbered(row) for row in trials]
    if others is None:
        second = first
    else:
        second = [_numbered(row) for row in _as_labels("others", others, trials.shape[1])]
    same = np.array([[_same_pairs(a, b) for b in second] for a in first])
    own = np.array([_same_pairs(a, a) for a in first])
    own_others = np.array([_same_pairs(b, b) for b in second])
    return _adjusted_rand(same, own[:, None], own_others[None, :], trials.shape[1])


def _mean_of_others(pairs: Floats, weights: Floats) -> Floats:
    """Return the weighted mean agreement of each trial with all but itself."""
    n_trials, n_others = pairs.shape
    votes = np.clip(pairs, 0, 1) ** EXPONENT * weights
    np.fill_diagonal(votes, 0)
    totals = weights.sum() - weights[:n_trials]
    if n_others > 1 and not (totals > 0).all():
        return _mean_of_others(pairs, np.ones(n_others))
    means: Floats = votes.sum(axis=1) / np.where(totals > 0, totals, 1)
    return means


def _as_labels(name: str, labels: ArrayLike, n_rows: int | None = None) -> NDArray[np.integer]:
    """Return the labels as an array, or say what is wrong with its shape."""
    array = np.asarray(labels)
    fits = array.ndim == 2 and n_rows in (None, array.shape[1])
    if not fits or not array.size or array.dtype.kind not in "iu":
        raise InputError(
            f"{name} has shape {array.shape} and dtype {array.dtype}, but it must be integers of "
            f"shape (n_trials, {n_rows or 'n_rows'}) with at least one of each."
        )
    return array


def _weights(name: str, retention: ArrayLike | None, n_trials: int) -> Floats:
    """Return how much each trial's vote weighs."""
    rates = np.zeros(n_trials) if retention is None else np.asarray(retention, np.float64)
    if rates.shape != (n_trials,) or not ((rates >= 0) & (rates <= 1)).all():
        raise InputError(
            f"{name} is {retention!r}, but it must be {n_trials} numbers in [0, 1]: one a trial."
        )
    return 1 - rates


def _numbered(row: NDArray[np.integer]) -> NDArray[np.int64]:
    """Name the clusters of a trial 0, 1, ..., noise among them."""
    numbers: NDArray[np.int64] = np.unique(row, return_inverse=True)[1]
    return numbers


def _same_pairs(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Return the sum of the squares of the contingency table of two trials."""
    n_names = int(second.max()) + 1
    cells = first * n_names + second
    if (int(first.max()) + 1) * n_names <= CELLS_PER_ROW * len(cells):
        counts = np.bincount(cells)
    else:
        counts = np.diff(np.flatnonzero(np.diff(np.sort(cells), prepend=-1, append=-1)))
    return float(np.square(counts, dtype=np.float64).sum())


def _adjusted_rand(same: Floats, own: Floats, own_others: Floats, n_rows: int) -> Floats:
    """Turn sums of squared contingency tables into adjusted Rand indices."""
    both = same - n_rows
    first, second = own - same, own_others - same
    neither = n_rows * n_rows - n_rows - both - first - second
    top = 2 * (both * neither - first * second)
    bottom = (both + first) * (first + neither) + (both + second) * (second + neither)
    equal = (first == 0) & (second == 0)
    return np.where(equal, 1.0, top / np.where(equal, 1.0, bottom))
