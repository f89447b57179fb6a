"""What in a folder is ours: only that is ever removed.

A folder that calls write to gets a document `spore_dask.json`. It marks the folder as ours, and
remembers the identity of each source that was fitted there. Even there, only names of our own
grammar are removed: whatever else a user keeps in the folder stays. Memory: the names in a folder.
"""

from __future__ import annotations

import os
import re

from spore_dask.errors import DamagedError, InputError, ParameterError
from spore_dask.store.disks import HALF
from spore_dask.store.folders import Folder

OWNER = "spore_dask.json"
STAGES = (
    *("scan", "points", "graph", "density", "seeds", "expand", "fragments", "reassign"),
    *("percentiles", "input"),
)
"""Folders that any call makes again when they are gone."""
_HASH = "[0-9a-f]{12}"
_KEY = "[0-9a-f]{32}"
OUR_FOLDER = re.compile(
    rf"(?:{'|'.join((*STAGES, 'result', 'tuning', 'prediction'))}|preflight)-{_HASH}"
)
"""Folders that calls make in a folder that is ours."""
OUR_LOCK = re.compile(rf"lock-{_KEY}\.json")
POINTERS = ("run.json", "graph.json", "tuning.json", "prediction.json")
"""Documents that name what was finished last."""
_FIXED = (OWNER, *POINTERS, "latest.json")
OUR_DOCUMENT = re.compile(
    rf"{'|'.join(map(re.escape, _FIXED))}"
    rf"|progress-(?:graph|(?:fit|tuning|prediction)-{_HASH})\.json"
    rf"|job-(?:[0-9T-]+-)?{_HASH}\.json|report-{_HASH}\.html"
)
"""Files that calls write there, but for locks."""


def half_of(name: str) -> str:
    """Return the file that a killed writer was about to write under this name, or ""."""
    return HALF.sub("", name) if HALF.search(name) else ""


def our_folders(folder: Folder) -> list[str]:
    """List the folders in a folder that have names of ours."""
    return list(filter(OUR_FOLDER.fullmatch, folder.names()))


def is_owned(folder: Folder) -> bool:
    """Tell whether a folder is ours; a mark that is not as we write it is damage."""
    return _read_mark(folder) is not None


def check_owner(folder: Folder) -> None:
    """Refuse a folder with names like ours in it that is not marked as ours."""
    if is_owned(folder):
        return
    found = list(filter(_is_kept, folder.names()))
    if found:
        raise InputError(
            f"{folder.url!r} holds {found[0]!r} but not {OWNER!r}, which marks a folder of "
            "spore_dask, so nothing there is used or replaced: give another `out`, or, if an "
            f'earlier version made that folder, write {{"sources": {{}}}} to {OWNER!r} in it.'
        )


def _is_kept(name: str) -> bool:
    """Tell whether a name is that of a stage, a result, or what points to one."""
    return name in _FIXED or OUR_FOLDER.fullmatch(name) is not None


def refuse_inside_stage(url: str) -> None:
    """Refuse a place to write that is in a stage of a run, and would be removed with it."""
    place = os.path.realpath(url) if Folder(url).is_local else url
    while (above := os.path.dirname(place)) != place:
        if OUR_FOLDER.fullmatch(os.path.basename(place)) and is_owned(Folder(above)):
            raise ParameterError(
                f"out is {url!r}, which is inside a stage of another run, and would go with it: "
                "give a folder of its own."
            )
        place = above


def claim(folder: Folder) -> None:
    """Mark a folder as ours."""
    check_owner(folder)
    if not is_owned(folder):
        folder.write_json(OWNER, {"sources": {}})
        sweep_documents(folder)  # half a mark, too, of a driver that was killed as it wrote it


def disclaim(folder: Folder) -> None:
    """Take the mark back from a folder in which nothing of ours is left."""
    names = folder.names()
    if not our_folders(folder) and [n for n in names if OUR_DOCUMENT.fullmatch(n)] == [OWNER]:
        folder.remove(OWNER)


def known_sources(folder: Folder) -> dict[str, str]:
    """Return the identity of each source that was fitted into a folder, by its address."""
    return _read_mark(folder) or {}


def _read_mark(folder: Folder) -> dict[str, str] | None:
    """Return what the mark of a folder remembers; None if there is no mark."""
    try:
        known = folder.read_json(OWNER)
        if known is None and not folder.exists(OWNER):
            return None
        sources = known.get("sources") if isinstance(known, dict) else None
        if not isinstance(sources, dict) or not all(isinstance(v, str) for v in sources.values()):
            raise folder.damaged("document", OWNER, "it is not the mark of a run's folder")
    except IsADirectoryError:
        raise folder.damaged("document", OWNER, "it is a folder") from None
    except DamagedError as error:
        remedy = "restore it from a copy, or give another `out`"
        raise DamagedError(error.what, error.place, remedy) from None
    return sources


def remember(folder: Folder, url: str, identity: str | None) -> None:
    """Remember the identity of a source, or forget it."""
    known = {name: known for name, known in known_sources(folder).items() if name != url}
    folder.write_json(OWNER, {"sources": known | ({url: identity} if identity else {})})


def sweep_documents(folder: Folder) -> None:
    """Remove the half documents of drivers that were killed; stages see to their own files."""
    for name in folder.names() if is_owned(folder) else []:
        half = half_of(name)
        if OUR_LOCK.fullmatch(half) or OUR_DOCUMENT.fullmatch(half):
            folder.remove(name)


def remove_ours(folder: Folder) -> None:
    """Remove what is ours from a folder, but for locks.

    Pointers and results go first, so that a half of a run never looks whole.
    """
    if not is_owned(folder):
        return
    sweep_documents(folder)
    for name in filter(OUR_DOCUMENT.fullmatch, folder.names()):
        if name != OWNER:
            folder.remove(name)
    for name in sorted(our_folders(folder), key=lambda name: name.partition("-")[0] in STAGES):
        remove_stage(folder.child(name))
    folder.remove(OWNER)


def remove_stage(folder: Folder) -> int:
    """Remove the folder of a stage; return its size.

    What says that it, or a task of it, is done goes first: a half of it would be taken as whole.
    """
    if folder.is_link:  # not ours: what it leads to stays
        folder.remove()
        return 0
    nbytes = folder.nbytes()
    last = ("summary.json", "graph.json", "done.json")
    for name in sorted(folder.names(), key=last.__contains__)[::-1]:
        if name.startswith("receipts-") or name.endswith(".json"):
            folder.remove(name)
    folder.remove()
    return nbytes
