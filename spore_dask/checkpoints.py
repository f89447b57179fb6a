"""Where a long computation stands, kept on disk, so that one that was killed can go on.

Writes a folder for each checkpoint, then a document that names it, then removes the one before.
Memory: nothing beside what is saved.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from spore_dask.store import Folder

DOCUMENT = "checkpoint.json"
EVERY_SECONDS = 20.0


class Checkpoints:
    """The checkpoints of one stage."""

    def __init__(self, folder: Folder, every_seconds: float | None = None) -> None:
        self._folder = folder
        self._every_seconds = EVERY_SECONDS if every_seconds is None else every_seconds
        self._number = 0
        self._saved = time.monotonic()

    def due(self) -> bool:
        """Tell whether it is time for another one."""
        return time.monotonic() - self._saved >= self._every_seconds

    def save(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Keep some arrays and a document."""
        target = self._child(self._number + 1)
        for name, array in arrays.items():
            target.write_array(name, array)
        self._folder.write_json(DOCUMENT, {"number": self._number + 1, "facts": facts})
        self._child(self._number).remove()
        self._number += 1
        self._saved = time.monotonic()

    def last(self) -> tuple[dict[str, Any], Callable[..., NDArray[Any]]] | None:
        """Return the document that was kept last and what reads its arrays, or None."""
        known = self._folder.read_json(DOCUMENT)
        if known is None:
            return None
        with self.understood():
            self._number = int(known["number"])
            return dict(known["facts"]), self._child(self._number).read_array

    def understood(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which `ValueError` tells that the document is damaged."""
        return self._folder.understood(DOCUMENT)

    def remove(self) -> None:
        """Remove what is left of them."""
        for name in self._folder.names():
            if name.startswith("checkpoint"):
                self._folder.remove(name)

    def _child(self, number: int) -> Folder:
        return self._folder.child(f"checkpoint-{number}")
