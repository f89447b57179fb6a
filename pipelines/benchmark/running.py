"""Run all searches as independent tasks on Dask, and skip those whose file is there.

Reads datasets on the workers, which must see the folders; each task writes the file of its search.
Memory: searches run in child processes of the workers, each within the memory of its settings; of
those with many points only one runs on a machine at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import psutil
from distributed import Client, Future, LocalCluster, as_completed, get_worker
from distributed.scheduler import NoValidWorkerError

from pipelines.benchmark.machine import write_machine
from pipelines.benchmark.methods import Method
from pipelines.benchmark.preparing import chosen, load
from pipelines.benchmark.protocol import Settings, search
from pipelines.benchmark.records import Search, Trial, path_of, write_search
from spore_dask import ClusterError, InputError
from spore_dask.threads import n_threads as n_processors

LARGE_POINTS = 20_000
"""From here on searches need gigabytes, and run alone on their machine's first worker."""
RESTART_SECONDS = 60
"""After which a worker that died should be back, under another address."""
USABLE = 0.8
"""Share of the memory that all searches of a machine may use together."""
FIXED = {
    "limit_seconds": "the limit of a configuration",
    "budget_seconds": "the budget of a search",
    "n_draws": "the number of draws",
    "seed": "the seed",
    "n_reruns": "the number of re-runs",
    "n_points": "the number of points",
}
"""What searches in one folder must have in common with those that are asked for."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which searches to run."""

    out: Path
    folder: Path | None
    """Of the data; None for the datasets that ship with scikit-learn."""
    scalings: list[str]
    sets: list[str] | None
    """None for all that are in the folder."""
    methods: list[Method]
    settings: Settings


@dataclasses.dataclass(frozen=True)
class Task:
    """One search."""

    out: Path
    folder: Path | None
    scaling: str
    dataset: str
    n_points: int
    method: Method
    settings: Settings
    pins: bool = False
    """Whether workers are numbered, and keep to processors of their own."""

    @property
    def what(self) -> str:
        """What is searched, for the reader."""
        return f"{self.scaling} {self.dataset} {self.method.name}"

    def path(self) -> Path:
        """Return the file of the search."""
        return path_of(self.out, self.scaling, self.dataset, self.method.name)


@dataclasses.dataclass(frozen=True)
class Done:
    """What the progress line of a search says."""

    best_ari: float | None
    n_trials: int
    n_wanted: int
    seconds: float


def default_settings(settings: Settings, n_workers: int) -> Settings:
    """Give each search a fair share of this machine: its memory, and one thread if not alone."""
    memory_nbytes = int(USABLE * psutil.virtual_memory().total / max(1, n_workers))
    n_threads = 1 if n_workers > 1 else n_processors()
    return dataclasses.replace(settings, memory_nbytes=memory_nbytes, n_threads=n_threads)


def run_all(
    plan: Plan,
    client: str | None = None,
    n_workers: int = 2,
    command: str = "",
    say: Callable[[str], None] = print,
) -> None:
    """Run the searches that have no file yet, large ones first; write what the machine is.

    Parameters
    ----------
    plan : Plan
    client : str, optional
        Address of a scheduler, whose workers see `out` and `folder` under the same paths.
        Default: a LocalCluster.
    n_workers : int
        Its processes, of one thread each.
    command : str
        What the user called, without paths, for OUT/machine.json.
    say : callable
        Gets a line for each search that is finished.

    Raises
    ------
    InputError
        Before any work, if a file there is of another configuration, or if the local workers have
        more threads than there are processors.
    ClusterError
        After all else is done, if searches were lost.
    """
    wanted = tasks_of(plan)
    tasks = [task for task in wanted if not is_finished(task)]
    if len(tasks) < len(wanted):
        say(f"{len(wanted) - len(tasks)} of {len(wanted)} searches are there already")
    if not tasks:
        return
    if client is None:
        check_processors(n_workers, plan.settings.n_threads)
    write_machine(plan.out, command, plan.settings)
    with _cluster(client, n_workers) as connected:
        _run(connected, [dataclasses.replace(task, pins=client is None) for task in tasks], say)


def check_processors(n_workers: int, n_threads: int) -> None:
    """Refuse more threads than there are processors: searches would slow each other down."""
    if (wanted := n_workers * n_threads) > (found := n_processors()):
        raise InputError(
            f"--workers {n_workers} with --threads {n_threads} each need {wanted} processors, but "
            f"{found} can be used: choose fewer of either."
        )


def tasks_of(plan: Plan) -> list[Task]:
    """Return all searches of a plan, large ones first."""
    sets = chosen(plan.folder, plan.sets)
    tasks = [
        Task(plan.out, plan.folder, scaling, name, n_points, method, plan.settings)
        for name, n_points in sets.items()
        for scaling in plan.scalings
        for method in plan.methods
    ]
    return sorted(tasks, key=lambda task: -task.n_points)


def is_finished(task: Task) -> bool:
    """Tell whether the file of a search is there, and refuse one of another configuration."""
    if not task.path().exists():
        return False
    found = json.loads(task.path().read_text())
    wanted = {**dataclasses.asdict(task.settings), "n_points": task.n_points}
    for name, meaning in FIXED.items():
        if found[name] != wanted[name]:
            raise InputError(
                f"The search of {task.what} that is there has {found[name]:g} as {meaning}, but "
                f"{wanted[name]:g} is asked for: choose another --out, or remove the old one."
            )
    return True


@contextlib.contextmanager
def _cluster(address: str | None, n_workers: int) -> Iterator[Client]:
    """Connect to a scheduler, or start one with workers whose memory nobody but us limits."""
    if address is not None:
        with Client(address) as client:
            yield client
        return
    with (
        dask.config.set({"distributed.scheduler.no-workers-timeout": f"{RESTART_SECONDS} s"}),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            silence_logs=logging.CRITICAL,
            dashboard_address="127.0.0.1:0",
            security=True,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _run(client: Client, tasks: list[Task], say: Callable[[str], None]) -> None:
    """Run tasks, say what each came to, and raise at the end if some were lost."""
    first = _first_workers(client)
    futures = {
        _submit(client, task, number, first): (number, task) for number, task in enumerate(tasks)
    }
    pending, n_done, lost = as_completed(futures), 0, []
    for future in pending:
        number, task = futures[future]
        error = future.exception()
        if isinstance(error, NoValidWorkerError):  # the scheduler ties tasks to addresses only
            again = _submit(client, task, number, _first_workers(client))
            futures[again] = number, task
            pending.add(again)
            continue
        n_done += 1
        if error is None:
            said = _line(task, future.result())
        else:
            said = f"{task.what}: lost, {type(error).__name__}: {error}".splitlines()[0]
            lost.append(task.what)
        say(f"{n_done}/{len(tasks)} {said}")
    if lost:
        raise ClusterError(
            f"{len(lost)} of {len(tasks)} searches were lost, the first of them {lost[0]}: the "
            "same command tries them again."
        )


def _submit(client: Client, task: Task, number: int, first: list[str]) -> Future[Done]:
    """Submit a task, to the first worker of a machine if it is large."""
    workers = first if task.n_points > LARGE_POINTS else None
    return client.submit(run_task, task, priority=-number, workers=workers, pure=False)


def _first_workers(client: Client) -> list[str]:
    """Return one worker of each machine."""
    client.wait_for_workers(1)
    workers = client.scheduler_info(n_workers=-1)["workers"]
    first: dict[str, str] = {}
    for address, worker in sorted(workers.items()):
        first.setdefault(worker["host"], address)
    return list(first.values())


def run_task(task: Task) -> Done:
    """Search, and write the file; runs on a worker."""
    started = time.perf_counter()
    dataset = load(task.folder, task.dataset, task.scaling)
    with own_processors(task.settings.n_threads) if task.pins else contextlib.nullcontext():
        found = search(dataset, task.method, task.settings)
    write_search(task.out, found)
    seconds = time.perf_counter() - started
    return Done(_best_ari(found), len(found.trials), found.n_wanted, seconds)


@contextlib.contextmanager
def own_processors(n_threads: int) -> Iterator[None]:
    """Keep this thread, and what it starts, to processors that no other worker uses."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    every = sorted(os.sched_getaffinity(0))
    first = int(get_worker().name) * n_threads
    os.sched_setaffinity(0, every[first : first + n_threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


def _best_ari(found: Search) -> float | None:
    best: Trial | None = None if found.best is None else found.trials[found.best]
    return None if best is None else best.ari


def _line(task: Task, done: Done) -> str:
    best = "no labels" if done.best_ari is None else f"ARI {done.best_ari:.4f}"
    return f"{task.what}: {best}, {done.n_trials} of {done.n_wanted}, {done.seconds:.1f} s"
