"""Where a run stands while it goes on, kept in its folder for others to see.

Writes one small document a run, `progress-NAME.json`, from a thread of its own: a few times a
second while something happens, and now and then otherwise, so that a run is neither slowed nor
taken for dead. It goes when the run is done; else it says why it ended. Holds a few numbers.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from types import TracebackType
from typing import Any, Self

from spore_dask.errors import DamagedError, InputError, ParameterError
from spore_dask.processes import is_alive, this_process
from spore_dask.progress import Consumer, Event
from spore_dask.store import Folder, disclaim, our_folders, remove_ours
from spore_dask.tasks import is_done

PREFIX = "progress-"
VERSION = 2
"""Of the document: others are passed over."""
EVERY_SECONDS = 0.5
EVERY_SECONDS_AFAR = 5.0
"""Least time between two writes, on this machine's disks and elsewhere."""
HEARTBEAT_SECONDS = 20.0
"""Most time between two writes."""
SILENT_SECONDS = 120.0
"""Time without a write after which a process of another machine counts as gone."""
MOST_STAGES = 200
"""Finished stages that are remembered."""

RUNNING, STOPPED, FAILED = "running", "stopped", "failed"


def record_name(name: str) -> str:
    """Return the name of the document of what runs under a name."""
    return f"{PREFIX}{name}.json"


class Tracker:
    """A consumer of events that also keeps where a run stands in the run's folder.

    Parameters
    ----------
    folder : Folder
        The run's folder. If it is new, and no stage of it is done when the data or a parameter
        is refused, it goes again.
    name : str
        What runs, such as "fit-ID": one document for each name.
    consumer
        Who else hears each event.
    """

    def __init__(self, folder: Folder, name: str, consumer: Consumer) -> None:
        self._folder = folder
        self._file = record_name(name)
        self._consumer = consumer
        self._was_there = folder.exists()
        self._changed = False
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write_on, daemon=True)
        self._record: dict[str, Any] = {
            "version": VERSION,
            "name": name,
            "state": RUNNING,
            "text": "",
            **this_process(),
            "started": time.time(),
            "n_lost": 0,
            "peak_nbytes": 0,
            "now": None,
            "done": [],
        }

    def __call__(self, event: Event) -> None:
        """Hear an event, and pass it on."""
        with self._lock:
            self._note(event)
            self._changed = True
        self._consumer(event)

    def _note(self, event: Event) -> None:
        """Keep what an event says."""
        record = self._record
        record["peak_nbytes"] = max(record["peak_nbytes"], event.peak_nbytes)
        record["n_lost"] += event.kind == "worker-lost"
        if event.kind == "stage-end":
            record["done"] = [*record["done"], dataclasses.asdict(event)][-MOST_STAGES:]
            record["now"] = None
        elif event.kind in ("stage-start", "task-done", "stage-failed"):
            record["now"] = dataclasses.asdict(event)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        try:
            self._leave(error)
        except Exception as reason:  # what a run has come to does not depend on this
            logging.getLogger(__name__).warning("progress was not kept: %s", reason)

    def _leave(self, error: BaseException | None) -> None:
        """Remove the document, or say in it why the run has ended."""
        self._folder.remove(self._file)
        if error is None:
            return
        names = our_folders(self._folder)
        refused = isinstance(error, InputError | ParameterError) and not isinstance(error, OSError)
        kept = not refused or any(is_done(self._folder.child(name)) for name in names)
        if not self._was_there and not (names and kept):
            remove_ours(self._folder)
            self._folder.remove_if_empty()  # it is not yet, while it is locked
            return
        if kept and (self._record["now"] or self._record["done"]):
            state = FAILED if isinstance(error, Exception) else STOPPED
            self._write(state=state, text=str(error) or type(error).__name__)
        disclaim(self._folder)

    def _write_on(self) -> None:
        """Write what has changed, until the run ends."""
        every = EVERY_SECONDS if self._folder.is_local else EVERY_SECONDS_AFAR
        last = time.monotonic()
        while not self._ended.wait(every):
            if self._changed or time.monotonic() - last >= HEARTBEAT_SECONDS:
                last = time.monotonic()
                try:
                    self._write()
                except Exception as reason:
                    logging.getLogger(__name__).debug("progress was not written: %s", reason)

    def _write(self, **facts: Any) -> None:
        """Write the document."""
        with self._lock:
            self._changed = False
            self._record |= facts
            record = {**self._record, "updated": time.time()}
        self._folder.write_json(self._file, record)


def read_records(folder: Folder) -> list[dict[str, Any]]:
    """Return what runs that go on, or were stopped, have left in a folder, the latest last.

    The state is "running" only if the process is still there, or was heard of a moment ago.
    """
    names = [name for name in folder.names() if name.startswith(PREFIX) and name.endswith(".json")]
    found = [_read(folder, name) for name in names]
    records = [record for record in found if record and record.get("version") == VERSION]
    for record in records:
        if record["state"] == RUNNING and not _is_alive(record):
            record["state"] = STOPPED
            record["text"] = f"process {record['pid']} on {record['host']} is no longer there"
    return sorted(records, key=lambda record: float(record["updated"]))


def _read(folder: Folder, name: str) -> dict[str, Any] | None:
    """Read a record; one that is damaged says nothing."""
    try:
        record: dict[str, Any] | None = folder.read_json(name)
    except DamagedError:
        return None
    return record


def _is_alive(record: dict[str, Any]) -> bool:
    """Tell whether the process that wrote a record still runs."""
    alive = is_alive(record)
    if alive is None:
        return time.time() - float(record["updated"]) < SILENT_SECONDS
    return alive
