"""How every long call begins: a lock, a plan, workers to follow it, a record of where it stands.

Writes the lock and the record into the run's folder: see `locks` and `tracking`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from spore_dask.engine import Engine, open_engine
from spore_dask.errors import BusyError
from spore_dask.healing import healed
from spore_dask.inputs import Input
from spore_dask.locks import is_lock, locked
from spore_dask.points import CACHE
from spore_dask.preflight import preflight
from spore_dask.progress import Event, as_consumer
from spore_dask.store import Folder, claim
from spore_dask.tracking import Tracker, record_name


class HasLimit(Protocol):
    """A plan that says what each process may use, and what it reads."""

    @property
    def data(self) -> Any:
        """The `Input`."""

    @property
    def memory_limit(self) -> int:
        """Bytes."""


PlanType = TypeVar("PlanType", bound=HasLimit)
Found = TypeVar("Found")


def find_done(
    folder: Folder, name: str, data: Input, find: Callable[[], Found | None]
) -> Found | None:
    """Return what a call of this name has come to before, if `find` finds it.

    What a process that was killed as it ended has left there goes, unless somebody works there: its
    copy of the data, its record and its lock.
    """
    with healed(folder, name):
        found = find()
        if found is not None and (data.is_written or _is_left(folder, name)):
            with contextlib.suppress(BusyError), locked(folder, name):
                data.remove()
                folder.remove(record_name(name))
    return found


def _is_left(folder: Folder, name: str) -> bool:
    """Tell whether there is a lock, or the record of a call of this name."""
    return any(is_lock(each) or each == record_name(name) for each in folder.names())


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
    reads: Sequence[str] = (),
) -> Iterator[tuple[Engine, PlanType]]:
    """Make a plan for a memory limit and a number of workers, and open an engine to follow it.

    What happens is told to `progress`, and kept in the folder under a name. Nobody else may work
    there meanwhile. Workers of a client's cluster first prove that they are fit: see `preflight`.
    `reads` are the addresses of folders that they read, beside the source.
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
        claim(folder)
        if client is None:
            limit = plan.memory_limit
            engine = stack.enter_context(open_engine(None, n_workers, limit, hear))
        else:
            source = plan.data.source if plan.data.content is None else None
            folders = [Folder(url) for url in reads]
            limit = plan.memory_limit
            stack.enter_context(preflight(engine, folder, source, limit, folders))
        stack.callback(CACHE.clear)
        yield engine, plan
