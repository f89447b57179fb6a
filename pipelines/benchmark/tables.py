"""Markdown tables of a run, each figure with the paper's beside it in brackets."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from pipelines.benchmark import paper
from pipelines.benchmark.records import DONE, FAILED, OVER_MEMORY, OVER_TIME, Search
from pipelines.benchmark.statistics import (
    Comparison,
    Evaluation,
    Ties,
    anytime,
    anytime_curve,
    best_ari,
    best_nmi,
    compare,
    counted_seconds,
    mean,
    n_trials_of,
    paper_anytime,
    rerun_seconds,
    span_of,
)

MISSING = "-"
UNFINISHED = "†"
INFINITE = "∞"
UNMOVED = 0.0005
"""Differences of ARI that three digits do not show."""


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, its first column to the left, all others to the right."""
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ruler, *rows))


def counted(number: int, noun: str) -> str:
    """Write a number and a noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def two_digits(value: float) -> str:
    """Write a score as the paper does, without a minus before a zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def three_digits(value: float) -> str:
    """Write a score, without a minus before a zero."""
    return f"{round(value, 3) + 0.0:.3f}"


def signed(value: float) -> str:
    """Write a difference of scores."""
    return f"{round(value, 3) + 0.0:+.3f}"


def seconds_text(value: float) -> str:
    """Write a time with about three digits."""
    if value >= 100:
        return f"{value:.0f}"
    if value >= 1:
        return f"{value:.3g}"
    return f"{value:.3f}"


def probability(value: float) -> str:
    """Write a p-value with two digits."""
    return f"{value:.3f}" if value >= 0.01 else f"{value:.1e}"


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a table by dataset and method gets its figures, writes them, and marks the best."""

    figure: Callable[[Search], float]
    printed: paper.Table
    text: Callable[[float], str]
    best: Callable[[Iterable[float]], float] = max
    unfinished: Callable[[Search], bool] = lambda search: search.best is None
    """Whether the figure stands for something that was not done."""

    def row(self, searches: Mapping[str, Search], printed: Mapping[str, float]) -> dict[str, str]:
        """Return the cells of a dataset by method."""
        own = {method: self.figure(search) for method, search in searches.items()}
        cells = self.marked(own, printed)
        for method, search in searches.items():
            if self.unfinished(search):
                cells[method] = f"{UNFINISHED} {cells[method]}"
        return cells

    def marked(self, own: Mapping[str, float], printed: Mapping[str, float]) -> dict[str, str]:
        """Write the figures, the best bold, with the paper's in brackets."""
        texts = {method: self.text(value) for method, value in own.items()}
        best = self.text(self.best(own.values())) if own else ""
        cells = {}
        for method, text in texts.items():
            cells[method] = f"**{text}**" if text == best else text
            if method in printed:
                cells[method] += f" ({self.text(printed[method])})"
        return cells

    def table(self, evaluation: Evaluation, scaling: str, methods: Sequence[str]) -> str:
        """Return the table, with means over the datasets that all methods have."""
        rows = []
        known = self.known(scaling)
        for dataset in evaluation.datasets(scaling):
            searches = {
                method: evaluation.searches[scaling, dataset, method]
                for method in methods
                if (scaling, dataset, method) in evaluation.searches
            }
            cells = self.row(searches, known.get(dataset, {}))
            rows.append([dataset, *(cells.get(method, MISSING) for method in methods)])
        rows.append(self.means(evaluation, scaling, methods))
        return markdown(["", *methods], rows)

    def known(self, scaling: str) -> paper.Table:
        """Return the paper's figures, which are of one scaling only."""
        return self.printed if paper.is_main(scaling) else {}

    def means(self, evaluation: Evaluation, scaling: str, methods: Sequence[str]) -> list[str]:
        """Return the last row."""
        common, known = evaluation.common(scaling, methods), self.known(scaling)
        own = {
            method: mean(self.figure(evaluation.searches[scaling, name, method]) for name in common)
            for method in methods
            if common
        }
        printed = {
            method: mean(known[name][method] for name in common)
            for method in methods
            if common and all(method in known.get(name, {}) for name in common)
        }
        cells = self.marked(own, printed)
        return [f"mean of {len(common)}", *(cells.get(method, MISSING) for method in methods)]


ARI = Layout(best_ari, paper.ARI, two_digits)
NMI = Layout(best_nmi, paper.NMI, two_digits)
SECONDS = Layout(
    counted_seconds,
    paper.SECONDS,
    seconds_text,
    min,
    lambda search: rerun_seconds(search) is None,
)


def reference_table(evaluation: Evaluation, scaling: str) -> str:
    """Return SPORE's best ARI beside that of the author's package and of the paper."""
    rows = []
    for dataset, search in evaluation.of(scaling, paper.SPORE).items():
        own, reference = best_ari(search), paper.REFERENCE_ARI.get(dataset)
        printed = paper.ARI.get(dataset, {}).get(paper.SPORE)
        rows.append(
            [
                dataset,
                three_digits(own),
                MISSING if reference is None else three_digits(reference),
                MISSING if reference is None else signed(own - reference),
                MISSING if printed is None else two_digits(printed),
            ]
        )
    return markdown(["", "here", "author's package", "difference", "paper"], rows)


def anytime_table(evaluation: Evaluation, scaling: str) -> str:
    """Return the trials that a mean best ARI takes; with the paper's where these go with it."""
    methods = evaluation.methods(scaling)
    common = evaluation.common(scaling, methods)
    known = paper_anytime(evaluation, scaling, common)
    n_trials = n_trials_of(evaluation, scaling)
    rows = []
    for method in methods if common else ():
        curve = anytime_curve(
            (evaluation.searches[scaling, name, method] for name in common), n_trials
        )
        rows.append([method, *anytime_cells(anytime(curve), known.get(method))])
    thresholds = [f"{threshold:.2f}" for threshold in paper.THRESHOLDS]
    return markdown(["", *thresholds, "max", "default"], rows)


def anytime_cells(own: paper.Anytime, printed: paper.Anytime | None) -> list[str]:
    """Write the figures of a method."""

    def count(value: int | None) -> str:
        return INFINITE if value is None else str(value)

    def beside(text: str, other: str) -> str:
        return f"{text} ({other})" if printed else text

    cells = [
        beside(count(own.needed[threshold]), count(printed.needed[threshold]) if printed else "")
        for threshold in paper.THRESHOLDS
    ]
    cells.append(beside(three_digits(own.maximum), three_digits(printed.maximum if printed else 0)))
    cells.append(beside(three_digits(own.default), three_digits(printed.default if printed else 0)))
    return cells


def wilcoxon_table(evaluation: Evaluation, scaling: str, method: str, others: Sequence[str]) -> str:
    """Return the tests of a method against others, and the paper's corrected p-values."""
    compared = compare(evaluation, scaling, method, others)
    printed = paper.WILCOXON.get(method, {}) if paper.is_main(scaling) else {}
    rows = [[other, *wilcoxon_cells(one, printed.get(other))] for other, one in compared.items()]
    head = [
        f"{method} against",
        "pairs",
        "ahead, behind",
        "mean difference",
        "median difference",
        "statistic",
        "p",
        "p corrected",
    ]
    return markdown(head, rows)


def wilcoxon_cells(one: Comparison, printed: paper.SignedRanks | None) -> list[str]:
    """Write the figures of a test."""
    test = one.test

    def beside(text: str, other: str) -> str:
        return f"{text} ({other})" if printed else text

    return [
        beside(str(test.n_pairs), str(printed.n_pairs if printed else "")),
        f"{one.n_ahead}, {one.n_behind}",
        signed(one.mean),
        beside(signed(test.median), signed(printed.median) if printed else ""),
        beside(f"{test.statistic:g}", f"{printed.statistic:g}" if printed else ""),
        beside(probability(test.p), probability(printed.p) if printed else ""),
        beside(probability(test.corrected), probability(printed.corrected) if printed else ""),
    ]


def completeness_table(evaluation: Evaluation) -> str:
    """Return how many trials of each method were done, and what became of the others."""
    rows = []
    for scaling in evaluation.scalings():
        for method in evaluation.methods(scaling):
            searches = evaluation.of(scaling, method).values()
            outcomes = Counter(trial.outcome for one in searches for trial in one.trials)
            n_wanted = sum(one.n_wanted for one in searches)
            counts = [outcomes[outcome] for outcome in (DONE, OVER_TIME, OVER_MEMORY, FAILED)]
            n_empty = sum(one.best is None for one in searches)
            untimed = sum(rerun_seconds(one) is None for one in searches)
            figures = [
                len(searches),
                n_wanted,
                *counts,
                n_wanted - outcomes.total(),
                n_empty,
                untimed,
            ]
            rows.append([f"{scaling}, {method}", *map(str, figures)])
    head = [
        "",
        "datasets",
        "trials wanted",
        "done",
        "over time",
        "over memory",
        "failed",
        "not tried",
        "nothing done",
        "not timed",
    ]
    return markdown(head, rows)


def ties_table(ties: Ties) -> str:
    """Return how far the order of what ties moves SPORE's best ARI, most first.

    Datasets on which it moves nothing are left out.
    """
    spread = {name: span_of(one) for name, one in ties.items()}
    moved = [name for name, (least, most) in spread.items() if most - least > UNMOVED]
    rows = []
    for name in sorted(moved, key=lambda name: spread[name][0] - spread[name][1]):
        least, most = spread[name]
        reference = paper.REFERENCE_ARI.get(name)
        rows.append(
            [
                name,
                three_digits(ties[name]["given"]),
                f"{three_digits(least)} to {three_digits(most)}",
                str(len(ties[name]["orders"])),
                MISSING if reference is None else three_digits(reference),
            ]
        )
    head = ["", "as given", "in other orders", "orders", "author's package"]
    return markdown(head, rows) if rows else ""
