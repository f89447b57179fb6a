"""Preflight: on a cluster, each worker proves that it is fit before it is given work.

Each reads what this process has written into `out`, writes there itself, and reads the source; its
versions are this process's, and its memory is what the plan counts on. Workers that come later
prove the same before their first task. Writes a folder into `out`, which goes with the run. Memory:
a chunk of the source.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import platform
import uuid
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from dask.utils import format_bytes

from spore_dask.engine import Engine
from spore_dask.errors import PreflightError, SporeError
from spore_dask.store import Folder, Source, hash_of, open_zarr

DRIVER = "driver"
PACKAGES = (
    "numpy",
    "numba",
    "dask",
    "distributed",
    "zarr",
    "pynndescent",
    "scikit-learn",
    "scipy",
)
"""What a worker must have in the driver's version, besides Python and this package."""
ROUNDED = 0.01
"""Share of the memory limit that may be missing, since tools round what they are told."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """What each worker is measured by."""

    versions: dict[str, str]
    folder: Folder
    """The folder in `out` where this process and the workers leave a word for each other."""
    word: str
    """What this process has written there."""
    source: Source | None
    """The data; None if it is yet to be written."""
    first_row: str
    """A hash of the source's first row."""
    reads: tuple[Folder, ...]
    """Further folders that are read."""
    memory_limit: int
    """Bytes that a task may use."""


@contextlib.contextmanager
def preflight(
    engine: Engine,
    out: Folder,
    source: Source | None,
    memory_limit: int,
    reads: Sequence[Folder] = (),
) -> Iterator[None]:
    """Have all workers prove that they are fit, or raise `PreflightError`; keep it up meanwhile.

    Parameters
    ----------
    engine : Engine
    out : Folder
        Where workers write.
    source : Source, optional
        What they read, if it is there already.
    memory_limit : int
        Bytes that each may use for a task.
    reads : sequence of Folder
        What else they read.
    """
    expected = Expected(
        versions=_versions(),
        folder=out.child(f"preflight-{hash_of(out.url)}"),
        word=uuid.uuid4().hex,
        source=source,
        first_row="" if source is None else _first_row(source),
        reads=tuple(reads),
        memory_limit=memory_limit,
    )
    try:
        expected.folder.write_bytes(DRIVER, expected.word.encode())
        for address in engine.prove(functools.partial(examine, expected)):
            _hear(expected, address)
        yield
    finally:
        expected.folder.remove()


def _hear(expected: Expected, address: str) -> None:
    """Read what a worker has written."""
    try:
        heard = expected.folder.read_bytes(hash_of(address)).decode()
    except FileNotFoundError:
        heard = ""
    if heard != expected.word:
        raise PreflightError(
            f"The driver does not see what the worker at {address} wrote to "
            f"{expected.folder.url!r}, but {_shared(expected.folder)}."
        )


def examine(expected: Expected, address: str, memory_nbytes: int) -> str | None:
    """Return what is wrong with this process as a worker, in words that follow its name."""
    for name, version in _versions().items():
        if version != expected.versions.get(name):
            return (
                f"has {name} {version}, but the driver has {expected.versions.get(name)}: install "
                "the same there"
            )
    if memory_nbytes < (1 - ROUNDED) * expected.memory_limit:
        return (
            f"has {format_bytes(memory_nbytes)} of memory for each of its threads, but the memory "
            f"limit is {format_bytes(expected.memory_limit)}: start it with more memory or one "
            "thread (--nthreads 1), or lower memory_limit"
        )
    return _meet(expected, address) or _read(expected)


def _meet(expected: Expected, address: str) -> str | None:
    """Read what the driver has written, and answer."""
    folder = expected.folder
    try:
        word = folder.read_bytes(DRIVER).decode()
    except FileNotFoundError:
        word = ""
    except Exception as error:
        return f"cannot read {folder.url!r} ({_words(error)}): {_allowed(folder)}"
    if word != expected.word:
        return f"does not see what the driver wrote to {folder.url!r}, but {_shared(folder)}"
    try:
        folder.write_bytes(hash_of(address), word.encode())
    except Exception as error:
        return f"cannot write to {folder.url!r} ({_words(error)}): {_allowed(folder)}"
    return None


def _read(expected: Expected) -> str | None:
    """Read the source's first row, and look for what else is read."""
    source = expected.source
    for folder in expected.reads:
        if not folder.exists():
            return f"does not see {folder.url!r}, but {_shared(folder)}"
    if source is None:
        return None
    place = Folder(source.url)
    try:
        array = open_zarr(source.url)
        first_row = _first_row(source)
    except (FileNotFoundError, SporeError):
        return f"does not see the source {source.url!r}, but {_shared(place)}"
    except Exception as error:
        return f"cannot read the source {source.url!r} ({_words(error)}): {_allowed(place)}"
    seen = array.shape, array.dtype.str, first_row
    if seen != (source.shape, source.dtype, expected.first_row):
        return f"sees other data at the source {source.url!r}, but {_shared(place)}"
    return None


def _shared(folder: Folder) -> str:
    """Say what is needed where a process does not see what another does."""
    if folder.is_local:
        return (
            "a path must be on a file system that all machines share: mount it on each, or use "
            "an object store (such as s3://)"
        )
    return "it must be the same store for all: give each machine the same endpoint"


def _allowed(folder: Folder) -> str:
    """Say what is needed where a process may not do something."""
    if folder.is_local:
        return "let the worker's user read and write there"
    return "give the worker the same credentials and endpoint in its environment"


@functools.cache
def _versions() -> dict[str, str]:
    """Return the versions of what decides about results and formats, in this process."""
    python = ".".join(platform.python_version_tuple()[:2])
    found = {"Python": python, "spore_dask of source": _code()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def _code() -> str:
    """Return a hash of this package's source."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _first_row(source: Source) -> str:
    """Return a hash of the first row, for which a chunk is read."""
    return hashlib.sha256(source.read(0, 1).tobytes()).hexdigest()


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
