"""Choose one of many clusterings of the same rows without labels: the one most others agree with.

Pure arithmetic on the labels of the trials on a sample of rows. Reads and writes nothing. Memory
beside the labels: 16 bytes per row and trial.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spore_dask.errors import InputError
from spore_dask.kernels.overlaps import expected, overlap

Floats = NDArray[np.float64]

MAX_NOISE = 0.5
"""A trial with a larger share of noise is not chosen."""
EXPONENT = 1.5
"""Above 1, a few trials that agree well count more than many that agree a little."""
DECIMALS = 9
"""Scores are rounded, so that equal trials tie in whatever order they are summed."""
LARGE = 20_000
"""Points beyond which small samples do not always contribute."""
LOW_SCORE, CLEAR_SCORE = 0.2, 0.5
"""They do if the best trial alone scores less than the first; with large clusters, the second."""
LARGE_SHARE = 0.9
SAMPLE_ROWS, SAMPLE_SIZE = 5000, 25
"""It has large clusters if this share of its rows is in clusters of which a sample of as many rows
still has as many."""
ROUNDING = 1e-12
N_LEVELS = 4
LEVEL_SCORE = 0.5
"""A level scores at least this share of the highest score."""
GIANT = 0.5
"""A cluster with a larger share of the rows is a giant."""
GIANT_PART = 0.25
"""A level divides the giant if the second largest part has this share of the largest."""
STABLE, DOUBTFUL_STABLE = 0.95, 0.75
"""A level without a giant is about as stable if it has this share of the highest score; the second
where the giant is doubtful."""
DOUBTFUL_SCORE, DOUBTFUL_CLUSTERS = 0.25, 10
"""A giant is doubtful if the score is below this, and the others amount to as many clusters."""


class Votes(NamedTuple):
    """Clusterings of some of the rows that contribute to the scores but are never chosen."""

    columns: NDArray[np.int64]
    """Which of the rows they cluster."""
    labels: NDArray[np.int32]
    """(n_voters, len(columns)), -1 for noise."""
    weights: Floats
    """(n_voters,): how much each of them counts."""


class Level(NamedTuple):
    """The best of the trials that divide the data about as finely."""

    trial: int
    score: float
    entropy: float
    """Of the cluster sizes, in nats: the higher, the finer."""
    largest: float
    """Share of the compared rows that the largest cluster has."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which trial is best, and how good each is."""

    best: int
    """Number of the chosen trial."""
    scores: Floats
    """(n_trials,) in [0, 1], higher is better; -inf for trials that are degenerate."""
    levels: tuple[Level, ...]
    """Good trials from coarse to fine; the one with the highest score is among them."""

    def at(self, detail: str) -> int:
        """Return the trial for a `detail`: "auto", "coarse" or "fine"."""
        if detail == "auto" or not self.levels:
            return self.best
        return self.levels[0 if detail == "coarse" else -1].trial


class Clustering(NamedTuple):
    """A clustering of n rows, prepared for comparison."""

    numbers: NDArray[np.int64]
    """(n,): clusters 0, 1, ...; -1 is noise."""
    sizes: NDArray[np.int64]
    ordered: NDArray[np.int64]
    """The same, ascending."""
    members: NDArray[np.int64]
    """Rows that are not noise, cluster after cluster."""
    starts: NDArray[np.int64]
    """Where each cluster begins in `members`, and the end."""


def choose(
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    votes: Sequence[Votes] = (),
    usable: ArrayLike | None = None,
    factors: ArrayLike = 1.0,
) -> Choice:
    """Choose the trial whose result the others agree with most.

    The score of a trial is the weighted mean of its `similarity` to all others, to the power of
    1.5. Where the best has a giant cluster of more than half of the rows, a finer level wins that
    is about as stable and divides the giant.

    Parameters
    ----------
    labels : integer array (n_trials, n_rows)
        Labels of the same rows in each trial, -1 for noise. A uniform sample of 20,000 rows is
        enough.
    weights : float array (n_trials,), optional
        How much each trial counts in the scores of the others; 0 for one that does not vote.
        Default: all count the same.
    votes : sequence of Votes
        Further clusterings that contribute to the scores.
    usable : bool array (n_trials,), optional
        Which trials may be chosen. Default: those that are not `degenerate`.
    factors : float array (n_trials,), optional
        What the score of each trial is multiplied by.

    Returns
    -------
    Choice
        Of equal trials, the first. A degenerate trial is chosen only where all are.
    """
    trials = as_labels("labels", labels)
    counts = _weights(weights, len(trials))
    total = np.zeros(len(trials))
    weight = np.zeros(len(trials))
    alike = similarity(trials) ** EXPONENT
    np.fill_diagonal(alike, 0)
    total += alike @ counts
    weight += counts.sum() - counts
    for some in votes:
        total += similarity(trials[:, some.columns], some.labels) ** EXPONENT @ some.weights
        weight += some.weights.sum()
    scores = (total / np.where(weight > 0, weight, 1) * np.asarray(factors)).round(DECIMALS)
    allowed = ~degenerate(trials) if usable is None else np.asarray(usable, np.bool_)
    if allowed.any():
        scores[~allowed] = -np.inf
    found = find_levels(trials, scores)
    best = int(np.argmax(scores))
    return Choice(_without_giant(trials, best, found), scores, found)


def decide(
    labels: NDArray[np.int32],
    weights: Sequence[float],
    usable: NDArray[np.bool_],
    n_points: int,
    ask: Callable[[], Sequence[Votes]],
    factors: ArrayLike = 1.0,
) -> Choice:
    """Choose among trials, with the help of further clusterings where they help.

    Up to 20,000 points they always do. Beyond, they do where the trials hardly agree, and where
    the best trial has large clusters: small clusters vanish from a sample of few rows.

    Parameters
    ----------
    labels, weights, usable, factors
        As in `choose`.
    n_points : int
        Points that the trials clustered.
    ask : function
        Returns the further clusterings.
    """
    if n_points > LARGE:
        choice = choose(labels, weights, usable=usable, factors=factors)
        first = int(np.argmax(choice.scores))
        in_large = _share_in_large(labels[first]) >= LARGE_SHARE
        if choice.scores[first] >= (CLEAR_SCORE if in_large else LOW_SCORE):
            return choice
    return choose(labels, weights, votes=ask(), usable=usable, factors=factors)


def _share_in_large(labels: NDArray[np.integer]) -> float:
    """Return the share of the clustered rows whose cluster a sample of 5,000 rows still shows."""
    sizes = np.unique(labels[labels >= 0], return_counts=True)[1]
    large = sizes * SAMPLE_ROWS / len(labels) >= SAMPLE_SIZE
    return float(sizes[large].sum() / max(sizes.sum(), 1))


def similarity(labels: ArrayLike, others: ArrayLike | None = None) -> Floats:
    """Return how alike each pair of clusterings is, adjusted for chance; noise abstains.

    S is the sum over clusters a and b of |a & b|**2 / max(|a|, |b|), over the number of rows; E is
    what S is expected to be when the rows of one clustering are shuffled. The similarity is
    (S - E) / (1 - E), at least 0: 1 for two equal clusterings without noise. A row that is noise
    in either adds nothing.

    Parameters
    ----------
    labels : integer array (n_trials, n_rows)
    others : integer array (n_others, n_rows), optional
        What to compare with. Default: `labels`.

    Returns
    -------
    float64 array (n_trials, n_others)
    """
    trials = as_labels("labels", labels)
    first = [_prepared(row) for row in trials]
    if others is not None:
        second = [_prepared(row) for row in as_labels("others", others, trials.shape[1])]
        return np.array([[_alike(a, b) for b in second] for a in first])
    pairs = np.eye(len(first))
    for i, a in enumerate(first):
        pairs[i, i] = _alike(a, a)
        for j in range(i):
            pairs[i, j] = pairs[j, i] = _alike(a, first[j])
    return pairs


def degenerate(labels: ArrayLike) -> NDArray[np.bool_]:
    """Return which trials have fewer than two clusters or more than half noise."""
    trials = as_labels("labels", labels)
    noise = (trials < 0).mean(axis=1)
    n_clusters = np.array([len(np.unique(row[row >= 0])) for row in trials])
    useless: NDArray[np.bool_] = (n_clusters < 2) | (noise > MAX_NOISE)
    return useless


def find_levels(labels: NDArray[np.integer], scores: Floats) -> tuple[Level, ...]:
    """Return up to four good trials that divide the rows ever more finely.

    Of the trials that score at least half of the highest score, the entropies of the cluster sizes
    are cut into four ranges of equal width. The best trial of each range is a level.
    """
    top = scores.max()
    good = np.flatnonzero(scores >= LEVEL_SCORE * top) if np.isfinite(top) else np.arange(0)
    if not len(good):
        return ()
    shares = {int(i): _shares(labels[i]) for i in good}
    entropies = np.array([_entropy(share) for share in shares.values()])
    width = (entropies.max() - entropies.min()) / N_LEVELS
    ranges = np.minimum((entropies - entropies.min()) // (width or 1), N_LEVELS - 1)
    found = []
    for number in np.unique(ranges):
        here = np.flatnonzero(ranges == number)
        place = here[np.argmax(scores[good[here]])]
        trial = int(good[place])
        largest = float(shares[trial].max(initial=0))
        found.append(Level(trial, float(scores[trial]), float(entropies[place]), largest))
    return tuple(found)


def _without_giant(labels: NDArray[np.integer], best: int, levels: Sequence[Level]) -> int:
    """Return the trial to take: the best, or a level about as stable that divides its giant.

    `labels` has the rows of all trials. A giant stays whole where the levels without one score
    clearly less, or only trim it: then it is one cluster. Beside many small clusters, and with a
    low score, less is asked of the level.
    """
    found = {level.trial: level for level in levels}
    if best not in found or found[best].largest <= GIANT:
        return best
    top = found[best].score
    others = np.sort(_shares(labels[best]))[:-1]
    is_doubtful = top < DOUBTFUL_SCORE and np.exp(_entropy(others)) >= DOUBTFUL_CLUSTERS
    enough = top * (DOUBTFUL_STABLE if is_doubtful else STABLE)
    finer = [level for level in levels if level.largest <= GIANT and level.score >= enough]
    finer = [level for level in finer if _is_divided(labels[best], labels[level.trial])]
    return max(finer, key=lambda level: level.score).trial if finer else best


def _is_divided(coarse: NDArray[np.integer], fine: NDArray[np.integer]) -> bool:
    """Tell whether `fine` has two large parts of the largest cluster of `coarse`."""
    clusters, sizes = np.unique(coarse[coarse >= 0], return_counts=True)
    inside = fine[coarse == clusters[np.argmax(sizes)]]
    parts = np.sort(np.unique(inside[inside >= 0], return_counts=True)[1])
    return len(parts) > 1 and bool(parts[-2] >= GIANT_PART * parts[-1])


def _shares(labels: NDArray[np.integer]) -> Floats:
    """Return the share of all rows that each cluster has."""
    sizes = np.unique(labels[labels >= 0], return_counts=True)[1]
    shares: Floats = sizes / len(labels)
    return shares


def _entropy(shares: Floats) -> float:
    """Return the entropy of clusters among the rows that have one."""
    part = shares / (shares.sum() or 1)
    return float(-(part * np.log(part)).sum())


def as_labels(name: str, labels: ArrayLike, n_rows: int | None = None) -> NDArray[np.integer]:
    """Return labels as an array (n_trials, n_rows), or raise a sentence about its shape."""
    array = np.asarray(labels)
    fits = array.ndim == 2 and n_rows in (None, array.shape[1])
    if not fits or not array.size or array.dtype.kind not in "iu":
        raise InputError(
            f"{name} has shape {array.shape} and dtype {array.dtype}, but it must be integers of "
            f"shape (n_trials, {n_rows or 'n_rows'}) with at least one of each."
        )
    return array


def _weights(weights: ArrayLike | None, n_trials: int) -> Floats:
    """Return how much each trial counts; all the same where none does."""
    counts = np.ones(n_trials) if weights is None else np.asarray(weights, np.float64)
    if counts.shape != (n_trials,) or not ((counts >= 0) & (counts <= 1)).all():
        raise InputError(
            f"weights is {weights!r}, but it must be {n_trials} numbers in [0, 1]: one per trial."
        )
    return counts if np.count_nonzero(counts) > 1 else np.ones(n_trials)


def _prepared(row: NDArray[np.integer]) -> Clustering:
    """Number the clusters of a trial 0, 1, ... and list their rows."""
    found, numbers, sizes = np.unique(row, return_inverse=True, return_counts=True)
    n_noise = int(sizes[: np.searchsorted(found, 0)].sum())
    sizes = sizes[np.searchsorted(found, 0) :]
    members = np.argsort(numbers, kind="stable")[n_noise:]
    numbers = np.maximum(numbers - (len(found) - len(sizes)), -1)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return Clustering(numbers, sizes, np.sort(sizes), members, starts)


def _alike(first: Clustering, second: Clustering) -> float:
    """Return the similarity of two clusterings."""
    n_rows = len(first.numbers)
    found: float = overlap(first.members, first.starts, second.numbers, second.sizes)
    by_chance: float = expected(first.ordered, second.ordered, n_rows)
    if by_chance >= n_rows * (1 - ROUNDING):
        return 0.0
    return min(max((found - by_chance) / (n_rows - by_chance), 0.0), 1.0)
