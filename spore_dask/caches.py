"""Folders for compiled kernels, which outlive runs: one for each process at a time.

numba's cache is not safe to share. A process holds the lock of its folder as long as it lives; a
new folder begins as a copy of the fullest one. Writes to the user's cache folder only.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import itertools
import os
import shutil
import sys
import time
from pathlib import Path

CACHE_DAYS = 30
"""Days after which compiled kernels of other versions are removed."""

_held: list[int] = []  # locks that this process holds as long as it lives


def cache_root() -> Path:
    """Return where compiled kernels are kept."""
    if "SPORE_CACHE_DIR" in os.environ:
        return Path(os.environ["SPORE_CACHE_DIR"])
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "spore_dask"


def claim_slot(root: Path) -> Path:
    """Return the first folder `root/<version>/slot-<n>` that is free, and hold it for life."""
    folder = root / _code_version()
    folder.mkdir(parents=True, exist_ok=True)
    turn = _lock(root / "lock", timeout=10)
    try:
        os.utime(folder)
        _remove_old(root, folder)
        for n in itertools.count():
            with contextlib.suppress(BlockingIOError):
                _held.append(_lock(folder / f"slot-{n}.lock"))
                slot = folder / f"slot-{n}"
                if not slot.exists():
                    _seed(slot)
                return slot
    finally:
        os.close(turn)
    raise AssertionError("itertools.count() ended")


def _code_version() -> str:
    """Return a hash of the source of this package's kernels and of what compiles it."""
    digest = hashlib.sha256(f"{sys.version} {importlib.metadata.version('numba')}".encode())
    for path in sorted((Path(__file__).parent / "kernels").glob("*.py")):
        digest.update(f"\n{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:24]


def _lock(path: Path, timeout: float = 0.0) -> int:
    """Return a descriptor that holds a file's lock; raise BlockingIOError if another has it."""
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() >= deadline:
                os.close(descriptor)
                raise
        time.sleep(0.02)


def _seed(slot: Path) -> None:
    """Make a slot with the files of the one that has most of them."""
    new = slot.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    others = [path for path in slot.parent.glob("slot-*") if path.is_dir()]
    fullest = max(others, key=lambda path: sum(1 for _ in path.rglob("*.nb?")), default=None)
    if fullest is None:
        new.mkdir()
    else:
        shutil.copytree(fullest, new, ignore=shutil.ignore_patterns("tmp*"))
    new.rename(slot)


def _remove_old(root: Path, current: Path) -> None:
    """Remove what other versions left and nobody has used for long."""
    before = time.time() - CACHE_DAYS * 86400
    for folder in root.iterdir():
        if folder == current or not folder.is_dir() or folder.stat().st_mtime > before:
            continue
        locks: list[int] = []
        try:
            locks.extend(_lock(path) for path in folder.glob("slot-*.lock"))
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:  # a process of that version still runs
            continue
        finally:
            for lock in locks:
                os.close(lock)
