"""Small documents and arrays at a path or URL: the only module that knows files and Zarr.

A document is written whole or not at all: on local disks under another name first; object stores
do so anyway, and what they refuse is tried again for a while. Memory: what is read or written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import fsspec
import numpy as np
import zarr
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray

import spore_dask

SECRETS = re.compile(r"(://)[^/@]*@")
MISSING_LABEL = -(2**31)
"""What rows read as whose chunk is missing."""
WAITS_SECONDS = (0.5, 2.0, 8.0)
"""Time before each further try to reach an object store."""
S3_CONFIG = {
    "connect_timeout": 15,
    "read_timeout": 15,
    "retries": {"mode": "standard", "total_max_attempts": 2},
}
ResultType = TypeVar("ResultType")


def address(path: str) -> str:
    """Return the address of a path or URL, whatever the working directory is."""
    text = path.removeprefix("file://")
    return text.rstrip("/") if "://" in text else os.path.abspath(os.path.expanduser(text))


def without_secrets(text: str) -> str:
    """Return an address without a user and a password that it may have."""
    return SECRETS.sub(r"\1", text)


def patiently(url: str, action: Callable[[], ResultType]) -> ResultType:
    """Do something at an address; if that is an object store that fails, again after a while.

    Raises
    ------
    InputError
        If the store does not let this process in.
    ClusterError
        If it still fails after some tries: trying later may help.
    """
    for wait in (*WAITS_SECONDS, None):
        try:
            return action()
        except (FileNotFoundError, ValueError, spore_dask.SporeError):
            raise
        except Exception as error:
            if "://" not in url:
                raise
            reason = without_secrets(f"{type(error).__name__}: {error}").rstrip(".")
            if isinstance(error, PermissionError) or "Credentials" in reason:
                raise spore_dask.InputError(
                    f"Access to {without_secrets(url)!r} was refused ({reason}): give credentials "
                    "that may read, write, list and delete there in the environment."
                ) from None
            if wait is None:
                raise spore_dask.ClusterError(
                    f"The store of {without_secrets(url)!r} does not answer ({reason}): make sure "
                    "that it can be reached; then the same command continues."
                ) from None
        time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def _options(url: str) -> dict[str, Any]:
    """Return how to reach a store; what it lists is never remembered, as others write too."""
    if "://" not in url or "::" in url:
        return {}
    options: dict[str, Any] = {"use_listings_cache": False}
    return options | ({"config_kwargs": S3_CONFIG} if url.startswith("s3") else {})


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
        files, path = fsspec.core.url_to_fs(self.url, **_options(self.url))
        return files, path.rstrip("/")

    def _zarr(self, name: str) -> Any:
        """Return what Zarr reads and writes an array through."""
        url = self.child(name).url
        options = _options(url)
        return zarr.storage.FsspecStore.from_url(url, storage_options=options) if options else url

    def names(self) -> list[str]:
        """List what is in this folder."""
        files, path = self._files
        files.invalidate_cache()
        try:
            entries = patiently(self.url, lambda: files.ls(path, detail=False))
        except FileNotFoundError:
            return []
        names = {entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries}
        return sorted(names - {path.rsplit("/", 1)[-1]} if path in entries else names)

    def read(self, name: str) -> Any:
        """Read a document; None if it is not there."""
        files, path = self._files
        try:
            content = patiently(self.url, lambda: files.cat_file(f"{path}/{name}"))
        except FileNotFoundError:
            return None
        try:
            return json.loads(content)
        except ValueError as error:
            raise spore_dask.DamagedError(
                f"The document {self.url}/{name} is damaged ({error}): restore it, or remove it."
            ) from None

    def write(self, name: str, value: Any) -> None:
        """Write a document, or a text as it is."""
        text = value if isinstance(value, str) else json.dumps(_strict(value), indent=1)
        files, path = self._files
        target = f"{path}/{name}"
        if not isinstance(files, LocalFileSystem):
            patiently(self.url, lambda: files.pipe_file(target, text.encode()))
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
        target = f"{path}/{name}".rstrip("/")
        with contextlib.suppress(FileNotFoundError):
            patiently(self.url, lambda: files.rm(target, recursive=True))

    def create_labels(self, name: str, n_rows: int, chunk_rows: int) -> zarr.Array[Any]:
        """Create a Zarr array of labels, in place of what was there."""
        return patiently(
            self.url,
            lambda: zarr.create_array(
                self._zarr(name),
                shape=(n_rows,),
                dtype="int32",
                chunks=(chunk_rows,),
                fill_value=MISSING_LABEL,
                overwrite=True,
                config={"write_empty_chunks": True},
            ),
        )

    def write_rows(self, labels: zarr.Array[Any], rows: slice, values: NDArray[Any]) -> None:
        """Write a chunk of labels."""
        patiently(self.url, lambda: labels.__setitem__(rows, values))

    def open_labels(self, name: str) -> zarr.Array[Any]:
        """Open a Zarr array of labels to read."""
        return patiently(self.url, lambda: zarr.open_array(self._zarr(name), mode="r"))


def chunks_of(labels: zarr.Array[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Read labels chunk by chunk; yield the rows of each, and what they have."""
    step, url = labels.chunks[0], str(labels.store_path)

    def read(rows: slice) -> NDArray[Any]:
        return np.ascontiguousarray(labels[rows])

    for first in range(0, labels.shape[0], step):
        rows = slice(first, min(first + step, labels.shape[0]))
        yield rows, patiently(url, functools.partial(read, rows))
