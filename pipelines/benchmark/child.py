"""The process that configurations run in: `python -m pipelines.benchmark.child FOLDER NAME PARENT`.

Reads one job after another, and its dataset, from FOLDER, and writes a line of JSON for everything
that begins or ends, so that whoever watches knows what to stop. Ends with its parent, and then
removes FOLDER, or is ended by it. Memory: that of the method.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from pipelines.benchmark.methods import Config, Facts, Floats, Labels, Method
from pipelines.benchmark.records import DONE, FAILED, OVER_MEMORY, Trial

SHARE = "share"
BEGIN, TRIAL, SHARED, BROKEN, END = "begin", "trial", "shared", "broken", "end"
"""What a line can say."""
FEW_POINTS = 256
"""Points of the trial run that has everything loaded and compiled before a clock starts."""
PARENT_SECONDS = 0.5
JOB_SECONDS = 0.02
"""How often this process looks for its parent, and for a job."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What to run."""

    data: str
    """Name of the file with the dataset, arrays x and y."""
    method: Method
    todo: list[tuple[int, Config]]
    """Configurations and their numbers."""
    sharing: bool
    """Whether what they have in common is computed once, or each runs from scratch."""
    budget_seconds: float
    """After this time, no further configuration begins."""


Say = Callable[..., None]


def main(arguments: list[str]) -> None:
    """Run jobs as they come, and write what happens beside them."""
    folder, name, parent = Path(arguments[0]), arguments[1], int(arguments[2])
    threading.Thread(target=_end_with, args=(parent, folder), daemon=True).start()
    with (folder / f"{name}.lines").open("w", buffering=1) as lines:

        def say(what: str, **more: Any) -> None:
            lines.write(json.dumps({"what": what, **more}) + "\n")

        for number in itertools.count():
            job = _wait_for(job_path(folder, name, number))
            with np.load(folder / job.data) as file:
                x, y = file["x"], file["y"]
            warm_up(job, x, y)
            run(job, x, y, say)
            del x, y
            say(END)


def job_path(folder: Path, name: str, number: int) -> Path:
    """Return where a child finds its first, second, ... job."""
    return folder / f"{name}-{number}.job"


def _wait_for(path: Path) -> Job:
    while not path.exists():
        time.sleep(JOB_SECONDS)
    job: Job = cloudpickle.loads(path.read_bytes())
    return job


def _end_with(parent: int, folder: Path) -> None:
    """End this process when its parent has ended, which leaves the folder to it."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def warm_up(job: Job, x: Floats, y: Labels) -> None:
    """Run the default configuration of a few points on them, and forget it."""
    step = max(1, len(x) // FEW_POINTS)
    few = np.ascontiguousarray(x[::step])
    facts = Facts(*few.shape, len(np.unique(y[::step])))
    config = job.method.configurations(facts, 0, 0)[0]
    try:
        job.method.labels(few, config, job.method.share(few, [config]) if job.sharing else None)
    except Exception:
        return  # too few points for these bounds; on all of them it counts


def run(job: Job, x: Floats, y: Labels, say: Say) -> None:
    """Run what configurations share, then each of them, until the budget is spent."""
    started = time.perf_counter()
    shared = None
    if job.sharing:
        say(BEGIN, item=SHARE)
        try:
            shared = job.method.share(x, [config for _, config in job.todo])
        except Exception as error:
            say(BROKEN, outcome=outcome_of(error), reason=reason_of(error))
            return
        say(SHARED, seconds=time.perf_counter() - started)
    for number, config in job.todo:
        if time.perf_counter() - started >= job.budget_seconds:
            return
        say(BEGIN, item=number)
        labels = functools.partial(job.method.labels, x, config, shared)
        say(TRIAL, trial=dataclasses.asdict(try_one(number, config, labels, y)))


def try_one(number: int, config: Config, cluster: Callable[[], Labels], y: Labels) -> Trial:
    """Time a configuration, and compare its labels with the true ones."""
    started = time.perf_counter()
    try:
        labels = np.asarray(cluster())
    except Exception as error:
        return Trial(number, config, outcome_of(error), reason_of(error))
    seconds = time.perf_counter() - started
    if labels.shape != y.shape:
        reason = f"There are labels of shape {labels.shape} for {len(y)} points."
        return Trial(number, config, FAILED, reason)
    return Trial(
        number,
        config,
        DONE,
        seconds=seconds,
        ari=float(adjusted_rand_score(y, labels)),
        nmi=float(normalized_mutual_info_score(y, labels)),
        n_clusters=len(np.setdiff1d(labels, [-1])),
        noise=float(np.mean(labels == -1)),
    )


def outcome_of(error: Exception) -> str:
    """Return what an error means for a trial."""
    return OVER_MEMORY if isinstance(error, MemoryError) else FAILED


def reason_of(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


if __name__ == "__main__":
    main(sys.argv[1:])
