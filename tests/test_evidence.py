"""From the files of a benchmark to its page: statistics, tables, pictures, the page itself."""

import dataclasses

import numpy as np

from pipelines.benchmark import paper
from pipelines.benchmark.records import DONE, OVER_TIME, Search, Trial, write_json, write_search


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
    reruns = [
        dataclasses.replace(trials[best], seconds=one) for one in (seconds if done else ())
    ]
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
