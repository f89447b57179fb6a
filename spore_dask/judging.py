"""Which of the trials of a tune to keep, and how the choice went.

Pure arithmetic on the labels of a sample of rows. Memory: that of `choosing`.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spore_dask.choosing import MAX_NOISE, Choice, agreement, choose

CURVE_ROWS = 1000
"""Rows on which earlier choices are repeated."""


class Votes(NamedTuple):
    """Results that vote, but cannot be chosen."""

    columns: NDArray[np.int64]
    """Which of the rows that are compared they have labels for."""
    labels: NDArray[np.int32]
    retention: NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What is thought of each trial."""

    best: int
    degenerate: bool
    """Whether no trial has two clusters and at most half noise, and no labels tell the best."""
    agreement: list[float | None]
    """The score of each trial without labels; None where it has none."""
    ari: list[float | None]
    """The adjusted Rand index against the labels; None without them."""
    curve: list[dict[str, Any]]
    """What would have been chosen after each trial."""


def judge(
    labels: NDArray[np.int32],
    retention: NDArray[np.float64],
    facts: list[dict[str, Any]],
    truth: NDArray[np.int64] | None,
    votes: Votes | None = None,
) -> Judgement:
    """Choose one of the trials.

    Parameters
    ----------
    labels : (n_trials, n_rows)
        What each trial gave the rows that are compared.
    retention : (n_trials,)
        Retention rate of each trial.
    facts : list of dict
        `n_clusters`, `noise` (share of all rows) and `seconds` of each trial.
    truth : (n_rows,), optional
        The true labels of these rows.
    votes : Votes, optional
        Those of further results.
    """
    usable = np.array([_is_usable(fact) for fact in facts])
    choice = _choose(labels, retention, usable, votes)
    found = [_plain(score) for score in choice.scores]
    path: list[tuple[int, float | None]]
    if truth is not None:
        aris = [float(agreement(np.stack([truth, row]))[0, 1]) for row in labels]
        best, path = int(np.argmax(aris)), _path_of_best(aris)
    else:
        aris = []
        best = choice.best if usable.any() else int(np.argmin([fact["noise"] for fact in facts]))
        path = [*_path_of_choices(labels, retention, usable, votes), (best, found[best])]
    seconds = itertools.accumulate(float(fact["seconds"]) for fact in facts)
    curve = [
        {"n_trials": number + 1, "best": chosen, "score": score, "seconds": spent}
        for number, ((chosen, score), spent) in enumerate(zip(path, seconds, strict=True))
    ]
    degenerate = truth is None and not usable.any()
    return Judgement(best, degenerate, found, [*aris] or [None] * len(facts), curve)


def _is_usable(fact: dict[str, Any]) -> bool:
    return bool(fact["n_clusters"] >= 2 and fact["noise"] <= MAX_NOISE)


def _plain(score: float) -> float | None:
    return float(score) if np.isfinite(score) else None


def _path_of_best(scores: list[float]) -> list[tuple[int, float | None]]:
    """Return after each trial the one with the highest score so far, and its score."""
    path: list[tuple[int, float | None]] = []
    best = 0
    for number, score in enumerate(scores):
        best = number if score > scores[best] else best
        path.append((best, scores[best]))
    return path


def _choose(
    labels: NDArray[np.int32],
    retention: NDArray[np.float64],
    usable: NDArray[np.bool_],
    votes: Votes | None,
) -> Choice:
    """Choose without labels, on the rows that all votes are about."""
    if votes is None:
        return choose(labels, retention, usable=usable)
    return choose(
        labels[:, votes.columns],
        retention,
        voters=votes.labels,
        voter_retention=votes.retention,
        usable=usable,
    )


def _path_of_choices(
    labels: NDArray[np.int32],
    retention: NDArray[np.float64],
    usable: NDArray[np.bool_],
    votes: Votes | None,
) -> list[tuple[int, float | None]]:
    """Return what is chosen without labels after each trial but the last, and its score."""
    n_rows = labels.shape[1] if votes is None else len(votes.columns)
    some = slice(None, None, -(-n_rows // CURVE_ROWS))
    if votes is None:
        labels = labels[:, some]
    else:
        votes = votes._replace(columns=votes.columns[some], labels=votes.labels[:, some])
    choices = [_choose(labels[:n], retention[:n], usable[:n], votes) for n in range(1, len(labels))]
    return [(choice.best, _plain(choice.scores[choice.best])) for choice in choices]
