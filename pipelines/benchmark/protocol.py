"""The protocol: try the default and the drawn configurations, choose the best, run it again.

Needs a dataset and a method; configurations run in a child process under limits of time and memory.
Memory: the dataset, which is also written to a temporary folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from pipelines.benchmark.child import Job
from pipelines.benchmark.methods import Config, Facts, Method
from pipelines.benchmark.preparing import Dataset
from pipelines.benchmark.records import DONE, OVER_TIME, Search, Trial
from pipelines.benchmark.watching import Child, Limits, Report, child_with

MOST_OVER_TIME = 2
"""Configurations that may be stopped for their time before a search gives up.

What runs out of memory, or dies, ends no search: that says little of the next configuration.
"""


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
        two were stopped for their time. Their seconds do not have what they share; those of the
        re-runs do.
    """
    n_classes = len(np.unique(dataset.y))
    facts = Facts(len(dataset.x), dataset.x.shape[1], n_classes)
    configs = method.configurations(facts, settings.n_draws, settings.seed)
    with child_with(settings.n_threads) as child, _at_hand(child, dataset) as data:
        work = Work(child, data, method, settings)
        trials, shared_seconds = _try_all(work, configs)
        best = best_of(trials)
        reruns = [] if best is None else _rerun(work, trials[best])
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
        memory_nbytes=settings.memory_nbytes,
    )


def best_of(trials: list[Trial]) -> int | None:
    """Return the number of the trial with the highest ARI, the fastest of equals."""
    done = [trial for trial in trials if trial.outcome == DONE]
    best = min(done, key=lambda trial: (-(trial.ari or 0.0), trial.seconds), default=None)
    return None if best is None else best.number


@contextlib.contextmanager
def _at_hand(child: Child, dataset: Dataset) -> Iterator[str]:
    """Write a dataset for a child, and remove it afterwards."""
    path = child.folder / f"{dataset.name}.npz"
    np.savez(path, x=dataset.x, y=np.unique(dataset.y, return_inverse=True)[1])
    try:
        yield path.name
    finally:
        path.unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class Work:
    """What runs where."""

    child: Child
    data: str
    method: Method
    settings: Settings

    def run(
        self,
        todo: list[tuple[int, Config]],
        sharing: bool,
        seconds: tuple[float, float],
        enough: Callable[[Trial], bool] = lambda trial: False,
    ) -> Report:
        """Run configurations, with so many seconds for each and for all, until one is enough."""
        limits = Limits(*seconds, self.settings.memory_nbytes)
        job = Job(self.data, self.method, todo, sharing, budget_seconds=limits.total_seconds)
        return self.child.run(job, limits, enough)


def _try_all(work: Work, configs: list[Config]) -> tuple[list[Trial], float]:
    """Try configurations in order; return the trials, and the seconds of what they share."""
    reports: list[Report] = []
    trials: list[Trial] = []
    left = work.settings.budget_seconds
    while len(trials) < len(configs) and left > 0:
        todo = list(enumerate(configs))[len(trials) :]
        report = work.run(todo, True, (work.settings.limit_seconds, left))
        reports.append(report)
        trials += report.trials
        left -= report.seconds
        n_late = sum(one.stopped and one.trials[-1].outcome == OVER_TIME for one in reports)
        if not report.stopped or not report.got_on or n_late == MOST_OVER_TIME:
            break
    return trials, reports[0].shared_seconds if reports else 0.0


def _rerun(work: Work, best: Trial) -> list[Trial]:
    """Run the best configuration from scratch, once only if that takes longer than the limit."""
    settings = work.settings
    if not settings.n_reruns:
        return []

    def is_slow(trial: Trial) -> bool:
        return trial.outcome != DONE or (trial.seconds or 0) > settings.limit_seconds

    todo = [(best.number, best.config)] * settings.n_reruns
    seconds = (settings.budget_seconds, settings.budget_seconds)
    return work.run(todo, False, seconds, is_slow).trials
