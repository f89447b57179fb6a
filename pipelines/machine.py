"""Name the processor that figures come from."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Return the model of the processor, as well as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
