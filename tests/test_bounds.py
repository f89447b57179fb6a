"""Kernels stay within their arrays, whatever a run holds: the tests of `bounded`, with checks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_with_bounds_checked():
    """Kernels are compiled anew, so that this needs a process and a cache of its own."""
    shutil.rmtree(ROOT / ".pytest_cache" / "numba-bounds", ignore_errors=True)
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "tests/bounded.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
