"""The protocol: try the default and the drawn configurations, choose the best, run it again.

Needs a dataset and a method; configurations run in a child process under limits of time and memory.
Memory: the dataset, which is also written to a temporary folder.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import numpy as np

from pipelines.benchmark.child import DATA, Job
from pipelines.benchmark.methods import Config, Facts, Method
from pipelines.benchmark.preparing import Dataset
from pipelines.benchmark.records import DONE, Search, Trial
from pipelines.benchmark.watching import Child, Limits, Report

MOST_STOPPED = 2
"""Configurations that may be stopped before a search gives up."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a search may use, and how much it tries."""

    n_draws: int = 50
    seed: int = 42
    limit_seconds: float = 120.0
    """For one configuration."""
    budget_seconds: float = 900.0
    """For the configurations with what they share; and once more for the re-runs."""
    n_reruns: int = 10
    memory_nbytes: int = 8 << 30
    """For a search."""
    n_threads: int = 1


def search(dataset: Dataset, method: Method, settings: Settings) -> Search:
    """Search the best configuration of a method for a dataset.

    Parameters
    ----------
    dataset : Dataset
        Prepared.
    method : Method
        Goes to a child process: its functions must be importable there, or pickle by value.
    settings : Settings

    Returns
    -------
    Search
        Trials in the order of the configurations: fewer than `n_wanted` where the budget ended, or
        two were stopped. Their seconds do not have what they share; those of the re-runs do.
    """
    n_classes = len(np.unique(dataset.y))
    facts = Facts(len(dataset.x), dataset.x.shape[1], n_classes)
    configs = method.configurations(facts, settings.n_draws, settings.seed)
    with tempfile.TemporaryDirectory(prefix="spore-benchmark-") as name:
        folder = Path(name)
        np.savez(folder / DATA, x=dataset.x, y=np.unique(dataset.y, return_inverse=True)[1])
        with Child(folder, settings.n_threads) as child:
            trials, shared_seconds = _try_all(child, method, configs, settings)
            best = best_of(trials)
            reruns = [] if best is None else _rerun(child, method, trials[best], settings)
    return Search(
        dataset=dataset.name,
        scaling=dataset.scaling,
        method=method.name,
        n_points=facts.n_points,
        n_columns=facts.n_columns,
        n_raw_columns=dataset.n_raw_columns,
        n_classes=n_classes,
        n_wanted=len(configs),
        limit_seconds=settings.limit_seconds,
        budget_seconds=settings.budget_seconds,
        shared_seconds=shared_seconds,
        trials=trials,
        best=best,
        reruns=reruns,
        seed=settings.seed,
        n_draws=settings.n_draws,
        n_reruns=settings.n_reruns,
        n_threads=settings.n_threads,
    )


def best_of(trials: list[Trial]) -> int | None:
    """Return the number of the trial with the highest ARI, the fastest of equals."""
    done = [trial for trial in trials if trial.outcome == DONE]
    best = min(done, key=lambda trial: (-(trial.ari or 0.0), trial.seconds), default=None)
    return None if best is None else best.number


def _try_all(
    child: Child, method: Method, configs: list[Config], settings: Settings
) -> tuple[list[Trial], float]:
    """Try configurations in order; return the trials, and the seconds of what they share."""
    reports: list[Report] = []
    trials: list[Trial] = []
    left = settings.budget_seconds
    while len(trials) < len(configs) and left > 0:
        todo = list(enumerate(configs))[len(trials) :]
        job = Job(method, todo, sharing=True, budget_seconds=left)
        report = child.run(job, _limits(settings, settings.limit_seconds, left))
        reports.append(report)
        trials += report.trials
        left -= report.seconds
        n_stopped = sum(report.stopped for report in reports)
        if not report.stopped or not report.got_on or n_stopped == MOST_STOPPED:
            break
    return trials, reports[0].shared_seconds if reports else 0.0


def _rerun(child: Child, method: Method, best: Trial, settings: Settings) -> list[Trial]:
    """Run the best configuration from scratch, once only if that takes longer than the limit."""
    if not settings.n_reruns:
        return []
    todo = [(best.number, best.config)] * settings.n_reruns
    total = settings.budget_seconds
    job = Job(method, todo, sharing=False, budget_seconds=total)

    def is_slow(trial: Trial) -> bool:
        return trial.outcome != DONE or (trial.seconds or 0) > settings.limit_seconds

    return child.run(job, _limits(settings, total, total), is_slow).trials


def _limits(settings: Settings, item_seconds: float, total_seconds: float) -> Limits:
    return Limits(item_seconds, total_seconds, settings.memory_nbytes)
