"""What a whole run should show, and what it does show."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pipelines.benchmark import paper
from pipelines.benchmark.statistics import (
    Evaluation,
    Ties,
    best_ari,
    beyond,
    compare,
    default_ari,
    mean,
    scores,
    span_of,
)

REACH = 0.005
"""How near best ARIs should come to those of the author's package."""
ROUNDING = 0.0005
"""Of these, which have three digits."""
ABLATION_REACH = 0.02
AHEAD, BELOW = ("SPORE-ANN", paper.SPORE), ("SPORE-RandSeed", "SPORE-MSR-0")
"""By mean ARI in the paper, where the first two are equal."""


@dataclasses.dataclass(frozen=True)
class Aim:
    """One thing that a run should show."""

    text: str
    found: str
    met: bool


def aims(evaluation: Evaluation) -> list[Aim]:
    """Return the aims that a run can be held to: those about methods whose searches are whole."""
    scaling = paper.SCALINGS[0]
    own = scores(evaluation, scaling)
    whole = {method for method in paper.METHODS if is_whole(evaluation, method)}
    found: list[Aim] = []
    if paper.SPORE in whole:
        found += _of_spore(evaluation, scaling)
    if {paper.SPORE, "SPORE-ANN"} <= whole:
        found += _of_approximation(own)
    found += [_of_ablation(own, method) for method in BELOW if method in whole]
    if {*AHEAD, *BELOW} <= whole:
        found.append(_of_order(own))
    if {paper.SPORE, *paper.BASELINES} <= whole:
        found.append(_of_tests(evaluation, scaling))
    return found


def is_whole(evaluation: Evaluation, method: str) -> bool:
    """Tell whether a method was searched on all datasets, with the draws of the paper."""
    searches = evaluation.of(paper.SCALINGS[0], method)
    n_trials = 1 if method in paper.ONE_CONFIGURATION else paper.N_TRIALS
    return all(
        name in searches
        and searches[name].n_wanted == n_trials
        and searches[name].seed == paper.SEED
        for name in paper.DATASETS
    )


def _of_spore(evaluation: Evaluation, scaling: str) -> Iterator[Aim]:
    searches = evaluation.of(scaling, paper.SPORE)
    far = {
        name: best_ari(searches[name]) - reference
        for name, reference in paper.REFERENCE_ARI.items()
        if beyond(abs(best_ari(searches[name]) - reference), REACH)
    }
    n_near = len(paper.REFERENCE_ARI) - len(far)
    listed = ", ".join(f"{name} {difference:+.3f}" for name, difference in far.items())
    tied = [name for name in far if name in evaluation.ties and _within(evaluation.ties, name)]
    if tied:
        listed += f"; the order of what ties explains {', '.join(tied)}"
    yield Aim(
        f"SPORE within {REACH} of the author's package on each of {len(paper.REFERENCE_ARI)}",
        f"{n_near}" + (f"; not {listed}" if far else ""),
        not far,
    )
    best = mean(best_ari(searches[name]) for name in paper.DATASETS)
    yield Aim("SPORE's mean at least 0.855", f"{best:.4f}", best >= 0.855)
    default = mean(default_ari(searches[name]) for name in paper.DATASETS)
    printed = paper.ANYTIME[scaling][paper.SPORE].default
    yield Aim(
        f"its default within {REACH} of {printed}",
        f"{default:.4f}",
        not beyond(abs(default - printed), REACH),
    )


def _within(ties: Ties, name: str) -> bool:
    """Tell whether the author's figure, of three digits, is among what orders of a dataset give."""
    least, most = span_of(ties[name])
    reference = paper.REFERENCE_ARI[name]
    return not beyond(least - reference, ROUNDING) and not beyond(reference - most, ROUNDING)


def _of_approximation(own: dict[str, dict[str, float]]) -> list[Aim]:
    approximate, exact = own["SPORE-ANN"], own["SPORE"]
    average = mean(approximate[name] for name in paper.DATASETS)
    under = {name: exact[name] - approximate[name] for name in paper.DATASETS}
    worst = max(under, key=lambda name: under[name])
    return [
        Aim("SPORE-ANN's mean at least 0.85", f"{average:.4f}", average >= 0.85),
        Aim(
            "SPORE-ANN nowhere more than 0.02 under SPORE",
            f"at most {under[worst]:.3f}, on {worst}",
            not beyond(under[worst], 0.02),
        ),
    ]


def _of_ablation(own: dict[str, dict[str, float]], method: str) -> Aim:
    average = mean(own[method][name] for name in paper.DATASETS)
    printed = mean(paper.ARI[name][method] for name in paper.DATASETS)
    return Aim(
        f"{method}'s mean within {ABLATION_REACH} of {printed:.2f}",
        f"{average:.4f}",
        not beyond(abs(average - printed), ABLATION_REACH),
    )


def _of_order(own: dict[str, dict[str, float]]) -> Aim:
    means = {
        method: mean(own[method][name] for name in paper.DATASETS) for method in (*AHEAD, *BELOW)
    }
    middle, last = (means[method] for method in BELOW)
    return Aim(
        f"means of {' and '.join(AHEAD)} above {', above '.join(BELOW)}",
        ", ".join(f"{value:.3f}" for value in means.values()),
        min(means[method] for method in AHEAD) > middle > last,
    )


def _of_tests(evaluation: Evaluation, scaling: str) -> Aim:
    tests = compare(evaluation, scaling, paper.SPORE, paper.BASELINES)
    worst = max(tests, key=lambda name: tests[name].test.corrected)
    p = tests[worst].test.corrected
    return Aim(
        "SPORE ahead of every baseline, corrected p < 0.01",
        f"at most {p:.1e}, against {worst}",
        p < 0.01,
    )
