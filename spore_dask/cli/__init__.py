"""The command `spore-dask`: the only package that prints.

`commands` has the commands; `options` derives their options from the functions that they call, so
that a name, a default and its documentation are stated once; `config` reads files of options;
`command` is what they share; `running` turns errors and signals into sentences and exit codes;
`showing` says what was found; `status` looks at a run from outside; `demo` is an example.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command `spore-dask`."""
    try:
        from spore_dask.cli.commands import commands  # takes a moment, in which Ctrl-C may come
    except KeyboardInterrupt:
        sys.stderr.write("\nspore-dask: stopped by SIGINT\n")
        sys.exit(130)
    commands()
