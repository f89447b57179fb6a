"""One driver at a time: a lock in the folder of a run.

Whoever wants it writes a small document `lock-KEY.json` there, and has it if no other one is there
then; if two meet, both give way and try again. So the folder must list what was written before,
as disks and object stores do, and need nothing else. The owner writes its document anew every few
seconds. That of a process that is gone is removed: one of this machine is looked up, and one of
another machine is gone when its document has not changed for a while, however clocks are set.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from spore_dask.errors import BusyError, DamagedError, InputError, StoreError
from spore_dask.processes import is_alive, this_process
from spore_dask.store import (
    OUR_LOCK,
    Folder,
    check_owner,
    claim,
    disclaim,
    half_of,
    sweep_documents,
)

BEAT_SECONDS = 10.0
"""Time between two signs of life."""
SILENT_SECONDS = 60.0
"""Time without one after which a process of another machine counts as gone."""
MOST_RIVALS = 2
"""Signs of life in a row during which another lock may be there: then it will not give way."""
N_LOOKS = 30
"""Times that a process of another machine is looked at before it counts as gone."""
PAUSE_SECONDS = 0.01, 0.2
"""Least and most time until two that have met try again."""

_held: dict[str, tuple[int, Lock]] = {}  # by folder: the thread that holds it, and the lock
_left: set[str] = set()  # locks of this process that nobody holds, but that could not be removed


@contextlib.contextmanager
def locked(folder: Folder, name: str) -> Iterator[Lock]:
    """Hold the lock of a folder, or raise `BusyError`; one thread may hold it several times.

    Parameters
    ----------
    folder : Folder
        The run's folder.
    name : str
        What is done there, for whoever finds the lock.
    """
    thread, lock = _held.get(folder.url, (None, None))
    if lock is not None and thread == threading.get_ident():
        yield lock
        return
    lock = Lock(folder, name)
    try:
        lock.acquire()
        _held[folder.url] = threading.get_ident(), lock
        sweep_documents(folder)
        yield lock
    finally:
        if _held.get(folder.url, (None, None))[1] is lock:
            del _held[folder.url]
        lock.release()


@contextlib.contextmanager
def hold(out: str | os.PathLike[str], name: str = "a job") -> Iterator[Lock]:
    """Keep a folder to this process, for as long as the context lasts.

    Calls in it that work on the folder, such as `fit`, go on; those of other processes, and of
    other threads, raise `BusyError`.

    Parameters
    ----------
    out : path or URL
        A folder, such as the `out` of `fit`; it is made if it is not there.
    name : str
        What is done there, for whoever finds it held.

    Returns
    -------
    context manager of Lock
        Its `check` raises `BusyError` if another process has taken over, because this one gave no
        sign of life for a minute.
    """
    folder = Folder.at(out)
    check_owner(folder)
    with locked(folder, name) as lock:
        claim(folder)
        try:
            yield lock
        finally:
            disclaim(folder)


class Lock:
    """The lock of a folder, held by this process."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._file = _new_name()
        self._record = {"name": name, **this_process(), "beat": 0}
        self._lost = False
        self._foreign: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def acquire(self) -> None:
        """Take the lock, if nobody has it who lives."""
        self._was_there = self._folder.exists()
        while True:
            for name in self._others():
                if self._read(name):
                    self._refuse_living(name)
                    self._remove(name)
                else:  # gone meanwhile, or no lock of ours
                    self._foreign.add(name)
            try:
                if self._write() and not self._others():
                    break
                self._folder.remove(self._file)
            except BaseException as error:
                _left.add(self._file)  # it may be there, and nobody will hold it
                if not isinstance(error, StoreError):
                    with contextlib.suppress(Exception):
                        self._folder.remove(self._file)
                raise
            self._file = _new_name()  # one that saw the old one go may be about to remove it
            time.sleep(random.uniform(*PAUSE_SECONDS))
        self._thread.start()

    def _write(self) -> bool:
        """Write the lock; tell whether it is there, since an owner removes half ones."""
        try:
            self._folder.write_json(self._file, self._record)
        except InputError:
            if not (self._folder.is_local and self._folder.exists()):
                raise
            return False
        return True

    def release(self) -> None:
        """Let others have the lock."""
        self._ended.set()
        if self._thread.ident is None:  # it was never held
            return
        self._thread.join()
        try:
            self._folder.remove(self._file)
            if not self._was_there:
                self._folder.remove_if_empty()
        except Exception as reason:  # whoever comes next sees that this process is gone
            _left.add(self._file)
            logging.getLogger(__name__).warning("the lock was not removed: %s", reason)

    def check(self) -> None:
        """Raise `BusyError` if another process has taken the lock over."""
        if self._lost:
            raise BusyError(
                f"Another process has taken over {self._folder.url!r}, because this one gave no "
                f"sign of life for {SILENT_SECONDS:.0f} s, or its lock was removed: this one "
                "stops; wait for the other one, or call again."
            )

    def _others(self) -> list[str]:
        """Return the names of the locks that are not this one."""
        known = {self._file, *self._foreign}
        return [name for name in self._folder.names() if is_lock(name) and name not in known]

    def _refuse_living(self, name: str) -> None:
        """Raise `BusyError` if the owner of a lock lives; look for a while if it is elsewhere."""
        record = self._read(name)
        alive = is_alive(record) if record and name not in _left else False
        if alive is None:
            logging.getLogger(__name__).warning(
                "%s was locked by process %s on %s: waiting for up to %.0f s for a sign of life",
                *(self._folder.url, record["pid"], record["host"], SILENT_SECONDS),
            )
            alive = self._is_heard(name, record)
        if alive:
            raise BusyError(
                f"Process {record['pid']} on {record['host']} ({record['name']}) is at work on "
                f"{self._folder.url!r}: wait until it is done, stop it, or give another `out`."
            )

    def _remove(self, name: str) -> None:
        """Remove the lock of a process that is gone, and what it was about to write."""
        for found in self._folder.names():
            if name in (found, half_of(found)):
                self._folder.remove(found)

    def _is_heard(self, name: str, known: dict[str, Any]) -> bool:
        """Tell whether the owner of a lock, on another machine, gives a sign of life."""
        for _ in range(N_LOOKS):  # not until a time: this process may have slept through it
            time.sleep(SILENT_SECONDS / N_LOOKS)
            now = self._read(name)
            if now != known:
                return bool(now)
        return False

    def _read(self, name: str) -> dict[str, Any]:
        """Return what a lock says; nothing if it is gone, or was never a lock."""
        try:
            record = self._folder.read_json(name)
        except DamagedError:
            return {}
        return record if isinstance(record, dict) and self._record.keys() <= record.keys() else {}

    def _beat(self) -> None:
        """Give signs of life until the lock is released or lost."""
        n_rivals = 0
        while not self._ended.wait(BEAT_SECONDS):
            try:
                n_rivals = n_rivals + 1 if self._others() else 0
                if n_rivals > MOST_RIVALS or not self._folder.exists(self._file):
                    self._lost = True
                    return
                self._record["beat"] += 1
                self._folder.write_json(self._file, self._record)
            except Exception as reason:
                logging.getLogger(__name__).debug("no sign of life was given: %s", reason)


def _new_name() -> str:
    """Return a name for a lock that no other one has had."""
    return f"lock-{uuid.uuid4().hex}.json"


def is_lock(name: str) -> bool:
    """Tell whether a file of a run's folder is a lock."""
    return OUR_LOCK.fullmatch(name) is not None
