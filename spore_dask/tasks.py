"""Stages as lists of independent tasks, with receipts that survive a kill.

A task reads arrays, writes whole chunks that it alone owns, and returns a small receipt. The
receipt is written beside its output as soon as the task is done, so that a run that is started
again continues with what is missing; a marker written last makes the stage done.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from spore_dask.engine import Engine
from spore_dask.store import Folder

Receipt = dict[str, Any]
MARKER = "done.json"
MOST_IN_BATCH = 16
"""Light tasks that travel together at most."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A stage's tasks: one function, and an item for each call."""

    name: str
    task: Callable[[Any], Receipt]
    items: Sequence[Any]
    needs_nbytes: int
    """Projected peak of a process that runs one of them."""
    light: bool = False
    """Whether a task takes about as long as sending it: such tasks travel in batches, one stays."""


def run_work(engine: Engine, folder: Folder, work: Work) -> list[Receipt]:
    """Run the tasks that have no receipt yet; return all receipts in the order of the items."""
    receipts = folder.child(f"receipts-{work.name}")
    known = {
        int(name.removesuffix(".json")): receipts.read_json(name)
        for name in receipts.names()
        if name.endswith(".json")
    }
    missing = [i for i in range(len(work.items)) if known.get(i) is None]
    task = functools.partial(_keep_receipts, work.task, receipts)
    batches = _batches(missing, engine.n_threads) if work.light else [[i] for i in missing]
    items = [[(i, work.items[i]) for i in batch] for batch in batches]
    alone = work.light and len(missing) == 1  # sending it would take longer
    for found in engine.run(work.name, task, items, needs_nbytes=work.needs_nbytes, here=alone):
        known.update(found)
    return [known[i] for i in range(len(work.items))]


def _batches(numbers: list[int], n_threads: int) -> list[list[int]]:
    """Share out the numbers of light tasks evenly: every thread gets as many batches."""
    n_turns = -(-len(numbers) // (MOST_IN_BATCH * n_threads))
    n_batches = max(1, min(n_turns * n_threads, len(numbers)))
    ends = [i * len(numbers) // n_batches for i in range(n_batches + 1)]
    return [numbers[first:last] for first, last in itertools.pairwise(ends) if first < last]


def _keep_receipts(
    task: Callable[[Any], Receipt], receipts: Folder, items: list[tuple[int, Any]]
) -> dict[int, Receipt]:
    """Run some tasks one after another, and write the receipt of each as it is done."""
    found = {}
    for number, arguments in items:
        found[number] = task(arguments)
        receipts.write_json(f"{number}.json", found[number])
    return found


def is_done(folder: Folder) -> bool:
    """Tell whether a stage has been marked done."""
    return folder.exists(MARKER)


def run_stage(engine: Engine, folder: Folder, build: Callable[[Folder], Receipt]) -> Receipt:
    """Return what a finished stage has left, or build it and mark it done.

    `seconds` is the time that it took since it was last begun; the peaks are those since then, see
    `Engine.measured`.
    """
    folder.sweep()  # of one that is done, too: documents come later
    summary: Receipt | None = folder.read_json(MARKER)
    if summary is None:
        started = time.perf_counter()
        with engine.measured() as peaks:
            summary = build(folder)
        summary = {**summary, "seconds": time.perf_counter() - started, **peaks}
        folder.write_json(MARKER, summary)
    return summary
