"""Small documents and arrays at a path or URL: the only module that knows files and Zarr.

A document is written whole or not at all: on local disks under another name first; object stores
do so anyway. Memory: what is read or written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import uuid
from typing import Any

import fsspec
import zarr

import spore_dask

SECRETS = re.compile(r"(://)[^/@]*@")
MISSING_LABEL = -(2**31)
"""What rows read as whose chunk is missing."""


def address(path: str) -> str:
    """Return the address of a path or URL, whatever the working directory is."""
    text = path.removeprefix("file://")
    return text.rstrip("/") if "://" in text else os.path.abspath(os.path.expanduser(text))


def without_secrets(text: str) -> str:
    """Return an address without a user and a password that it may have."""
    return SECRETS.sub(r"\1", text)


def _strict(value: Any) -> Any:
    """Return a value with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {str(name): _strict(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder, on a disk or in an object store."""

    url: str

    def child(self, name: str) -> Place:
        """Return a folder in this one."""
        return Place(f"{self.url}/{name}")

    @property
    def _files(self) -> tuple[Any, str]:
        files, path = fsspec.core.url_to_fs(self.url)
        return files, path.rstrip("/")

    def names(self) -> list[str]:
        """List what is in this folder."""
        files, path = self._files
        files.invalidate_cache()
        try:
            entries = files.ls(path, detail=False)
        except FileNotFoundError:
            return []
        names = {entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries}
        return sorted(names - {path.rsplit("/", 1)[-1]} if path in entries else names)

    def read(self, name: str) -> Any:
        """Read a document; None if it is not there."""
        files, path = self._files
        try:
            return json.loads(files.cat_file(f"{path}/{name}"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise spore_dask.DamagedError(
                f"The document {self.url}/{name} is damaged ({error}): restore it, or remove it."
            ) from None

    def write(self, name: str, value: Any) -> None:
        """Write a document, or a text as it is."""
        text = value if isinstance(value, str) else json.dumps(_strict(value), indent=1)
        files, path = self._files
        target = f"{path}/{name}"
        if not isinstance(files, fsspec.implementations.local.LocalFileSystem):
            files.pipe_file(target, text.encode())
            return
        os.makedirs(path, exist_ok=True)
        partial = f"{target}.{uuid.uuid4().hex}.partial"
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)

    def remove(self, name: str = "") -> None:
        """Remove something, if it is there."""
        files, path = self._files
        files.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            files.rm(f"{path}/{name}".rstrip("/"), recursive=True)

    def create_labels(self, name: str, n_rows: int, chunk_rows: int) -> zarr.Array[Any]:
        """Create a Zarr array of labels, in place of what was there."""
        return zarr.create_array(
            self.child(name).url,
            shape=(n_rows,),
            dtype="int32",
            chunks=(chunk_rows,),
            fill_value=MISSING_LABEL,
            overwrite=True,
            config={"write_empty_chunks": True},
        )

    def open_labels(self, name: str) -> zarr.Array[Any]:
        """Open a Zarr array of labels to read."""
        return zarr.open_array(self.child(name).url, mode="r")
