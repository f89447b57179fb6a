"""What proves to be damaged, while a call works on a run's folder, is removed and named.

The stage that it belongs to goes, and what says that it is done goes first, so that the same call
again makes it anew. Results of other calls stay, and so does what other runs have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from spore_dask.errors import DamagedError, FullDiskError
from spore_dask.runs import RESULT, SUMMARY, stage_of
from spore_dask.store import (
    NO_ROOM,
    OUR_FOLDER,
    POINTERS,
    STAGES,
    Folder,
    full_disk,
    remove_stage,
)


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
    remakes = stage.partition("-")[0] in STAGES or stage in own or unfinished
    if remakes and OUR_FOLDER.fullmatch(stage):
        remove_stage(folder.child(stage))
        return stage
    if top in POINTERS:
        folder.remove(top)
        return top
    return ""
