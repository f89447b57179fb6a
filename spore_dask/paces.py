"""The pace of each stage on a machine, from how long it took for samples.

Pure arithmetic, on the loads of `costs`. Few and many points differ in their work, few and as few
in more partitions in the number of tasks. What fits in one process cannot show is built in here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from spore_dask.costs import ALONE, Load, Pace, Size

LIST_SECONDS = 0.03
"""What a list of tasks takes at least: workers begin it, and end it, not all at once."""
SENT_SECONDS = 0.002
"""What it takes the coordinator and the scheduler to send a task and to hear of its end."""
PIECE_SECONDS = 2e-5
"""What a part of a file takes in an exchange, beside its bytes."""
PAGE_SECONDS = 6e-6
"""What a page of rows takes that Expansion reads because its cache is smaller than the graph."""
LEAST_SECONDS = {"density": 2.5e-9, "expand": 5e-9, "reassign": 1.5e-8, "publish": 5e-8}
"""What a unit of work of light stages takes at least: samples may fit in a processor's cache, and
their files in pages of memory that are at hand."""
NOISE_SECONDS = 0.03
"""What such a stage may take more or less without a reason."""
CROWDED = 1.2
"""How much longer work takes where workers share a machine, and so its caches and its memory."""


@dataclasses.dataclass(frozen=True)
class Timed:
    """What a stage had to do in a fit of a sample, and how long that took."""

    load: Load
    seconds: float


Stages = Mapping[str, Timed]


def find_paces(few: Stages, split: Stages, many: Stages) -> dict[str, Pace]:
    """Return the pace of every stage that many points had, without workers.

    `few` and `split` have the same points in one and in several partitions; they lack the stages
    that did something else there than with many points.
    """
    paces = {
        stage: _pace_of(stage, few.get(stage), split.get(stage), timed)
        for stage, timed in many.items()
    }
    if "scan" in paces and "points" in paces:  # samples are read by a single task
        per_task = paces["points"].per_task
        paces["scan"] = dataclasses.replace(paces["scan"], per_task=per_task)
    return paces


def _pace_of(stage: str, few: Timed | None, split: Timed | None, many: Timed) -> Pace:
    """Return the pace of a stage: the line through few and many points, as far as it can be."""
    per_task = _per_task(few, split)
    seconds, work = _work_seconds(many, per_task), many.load.work
    per_work, least = seconds / work if work else 0.0, LEAST_SECONDS.get(stage, 0.0)
    if few is not None and 0 < 2 * few.load.work <= work:
        more = seconds - _work_seconds(few, per_task)
        per_work = min(per_work, max(0.0, more / (work - few.load.work)))
    if least and per_work * work < NOISE_SECONDS:  # too short to tell
        seconds, per_work = _work_seconds(split or many, per_task), 0.0
    fixed = seconds - per_work * work
    per_work = max(per_work, least)
    return Pace(fixed, per_work, per_task, per_piece=PAGE_SECONDS if stage in ALONE else 0.0)


def _per_task(few: Timed | None, split: Timed | None) -> float:
    """Return what a task takes beside its work."""
    if few is None or split is None or split.load.n_tasks <= few.load.n_tasks:
        return 0.0
    more = max(0.0, split.seconds - few.seconds)
    return more / (split.load.n_tasks - few.load.n_tasks)


def _work_seconds(timed: Timed, per_task: float) -> float:
    """Return how long a stage took for its work."""
    pages = PAGE_SECONDS * timed.load.n_pieces if timed.load.alone else 0.0
    return max(0.0, timed.seconds - per_task * timed.load.n_tasks - pages)


def on_workers(stage: str, pace: Pace, size: Size, crowded: bool) -> Pace:
    """Return the pace of a stage whose tasks are sent to workers."""
    if stage in ALONE:
        return pace
    return Pace(
        pace.fixed + LIST_SECONDS * n_lists(stage, size),
        pace.per_work * (CROWDED if crowded else 1),
        pace.per_task,
        SENT_SECONDS,
        PIECE_SECONDS,
    )


def n_lists(stage: str, size: Size) -> int:
    """Return how often a stage sends a list of tasks to workers, and waits for all of them.

    The coordinator takes as long once more before those of `points`, to grow the tree of
    partitions.
    """
    n_rounds = size.n_rounds
    return {
        "scan": 1,
        "points": 3,
        "graph": 1 if n_rounds is None else 6 + 3 * n_rounds + (not size.has_long_rows),
        "density": 3,
        "fragments": 2,
    }[stage]
