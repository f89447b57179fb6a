"""Stages as lists of independent tasks, with receipts that survive a kill.

A task reads arrays, writes whole chunks that it alone owns, and returns a small receipt. The
receipt is written beside its output as soon as the task is done, so that a run that is started
again continues with what is missing; a marker written last makes the stage done.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from spore_dask.engine import Engine
from spore_dask.store import Folder

Receipt = dict[str, Any]
MARKER = "done.json"


@dataclasses.dataclass(frozen=True)
class Work:
    """A stage's tasks: one function, and an item for each call."""

    name: str
    task: Callable[[Any], Receipt]
    items: Sequence[Any]
    needs_nbytes: int
    """Projected peak of a process that runs one of them."""


def run_work(engine: Engine, folder: Folder, work: Work) -> list[Receipt]:
    """Run the tasks that have no receipt yet; return all receipts in the order of the items."""
    receipts = folder.child(f"receipts-{work.name}")
    known = {
        int(name.removesuffix(".json")): receipts.read_json(name)
        for name in receipts.names()
        if name.endswith(".json")
    }
    missing = [i for i in range(len(work.items)) if known.get(i) is None]
    task = functools.partial(_keep_receipt, work.task, receipts)
    items = [(i, work.items[i]) for i in missing]
    found = engine.run(work.name, task, items, needs_nbytes=work.needs_nbytes)
    known.update(zip(missing, found, strict=True))
    return [known[i] for i in range(len(work.items))]


def _keep_receipt(
    task: Callable[[Any], Receipt], receipts: Folder, item: tuple[int, Any]
) -> Receipt:
    """Run one task, and write its receipt."""
    number, arguments = item
    receipt = task(arguments)
    receipts.write_json(f"{number}.json", receipt)
    return receipt


def is_done(folder: Folder) -> bool:
    """Tell whether a stage has been marked done."""
    return folder.exists(MARKER)


def run_stage(folder: Folder, build: Callable[[Folder], Receipt]) -> Receipt:
    """Return what a finished stage has left, or build it and mark it done.

    `seconds` is the time that it took since it was last begun.
    """
    summary: Receipt | None = folder.read_json(MARKER)
    if summary is None:
        folder.sweep()
        started = time.perf_counter()
        summary = {**build(folder), "seconds": time.perf_counter() - started}
        folder.write_json(MARKER, summary)
    return summary
