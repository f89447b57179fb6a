"""How every long call begins: a lock, a plan, workers to follow it, a record of where it stands.

Writes that record into the run's folder: see `tracking`. When something in the folder proves to be
damaged, removes the stage that it belongs to, so that the same call again makes it anew.
Writes the lock and the record into the run's folder: see `locks` and `tracking`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from spore_dask.engine import Engine, open_engine
from spore_dask.errors import DamagedError, FullDiskError
from spore_dask.locks import locked
from spore_dask.points import CACHE
from spore_dask.progress import Event, as_consumer
from spore_dask.runs import RESULT, SUMMARY, remove_stage, stage_of
from spore_dask.store import NO_ROOM, Folder, full_disk
from spore_dask.tracking import Tracker


class HasLimit(Protocol):
    """A plan that says what each process may use."""

    @property
    def memory_limit(self) -> int:
        """Bytes."""


STAGES = (
    *("scan", "points", "graph", "density", "seeds", "expand", "fragments", "reassign"),
    *("percentiles", "input"),
)
"""Folders that any call makes anew when they are gone."""
POINTERS = ("run.json", "graph.json", "tuning.json", "prediction.json")

PlanType = TypeVar("PlanType", bound=HasLimit)


@contextlib.contextmanager
def opened(
    folder: Folder,
    name: str,
    make: Callable[[Any, int | None], PlanType],
    *,
    memory_limit: Any,
    client: Any,
    n_workers: int | None,
    progress: Any,
) -> Iterator[tuple[Engine, PlanType]]:
    """Make a plan for a memory limit and a number of workers, and open an engine to follow it.

    What happens is told to `progress`, and kept in the folder under a name. Nobody else may work
    there meanwhile.
    """
    tracker = Tracker(folder, name, as_consumer(progress))
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(locked(folder, name))
        stack.enter_context(tracker)
        stack.enter_context(healed(folder, name))

        def hear(event: Event) -> None:
            if event.kind in ("stage-start", "task-done"):
                lock.check()
            tracker(event)

        if client is not None:  # its workers say what memory there is
            engine = stack.enter_context(open_engine(client, n_workers, None, hear))
            memory_limit = memory_limit or engine.memory_limit
        plan = make(memory_limit, n_workers)
        if client is None:
            limit = plan.memory_limit
            engine = stack.enter_context(open_engine(None, n_workers, limit, hear))
        stack.callback(CACHE.clear)
        yield engine, plan


@contextlib.contextmanager
def healed(folder: Folder, name: str) -> Iterator[None]:
    """Remove what proves to be damaged, if the call of this name can make it anew, and say so.

    A disk that is full becomes a sentence too, wherever that was noticed.
    """
    try:
        yield
    except DamagedError as error:
        removed = _remove_damaged(folder, name, error.place)
        if not removed:
            raise
        remedy = f"{removed!r} is removed; call again to make it anew"
        raise DamagedError(error.what, error.place, remedy) from error
    except OSError as error:
        if isinstance(error, FullDiskError) or error.errno not in NO_ROOM:
            raise
        raise full_disk(error.filename or folder.url) from error


def _remove_damaged(folder: Folder, name: str, place: str) -> str:
    """Remove the part of a run that a damaged place is in; return its name, or "".

    Results of other calls stay, and so does what other runs have.
    """
    stage, top = stage_of(folder, place), place.removeprefix(f"{folder.url}/")
    own = (name, name.replace("fit-", RESULT, 1))
    unfinished = stage.startswith(RESULT) and not folder.exists(f"{stage}/{SUMMARY}")
    if stage.partition("-")[0] in STAGES or stage in own or unfinished:
        remove_stage(folder.child(stage))
        return stage
    if top in POINTERS:
        folder.remove(top)
        return top
    if top.startswith("source-") and not stage and top != place:
        for each in folder.names():  # what it was is known no longer: its checksum tells
            if each.startswith("scan-"):
                remove_stage(folder.child(each))
        folder.remove(top)
        return top
    return ""
