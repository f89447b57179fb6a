"""What the searches of a run say: best scores, anytime curves, tests, and who is on the front.

Reads the files of a run through `Evaluation.read`; everything else is arithmetic on it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import wilcoxon

from pipelines.benchmark import paper
from pipelines.benchmark.records import DONE, Search, Trial, read_searches
from spore_dask import InputError

Floats = NDArray[np.float64]
Ties = dict[str, dict[str, Any]]
"""By dataset: SPORE's best ARI as "given", and in other "orders" of rows and columns."""
DRAW = 0.005
"""ARIs that differ by no more count as equal."""
ROUNDING = 1e-9
"""Of differences of ARIs, which are no more exact."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """All searches of a run, and what it says of its machine and of ties."""

    searches: dict[tuple[str, str, str], Search]
    """By scaling, dataset and method."""
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)
    ties: Ties = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, out: Path) -> Evaluation:
        """Read the files of a run.

        Raises
        ------
        InputError
            If there is no search in the folder.
        """
        searches = {(one.scaling, one.dataset, one.method): one for one in read_searches(out)}
        if not searches:
            raise InputError(f"{out} has no files searches/*/*/*.json: run the benchmark first.")
        machine, ties = out / "machine.json", out / "ties.json"
        return cls(
            searches,
            json.loads(machine.read_text()) if machine.exists() else {},
            json.loads(ties.read_text()) if ties.exists() else {},
        )

    def scalings(self) -> list[str]:
        """Return the scalings that were run, the paper's main one first."""
        return ordered((scaling for scaling, _, _ in self.searches), paper.SCALINGS)

    def datasets(self, scaling: str) -> list[str]:
        """Return the datasets of a scaling, in the paper's order."""
        found = (dataset for one, dataset, _ in self.searches if one == scaling)
        return ordered(found, paper.DATASETS)

    def methods(self, scaling: str) -> list[str]:
        """Return the methods of a scaling, SPORE first."""
        found = (method for one, _, method in self.searches if one == scaling)
        return ordered(found, paper.METHODS)

    def of(self, scaling: str, method: str) -> dict[str, Search]:
        """Return the searches of a method by dataset, in the paper's order."""
        return {
            dataset: self.searches[scaling, dataset, method]
            for dataset in self.datasets(scaling)
            if (scaling, dataset, method) in self.searches
        }

    def common(self, scaling: str, methods: Iterable[str]) -> list[str]:
        """Return the datasets on which all of these methods were searched."""
        methods = list(methods)
        return [
            dataset
            for dataset in self.datasets(scaling)
            if all((scaling, dataset, method) in self.searches for method in methods)
        ]


def beyond(difference: float, reach: float = DRAW) -> bool:
    """Tell whether a difference of ARIs is above a reach."""
    return difference > reach + ROUNDING


def span_of(tied: Mapping[str, Any]) -> tuple[float, float]:
    """Return the lowest and the highest of SPORE's best ARIs over all orders of a dataset."""
    every = [tied["given"], *tied["orders"]]
    return min(every), max(every)


def ordered(found: Iterable[str], order: Sequence[str]) -> list[str]:
    """Return each name once: those of the given order first, the others by name."""
    names = set(found)
    return [name for name in order if name in names] + sorted(names - set(order))


def best_trial(search: Search) -> Trial | None:
    """Return the trial with the highest ARI, None if none was done."""
    return next((trial for trial in search.trials if trial.number == search.best), None)


def best_ari(search: Search) -> float:
    """Return the highest ARI, 0 if no trial was done."""
    trial = best_trial(search)
    return trial.ari if trial and trial.ari is not None else 0.0


def best_nmi(search: Search) -> float:
    """Return the NMI of the trial with the highest ARI, 0 if no trial was done."""
    trial = best_trial(search)
    return trial.nmi if trial and trial.nmi is not None else 0.0


def default_ari(search: Search) -> float:
    """Return the ARI of the default configuration, 0 if it was not done."""
    return next((one.ari for one in search.trials if one.number == 0 and one.ari is not None), 0.0)


def rerun_seconds(search: Search) -> float | None:
    """Return the mean time of the best configuration from scratch, None if it was not re-run."""
    seconds = [one.seconds for one in search.reruns if one.outcome == DONE]
    found = [one for one in seconds if one is not None]
    return mean(found) if found else None


def counted_seconds(search: Search) -> float:
    """Return the mean time from scratch, or the limit of a configuration as its lower bound."""
    seconds = rerun_seconds(search)
    return search.limit_seconds if seconds is None else seconds


def rerun_ari(search: Search) -> tuple[float, float] | None:
    """Return mean and deviation of the re-runs' ARI, None if there are none."""
    scores = [one.ari for one in search.reruns if one.outcome == DONE and one.ari is not None]
    return (mean(scores), float(np.std(scores))) if scores else None


def mean(values: Iterable[float]) -> float:
    """Return the mean, not a number if there are no values."""
    found = list(values)
    return math.fsum(found) / len(found) if found else math.nan


def best_so_far(search: Search, n_trials: int) -> Floats:
    """Return the best ARI after 1, 2, ... trials; 0 until one is done, the last repeated."""
    scores = {one.number: one.ari for one in search.trials if one.outcome == DONE}
    values, best = [], None
    for number in range(n_trials):
        score = scores.get(number)
        if score is not None:
            best = score if best is None else max(best, score)
        values.append(0.0 if best is None else best)
    return np.array(values)


def n_trials_of(evaluation: Evaluation, scaling: str) -> int:
    """Return how many configurations the longest search of a scaling wanted."""
    return max(one.n_wanted for (name, _, _), one in evaluation.searches.items() if name == scaling)


def paper_anytime(
    evaluation: Evaluation, scaling: str, datasets: Sequence[str]
) -> dict[str, paper.Anytime]:
    """Return the paper's figures, which go only with as many trials on all of its datasets."""
    alike = set(datasets) == set(paper.DATASETS)
    if not alike or n_trials_of(evaluation, scaling) != paper.N_TRIALS:
        return {}
    return paper.ANYTIME.get(scaling, {})


def anytime_curve(searches: Iterable[Search], n_trials: int) -> Floats:
    """Return the mean over datasets of the best ARI after 1, 2, ... trials."""
    return np.array([best_so_far(search, n_trials) for search in searches]).mean(axis=0)


def anytime(curve: Floats) -> paper.Anytime:
    """Return the trials that it takes to reach each threshold, the last value and the first."""
    needed = {}
    for threshold in paper.THRESHOLDS:
        reached = np.flatnonzero(curve >= threshold - ROUNDING)
        needed[threshold] = int(reached[0]) + 1 if len(reached) else None
    return paper.Anytime(needed, float(curve[-1]), float(curve[0]))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Correct p-values for their number: the smallest times n, the next times n - 1, ..."""
    corrected, highest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        highest = max(highest, min(1.0, p_values[name] * (len(p_values) - rank)))
        corrected[name] = highest
    return corrected


def signed_ranks(differences: Floats) -> tuple[float, float]:
    """Return statistic and p-value of the test that differences are above 0, zeros left out.

    This is the paper's choice: one-sided, and the sum of the ranks of positive differences.
    """
    if not np.any(differences):
        return 0.0, 1.0
    result = wilcoxon(differences, alternative="greater", zero_method="wilcox")
    return float(result.statistic), float(result.pvalue)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A method against another, on the datasets that both have."""

    test: paper.SignedRanks
    mean: float
    """Of the differences."""
    n_ahead: int
    n_behind: int
    """Datasets on which the difference is above, or below, 0.005."""


def compare(
    evaluation: Evaluation, scaling: str, method: str, others: Iterable[str]
) -> dict[str, Comparison]:
    """Test a method against others by their best ARIs; those without common datasets left out."""
    return compare_scores(scores(evaluation, scaling), method, others)


def scores(evaluation: Evaluation, scaling: str) -> dict[str, dict[str, float]]:
    """Return the best ARI by method and dataset."""
    return {
        method: {name: best_ari(one) for name, one in evaluation.of(scaling, method).items()}
        for method in evaluation.methods(scaling)
    }


def compare_scores(
    scores: Mapping[str, Mapping[str, float]], method: str, others: Iterable[str]
) -> dict[str, Comparison]:
    """Test a method against others, given scores by method and dataset."""
    differences = {}
    for other in others:
        own, theirs = scores.get(method, {}), scores.get(other, {})
        pairs = [own[name] - theirs[name] for name in own if name in theirs]
        if pairs:
            # Equal figures must not differ by an error of rounding: zeros are left out.
            differences[other] = np.round(pairs, 9)
    found = {other: signed_ranks(pairs) for other, pairs in differences.items()}
    corrected = holm({other: p for other, (_, p) in found.items()})
    return {
        other: Comparison(
            paper.SignedRanks(len(pairs), float(np.median(pairs)), *found[other], corrected[other]),
            float(pairs.mean()),
            sum(beyond(one) for one in pairs),
            sum(beyond(-one) for one in pairs),
        )
        for other, pairs in differences.items()
    }


@dataclasses.dataclass(frozen=True)
class Point:
    """How good and how fast a method is on average."""

    ari: float
    seconds: float
    n_unfinished: int = 0
    """Datasets without a time, which count with the limit."""


def points(evaluation: Evaluation, scaling: str, methods: Iterable[str]) -> dict[str, Point]:
    """Return mean best ARI and mean time from scratch, on the datasets that all methods have."""
    methods = list(methods)
    common = evaluation.common(scaling, methods)
    found = {}
    for method in methods if common else ():
        searches = [evaluation.searches[scaling, name, method] for name in common]
        found[method] = Point(
            mean(best_ari(one) for one in searches),
            mean(counted_seconds(one) for one in searches),
            sum(rerun_seconds(one) is None for one in searches),
        )
    return found


def paper_points(scaling: str, methods: Iterable[str], datasets: Sequence[str]) -> dict[str, Point]:
    """Return the paper's means on these datasets; of some methods it has times for all 28 only."""
    found = {}
    known = [name for name in datasets if name in paper.DATASETS and paper.is_main(scaling)]
    for method in methods:
        ari = mean(paper.ARI[name][method] for name in known) if known else math.nan
        if known and all(method in paper.SECONDS[name] for name in known):
            seconds = mean(paper.SECONDS[name][method] for name in known)
        elif len(known) == len(paper.DATASETS) and method in paper.MEAN_SECONDS:
            seconds = paper.MEAN_SECONDS[method]
        else:
            continue
        found[method] = Point(ari, seconds)
    return found


def pareto(points: Mapping[str, Point]) -> list[str]:
    """Return the methods that no other beats in ARI or time without being worse in the other."""

    def dominated(point: Point) -> bool:
        return any(
            other.ari >= point.ari
            and other.seconds <= point.seconds
            and (other.ari, other.seconds) != (point.ari, point.seconds)
            for other in points.values()
        )

    return [name for name, point in points.items() if not dominated(point)]
