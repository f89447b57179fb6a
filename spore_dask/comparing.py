"""What is compared to choose parameters, and what the choice is told as.

Pure, but for `choose_in_memory`, which clusters a graph that is in memory with every trial.
Memory: the labels of the compared rows, four bytes per row and trial.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.choosing import LARGE, MAX_NOISE, SAMPLE_ROWS, Choice, Votes, decide
from spore_dask.clustering import GraphInMemory, grouped
from spore_dask.clusters import NOISE
from spore_dask.reference import (
    N_CLOUDS,
    N_TRIALS,
    N_VOTERS,
    chance_of,
    is_better,
    reference_score,
)
from spore_dask.spaces import Trial, draw, find_space, find_trials
from spore_dask.telling import SURE
from spore_dask.threads import in_threads
from spore_dask.voters import voter_labels

N_COMPARED = 20_000
LEAST_ROWS = 500
"""Rows of each of several samples, at least."""
MOST_NBYTES = 64 << 20
"""Bytes of the coordinates of a sample, at most."""

Facts = dict[str, Any]
"""`n_clusters` and `noise`, the share of all points, of one trial."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The configurations that are compared, and on which rows."""

    names: tuple[str, ...]
    """Parameters that differ between configurations, and those that are fixed."""
    trials: tuple[Trial, ...]
    rows: NDArray[np.int64]
    """Input rows on which results are compared, ascending."""
    samples: tuple[NDArray[np.int64], ...]
    """Which of these rows each sample has that further configurations cluster."""
    voters: tuple[tuple[Trial, ...], ...]
    """These configurations, for each sample."""
    fixed: dict[str, Any]
    """Parameters that are the same in all."""
    seed: int

    @property
    def weights(self) -> list[float]:
        """How much each trial counts."""
        return [trial.weight for trial in self.trials]

    @property
    def factors(self) -> list[float]:
        """What the score of each trial is multiplied by."""
        return [trial.factor for trial in self.trials]

    def votes(self, labels: Sequence[NDArray[np.int32]]) -> list[Votes]:
        """Return what the samples contribute, given the labels of each by its configurations."""
        return [
            Votes(columns, found, np.array([trial.weight for trial in voters]))
            for columns, voters, found in zip(self.samples, self.voters, labels, strict=True)
        ]


def compare(
    shape: tuple[int, int],
    fixed: Mapping[str, Any],
    seed: int,
    *,
    space: Mapping[str, Any] | None = None,
    n_trials: int = N_TRIALS,
    n_compared: int = N_COMPARED,
) -> Comparison:
    """Return what to compare for data of a shape, with some parameters fixed.

    Up to 20,000 points further configurations cluster one sample. Beyond, the rows that are
    compared are shared out among four samples.
    """
    n_points, n_columns = shape
    rows = np.arange(n_points)
    if n_points > n_compared:
        rows = np.sort(np.array(random.Random(seed).sample(range(n_points), n_compared)))
    most = max(2, min(SAMPLE_ROWS, MOST_NBYTES // (8 * n_columns)))
    n_samples = 4 if n_points > LARGE and len(rows) >= 4 * LEAST_ROWS else 1
    step = max(n_samples, -(-len(rows) // most))
    samples = tuple(np.arange(first, len(rows), step) for first in range(n_samples))
    return Comparison(
        names=tuple(sorted({*find_space(space, n_points, fixed), *fixed})),
        trials=tuple(find_trials(space, n_points, n_trials, seed, fixed)),
        rows=rows,
        samples=samples,
        voters=tuple(
            tuple(draw(space, len(columns), N_VOTERS, seed + 1 + i, fixed))
            for i, columns in enumerate(samples)
        ),
        fixed=dict(fixed),
        seed=seed,
    )


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A finished choice."""

    best: int
    """Number of the trial that is taken."""
    choice: Choice
    facts: Sequence[Facts]
    """Of each trial."""
    detail: str
    chance: tuple[float, float] | None = None
    """The highest score on a sample, and on data without clusters; None where that is not asked."""
    excerpt: tuple[str, int] | None = None
    """The excerpt that the trials clustered, and its points; None where it was all of the data."""

    @property
    def is_unsure(self) -> bool:
        """Whether the score is as low as it may be on data without clusters."""
        return bool(self.choice.scores.max() < SURE)

    @property
    def warnings(self) -> list[str]:
        """What a user should know about it."""
        if self.is_degenerate:
            return [
                f"None of the {len(self.facts)} configurations gives two clusters and at most half "
                "noise. The one with the least noise was kept: check the scales of the columns, or "
                "give another space to tune."
            ]
        if self.chance is not None and not is_better(*self.chance):
            return [
                "The clusters may be due to chance: configurations agree on them "
                f"({self.chance[0]:.2f}) hardly more than on data without clusters "
                f"({self.chance[1]:.2f})."
            ]
        return []

    def beside(self, scores: Sequence[float]) -> Chosen:
        """Return the same with the scores of a sample, and of data without clusters."""
        return dataclasses.replace(self, chance=(scores[0], chance_of(scores[1:])))

    @property
    def is_degenerate(self) -> bool:
        """Whether no trial has two clusters and at most half noise."""
        return not usable(self.facts).any()

    def document(self, compared: Comparison) -> dict[str, Any]:
        """Return what a result tells about the choice, in plain values."""
        scores = self.choice.scores

        def told(trial: int) -> dict[str, Any]:
            params = compared.trials[trial].params
            score = float(scores[trial])
            return {
                "trial": trial,
                "params": {name: getattr(params, name) for name in compared.names},
                "score": score if np.isfinite(score) else None,
                "n_clusters": int(self.facts[trial]["n_clusters"]),
                "noise": float(self.facts[trial]["noise"]),
            }

        return {
            **told(self.best),
            "n_trials": len(compared.trials),
            "excerpt": self.excerpt and list(self.excerpt),
            "chance": self.chance and list(self.chance),
            "detail": self.detail,
            "levels": [
                told(level.trial) | {"entropy": level.entropy, "largest": level.largest}
                for level in self.choice.levels
            ],
        }


def usable(facts: Sequence[Facts]) -> NDArray[np.bool_]:
    """Return which trials may be chosen."""
    return np.array([one["n_clusters"] >= 2 and one["noise"] <= MAX_NOISE for one in facts])


def chosen_of(choice: Choice, facts: Sequence[Facts], detail: str) -> Chosen:
    """Return the trial to take for a detail; the one with the least noise if all are degenerate."""
    best = choice.at(detail)
    if not usable(facts).any():
        best = int(np.argmin([one["noise"] for one in facts]))
    return Chosen(best, choice, facts, detail)


def choose_in_memory(graph: GraphInMemory, compared: Comparison, detail: str) -> Chosen:
    """Choose parameters for points that are in memory; rows of the graph are input rows.

    Where the choice is unsure, it is compared with that for data without clusters.
    """
    chosen, _ = compare_in_memory(graph, compared, detail)
    chosen.facts[0]["n_pieces"] = graph.n_pieces(
        compared.trials[0].params.resolve(len(graph.points)).expansion_neighbors
    )
    sample = np.ascontiguousarray(graph.points[compared.rows[compared.samples[0]]])
    return beside_chance(chosen, sample, compared.seed, compared.fixed)


def beside_chance(
    chosen: Chosen, sample: NDArray[np.floating], seed: int, fixed: Mapping[str, Any]
) -> Chosen:
    """Compare a choice that is unsure with that for data without clusters, given a sample."""
    if not chosen.is_unsure or chosen.is_degenerate:
        return chosen
    refer = functools.partial(reference_score, sample, seed=seed, fixed=fixed)
    return chosen.beside(in_threads(refer, range(1 + 2 * N_CLOUDS)))


def compare_in_memory(
    graph: GraphInMemory, compared: Comparison, detail: str = "auto"
) -> tuple[Chosen, NDArray[np.int32]]:
    """Cluster with every configuration, and choose the best.

    Returns the choice, and the labels of the compared rows in each trial.
    """
    points, n_points = graph.points, len(graph.points)
    resolved = [trial.params.resolve(n_points) for trial in compared.trials]
    labels = np.empty((len(resolved), len(compared.rows)), np.int32)
    facts: list[Facts] = [{} for _ in resolved]

    def run(group: list[int]) -> None:
        own = graph.share()
        for number in group:
            started = time.perf_counter()
            found = own.cluster(resolved[number])
            labels[number] = found.labels[compared.rows]
            facts[number] = {
                "n_clusters": len(found.clusters),
                "noise": float((found.labels == NOISE).mean()),
                "seconds": time.perf_counter() - started,
            }

    def ask() -> list[Votes]:
        samples = [np.ascontiguousarray(points[compared.rows[some]]) for some in compared.samples]
        asked = [[trial.params for trial in voters] for voters in compared.voters]
        return compared.votes([voter_labels(*each) for each in zip(samples, asked, strict=True)])

    in_threads(run, grouped(resolved))
    choice = decide(labels, compared.weights, usable(facts), n_points, ask, compared.factors)
    return chosen_of(choice, facts, detail), labels


def longest_rows(trials: Sequence[Trial], n_points: int) -> int:
    """Return the neighbours that the trial that needs most of them needs."""
    return max(trial.params.resolve(n_points).k for trial in trials)
