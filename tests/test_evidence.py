"""From the files of a benchmark to its page: statistics, tables, pictures, the page itself."""

import dataclasses
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from pipelines.benchmark import aims, findings, page, paper, plots, statistics, tables
from pipelines.benchmark.records import (
    DONE,
    OVER_TIME,
    Search,
    Trial,
    read_searches,
    write_json,
    write_search,
)
from pipelines.benchmark.statistics import Evaluation
from spore_dask import InputError


def search_of(dataset, method, aris, *, scaling="clip-minmax", seconds=(0.5, 1.5), **changes):
    """Make a search from its ARIs, None for a trial over time."""
    trials = [
        Trial(number, {}, OVER_TIME, "120 s")
        if ari is None
        else Trial(number, {}, DONE, "", 0.1, ari, ari / 2, 3, 0.0)
        for number, ari in enumerate(aris)
    ]
    done = [trial for trial in trials if trial.outcome == DONE]
    best = max(done, key=lambda trial: trial.ari).number if done else None
    reruns = [dataclasses.replace(trials[best], seconds=one) for one in (seconds if done else ())]
    fields = {
        "n_points": 100,
        "n_columns": 2,
        "n_raw_columns": 2,
        "n_classes": 3,
        "n_wanted": len(trials),
        "limit_seconds": 120.0,
        "budget_seconds": 1000.0,
        "shared_seconds": 0.2,
    }
    fields |= changes
    return Search(dataset, scaling, method, trials=trials, best=best, reruns=reruns, **fields)


def plausible(dataset, method, scaling, rng):
    """Make a search with the paper's figures, a little changed."""
    best = paper.ARI[dataset][method]
    top = min(1.0, best + rng.normal(scale=0.01))
    seconds = paper.SECONDS[dataset].get(method, paper.SECONDS[dataset]["SPORE"]) + 0.004
    if seconds > 120:
        return search_of(dataset, method, [None] * 3, scaling=scaling, n_wanted=51)
    n_trials = 1 if method == "KMeans" else 51
    aris = top * rng.beta(1.2, 0.8, n_trials) if n_trials > 1 else np.array([top])
    aris[rng.integers(n_trials)] = top
    times = seconds * rng.uniform(0.5, 0.8) * rng.uniform(0.95, 1.05, 10)
    return search_of(
        dataset, method, aris.tolist(), scaling=scaling, seconds=times.tolist(), n_wanted=n_trials
    )


def write_plausible(out, datasets=paper.DATASETS, methods=paper.METHODS, scalings=paper.SCALINGS):
    """Write the files of a run."""
    rng = np.random.default_rng(0)
    for scaling in scalings:
        for dataset in datasets:
            for method in methods:
                write_search(out, plausible(dataset, method, scaling, rng))
    write_json(out / "machine.json", {"cpu": "a processor", "n_cores": 2, "date": "2026-11-16"})


# The paper's figures

TEX = Path(__file__).parents[2] / "shared" / "paper" / "spore.tex"


def column(table, method):
    return np.array([row[method] for row in table.values()])


def test_means_of_the_papers_columns_are_those_that_it_states():
    for method, stated in paper.MEAN_SECONDS.items():
        if method in paper.SECONDS["iris"]:
            assert column(paper.SECONDS, method).mean() == pytest.approx(stated, abs=0.006)
    for method, stated in paper.MEAN_ARI.items():
        assert column(paper.ARI, method).mean() == pytest.approx(stated, abs=0.006)
    # "24 times the runtime", and a gap to DBSCAN of 0.24
    seconds = {method: column(paper.SECONDS, method).mean() for method in ("SPORE", "SNN_DBSCAN")}
    assert seconds["SNN_DBSCAN"] / seconds["SPORE"] == pytest.approx(24, abs=0.5)
    gap = column(paper.ARI, "SPORE").mean() - column(paper.ARI, "DBSCAN").mean()
    assert gap == pytest.approx(0.24, abs=0.005)
    # What takes longer than its limit is in the table but not in the curves; so is K-means' luck.
    for method, row in paper.ANYTIME["clip-minmax"].items():
        scores = column(paper.ARI, method)
        late = column(paper.SECONDS, method) > paper.LIMIT_SECONDS
        tolerance = 0.011 if method == "KMeans" else 0.001
        assert scores[~late].sum() / 28 == pytest.approx(row.maximum, abs=tolerance)


def test_the_papers_tables_are_whole():
    assert len(paper.DATASETS) == 28
    assert paper.DATASETS == tuple(paper.NMI) == tuple(paper.SECONDS)
    assert set(paper.REFERENCE_ARI) == set(paper.DATASETS) - {"fashion"}
    assert set(paper.ARI["iris"]) == set(paper.METHODS)
    assert set(paper.ANYTIME["standard"]) == {"SPORE", *paper.BASELINES}
    for name, reference in paper.REFERENCE_ARI.items():
        assert paper.ARI[name]["SPORE"] == pytest.approx(reference, abs=0.015)


def tex_rows(text):
    """Return the numbers of each row of a table, None for infinity, deviations left out."""
    rows = []
    for line in text.splitlines():
        cells = line.replace("$-$", "-").replace(r"$\infty$", "inf").split("&")[1:]
        if cells:
            found = (re.search(r"-?\d+(\.\d+)?|inf", cell) for cell in cells)
            rows.append([float(match[0]) for match in found if match])
    return rows


def tex_table(label, before="\\midrule"):
    """Return the rows of the table that has a label, or a caption, with this text."""
    text = TEX.read_text()
    at = text.index(label)
    start = text.rindex("\\begin{table}", 0, at)
    table = text[start : text.index("\\end{table}", at)]
    return tex_rows(table[table.index(before) :])


@pytest.mark.skipif(not TEX.exists(), reason="the paper is not beside the project")
@pytest.mark.parametrize(
    ("label", "table", "methods"),
    [
        ("label{tab:full_ari}", paper.ARI, (*paper.BASELINES, "SPORE")),
        ("label{tab:full_nmi}", paper.NMI, (*paper.BASELINES, "SPORE")),
        ("label{tab:runtime}", paper.SECONDS, (*paper.BASELINES, "SPORE")),
        ("label{tab:ablation_ari}", paper.ARI, ("SPORE", *paper.ABLATIONS)),
    ],
)
def test_figures_by_dataset_are_the_papers(label, table, methods):
    ours = [[row[method] for method in methods] for row in table.values()]
    assert tex_table(label) == ours


@pytest.mark.skipif(not TEX.exists(), reason="the paper is not beside the project")
@pytest.mark.parametrize(
    ("label", "scaling"),
    [("{tab:trials_anytime_ari}", "clip-minmax"), ("{tab:anytime_std}", "standard")],
)
def test_anytime_figures_are_the_papers(label, scaling):
    ours = [
        [*(math.inf if n is None else n for n in one.needed.values()), one.maximum, one.default]
        for one in paper.ANYTIME[scaling].values()
    ]
    assert tex_table("\\label" + label) == ours


@pytest.mark.skipif(not TEX.exists(), reason="the paper is not beside the project")
@pytest.mark.parametrize("method", paper.WILCOXON)
def test_tests_are_the_papers(method):
    label = {"SPORE": "tab:wilcoxon_ari", "SPORE-ANN": "tab:wilcoxon_ann"}[method]
    ours = [list(dataclasses.astuple(one)) for one in paper.WILCOXON[method].values()]
    rows = tex_table("\\label{" + label, before="Significant")
    assert [row for row in rows if row] == ours


# Statistics


def test_holm_by_hand():
    corrected = statistics.holm({"a": 0.04, "b": 0.01, "c": 0.03, "d": 0.5})
    assert corrected == pytest.approx({"b": 0.04, "c": 0.09, "a": 0.09, "d": 0.5})
    assert statistics.holm({"a": 0.7, "b": 0.6}) == {"b": 1.0, "a": 1.0}
    assert statistics.holm({}) == {}


@pytest.mark.parametrize("method", paper.WILCOXON)
def test_holm_corrects_as_the_paper_does(method):
    printed = paper.WILCOXON[method]
    corrected = statistics.holm({other: one.p for other, one in printed.items()})
    for other, one in printed.items():
        assert corrected[other] == pytest.approx(one.corrected, abs=3e-6)


def test_signed_ranks_by_hand():
    # Ranks of 1, -2, 3, 4: the positive ones sum to 8; 3 of 16 signs give as much or more.
    statistic, p = statistics.signed_ranks(np.array([0.1, -0.2, 0.3, 0.4]))
    assert statistic == 8
    assert p == pytest.approx(3 / 16)
    assert statistics.signed_ranks(np.zeros(5)) == (0.0, 1.0)


@pytest.mark.parametrize("n_pairs", [1, 2, 5, 9, 28, 60])
def test_signed_ranks_of_any_number_of_pairs(n_pairs):
    rng = np.random.default_rng(n_pairs)
    for differences in (rng.normal(0.5, 1, n_pairs), rng.integers(-1, 3, n_pairs) / 10):
        statistic, p = statistics.signed_ranks(differences)
        ranks, positive = signed_ranks_naive(differences)
        assert statistic == ranks @ positive
        assert 0 < p <= 1
        if n_pairs <= 9:
            signs = np.array(list(itertools.product([0, 1], repeat=len(ranks))))
            assert p == pytest.approx(np.mean(signs @ ranks >= statistic))


def signed_ranks_naive(differences):
    """Return the ranks, zeros left out, ties sharing their mean, and which are positive."""
    found = differences[differences != 0]
    sizes = np.abs(found)
    ranks = [np.sum(sizes < size) + (np.sum(sizes == size) + 1) / 2 for size in sizes]
    return np.array(ranks), found > 0


@pytest.mark.parametrize("method", paper.WILCOXON)
def test_the_papers_scores_give_the_papers_tests(method):
    scores = {
        name: {dataset: paper.ARI[dataset][name] for dataset in paper.DATASETS}
        for name in paper.METHODS
    }
    found = statistics.compare_scores(scores, method, paper.WILCOXON[method])
    for other, printed in paper.WILCOXON[method].items():
        test = found[other].test
        assert test.n_pairs == printed.n_pairs
        # Rounded scores have more ties and zeros than the paper's own.
        assert abs(math.log10(test.p / printed.p)) < 0.6
        assert test.median == pytest.approx(printed.median, abs=0.007)
        assert (test.corrected < 0.01) == (printed.corrected < 0.01)


def test_comparison_counts_pairs_that_both_have():
    scores = {"a": {"x": 0.5, "y": 0.9, "z": 0.1}, "b": {"x": 0.5, "y": 0.4}, "c": {"w": 1.0}}
    found = statistics.compare_scores(scores, "a", ["b", "c", "d"])
    assert list(found) == ["b"]
    assert found["b"].test.n_pairs == 2
    assert (found["b"].n_ahead, found["b"].n_behind) == (1, 0)
    assert found["b"].mean == pytest.approx(0.25)


def test_best_so_far_by_hand():
    search = search_of("x", "SPORE", [None, -0.1, 0.4, None, 0.2], n_wanted=7)
    curve = statistics.best_so_far(search, 7)
    assert curve.tolist() == [0.0, -0.1, 0.4, 0.4, 0.4, 0.4, 0.4]
    nothing = search_of("x", "SPORE", [None, None])
    assert statistics.best_so_far(nothing, 3).tolist() == [0.0] * 3


def test_anytime_by_hand():
    searches = [search_of("x", "SPORE", [0.2, 0.4, 0.9]), search_of("y", "SPORE", [0.4])]
    curve = statistics.anytime_curve(searches, 4)
    assert curve == pytest.approx([0.3, 0.4, 0.65, 0.65])
    found = statistics.anytime(curve)
    assert [found.needed[t] for t in (0.3, 0.35, 0.4, 0.45, 0.65, 0.7)] == [1, 2, 2, 3, 3, None]
    assert found.maximum == pytest.approx(0.65)
    assert found.default == pytest.approx(0.3)


def test_scores_of_a_search():
    search = search_of("x", "SPORE", [0.2, 0.8, None], seconds=(1.0, 3.0))
    assert statistics.best_ari(search) == 0.8
    assert statistics.best_nmi(search) == 0.4
    assert statistics.default_ari(search) == 0.2
    assert statistics.rerun_seconds(search) == 2.0
    nothing = search_of("x", "SPORE", [None])
    assert statistics.best_ari(nothing) == statistics.default_ari(nothing) == 0.0
    assert statistics.rerun_seconds(nothing) is None
    assert statistics.counted_seconds(nothing) == 120


def test_pareto_by_hand():
    points = {
        "good": statistics.Point(0.9, 2.0),
        "fast": statistics.Point(0.5, 1.0),
        "slow": statistics.Point(0.9, 3.0),
        "poor": statistics.Point(0.4, 1.0),
        "twin": statistics.Point(0.9, 2.0),
    }
    assert statistics.pareto(points) == ["good", "fast", "twin"]


def test_the_papers_front():
    every = [method for method in paper.METHODS if method not in ("SPORE-MSR-0", "SPORE-RandSeed")]
    points = statistics.paper_points("clip-minmax", every, paper.DATASETS)
    assert set(points) == set(every)
    dense = [method for method in ("SPORE", *paper.BASELINES) if method != "KMeans"]
    assert statistics.pareto({method: points[method] for method in dense}) == ["SPORE"]
    assert statistics.paper_points("clip-minmax", ["SPORE", "SPORE-ANN"], ["iris"]) == {
        "SPORE": statistics.Point(0.89, 0.02)
    }
    assert statistics.paper_points("standard", ["SPORE"], ["iris"]) == {}


# Tables


@pytest.fixture
def two():
    """Two datasets, three methods; one search is missing, one did nothing."""
    searches = [
        search_of("iris", "SPORE", [0.5, 0.904]),
        search_of("iris", "KMeans", [0.7162], seconds=(0.0301,)),
        search_of("iris", "DPC", [None]),
        search_of("wine", "SPORE", [-0.001], seconds=(123.4,)),
        search_of("wine", "KMeans", [0.85]),
    ]
    return Evaluation({(one.scaling, one.dataset, one.method): one for one in searches})


def test_table_of_scores(two):
    assert tables.ARI.table(two, "clip-minmax", two.methods("clip-minmax")) == (
        "|  | SPORE | DPC | KMeans |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| iris | **0.90** (0.89) | † 0.00 (0.89) | 0.72 (0.72) |\n"
        "| wine | 0.00 (0.90) | - | **0.85** (0.85) |\n"
        "| mean of 1 | **0.90** (0.89) | 0.00 (0.89) | 0.72 (0.72) |"
    )


def test_table_of_times(two):
    assert tables.SECONDS.table(two, "clip-minmax", ["SPORE", "KMeans"]) == (
        "|  | SPORE | KMeans |\n"
        "| --- | ---: | ---: |\n"
        "| iris | 1 (0.020) | **0.030** (0.030) |\n"
        "| wine | 123 (0.020) | **1** (0.030) |\n"
        "| mean of 2 | 62.2 (0.020) | **0.515** (0.030) |"
    )


def test_table_of_tests(two):
    assert tables.wilcoxon_table(two, "clip-minmax", "SPORE", ["KMeans"]).splitlines()[2] == (
        "| KMeans | 2 (28) | 1, 1 | -0.332 | -0.332 (+0.192) | 1 (326) | 0.750 (6.6e-05) "
        "| 0.750 (2.6e-04) |"
    )


def test_table_of_trials(two):
    text = tables.anytime_table(two, "clip-minmax")
    assert text.splitlines()[2] == (
        "| SPORE | 1 | 1 | 1 | 1 | 1 | 2 | 2 | 2 | 2 | 2 | 2 | 2 | 2 | ∞ | ∞ | 0.904 | 0.500 |"
    )
    assert "(" not in text  # the paper's curves are means over all of its datasets


def test_table_of_references(two):
    assert tables.reference_table(two, "clip-minmax").splitlines()[2:] == [
        "| iris | 0.904 | 0.904 | +0.000 | 0.89 |",
        "| wine | -0.001 | 0.899 | -0.900 | 0.90 |",
    ]


def test_table_of_outcomes(two):
    assert tables.completeness_table(two).splitlines()[2:] == [
        "| clip-minmax, SPORE | 2 | 3 | 3 | 0 | 0 | 0 | 0 | 0 | 0 |",
        "| clip-minmax, DPC | 1 | 1 | 0 | 1 | 0 | 0 | 0 | 1 | 1 |",
        "| clip-minmax, KMeans | 2 | 2 | 2 | 0 | 0 | 0 | 0 | 0 | 0 |",
    ]


TIES = {
    "iris": {"given": 0.894, "orders": [0.90, 0.91]},
    "wine": {"given": 0.5, "orders": [0.5]},
    "other": {"given": 0.5, "orders": [0.4]},
}


def test_table_of_ties():
    assert tables.ties_table(TIES).splitlines()[2:] == [
        "| other | 0.500 | 0.400 to 0.500 | 1 | - |",
        "| iris | 0.894 | 0.894 to 0.910 | 2 | 0.904 |",
    ]
    assert tables.ties_table({"wine": TIES["wine"]}) == ""
    said = findings.ties_in_words(TIES)
    assert "the best ARI moves on 2 of 3" in said
    assert "on 1 of 2, not on wine" in said


# Findings


def evaluation_of(searches, **more):
    return Evaluation({(one.scaling, one.dataset, one.method): one for one in searches}, **more)


def test_the_best_is_named_whoever_it_is():
    ours = [search_of("iris", "SPORE", [0.5]), search_of("iris", "DPC", [0.6])]
    said = findings.best_on_average(evaluation_of(ours), "clip-minmax", ["SPORE", "DPC"])
    assert said == (
        "DPC has the highest mean ARI over 1 dataset: DPC 0.600 (0.89), SPORE 0.500 (0.89)."
    )


def test_the_front_is_named_whoever_is_on_it():
    ours = [
        search_of("iris", "SPORE", [0.5], seconds=(2.0,)),
        search_of("iris", "DPC", [0.6], seconds=(3.0,)),
        search_of("iris", "DBSCAN", [None]),
    ]
    others = ["SPORE", "HDBSCAN", "KMeans"]
    assert findings.front(evaluation_of(ours), "clip-minmax", others) == ""  # no common dataset
    said = findings.front(evaluation_of(ours), "clip-minmax", ["SPORE", "DPC", "DBSCAN"])
    assert said.startswith("Of the density-based methods, SPORE and DPC are Pareto-optimal")
    assert said.endswith("SPORE 2 s, DPC 3 s, DBSCAN at least 120 s.")


def test_losses_are_listed(two):
    said = findings.losses(two, "clip-minmax", ["SPORE", "DPC", "KMeans"])
    assert said.startswith("SPORE is behind a baseline by more than 0.005 on 1 of 2:")
    assert "| wine | -0.001 | KMeans 0.850 | 0.851 | not behind |" in said
    one = evaluation_of([search_of("fish", "SPORE", [0.5]), search_of("fish", "DPC", [0.505])])
    said = findings.losses(one, "clip-minmax", ["SPORE", "DPC"])
    assert said == "SPORE is nowhere behind a baseline by more than 0.005."


def test_figures_of_the_paper_stand_beside_its_scaling_only(two, tmp_path, monkeypatch):
    searches = [
        *(dataclasses.replace(one, scaling="standard") for one in two.searches.values()),
        search_of("fashion", "SPORE", [0.3], scaling="standard"),
    ]
    other, methods = evaluation_of(searches), ["SPORE", "KMeans"]
    for layout in (tables.ARI, tables.NMI, tables.SECONDS):
        assert "(" in layout.table(two, "clip-minmax", methods)
        assert "(" not in layout.table(other, "standard", methods)
    assert "(" not in findings.best_on_average(other, "standard", methods)
    assert "paper" not in findings.front(other, "standard", ["SPORE", "DPC"])
    assert "0.851 | - |" in findings.losses(other, "standard", methods)
    assert findings.fashion(other, "standard") == ""
    assert "author's package" not in page.section(other)
    titles = []
    monkeypatch.setattr(plots, "draw_dots", lambda *arguments: titles.append(arguments[-1]))
    monkeypatch.setattr(plots, "THEMES", {"light": plots.THEMES["light"]})
    plots.draw_datasets(other, tmp_path / "other")
    plots.draw_datasets(two, tmp_path / "two")
    assert titles == ["here", "here", "paper"]


@pytest.mark.parametrize(
    ("aris", "said"),
    [
        ([0.2, 0.3, 0.372], "and trial 3 is the first above K-means' 0.350 (0.35 in the paper)."),
        ([0.2, 0.3], "not above K-means' 0.350 (0.35 in the paper)."),
    ],
)
def test_fashion_has_a_line_of_its_own(aris, said):
    ours = [search_of("fashion", "SPORE", aris), search_of("fashion", "KMeans", [0.35])]
    text = findings.fashion(evaluation_of(ours), "clip-minmax")
    assert f"here {len(aris)} of {len(aris)} trials give SPORE {aris[-1]:.3f}, {said}" in text
    assert "0.23 (0.28 with approximate neighbours)" in text
    late = dataclasses.replace(ours[0], trials=[*ours[0].trials, Trial(9, {}, OVER_TIME)])
    text = findings.fashion(evaluation_of([late]), "clip-minmax")
    assert f"here {len(aris)} of {len(aris)} trials" in text  # only what was done counts
    assert findings.fashion(evaluation_of(ours[1:]), "clip-minmax") == ""


def test_deviations_from_the_paper_are_listed_by_rule():
    ours = [
        search_of("iris", "SPORE", [0.93]),
        search_of("wine", "SPORE", [0.924]),
        search_of("fish", "SPORE", [0.588]),
    ]
    said = findings.far_from_paper(evaluation_of(ours), "clip-minmax", ["SPORE"])
    assert said.splitlines()[-1] == "| SPORE | 2 of 3 | +0.017 | iris +0.04 |"
    said = findings.far_from_reference(evaluation_of(ours), "clip-minmax")
    assert "within 0.005 of it on 1 of 3 datasets; farther are iris +0.0260, wine +0.0250." in said
    assert said.endswith("This run draws other configurations, and may miss the best.")


def test_differences_between_protocols_are_those_of_the_run():
    plain = search_of("iris", "SPORE", [0.5] * 51)
    said = findings.protocol_differences(evaluation_of([plain]))
    assert "A configuration may take" not in said
    assert "HDBSCAN" not in said
    assert "the seed" not in said
    assert "after 2 that were stopped for their time" in said
    assert "- Noise, the label -1, counts as one cluster in ARI and NMI, for all methods.\n" in said
    other = dataclasses.replace(plain, method="HDBSCAN", limit_seconds=30.0, n_reruns=2, seed=1)
    said = findings.protocol_differences(evaluation_of([plain, other]))
    assert "- A configuration may take 30 to 120 s (the paper's: 120 s).\n" in said
    assert "- Re-runs are 2 to 10 (the paper's: 10).\n" in said
    assert "- HDBSCAN is scikit-learn's" in said
    assert "- Draws have the seed 1 to 42, not 42.\n" in said


def test_unstable_re_runs_are_listed():
    plain = search_of("iris", "SPORE", [0.5])
    assert "In all 1 searches" in findings.unstable(evaluation_of([plain]))
    moved = [dataclasses.replace(one, ari=0.4) for one in plain.reruns]
    said = findings.unstable(evaluation_of([dataclasses.replace(plain, reruns=moved)]))
    assert "SPORE on iris, clip-minmax (0.500, then 0.400 +- 0.000)" in said


def test_tests_in_words_without_what_was_not_done():
    ours = []
    for number, name in enumerate(paper.DATASETS[:12]):
        ours.append(search_of(name, "SPORE", [0.9]))
        ours.append(search_of(name, "DPC", [None if number == 3 else 0.5 - number / 100]))
        ours.append(search_of(name, "KMeans", [0.9]))
    said = findings.tests_in_words(evaluation_of(ours), "clip-minmax", "SPORE", ["DPC", "KMeans"])
    assert said.startswith(
        "SPORE is ahead of DPC (corrected p < 0.01), not significantly ahead of KMeans (p = 1.000)."
    )
    assert "Without the datasets on which nothing was done" in said


# Aims


def with_references(aris_of):
    """Make a whole run whose best ARIs are what a function of dataset and method says."""
    searches = []
    for name in paper.DATASETS:
        for method in paper.METHODS:
            aris = [aris_of(name, method)] * (1 if method == "KMeans" else 51)
            if method == "SPORE":
                aris[0] *= 0.5912 / 0.864  # of the means
            searches.append(search_of(name, method, aris))
    return evaluation_of(searches, ties={"iris": {"given": 0.8, "orders": [0.91]}})


def reference_or_paper(name, method):
    if method in ("SPORE", "SPORE-ANN"):
        return paper.REFERENCE_ARI.get(name, 0.37)
    return paper.ARI[name][method]


def test_aims_are_met_by_the_reference():
    found = aims.aims(with_references(reference_or_paper))
    assert len(found) == 9
    assert [aim.text for aim in found if not aim.met] == []


def test_aims_are_not_met_by_others():
    def worse(name, method):
        if method == "SPORE-ANN" and name == "fish":
            return 0.5
        if method == "DBSCAN":
            return 1.0
        return reference_or_paper(name, method) - 0.1 * (name == "iris" and method == "SPORE")

    found = {aim.text: aim for aim in aims.aims(with_references(worse))}
    missed = [text for text, aim in found.items() if not aim.met]
    assert missed == [
        "SPORE within 0.005 of the author's package on each of 27",
        "SPORE-ANN nowhere more than 0.02 under SPORE",
        "SPORE ahead of every baseline, corrected p < 0.01",
    ]
    assert found[missed[0]].found == "26; not iris -0.100; the order of what ties explains iris"


def test_ablations_must_come_in_the_papers_order():
    def approximate_low(name, method):
        if method == "SPORE-ANN":
            return paper.ARI[name]["SPORE-RandSeed"] - 0.01
        return reference_or_paper(name, method)

    missed = {aim.text for aim in aims.aims(with_references(approximate_low)) if not aim.met}
    assert "means of SPORE-ANN and SPORE above SPORE-RandSeed, above SPORE-MSR-0" in missed


def test_aims_hold_for_the_papers_draws_only():
    whole = with_references(reference_or_paper).searches.values()
    assert aims.aims(evaluation_of([dataclasses.replace(one, seed=1) for one in whole])) == []


def test_small_runs_have_no_aims(two):
    assert aims.aims(two) == []


# The page

BEGIN, END = "<!-- evaluation: begin -->", "<!-- evaluation: end -->"
PAGE = f"# Results\n\nbefore\n\n{BEGIN}\nold\n{END}\n\nafter\n"
SMALL = ("iris", "wine", "digits", "wdbc")


def test_page_is_replaced_between_the_marks_only(tmp_path, monkeypatch):
    out, docs = tmp_path / "out", tmp_path / "docs"
    docs.mkdir()
    (docs / "results.md").write_text(PAGE)
    write_plausible(out, scalings=("clip-minmax",))
    write_plausible(out, SMALL, scalings=("standard",))
    write_json(out / "ties.json", TIES)
    page.write_page(out, docs)
    text = (docs / "results.md").read_text()
    assert text.startswith(f"# Results\n\nbefore\n\n{BEGIN}\n\n")
    assert text.endswith(f"\n\n{END}\n\nafter\n")
    assert "old" not in text.split("\n")
    for link in re.findall(r'(?:src|srcset)="([^"]+)"', text):
        assert 5_000 < (docs / link).stat().st_size < 80_000
    pictures = {path.name: path.read_bytes() for path in docs.glob("*.png")}
    assert len(pictures) == 6
    monkeypatch.setattr(plots, "THEMES", {"light": plots.THEMES["light"]})
    page.write_page(out, docs)
    assert (docs / "results.md").read_text() == text
    assert {path.name: path.read_bytes() for path in docs.glob("*.png")} == pictures
    assert not re.search(r"\bnan\b|\bNone\b", text)


@pytest.mark.parametrize(
    ("datasets", "methods", "scalings"),
    [
        (SMALL, paper.METHODS, ("clip-minmax",)),
        (SMALL[:1], ("SPORE",), ("standard",)),
        (SMALL[:2], ("SPORE", "SPORE-ANN"), paper.SCALINGS),
        (SMALL[:1], ("KMeans",), ("clip-minmax",)),
        (SMALL[:2], paper.BASELINES, ("clip-minmax",)),
    ],
)
def test_page_of_a_small_run(tmp_path, monkeypatch, datasets, methods, scalings):
    write_plausible(tmp_path, datasets, methods, scalings)
    text = page.section(Evaluation.read(tmp_path))
    assert not re.search(r"\bnan\b|\bNone\b|\|\s*\n\n\|", text)
    assert "\n\n\n" not in text
    for method in set(paper.METHODS) - set(methods) - {"SPORE"}:
        assert f"| {method} |" not in text
    assert len(text.split("were not run.")) == 2
    monkeypatch.setattr(plots, "THEMES", {"light": plots.THEMES["light"]})
    plots.draw_pictures(Evaluation.read(tmp_path), tmp_path)
    assert len(list(tmp_path.glob("*.light.png"))) == 3


def test_page_with_missing_searches(tmp_path, monkeypatch):
    write_plausible(tmp_path, SMALL, paper.METHODS, ("clip-minmax",))
    (tmp_path / "searches" / "clip-minmax" / "iris" / "DPC.json").unlink()
    (tmp_path / "machine.json").unlink()
    write_search(tmp_path, search_of("mine", "SPORE", [0.5, 0.6]))
    write_search(tmp_path, search_of("mine", "KMeans", [None]))
    text = page.section(Evaluation.read(tmp_path))
    assert "The paper does not have mine." in text
    assert "| mean of 3 |" in text
    assert "| DPC | 3 (28) |" in text
    assert "Nothing was done by KMeans on mine, clip-minmax (120 s)." in text
    monkeypatch.setattr(plots, "THEMES", {"dark": plots.THEMES["dark"]})
    plots.draw_pictures(Evaluation.read(tmp_path), tmp_path)


def test_the_machine_is_told(two):
    machine = {
        "processor": "A Processor",
        "cores": 2,
        "memory_nbytes": 24 << 30,
        "python": "3.11.7",
        "versions": {"numpy": "2.2"},
        "date": "2026-11-16 10:00 UTC",
        "command": "python -m pipelines.benchmark run --out OUT",
        "settings": {"n_threads": 4, "memory_nbytes": 20 << 30},
    }
    some = [dataclasses.replace(one, memory_nbytes=8 << 30) for one in two.searches.values()]
    assert findings.machine_text(evaluation_of(some, machine=machine)) == (
        "`python -m pipelines.benchmark run --out OUT`.\nLast run on 2026-11-16 10:00 UTC. "
        "The machine: 2 cores, A Processor, 24 GiB, Python 3.11.7, numpy 2.2. "
        "Each search has 1 thread and 8 GiB."
    )
    some[0] = dataclasses.replace(some[0], n_threads=2, memory_nbytes=19 << 29)
    said = findings.machine_text(evaluation_of(some))
    assert said == "Each search has 1 to 2 threads and 8 to 9.5 GiB."
    assert findings.machine_text(two) == "Each search has 1 thread."


def test_files_without_a_memory_are_read(tmp_path):
    search = search_of("iris", "SPORE", [0.5], memory_nbytes=1 << 30)
    write_search(tmp_path, search)
    (path,) = tmp_path.glob("searches/*/*/*.json")
    known = json.loads(path.read_text())
    del known["memory_nbytes"]
    write_json(path, known)
    (found,) = read_searches(tmp_path)
    assert found == dataclasses.replace(search, memory_nbytes=None)


def test_page_with_one_mark_is_refused(tmp_path):
    (tmp_path / "results.md").write_text(BEGIN)
    write_plausible(tmp_path / "out", ["iris"], ["SPORE"], ["standard"])
    with pytest.raises(InputError, match="must have one of each"):
        page.write_page(tmp_path / "out", tmp_path)
    assert (tmp_path / "results.md").read_text() == BEGIN


def test_run_without_searches_is_refused(tmp_path):
    (tmp_path / "results.md").write_text(PAGE)
    with pytest.raises(InputError, match="run the benchmark first"):
        page.write_page(tmp_path / "out", tmp_path)
    assert (tmp_path / "results.md").read_text() == PAGE


def test_prose_is_wrapped_and_nothing_else():
    long = "word " * 40 + "end"
    assert page.wrapped(f"| {long} |") == f"| {long} |"
    lines = page.wrapped(f"- {long}").split("\n")
    assert all(len(line) <= page.WIDTH for line in lines)
    assert [line[:2] for line in lines] == ["- ", "  ", "  "]
    assert " ".join(line.strip() for line in lines) == f"- {long}"
