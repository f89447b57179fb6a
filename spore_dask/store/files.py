"""What an address leads to: a file system, and a path on it.

Object stores are reached through fsspec, with what the environment of each process says: an address
has no secrets, so that tasks and documents have none. Names lead nowhere but into their folder.
Lists and removes files; their content is for `disks` and `objects`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from spore_dask.errors import DamagedError, InputError
from spore_dask.patience import hide, patiently

TIMEOUT_SECONDS = 15.0
"""Time without a byte after which a request to S3 has failed."""

PACKAGES = {
    "s3": "'spore-dask[s3]'",
    "s3a": "'spore-dask[s3]'",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
    "sftp": "paramiko",
    "ssh": "paramiko",
}
"""What reaches a kind of store, by the beginning of its addresses."""
FIRST_PART_MAY_BE_SECRET = {"s3", "s3a", "gs", "gcs", "http", "https"}
"""Kinds of addresses in which a name before an @ is a key, if anything."""

Part = tuple[str, int, int]
"""A file, its first byte that is wanted, and how many bytes are."""


URL = re.compile(r"[A-Za-z][\w+.-]*(::[A-Za-z][\w+.-]*)*://")
"""How the address of a store begins. Everything else is a path on this machine."""


def is_url(text: str) -> bool:
    """Tell whether an address is that of a store; if not, it is a path on this machine."""
    return URL.match(text) is not None


def address(path: str | os.PathLike[str]) -> str:
    """Return the address of a path or URL that means the same in every process.

    A path of this machine becomes absolute and is never parsed: `::`, `#`, `?`, `%` and the like
    are part of names. A URL with secrets is refused, because documents and tasks would hold them.
    """
    text = os.fspath(path)
    for local in ("file://", "local://"):
        text = text.removeprefix(local)
    if not is_url(text) or not isinstance(path, str):
        return os.path.abspath(os.path.expanduser(text))
    for protocol, rest in re.findall(r"([\w+.-]*)://(.*?)(?=::|$)", text):
        if _has_secret(protocol, rest):
            raise InputError(
                f"The address {hide(text)!r} has a name or a password in it, which would be kept "
                "with the run: leave them out, and put credentials into the environment of every "
                "process (for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)."
            )
        if any(sign in rest.partition("/")[2] for sign in "?#*[]"):
            raise InputError(
                f"The address {hide(text)!r} has one of ? # * [ ] in it: give that of a folder, "
                "without any of them, and put credentials into the environment of every process."
            )
    if "::" in re.sub(r"\[[0-9a-fA-F:.]*\]", "", text):  # but for numbers of hosts
        raise InputError(
            f"The address {hide(text)!r} is a chain of URLs (it has '::'), which may keep old "
            "copies of files: give the address of the store itself, or unpack the archive."
        )
    return text.rstrip("/") if not text.endswith("://") else text


def _has_secret(protocol: str, rest: str) -> bool:
    """Tell whether an address may have a name or a password; those of S3 often have a slash."""
    first = rest.partition("/")[0]
    port = first.partition(":")[2]
    has_password = bool(port) and not port.isdecimal()
    if protocol in FIRST_PART_MAY_BE_SECRET:
        return "@" in first or has_password
    return "@" in rest and has_password


def _protocol(url: str) -> str:
    """Return what an address begins with."""
    return url.partition("://")[0]


def _options(url: str) -> dict[str, Any]:
    """Return how to reach a store. Listings are never answered from memory: others write too."""
    protocol = _protocol(url)
    options: dict[str, Any] = {"use_listings_cache": False}
    if protocol in ("s3", "s3a"):
        times = {"connect_timeout": TIMEOUT_SECONDS, "read_timeout": TIMEOUT_SECONDS}
        retries = {"mode": "standard", "total_max_attempts": 2}  # of each part of a large file
        options["config_kwargs"] = {**times, "retries": retries}
        options["max_concurrency"] = 1  # else the size of each file is asked for, before it is read
    return options


def _once(files: Any) -> Any:
    """Return a file system that leaves it to us to try again."""
    if "s3" in files.protocol:
        files.retries = 1
    return files


@functools.lru_cache(maxsize=256)
def find_files(url: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path there."""
    if not is_url(url):
        return LocalFileSystem(), url.rstrip("/")
    try:
        files, path = fsspec.core.url_to_fs(url, **_options(url))
    except ImportError as error:
        package = PACKAGES.get(_protocol(url))
        remedy = f"pip install {package}" if package else str(error).rstrip(".")
        raise InputError(
            f"{hide(url)!r} needs a library that is not installed ({type(error).__name__}): "
            f"{remedy}, here and on every worker."
        ) from None
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise InputError(f"{hide(url)!r} cannot be opened: {hide(reason)}.") from None
    return _once(files), path.rstrip("/")


def is_local(files: Any) -> bool:
    """Tell whether a file system is that of this machine."""
    return "file" in ((files.protocol,) if isinstance(files.protocol, str) else files.protocol)


def checked_name(name: Any, url: str) -> str:
    """Return a name, unless it leads out of the folder at an address: a document may have it."""
    parts = name.split("/") if isinstance(name, str) else [""]
    is_inside = all(part not in ("", ".", "..") and "\0" not in part for part in parts)
    if not is_inside or ("::" in name and is_url(url)):
        raise DamagedError(
            f"{name!r} is not the name of anything inside a run's folder: a document there is "
            "damaged or was changed; remove the run and make it anew."
        )
    return str(name)


def find_all(url: str) -> dict[str, dict[str, Any]]:
    """Return what is known of each file under an address, by its path."""
    files, path = find_files(url)

    def find() -> dict[str, dict[str, Any]]:
        files.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            return dict(files.find(path, detail=True))
        return {}

    return patiently(find, url)


def remove_all(files: Any, place: str) -> None:
    """Remove a file or a folder."""
    if is_local(files):
        files.rm(place, recursive=True)
        return
    files.invalidate_cache()
    found = files.find(place)
    if found == [place]:
        files.rm_file(place)
    elif found:
        files.rm(place, recursive=True)
        if left := files.find(place):  # S3 removes what it can, and fails without a word
            raise OSError(errno.EBUSY, f"{len(left)} files are still there")


def no_place(url: str, error: OSError) -> InputError:
    """Return what to raise when there is nothing at an address that could be written to."""
    return InputError(
        f"{hide(url)!r} cannot be written to ({error}): create its bucket, or the disk that it is "
        "on, first."
    )


def ends_early(path: str, n_missing: int) -> DamagedError:
    """Return what to raise about a file that has fewer bytes than were written."""
    return DamagedError(f"it ends {n_missing} bytes too early", path)
