"""Run cells, that is numbers of points and of columns: ours first, then the others.

Writes results to OUT/cells and the machine to OUT/machine.json; what is there is not run again.
Generated data and what the contestants write are in a folder of their own and go after each cell:
ours reads a Zarr array that is removed before the others' .npy file is written. Memory: that of
labels, twice, and of a few blocks of rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.scale.cells import (
    ABSENT,
    DONE,
    NOT_TRIED,
    OVER_MEMORY,
    OVER_TIME,
    Result,
    read_result,
    read_results,
    write_result,
)
from pipelines.scale.contestants import (
    CONTESTANTS,
    FINISHED,
    LABELS,
    N_SAMPLED,
    OURS,
    STARTED,
    Contestant,
    Job,
)
from pipelines.scale.generating import BACKGROUND, Drawn, generated, write_labels, write_npy
from pipelines.scale.generating import write_zarr as write_source
from pipelines.scale.measuring import Limits, Watched, limited_environment, watch
from spore_dask import InputError, LimitError, Params
from spore_dask.comparing import compare, longest_rows

ROOT = Path(__file__).parents[2]
N_COMPARED = 1_000_000
"""Rows at most that the adjusted Rand index is computed on."""
LEAST_SECONDS = 60.0
"""The least time limit of a peer."""
RUN_COPIES = 2.5
"""Disk that a fit needs at once, over the size of its input."""
RUN_ROWS = 1.5
"""The same, over the size of its neighbour graph."""
SIZE_CLASSES = {"< 100": 100, "< 1,000": 1000, "< 10,000": 10_000, ">= 10,000": np.inf}
"""Classes of true clusters, and what their sizes are below."""
LEAST_JACCARD = 0.5
"""A true cluster is found if it and some cluster have this share of their rows in common."""
SMALL = 30
"""`min_cluster_size` of peers where the data has small clusters."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How cells are run."""

    out: Path
    contestants: tuple[str, ...]
    memory_limit: int
    """Bytes for each process."""
    limit_seconds: float
    """For each contestant in each cell."""
    factor: float = 3.0
    """A peer's time limit is so many times what ours took."""
    n_threads: int = 2
    peer_python: str | None = None
    """A Python that has the author's package."""
    work: Path | None = None
    """Where data is generated; a folder for temporary files by default."""
    seed: int = 0
    family: str = "shapes"
    background: float = 0.03
    say: Callable[[str], None] = print


def run_cells(settings: Settings, cells: Iterable[tuple[int, int]]) -> None:
    """Run all contestants in all cells, given as (columns, points), fewer points first."""
    for n_columns, n_points in sorted(cells):
        run_cell(settings, n_columns, n_points)


def check_earlier(settings: Settings) -> None:
    """Refuse a folder with results that were measured in another way."""
    wanted = {
        "memory_limit": settings.memory_limit,
        "factor": settings.factor,
        "seed": settings.seed,
        "family": settings.family,
        "background": settings.background,
    }
    for result in read_results(settings.out):
        for name, value in wanted.items():
            if getattr(result, name) != value:
                raise InputError(
                    f"The result of {result.contestant} with {result.n_points:,} x "
                    f"{result.n_columns} that is there has the {name} {getattr(result, name)}, but "
                    f"{value} is asked for: choose another --out, or remove the old one."
                )


def run_cell(settings: Settings, n_columns: int, n_points: int) -> None:
    """Run what is still to be run in a cell."""
    pending = [
        CONTESTANTS[name]
        for name in settings.contestants
        if not is_settled(read_result(settings.out, n_columns, n_points, name))
    ]
    runnable = []
    for contestant in pending:
        blocked = not_to_run(settings, contestant, n_columns, n_points)
        if blocked is None:
            runnable.append(contestant)
        else:
            keep(settings, blocked)
    if not runnable:
        return
    with workplace(settings) as work:
        check_space(work, n_columns, n_points, any(c.ours for c in runnable))
        drawn = generated(settings.family, n_columns, n_points, settings.seed, settings.background)
        write_labels(work / "truth.npy", drawn, n_points)
        for ours in (True, False):
            group = [contestant for contestant in runnable if contestant.ours == ours]
            with data(work, drawn, n_points, ours) if group else contextlib.nullcontext() as source:
                for contestant in group:
                    run_one(settings, contestant, cell_job(settings, drawn, n_points, source, work))


def is_settled(result: Result | None) -> bool:
    """Say whether a result needs no further run; what was absent may have been installed."""
    return result is not None and result.outcome != ABSENT


def keep(settings: Settings, result: Result) -> None:
    """Write a result, and say so."""
    write_result(settings.out, result)
    settings.say(line_of(result))


def line_of(result: Result) -> str:
    """Say in a line what a contestant did."""
    head = f"{result.n_points:>10,} x {result.n_columns:<4} {result.title:<28}"
    if not result.done:
        return f"{head} {result.outcome}: {result.reason}"
    peak = (result.peak_nbytes or 0) >> 20
    return (
        f"{head} {result.seconds:8.1f} s {peak:6d} MiB  ARI {result.ari:.3f}  "
        f"{result.n_clusters} of {result.n_true} clusters, {result.noise:.1%} noise"
        f"{choice_text(result)}; found {found_text(result)}"
    )


def choice_text(result: Result) -> str:
    """Say which parameters ours has chosen, how sure it is, and what that took."""
    if not result.choice:
        return ""
    params = ", ".join(
        f"{name} {value:.4g}" for name, value in result.choice["params"].items() if value
    )
    score, spent = result.choice["score"] or 0, result.stage_seconds["trials"]
    return f"; chosen in {spent:.1f} s, score {score:.3f}: {params or 'defaults'}"


def found_text(result: Result) -> str:
    """Say what share of the true clusters was found, for each class of sizes."""
    return ", ".join(
        f"{name}: {n_found / n_true:.3f} of {n_true}"
        for name, (n_found, n_true) in result.found.items()
    )


def blank(settings: Settings, contestant: Contestant, n_columns: int, n_points: int) -> Result:
    """Return a result of which only the cell and the contestant are known."""
    return Result(
        contestant.name, contestant.title, contestant.kind, contestant.ours,
        n_points, n_columns, NOT_TRIED, memory_limit=settings.memory_limit,
        factor=settings.factor, seed=settings.seed, family=settings.family,
        background=settings.background,
    )  # fmt: skip


def not_to_run(
    settings: Settings, contestant: Contestant, n_columns: int, n_points: int
) -> Result | None:
    """Return the result of a contestant that is absent, or that failed with fewer points."""
    result = blank(settings, contestant, n_columns, n_points)
    if not is_there(settings, contestant):
        reason = f"{contestant.package} is not installed"
        return dataclasses.replace(result, outcome=ABSENT, reason=reason)
    for earlier in read_results(settings.out) if contestant.name != OURS else []:
        if (
            (earlier.contestant, earlier.n_columns) == (contestant.name, n_columns)
            and earlier.n_points < n_points
            and earlier.outcome in (OVER_TIME, OVER_MEMORY)
        ):
            reason = f"{earlier.outcome} at {earlier.n_points:,} points"
            return dataclasses.replace(result, reason=reason)
    return None


def python_of(settings: Settings, contestant: Contestant) -> str | None:
    """Return the Python that runs a contestant."""
    return settings.peer_python if contestant.peer else sys.executable


def is_there(settings: Settings, contestant: Contestant) -> bool:
    """Say whether a contestant's package can be found."""
    python = python_of(settings, contestant)
    if python is None:
        return False
    code = f"import sys, importlib.util as u; sys.exit(u.find_spec({contestant.module!r}) is None)"
    try:
        return subprocess.run([python, "-c", code], cwd=ROOT, check=False).returncode == 0
    except OSError:
        return False


@contextlib.contextmanager
def workplace(settings: Settings) -> Iterator[Path]:
    """Make a folder for the data of a cell, and remove it."""
    if settings.work is not None:
        settings.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=settings.work, prefix="scale-") as work:
        yield Path(work)


def needed_nbytes(n_columns: int, n_points: int, ours: bool) -> int:
    """Return the disk that a cell needs at once."""
    data_nbytes = n_points * n_columns * 4
    if not ours:
        return data_nbytes
    trials = compare((n_points, n_columns), {}, 0).trials
    graph_nbytes = n_points * (longest_rows(trials, n_points) + 1) * 8
    return int((1 + RUN_COPIES) * data_nbytes + RUN_ROWS * graph_nbytes)


def check_space(work: Path, n_columns: int, n_points: int, ours: bool) -> None:
    """Refuse a cell that would fill the disk."""
    needed, free = needed_nbytes(n_columns, n_points, ours), shutil.disk_usage(work).free
    if needed > free:
        raise LimitError(
            f"{n_points:,} x {n_columns} needs {needed / 1e9:.1f} GB of disk, but {free / 1e9:.1f} "
            f"GB are free: name a roomier folder with --work, or leave the cell out with "
            f"--without {n_columns}x{n_points}."
        )


@contextlib.contextmanager
def data(work: Path, drawn: Drawn, n_points: int, ours: bool) -> Iterator[Path]:
    """Write the data as those that follow read it, and remove it."""
    if ours:
        path = work / "x.zarr"
        write_source(path, drawn, n_points)
    else:
        path = work / "x.npy"
        write_npy(path, drawn, n_points)
    yield path
    if ours:
        shutil.rmtree(path)
    else:
        path.unlink()


def cell_job(settings: Settings, drawn: Drawn, n_points: int, source: Any, work: Path) -> Job:
    """Return the job of a cell, still without a contestant."""
    resolved = Params().resolve(n_points)
    sampled = Params().resolve(min(n_points, N_SAMPLED))
    most = SMALL if settings.family == "tails" else n_points
    return Job(
        contestant="",
        source=str(source),
        folder=str(work / "contestant"),
        n_points=n_points,
        n_columns=drawn.n_columns,
        n_clusters=drawn.n_clusters,
        min_cluster_size=min(resolved.min_cluster_size, most),
        min_samples=resolved.density_neighbors,
        sample_min_cluster_size=min(sampled.min_cluster_size, most),
        sample_min_samples=sampled.density_neighbors,
        memory_limit=settings.memory_limit,
        n_threads=settings.n_threads,
    )


def run_one(settings: Settings, contestant: Contestant, job: Job) -> None:
    """Run one contestant in a process of its own, and keep its result."""
    folder = Path(job.folder)
    folder.mkdir()
    document = folder / "job.json"
    document.write_text(
        json.dumps(dataclasses.asdict(dataclasses.replace(job, contestant=contestant.name)))
    )
    python = python_of(settings, contestant) or sys.executable
    command = [python, "-m", "pipelines.scale.contestants", str(document)]
    limits = Limits(settings.memory_limit, limit_of(settings, contestant, job))
    environment = limited_environment(settings.n_threads, ROOT)
    watched = watch(command, folder, folder / STARTED, limits, environment)
    result = blank(settings, contestant, job.n_columns, job.n_points)
    keep(settings, judged(result, watched, limits, folder))
    shutil.rmtree(folder)


def limit_of(settings: Settings, contestant: Contestant, job: Job) -> float:
    """Return the seconds that a contestant may take: a peer, a few times what ours took."""
    first = read_result(settings.out, job.n_columns, job.n_points, OURS)
    if contestant.ours or first is None or first.seconds is None or not first.done:
        return settings.limit_seconds
    return min(settings.limit_seconds, max(LEAST_SECONDS, settings.factor * first.seconds))


def judged(result: Result, watched: Watched, limits: Limits, folder: Path) -> Result:
    """Add to a result what was seen from outside, and what the process has left."""
    result = dataclasses.replace(
        result,
        outcome=watched.outcome,
        reason=watched.reason,
        limit_seconds=limits.seconds,
        wall_seconds=watched.wall_seconds,
        peak_nbytes=watched.peak_nbytes,
        n_processes=watched.n_processes,
        cpu_seconds=watched.cpu_seconds,
    )
    if watched.outcome != DONE:
        return dataclasses.replace(result, stopped_seconds=watched.seconds)
    facts = json.loads((folder / FINISHED).read_text())
    return dataclasses.replace(
        result, **facts, **scores(folder.parent / "truth.npy", folder / LABELS)
    )


def scores(truth_path: Path, labels_path: Path) -> dict[str, Any]:
    """Compare labels with the truth, leaving out the background, on some rows if there are many."""
    from sklearn.metrics import adjusted_rand_score

    labels = np.load(labels_path, mmap_mode="r")
    truth: NDArray[np.int32] = np.load(truth_path)
    found = clusters_found(truth, labels)
    rows = np.flatnonzero(truth != BACKGROUND)
    if len(rows) > N_COMPARED:
        rows = np.random.default_rng(0).choice(rows, N_COMPARED, replace=False)
    return {
        "ari": float(adjusted_rand_score(truth[rows], labels[rows])),
        "n_clusters": len(np.setdiff1d(np.unique(labels), [-1])),
        "noise": float(np.mean(labels == -1)),
        "n_true": sum(n_true for _, n_true in found.values()),
        "found": found,
    }


def clusters_found(
    truth: NDArray[np.int32], labels: NDArray[np.int32]
) -> dict[str, tuple[int, int]]:
    """Return for each class of sizes how many true clusters were found, and how many there are.

    Rows of the background count against a cluster that has them.
    """
    sizes, found_sizes = (np.bincount(each[each >= 0]) for each in (truth, labels))
    both = (truth >= 0) & (labels >= 0)
    pairs = truth[both].astype(np.int64) * max(1, len(found_sizes)) + labels[both]
    pairs, common = np.unique(pairs, return_counts=True)
    first, second = np.divmod(pairs, max(1, len(found_sizes)))
    jaccard = common / (sizes[first] + found_sizes[second] - common)
    is_found = np.isin(np.arange(len(sizes)), first[jaccard >= LEAST_JACCARD])
    classes = np.digitize(sizes, list(SIZE_CLASSES.values()))
    counted = {}
    for number, name in enumerate(SIZE_CLASSES):
        here = (classes == number) & (sizes > 0)
        if here.any():
            counted[name] = int(is_found[here].sum()), int(here.sum())
    return counted
