"""Folders for compiled kernels."""

import os
import time
from pathlib import Path

import pytest

from spore_dask import caches


@pytest.fixture
def claim(tmp_path, monkeypatch):
    """Claim slots below a folder of the test's own, and let them go at its end."""
    monkeypatch.setattr(caches, "_held", [])
    yield lambda: caches.claim_slot(tmp_path)
    for lock in caches._held:
        os.close(lock)


def test_slots_are_held_and_seeded_from_the_fullest(claim):
    first = claim()
    (first / "sub").mkdir()
    (first / "sub" / "kernel.nbi").write_text("index")
    second = claim()
    (second / "sub" / "kernel.nbc").write_text("code")
    third = claim()
    assert len({first, second, third}) == 3
    assert sorted(path.name for path in third.rglob("*.nb?")) == ["kernel.nbc", "kernel.nbi"]
    os.close(caches._held.pop(1))
    assert claim() == second


def test_old_versions_go_unless_they_are_used(claim, tmp_path):
    current = claim().parent
    for name, days in [("old", 31), ("used", 31), ("young", 29)]:
        (tmp_path / name / "slot-0").mkdir(parents=True)
        (tmp_path / name / "slot-0.lock").touch()
        then = time.time() - days * 86400
        os.utime(tmp_path / name, (then, then))
    used = caches._lock(tmp_path / "used" / "slot-0.lock")
    claim()
    os.close(used)
    assert {path.name for path in tmp_path.iterdir()} == {"used", "young", "lock", current.name}


def test_cache_root(monkeypatch, tmp_path):
    monkeypatch.delenv("SPORE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert caches.cache_root() == tmp_path / "spore_dask"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert caches.cache_root() == Path.home() / ".cache" / "spore_dask"
