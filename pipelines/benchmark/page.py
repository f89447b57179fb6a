"""Write what a run says into a page: the text between two marks, and pictures beside it.

Reads the files of a run. Everything that is said follows from them: a small run makes a small page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from pipelines.benchmark import paper, tables
from pipelines.benchmark.aims import aims
from pipelines.benchmark.findings import (
    approximation,
    best_on_average,
    completeness,
    far_from_paper,
    far_from_reference,
    fashion,
    front,
    losses,
    protocol_differences,
    tests_in_words,
    ties_in_words,
    unstable,
    what_was_run,
)
from pipelines.benchmark.plots import PICTURES, draw_pictures
from pipelines.benchmark.statistics import Evaluation
from pipelines.sections import picture, replace_section

PAGE = "results.md"
WIDTH = 100
NAME = "evaluation"
"""Of the section."""


def write_page(out: Path, folder: Path) -> None:
    """Replace the section `evaluation` of a page by what a run says, and draw pictures beside it.

    Parameters
    ----------
    out : Path
        Folder of the run.
    folder : Path
        Where results.md is or will be; the pictures are evaluation-*.png.

    Raises
    ------
    InputError
        If there is no search in `out`, or the page does not have each mark once, in this order.
    """
    evaluation = Evaluation.read(out)
    replace_section(folder / PAGE, NAME, section(evaluation))
    draw_pictures(evaluation, folder)


def section(evaluation: Evaluation) -> str:
    """Return the section as Markdown."""
    return "\n\n".join(wrapped(block) for block in blocks(evaluation) if block)


def wrapped(block: str) -> str:
    """Break long lines of prose; tables, titles, code and HTML stay as they are."""
    lines = []
    for line in block.split("\n"):
        if line.startswith(("|", "#", "<", " ", "`")) or len(line) <= WIDTH:
            lines.append(line)
        else:
            lines += textwrap.wrap(
                line,
                WIDTH,
                subsequent_indent="  " if line.startswith("- ") else "",
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines)


def blocks(evaluation: Evaluation) -> Iterator[str]:
    """Return the blocks of the section, empty ones where there is nothing to say."""
    scaling = evaluation.scalings()[0]
    searched = evaluation.methods(scaling)
    main = [method for method in searched if method not in paper.ABLATIONS]
    yield "## The paper's evaluation"
    yield what_was_run(evaluation)
    yield aims_table(evaluation)
    yield picture("evaluation-pareto", PICTURES["evaluation-pareto"][1])
    yield " ".join([best_on_average(evaluation, scaling, main), front(evaluation, scaling, main)])
    yield f"### ARI, {scaling}"
    yield tables.ARI.table(evaluation, scaling, main)
    yield picture("evaluation-datasets", PICTURES["evaluation-datasets"][1])
    yield losses(evaluation, scaling, main)
    yield fashion(evaluation, scaling)
    yield far_from_paper(evaluation, scaling, main)
    if paper.SPORE in searched and paper.is_main(scaling):
        yield from reference_blocks(evaluation, scaling)
    yield from ablation_blocks(evaluation, scaling)
    yield from test_blocks(evaluation, scaling, main)
    yield from anytime_blocks(evaluation)
    yield "### NMI and runtime"
    yield folded("NMI of the best configurations", tables.NMI.table(evaluation, scaling, main))
    yield folded(
        "Seconds of the best configurations, from scratch",
        tables.SECONDS.table(evaluation, scaling, searched),
    )
    yield "### How complete the searches are, and what differs from the paper"
    yield completeness(evaluation)
    yield folded("Trials of each method", tables.completeness_table(evaluation))
    yield protocol_differences(evaluation)
    yield unstable(evaluation)


def reference_blocks(evaluation: Evaluation, scaling: str) -> Iterator[str]:
    """Compare with the author's package."""
    yield "### SPORE beside its author's package"
    yield far_from_reference(evaluation, scaling)
    yield folded(
        "Best ARI on each dataset, with three digits", tables.reference_table(evaluation, scaling)
    )
    if evaluation.ties:
        yield ties_in_words(evaluation.ties)
        yield tables.ties_table(evaluation.ties)


def ablation_blocks(evaluation: Evaluation, scaling: str) -> Iterator[str]:
    """Compare SPORE with its ablations."""
    searched = evaluation.methods(scaling)
    ablations = [method for method in searched if method in (paper.SPORE, *paper.ABLATIONS)]
    if len(ablations) > 1:
        yield "### Ablations"
        yield best_on_average(evaluation, scaling, ablations)
        yield approximation(evaluation, scaling)
        yield tables.ARI.table(evaluation, scaling, ablations)


def test_blocks(evaluation: Evaluation, scaling: str, main: list[str]) -> Iterator[str]:
    """Test SPORE against the baselines, and SPORE-ANN against the others of its kind."""
    searched = evaluation.methods(scaling)
    groups = {
        paper.SPORE: [method for method in main if method != paper.SPORE],
        "SPORE-ANN": [
            method
            for method in searched
            if method in (paper.SPORE, *paper.ABLATIONS) and method != "SPORE-ANN"
        ],
    }
    groups = {method: others for method, others in groups.items() if method in searched and others}
    if groups:
        yield "### Wilcoxon's signed-rank tests"
        yield (
            "One-sided, as in the paper, on the best ARI of each dataset; corrected by Holm. "
            "Ahead and behind count datasets that differ by more than 0.005."
        )
    for method, others in groups.items():
        yield tests_in_words(evaluation, scaling, method, others)
        yield tables.wilcoxon_table(evaluation, scaling, method, others)


def anytime_blocks(evaluation: Evaluation) -> Iterator[str]:
    """Show how fast searches get better, for each scaling."""
    yield "### Anytime"
    yield (
        "Trials until the mean over datasets of the best ARI so far reaches a threshold; "
        f"{tables.INFINITE} where it does not."
    )
    yield picture("evaluation-anytime", PICTURES["evaluation-anytime"][1])
    for scaling in evaluation.scalings():
        yield folded(f"Trials needed, {scaling}", tables.anytime_table(evaluation, scaling))


def aims_table(evaluation: Evaluation) -> str:
    """Return the aims with what was found, nothing if the run is too small for them."""
    found = aims(evaluation)
    rows = [[aim.text, aim.found, "yes" if aim.met else "**no**"] for aim in found]
    return tables.markdown(["aim", "found", "met"], rows) if rows else ""


def folded(title: str, text: str) -> str:
    """Hide a long table behind its title."""
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"
