"""What jobs keep at a path or URL: documents, texts and labels, through `spore_dask.Folder`.

That writes them whole or not at all, and tries again what a store refuses for a moment. Memory:
what is read or written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

import spore_dask

SECRETS = re.compile(r"(://)[^\s'\"]*@")
MISSING_LABEL = -(2**31)
"""What rows read as whose chunk is missing."""


def address(path: str) -> str:
    """Return the address of a path or URL, whatever the working directory is."""
    return spore_dask.Folder.at(path).url


def without_secrets(text: str) -> str:
    """Return a text without the users and passwords that addresses in it may have."""
    return SECRETS.sub(r"\1", text)


def _strict(value: Any) -> Any:
    """Return a value with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {str(name): _strict(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Place(spore_dask.Folder):
    """A folder of documents and labels, on a disk or in an object store."""

    def read(self, name: str) -> Any:
        """Read a document; None if it is not there."""
        return self.read_json(name)

    def write(self, name: str, value: dict[str, Any] | str) -> None:
        """Write a document, or a text as it is."""
        if isinstance(value, str):
            self.write_bytes(name, value.encode())
        else:
            self.write_json(name, _strict(value))

    def append_labels(self, name: str, labels: NDArray[Any]) -> None:
        """Append a chunk of labels to a Zarr array; the first one creates it."""
        self.append_zarr(name, labels, {}, fill_value=MISSING_LABEL)

    def damaged(self, kind: str, name: str, why: str) -> spore_dask.DamagedError:
        """Return what to raise about something in this folder."""
        found = super().damaged(kind, name, why)
        return spore_dask.DamagedError(found.what, found.place, "restore it, or remove it")


def chunks_of(labels: zarr.Array[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Read labels chunk by chunk; yield the rows of each, and what they have."""
    step = labels.chunks[0]
    for first in range(0, labels.shape[0], step):
        rows = slice(first, min(first + step, labels.shape[0]))
        yield rows, np.ascontiguousarray(labels[rows])
