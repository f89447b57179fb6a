"""How a run is doing, seen from outside: from the documents in its folder alone.

Reads a few small documents; `watch` reads them again every second. Writes nothing.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import spore_dask
from spore_dask.cli.showing import Answer, run_answer
from spore_dask.errors import InputError
from spore_dask.predictions import POINTER
from spore_dask.progress import Bar, Event, describe, duration, speed, time_left
from spore_dask.runs import Run, run_ids
from spore_dask.store import OWNER, Folder, address
from spore_dask.tasks import MARKER
from spore_dask.tracking import RUNNING, read_records

WATCH_SECONDS = 1.0
FINISHED = "finished"


def status_answer(path: str) -> Answer:
    """Tell which runs in a folder go on, were stopped, or are finished."""
    folder = Folder(address(path))
    records = read_records(folder)
    ids = run_ids(folder)
    finished = run_answer(Run(folder.url)) if ids else None
    lines = [line for record in records for line in _record_lines(record)]
    if finished is not None:
        lines += [*([""] if lines else []), *finished.lines]
        if len(ids) > 1:
            lines.append(f"Finished there: {', '.join(ids)}")
    graph = None if finished else _other_line(folder)
    lines += [graph] if graph else []
    if not lines:
        lines = [_unfinished(folder)]
    document = {
        "path": folder.url,
        "state": records[-1]["state"] if records else FINISHED if finished or graph else "stopped",
        "progress": [_progress(record) for record in records],
        "finished": ids,
        "latest": finished.document if finished else None,
    }
    return Answer(document, lines)


def _unfinished(folder: Folder) -> str:
    """Say that a run was begun, or refuse a folder that has none."""
    if not folder.exists(OWNER):
        raise InputError(f"There is no run at {folder.url!r}: fit one with spore-dask fit.")
    done = [name for name in folder.names() if folder.child(name).exists(MARKER)]
    return f"Begun, but not running: {len(done)} stages are done. The same call continues it."


def _other_line(folder: Folder) -> str | None:
    """Say what graph was built by itself, or what was predicted, if one was."""
    if folder.exists(POINTER):
        return str(spore_dask.Prediction(folder.url))
    return str(spore_dask.Graph(folder.url)) if folder.exists("graph.json") else None


def _record_lines(record: dict[str, Any]) -> list[str]:
    """Return what to tell about a run that goes on, or was stopped."""
    since = duration(float(record["updated"]) - float(record["started"]))
    place = f"process {record['pid']} on {record['host']}"
    if record["state"] == RUNNING:
        head = f"{record['name']}: running for {since} ({place})"
    else:
        ago = duration(max(0.0, time.time() - float(record["updated"])))
        head = (
            f"{record['name']}: {record['state']} {ago} ago, after {since} ({record['text']}). "
            "The same call continues it."
        )
    lines = [head, *(f"  {describe(Event(**event))}" for event in record["done"])]
    if record["now"]:
        now = Event(**record["now"])
        lines.append(f"  {describe(now)}")
    if record["n_lost"]:
        lines.append(f"  {record['n_lost']} workers were lost")
    return lines


def _progress(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the rate and the time left."""
    if not record["now"]:
        return record
    event = Event(**record["now"])
    return {**record, "rate": speed(event), "seconds_left": time_left(event)}


def watch(path: str, silent: bool = False) -> None:
    """Show how the runs in a folder go on, as they themselves would, until none does."""
    bars: dict[str, Bar] = {}
    told: dict[str, tuple[int, Any]] = {}
    folder = Folder(address(path))
    while True:
        records = [record for record in read_records(folder) if record["state"] == RUNNING]
        if not records:
            for bar in bars.values():
                bar.clear()
            return
        for record in records if not silent else []:
            name, done, now = record["name"], record["done"], record["now"]
            bar = bars.setdefault(name, Bar(sys.stdout))
            n_told, last = told.get(name, (0, None))
            new = [*done[n_told:], *([now] if now and now != last else [])]
            for event in new:
                bar(Event(**event))
            told[name] = len(done), now
        time.sleep(WATCH_SECONDS)
