"""Zarr arrays by their addresses: what a store refuses for a moment is tried again.

Nothing that is read is ever unpickled.
"""

from __future__ import annotations

import asyncio
import functools
import json
import pathlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import zarr
import zarr.abc.store
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

from spore_dask.errors import InputError
from spore_dask.patience import hide, patiently, wait_after, waits_between
from spore_dask.store.files import find_files, is_local, no_place

ResultType = TypeVar("ResultType")


class PatientStore(zarr.storage.FsspecStore):
    """A Zarr store whose requests are tried again like all others, over the same connections."""

    def __init__(self, fs: Any, read_only: bool = False, path: str = "/", **_: Any) -> None:
        zarr.abc.store.Store.__init__(self, read_only=read_only)
        self.fs, self.path = fs, path
        self.allowed_exceptions = (FileNotFoundError, IsADirectoryError, NotADirectoryError)

    async def _patiently(self, action: Callable[[], Coroutine[Any, Any, ResultType]]) -> ResultType:
        waits = waits_between()
        while True:
            try:
                if self.fs.asynchronous:
                    return await action()
                there = asyncio.run_coroutine_threadsafe(action(), self.fs.loop)
                return await asyncio.wrap_future(there)
            except Exception as error:
                wait = wait_after(error, waits, self.fs.unstrip_protocol(self.path))
            await asyncio.sleep(wait)

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        """Read a value; None if it is not there."""
        return await self._patiently(functools.partial(super().get, key, *args, **options))

    async def get_partial_values(self, *args: Any, **options: Any) -> Any:
        """Read parts of values."""
        read = functools.partial(super().get_partial_values, *args, **options)
        return await self._patiently(read)

    async def set(self, key: str, *args: Any, **options: Any) -> None:
        """Write a value."""
        try:
            await self._patiently(functools.partial(super().set, key, *args, **options))
        except FileNotFoundError as error:
            raise no_place(self.fs.unstrip_protocol(self.path), error) from None

    async def exists(self, key: str) -> bool:
        """Tell whether there is a value."""

        async def ask() -> bool:
            try:
                await self.fs._info(f"{self.path}/{key}")
            except FileNotFoundError:
                return False
            return True

        return await self._patiently(ask)

    async def delete(self, key: str) -> None:
        """Remove a value."""
        await self._patiently(functools.partial(super().delete, key))

    async def delete_dir(self, prefix: str) -> None:
        """Remove what begins with a prefix."""
        await self._patiently(functools.partial(super().delete_dir, prefix))

    async def clear(self) -> None:
        """Remove everything."""
        await self._patiently(super().clear)

    async def getsize(self, key: str) -> int:
        """Return the bytes of a value."""
        return await self._patiently(functools.partial(super().getsize, key))

    async def list(self) -> AsyncIterator[str]:
        """List all values."""
        for name in await self._collected(super().list):
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """List the values that begin with a prefix."""
        for name in await self._collected(functools.partial(super().list_prefix, prefix)):
            yield name

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """List what is in a group."""
        for name in await self._collected(functools.partial(super().list_dir, prefix)):
            yield name

    async def _collected(self, find: Callable[[], AsyncIterator[str]]) -> Sequence[str]:
        """Return all names at once: each request is to be made where the connections are."""

        async def collect() -> Sequence[str]:
            return [name async for name in find()]

        return await self._patiently(collect)


def zarr_store(url: str) -> Any:
    """Return what Zarr reads and writes an address through.

    Zarr parses strings as URLs, so a path of this machine is not given as one.
    """
    files, path = find_files(url)
    if is_local(files):
        return pathlib.Path(path)
    if not files.async_impl:
        files = AsyncFileSystemWrapper(files, asynchronous=True)
    return PatientStore(files, path=path)


def open_safely(url: str, mode: Any = "r", **options: Any) -> zarr.Array[Any]:
    """Open a Zarr array, unless reading it would run code that is stored with it."""
    store = zarr_store(url)
    array = patiently(lambda: zarr.open_array(store, mode=mode, **options), url)
    about = array.metadata.to_dict()
    coded = [about.get(name) for name in ("codecs", "filters", "compressor")]
    if array.dtype.kind == "O" or "pickle" in json.dumps(coded, default=str).lower():
        raise InputError(
            f"The Zarr array at {hide(url)!r} holds Python objects ({array.dtype}), which are "
            "never read from a store: write it with numbers or texts."
        )
    return array
