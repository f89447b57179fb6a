"""What a run says in words: sentences that follow from its figures, empty where there are none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipelines.benchmark import paper
from pipelines.benchmark.protocol import MOST_OVER_TIME
from pipelines.benchmark.records import DONE, Search
from pipelines.benchmark.statistics import (
    DRAW,
    Evaluation,
    Ties,
    best_ari,
    best_so_far,
    beyond,
    compare,
    compare_scores,
    mean,
    paper_points,
    pareto,
    points,
    rerun_ari,
    scores,
    span_of,
)
from pipelines.benchmark.tables import (
    UNFINISHED,
    UNMOVED,
    counted,
    markdown,
    probability,
    seconds_text,
    signed,
    three_digits,
    two_digits,
)
from pipelines.sections import listed

NEAR = 0.02
"""Difference to the paper's ARI, which has two digits, beyond which a dataset is listed."""
SIGNIFICANT = 0.01
IMPLEMENTATIONS = {
    "SPORE-ANN": "SPORE-ANN searches neighbours by probes (the paper's: HNSW)",
    "SPORE-RandSeed": "SPORE-RandSeed has one random order, which its re-runs repeat",
    "HDBSCAN": "HDBSCAN is scikit-learn's (the paper's: the hdbscan package)",
    "KMeans": "KMeans has one thread, and one random start, which its re-runs repeat",
    "DPC": "DPC is written here; where the paper leaves its kernel and ties open, what gave the "
    "higher ARI was kept, in its favour. Its cut-off distance comes from 2 million pairs beyond "
    "3,000 points, and its distances are float32 beyond 12,000",
    "SNN_DBSCAN": "SNN_DBSCAN is written here; all pairs count, not mutual neighbours only, which "
    "gave the higher ARI",
}


def span(values: Iterable[float]) -> str:
    """Write the values of a setting that searches may differ in."""
    found = sorted(set(values))
    return f"{found[0]:g}" if len(found) == 1 else f"{found[0]:g} to {found[-1]:g}"


def what_was_run(evaluation: Evaluation) -> str:
    """Say what was searched, with which settings, on which machine, by which command."""
    searches = list(evaluation.searches.values())
    scalings = evaluation.scalings()
    datasets = {one.dataset for one in searches}
    n_methods = len({one.method for one in searches})
    n_drawn = max(one.n_wanted for one in searches) - 1
    outside = sorted(datasets - set(paper.DATASETS))
    parts = [
        f"{counted(len(datasets), 'dataset')}, {counted(n_methods, 'method')}, columns scaled by "
        f"{listed(scalings)}: {len(searches)} searches. "
        f"Each tries the default configuration and up to {n_drawn} drawn ones, at most "
        f"{span(one.limit_seconds for one in searches)} s each and "
        f"{span(one.budget_seconds for one in searches)} s together. The best ARI counts, and its "
        "configuration is run again from scratch for its time. Figures in brackets are the "
        f"paper's; a {UNFINISHED} marks what was not done, which counts as ARI 0 and, in means of "
        "times, with the limit of one configuration.",
        f"The paper does not have {listed(outside)}." if outside else "",
        machine_text(evaluation),
    ]
    return "\n\n".join(part for part in parts if part)


def machine_text(evaluation: Evaluation) -> str:
    """Say how, when and where the run was made, as far as its file tells."""
    machine = evaluation.machine
    versions = machine.get("versions", {})
    facts = [
        f"{machine['cores']} cores" if "cores" in machine else "",
        machine.get("processor", ""),
        f"{machine['memory_nbytes'] / 2**30:.0f} GiB" if "memory_nbytes" in machine else "",
        machine.get("system", ""),
        f"Python {machine['python']}" if "python" in machine else "",
        *(f"{name} {version}" for name, version in versions.items()),
    ]
    sentences = [
        f"`{machine['command']}`." if "command" in machine else "",
        f"Last run on {machine['date']}." if "date" in machine else "",
        f"The machine: {', '.join(filter(None, facts))}." if any(facts) else "",
        each_search(evaluation),
    ]
    command, *others = sentences
    return "\n".join(filter(None, [command, " ".join(filter(None, others))]))


def each_search(evaluation: Evaluation) -> str:
    """Say how many threads and how much memory searches have, as far as their files tell."""
    searches = evaluation.searches.values()
    n_threads = span(one.n_threads for one in searches)
    said = f"Each search has {n_threads} {'thread' if n_threads == '1' else 'threads'}"
    known = [one.memory_nbytes for one in searches if one.memory_nbytes is not None]
    if known:
        said += f" and {span(round(one / 2**30, 1) for one in known)} GiB"
    return f"{said}."


def best_on_average(evaluation: Evaluation, scaling: str, methods: Sequence[str]) -> str:
    """Say which method has the highest mean ARI, and how the others follow."""
    own = points(evaluation, scaling, methods)
    if not own:
        return ""
    order = sorted(own, key=lambda method: -own[method].ari)
    datasets = evaluation.common(scaling, methods)
    printed = _paper_means(methods, datasets) if paper.is_main(scaling) else {}
    figures = [
        f"{method} {three_digits(own[method].ari)}"
        + (f" ({two_digits(printed[method])})" if method in printed else "")
        for method in order
    ]
    return (
        f"{order[0]} has the highest mean ARI over {counted(len(datasets), 'dataset')}: "
        f"{', '.join(figures)}."
    )


def _paper_means(methods: Sequence[str], datasets: Sequence[str]) -> dict[str, float]:
    if not set(datasets) <= set(paper.DATASETS):
        return {}
    return {
        method: mean(paper.ARI[name][method] for name in datasets)
        for method in methods
        if method in paper.METHODS
    }


def front(evaluation: Evaluation, scaling: str, methods: Sequence[str]) -> str:
    """Say which density-based methods no other beats in mean ARI and mean time together."""
    dense = [method for method in methods if method not in paper.NOT_DENSITY_BASED]
    own = points(evaluation, scaling, dense)
    if len(own) < 2:
        return ""
    best = pareto(own)
    times = ", ".join(
        f"{method} {'at least ' if own[method].n_unfinished else ''}"
        f"{seconds_text(own[method].seconds)} s"
        for method in sorted(own, key=lambda method: own[method].seconds)
    )
    said = (
        f"Of the density-based methods, {best[0]} alone is Pareto-optimal"
        if len(best) == 1
        else f"Of the density-based methods, {listed(best)} are Pareto-optimal"
    )
    datasets = evaluation.common(scaling, dense)
    known = [method for method in dense if method in paper.METHODS]
    others = pareto(paper_points(scaling, known, datasets))
    where = f"over {counted(len(datasets), 'dataset')}"
    beside = f" (by the paper's figures for these, {listed(others)})" if others else ""
    return f"{said} in mean ARI and mean time {where}{beside}: {times}."


def losses(evaluation: Evaluation, scaling: str, methods: Sequence[str]) -> str:
    """List the datasets on which a baseline is ahead of SPORE, and by how much."""
    baselines = [method for method in methods if method != paper.SPORE]
    own = scores(evaluation, scaling)
    if paper.SPORE not in own or not baselines:
        return ""
    rows = []
    compared = [name for name in own[paper.SPORE] if any(name in own[m] for m in baselines)]
    for name in compared:
        others = {method: own[method][name] for method in baselines if name in own[method]}
        best = max(others, key=lambda method: others[method])
        behind = others[best] - own[paper.SPORE][name]
        if beyond(behind):
            rows.append(
                [
                    name,
                    three_digits(own[paper.SPORE][name]),
                    f"{best} {three_digits(others[best])}",
                    three_digits(behind),
                    _paper_loss(name) if paper.is_main(scaling) else "-",
                ]
            )
    if not rows:
        return f"SPORE is nowhere behind a baseline by more than {DRAW}."
    return (
        f"SPORE is behind a baseline by more than {DRAW} on {len(rows)} of {len(compared)}:\n\n"
        + markdown(["", "SPORE", "best baseline", "behind by", "in the paper"], rows)
    )


def _paper_loss(name: str) -> str:
    if name not in paper.ARI:
        return "-"
    figures = {method: paper.ARI[name][method] for method in paper.BASELINES}
    best = max(figures, key=lambda method: figures[method])
    behind = figures[best] - paper.ARI[name][paper.SPORE]
    return f"{two_digits(behind)} ({best})" if beyond(behind) else "not behind"


def fashion(evaluation: Evaluation, scaling: str) -> str:
    """Say how far SPORE's search gets on fashion, where the paper's ended early."""
    search = evaluation.searches.get((scaling, "fashion", paper.SPORE))
    if search is None or search.best is None or not paper.is_main(scaling):
        return ""
    printed = paper.ARI["fashion"]
    n_done = sum(trial.outcome == DONE for trial in search.trials)
    said = (
        f"On fashion the time limit ended the paper's search early, at {printed['SPORE']:.2f} "
        f"({printed['SPORE-ANN']:.2f} with approximate neighbours); here {n_done} of "
        f"{search.n_wanted} trials give SPORE {three_digits(best_ari(search))}"
    )
    other = evaluation.searches.get((scaling, "fashion", "KMeans"))
    if other is None or other.best is None:
        return f"{said}; K-means has {printed['KMeans']:.2f} in the paper."
    return f"{said}, {_passing(search, best_ari(other))} ({printed['KMeans']:.2f} in the paper)."


def _passing(search: Search, target: float) -> str:
    curve = best_so_far(search, search.n_wanted)
    if curve[-1] > target:
        at = int((curve > target).argmax()) + 1
        return f"and trial {at} is the first above K-means' {three_digits(target)}"
    return f"not above K-means' {three_digits(target)}"


def far_from_paper(evaluation: Evaluation, scaling: str, methods: Sequence[str]) -> str:
    """List where best ARIs are far from the paper's."""
    if not paper.is_main(scaling):
        return ""
    own = scores(evaluation, scaling)
    rows = []
    for method in methods:
        differences = {
            name: score - paper.ARI[name][method]
            for name, score in own[method].items()
            if method in paper.METHODS and name in paper.ARI
        }
        far = {
            name: value for name, value in differences.items() if beyond(abs(value), NEAR + DRAW)
        }
        if differences:
            order = sorted(far, key=lambda name: -abs(far[name]))
            text = ", ".join(f"{name} {far[name]:+.2f}" for name in order) or "none"
            n_near = len(differences) - len(far)
            average = signed(mean(differences.values()))
            rows.append([method, f"{n_near} of {len(differences)}", average, text])
    if not rows:
        return ""
    return (
        f"Datasets within {NEAR} of the paper's ARI, its rounding allowed for, and those that are "
        "farther from it:\n\n"
        + markdown(["", "near", "mean difference", "farther"], rows).replace("---: |\n", "--- |\n")
    )


def far_from_reference(evaluation: Evaluation, scaling: str) -> str:
    """Say on how many datasets SPORE's best ARI is that of the author's package."""
    own = scores(evaluation, scaling).get(paper.SPORE, {})
    known = {name: score for name, score in own.items() if name in paper.REFERENCE_ARI}
    if not known or not paper.is_main(scaling):
        return ""
    far = {
        name: score - paper.REFERENCE_ARI[name]
        for name, score in known.items()
        if beyond(abs(score - paper.REFERENCE_ARI[name]), DRAW)
    }
    searches = evaluation.of(scaling, paper.SPORE).values()
    alike = all(one.n_wanted == paper.N_TRIALS and one.seed == paper.SEED for one in searches)
    said = (
        "The author's package was run with exact neighbours, the default and 50 draws. "
        f"SPORE's best ARI is within {DRAW} of it on {len(known) - len(far)} of "
        f"{counted(len(known), 'dataset')}"
    )
    rest = ", ".join(f"{name} {value:+.4f}" for name, value in far.items())
    said += f"; farther are {rest}." if far else "."
    return said + ("" if alike else " This run draws other configurations, and may miss the best.")


def approximation(evaluation: Evaluation, scaling: str) -> str:
    """Say what approximate neighbours cost."""
    own = scores(evaluation, scaling)
    if not {paper.SPORE, "SPORE-ANN"} <= set(own):
        return ""
    exact, approximate = own[paper.SPORE], own["SPORE-ANN"]
    under = {name: exact[name] - approximate[name] for name in exact if name in approximate}
    if not under:
        return ""
    lowest = max(under, key=lambda name: under[name])
    highest = min(under, key=lambda name: under[name])
    return (
        f"SPORE-ANN differs from SPORE by {signed(-under[lowest])} (on {lowest}) to "
        f"{signed(-under[highest])} (on {highest}), {signed(-mean(under.values()))} on average."
    )


def tests_in_words(evaluation: Evaluation, scaling: str, method: str, others: Sequence[str]) -> str:
    """Say against which methods the difference is significant, and what unfinished ones change."""
    tests = compare(evaluation, scaling, method, others)
    if not tests:
        return ""
    sure = [other for other, one in tests.items() if one.test.corrected < SIGNIFICANT]
    unsure = [
        f"{other} (p = {probability(one.test.corrected)})"
        for other, one in tests.items()
        if other not in sure
    ]
    said = []
    if sure:
        said.append(f"{method} is ahead of {listed(sure)} (corrected p < {SIGNIFICANT})")
    if unsure:
        said.append(f"not significantly ahead of {listed(unsure)}")
    text = ", ".join(said)
    if not sure:
        text = f"{method} is {text}"
    return f"{text}.{_without_unfinished(evaluation, scaling, method, others)}"


def _without_unfinished(
    evaluation: Evaluation, scaling: str, method: str, others: Sequence[str]
) -> str:
    searches = {other: evaluation.of(scaling, other) for other in (method, *others)}
    finished = {
        other: {name: best_ari(one) for name, one in found.items() if one.best is not None}
        for other, found in searches.items()
    }
    if all(len(finished[other]) == len(found) for other, found in searches.items()):
        return ""
    tests = compare_scores(finished, method, others)
    if not tests:
        return ""
    worst = max(tests, key=lambda other: tests[other].test.corrected)
    return (
        " Without the datasets on which nothing was done, the largest corrected p is "
        f"{probability(tests[worst].test.corrected)}, against {worst}."
    )


def ties_in_words(ties: Ties) -> str:
    """Say how far the order of what ties moves SPORE, and whether that explains the rest."""
    spread = {name: span_of(one) for name, one in ties.items()}
    moved = [name for name, (least, most) in spread.items() if most - least > UNMOVED]
    known = [name for name in spread if name in paper.REFERENCE_ARI]
    outside = [
        name
        for name in known
        if beyond(spread[name][0] - paper.REFERENCE_ARI[name])
        or beyond(paper.REFERENCE_ARI[name] - spread[name][1])
    ]
    said = (
        "Rounded coordinates have equal distances and densities. Among them rows decide here, and "
        "elsewhere what moves last bits: with rows, columns and equal distances in a random "
        f"order, the best ARI moves on {len(moved)} of {len(ties)}."
    )
    if known and not outside:
        said += f" The author's figure is within {DRAW} of these ranges on all {len(known)}."
    elif known:
        said += (
            f" The author's figure is within {DRAW} of these ranges on "
            f"{len(known) - len(outside)} of {len(known)}, not on {listed(outside)}."
        )
    return said


def completeness(evaluation: Evaluation) -> str:
    """Say how many trials were done, and which searches gave nothing."""
    searches = evaluation.searches.values()
    n_wanted = sum(one.n_wanted for one in searches)
    n_done = sum(trial.outcome == DONE for one in searches for trial in one.trials)
    said = f"Of {n_wanted:,} trials, {n_done:,} were done."
    empty = [
        f"{one.method} on {one.dataset}, {one.scaling} ({one.trials[0].reason.rstrip('.')})"
        if one.trials
        else f"{one.method} on {one.dataset}, {one.scaling}"
        for one in searches
        if one.best is None
    ]
    return said + (f" Nothing was done by {listed(empty)}." if empty else "")


def protocol_differences(evaluation: Evaluation) -> str:
    """List what was done otherwise than in the paper."""
    searches = list(evaluation.searches.values())
    methods = {one.method for one in searches}
    drawn = [one for one in searches if one.method not in paper.ONE_CONFIGURATION]
    reruns = {one.n_reruns for one in searches}
    items = [
        *(text for method, text in IMPLEMENTATIONS.items() if method in methods),
        "What the configurations of a search have in common, a neighbour graph or distances, is "
        "computed once; the limit of a configuration holds for the rest, so that from scratch one "
        "may take longer. Times are of re-runs, which compute everything",
        "The paper does not say what the default configurations of the baselines are: those of "
        "DBSCAN, DPC and SNN_DBSCAN are our own",
        "Not tried are configurations for which a search had no time left, or which came after "
        f"{MOST_OVER_TIME} that were stopped for their time; one that runs out of memory or fails "
        "ends no search",
        "ARI and NMI are those of the best trial; the paper has the mean over its re-runs",
        "Noise, the label -1, counts as one cluster in ARI and NMI, for all methods",
    ]
    if any(one.limit_seconds != paper.LIMIT_SECONDS for one in searches):
        limits = span(one.limit_seconds for one in searches)
        items.append(f"A configuration may take {limits} s (the paper's: {paper.LIMIT_SECONDS} s)")
    if any(one.n_wanted != paper.N_TRIALS for one in drawn):
        n_wanted = span(one.n_wanted for one in drawn)
        items.append(f"A search has {n_wanted} trials (the paper's: {paper.N_TRIALS})")
    if reruns - {paper.N_RERUNS}:
        items.append(f"Re-runs are {span(reruns)} (the paper's: {paper.N_RERUNS})")
    if any(one.seed != paper.SEED for one in searches):
        items.append(f"Draws have the seed {span(one.seed for one in searches)}, not {paper.SEED}")
    n_threads = span(one.n_threads for one in searches)
    items.append(f"Threads of a search: {n_threads} (the paper's machine: {paper.N_CORES} cores)")
    missing = sorted(set(paper.DATASETS) - {one.dataset for one in searches})
    if missing:
        items.append(f"Of the paper's datasets, {listed(missing)} were not run")
    return "\n".join(f"- {item}." for item in items)


def unstable(evaluation: Evaluation) -> str:
    """Say whether re-runs have the ARI of the trial that they repeat."""
    found = []
    n_rerun = 0
    for (scaling, dataset, method), search in evaluation.searches.items():
        again = rerun_ari(search)
        if again is None:
            continue
        n_rerun += 1
        if beyond(abs(again[0] - best_ari(search))) or beyond(again[1]):
            found.append(
                f"{method} on {dataset}, {scaling} ({three_digits(best_ari(search))}, then "
                f"{three_digits(again[0])} +- {three_digits(again[1])})"
            )
    if not n_rerun:
        return ""
    if not found:
        return f"In all {n_rerun} searches with re-runs, these have the best trial's ARI."
    return f"Re-runs differ from the best trial for {listed(found)}."
