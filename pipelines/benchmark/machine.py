"""Describe the machine and the call that figures come from, without names of hosts or folders.

Writes OUT/machine.json.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

import psutil

import spore_dask
from pipelines.benchmark.protocol import Settings
from pipelines.benchmark.records import write_json
from pipelines.machine import processor

AND = " && "
PACKAGES = ("numpy", "scikit-learn", "scipy", "numba", "dask", "distributed")


def describe_machine(command: str, settings: Settings) -> dict[str, Any]:
    """Return what figures depend on beside the code.

    Parameters
    ----------
    command : str
        Without paths and addresses.
    settings : Settings
    """
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_nbytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {**versions, "spore_dask": spore_dask.__version__},
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
        "settings": dataclasses.asdict(settings),
    }


def write_machine(out: Path, command: str, settings: Settings) -> None:
    """Write OUT/machine.json: of the last call, but with the commands of all calls."""
    path = out / "machine.json"
    found = json.loads(path.read_text())["command"].split(AND) if path.exists() else []
    commands = AND.join(dict.fromkeys([*found, command]))
    write_json(path, describe_machine(commands, settings))
