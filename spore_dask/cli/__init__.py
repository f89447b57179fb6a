"""The command `spore-dask`: the only package that prints.

`commands` has the commands; `options` derives their options from the functions that they call, so
that a name, a default and its documentation are stated once; `config` reads files of options;
`command` is what they share; `running` turns errors and signals into sentences and exit codes;
`showing` says what was found; `status` looks at a run from outside; `demo` is an example.
The names in `__all__` are for commands of others that are to speak and end alike.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spore_dask.cli.command import Command, Voice
    from spore_dask.cli.options import Option, options_of
    from spore_dask.cli.running import EXIT_CODES, TIME_FORMAT, Commands, Session, exit_code
    from spore_dask.cli.showing import (
        PROGRESS,
        Answer,
        consumer_of,
        estimate_answer,
        run_answer,
        tuning_answer,
    )

__all__ = [
    "EXIT_CODES",
    "PROGRESS",
    "TIME_FORMAT",
    "Answer",
    "Command",
    "Commands",
    "Option",
    "Session",
    "Voice",
    "consumer_of",
    "estimate_answer",
    "exit_code",
    "main",
    "options_of",
    "run_answer",
    "tuning_answer",
]

_HOMES = {
    "command": ["Command", "Voice"],
    "options": ["Option", "options_of"],
    "running": ["Commands", "EXIT_CODES", "Session", "TIME_FORMAT", "exit_code"],
    "showing": [
        "Answer",
        "PROGRESS",
        "consumer_of",
        "estimate_answer",
        "run_answer",
        "tuning_answer",
    ],
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"spore_dask.cli.{module}"), name)
    raise AttributeError(f"module 'spore_dask.cli' has no attribute {name!r}")


def main() -> None:
    """Run the command `spore-dask`."""
    try:
        from spore_dask.cli.commands import commands  # takes a moment, in which Ctrl-C may come
    except KeyboardInterrupt:
        sys.stderr.write("\nspore-dask: stopped by SIGINT\n")
        sys.exit(130)
    commands()
