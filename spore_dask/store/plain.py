"""Folders of files and documents: directories, or prefixes in an object store.

Documents have their checksums inside. Memory: what is read or written; from and to object stores
see `objects`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from spore_dask.errors import DamagedError
from spore_dask.patience import hide, patiently
from spore_dask.store.checksums import document_checksum
from spore_dask.store.disks import (
    HALF,
    MappedPart,
    can_map,
    map_files,
    read_files,
    write_file,
)
from spore_dask.store.files import (
    Part,
    checked_name,
    find_all,
    find_files,
    is_local,
    no_place,
    remove_all,
)
from spore_dask.store.objects import cat_range, fetch_parts, put_file

CHECKSUM = "crc32"
"""Where a document has its checksum."""


@dataclasses.dataclass(frozen=True)
class PlainFolder:
    """A folder of files, documents and further folders, named by its address."""

    url: str

    @property
    def _files(self) -> tuple[Any, str]:
        return find_files(self.url)

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rstrip("/").rsplit("/", 1)[-1]

    @property
    def is_local(self) -> bool:
        """Whether this is on a disk that this machine has mounted."""
        return is_local(self._files[0])

    @property
    def is_link(self) -> bool:
        """Whether this is a link on a local disk, which may lead anywhere."""
        return self.is_local and os.path.islink(self._place())

    def _place(self, name: str = "") -> str:
        """Return the path of something in this folder, or of the folder, on its file system."""
        path = self._files[1]
        return f"{path}/{checked_name(name, self.url)}" if name != "" else path

    def child(self, name: str) -> Self:
        """Return a folder in this one."""
        return type(self)(f"{self.url.rstrip('/')}/{checked_name(name, self.url)}")

    def exists(self, name: str = "") -> bool:
        """Tell whether there is something of this name."""
        files, place = self._files[0], self._place(name)
        try:
            patiently(lambda: files.info(place), self.url)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def file_nbytes(self, name: str) -> int:
        """Return the size of a file; 0 if it is not there."""
        files, place = self._files[0], self._place(name)
        try:
            return int(patiently(lambda: files.info(place), self.url)["size"] or 0)
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def names(self) -> list[str]:
        """List what is in this folder."""
        files, path = self._files

        def find() -> list[str]:
            files.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                return list(files.ls(path, detail=False))
            return []

        entries = patiently(find, self.url)
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries)

    def _sizes(self) -> dict[str, int]:
        """Return the path and size of each file in this folder and those in it."""
        return {name: int(about["size"] or 0) for name, about in find_all(self.url).items()}

    def nbytes(self) -> int:
        """Return the size of everything in this folder."""
        return sum(self._sizes().values())

    def remove(self, name: str = "") -> None:
        """Remove something, if it is there."""
        files, place = self._files[0], self._place(name)
        if not self.is_local and (any(sign in place for sign in "*?[") or "/" not in place):
            raise DamagedError(
                f"{hide(self.url)!r} and {name!r} do not name one folder, so nothing is removed "
                "there: check the address, and the documents of the run."
            )

        remove = functools.partial(remove_all, files, place)
        with contextlib.suppress(FileNotFoundError):
            patiently(remove, self.url)

    def remove_if_empty(self) -> None:
        """Remove this folder if it is on a disk here, and nothing is in it."""
        if self.is_local:
            with contextlib.suppress(OSError):
                os.rmdir(self._place())

    def sweep(self) -> None:
        """Remove what writers that were killed have left behind; in object stores, that is gone."""
        if not self.is_local:
            return
        files, path = self._files
        for entry in files.find(path):
            if HALF.search(entry):
                with contextlib.suppress(FileNotFoundError):
                    files.rm(entry)

    def write_bytes(self, name: str, *content: bytes | memoryview) -> None:
        """Write a file, whole or not at all."""
        self.write_parts(name, lambda: content, sum(map(len, content)))

    def write_parts(
        self, name: str, parts: Callable[[], Iterable[bytes | memoryview]], nbytes: int
    ) -> None:
        """Write a file, whole or not at all, from parts that are made for each attempt."""
        target = self._place(name)
        write = write_file if self.is_local else functools.partial(put_file, self._files[0])
        try:
            patiently(lambda: write(target, parts(), nbytes), self.url)
        except FileNotFoundError as error:
            raise no_place(self.url, error) from None

    def read_bytes(self, name: str, first: int | None = None, last: int | None = None) -> bytes:
        """Read a file, or its bytes [first, last)."""
        files, place = self._files[0], self._place(name)
        if first is None or last is None:
            return bytes(patiently(lambda: files.cat_file(place, start=first, end=last), self.url))
        return bytes(patiently(lambda: cat_range(files, place, first, last), self.url))

    def read_parts(self, parts: list[Part], content: memoryview) -> None:
        """Fill `content` with parts of files: name, first byte and number of bytes of each."""
        files, path = self._files
        with self._files_are_whole([name for name, *_ in parts]):
            if self.is_local:
                patiently(lambda: read_files(path, parts, content), self.url)
            else:
                wanted = [(f"{path}/{name}", start, nbytes) for name, start, nbytes in parts]
                fetch_parts(files, wanted, content, self.url)

    @property
    def can_map(self) -> bool:
        """Whether files can be mapped into memory."""
        return self.is_local and can_map(self._files[1])

    def map_parts(self, parts: list[MappedPart]) -> NDArray[np.uint8]:
        """Map parts of files on a disk here into memory: see `map_files`."""
        with self._files_are_whole([name for name, *_ in parts]):
            return patiently(lambda: map_files(self._files[1], parts), self.url)

    @contextlib.contextmanager
    def _files_are_whole(self, names: list[str]) -> Iterator[None]:
        """Say which file is damaged if one is not there, or ends early."""
        try:
            yield
        except FileNotFoundError:
            missing = (name for name in names if not self.exists(name))
            raise self.damaged("file", next(missing, names[0]), "it is not there") from None
        except DamagedError as error:
            name = error.place.removeprefix(f"{self._files[1]}/")
            raise self.damaged("file", name, error.what) from None

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write a document, and its checksum in it."""
        checked = {**value, CHECKSUM: document_checksum(value)}
        self.write_bytes(name, json.dumps(checked, indent=1).encode())

    def read_json(self, name: str) -> Any:
        """Read a document; None if it is not there. One that others wrote has no checksum."""
        try:
            value = json.loads(self.read_bytes(name))
        except FileNotFoundError:
            return None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise self.damaged("document", name, str(error)) from None
        if isinstance(value, dict):
            checksum = value.pop(CHECKSUM, None)
            if checksum is not None and checksum != document_checksum(value):
                raise self.damaged("document", name, "its checksum is wrong")
        return value

    @contextlib.contextmanager
    def understood(self, name: str) -> Iterator[None]:
        """Say that a document is damaged if what it says cannot be; `ValueError` tells that."""
        try:
            yield
        except KeyError as error:
            raise self.damaged("document", name, f"{error} is not in it") from None
        except (AttributeError, IndexError, OverflowError, TypeError, ValueError) as error:
            raise self.damaged("document", name, f"it says: {error}") from None

    def damaged(self, kind: str, name: str, why: str) -> DamagedError:
        """Return what to raise about something in this folder."""
        return DamagedError(
            f"The {kind} {name!r} in {self.url!r} is damaged ({why})",
            place=self.child(name).url,
            remedy="remove its stage's folder, or itself if it is in none, and run again",
        )
