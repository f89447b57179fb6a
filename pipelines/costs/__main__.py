"""Measure what fits cost, and write what follows for larger ones.

    python -m pipelines.costs measure --out FILE [--small]
    python -m pipelines.costs page --out FILE --docs docs

`measure` takes about 8 minutes on two quiet cores, or two with `--small`; the same command again
continues. `page` replaces the figures of docs/scale.md and its picture.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from pipelines.costs.measuring import CASES, SMALL_CASES, measure, read


def main(arguments: list[str] | None = None) -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(prog="costs", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="measure fits of several sizes")
    measuring.add_argument("--out", type=Path, required=True, help="file that the runs go to")
    measuring.add_argument("--small", action="store_true", help="smaller sizes, in two minutes")
    writing = commands.add_parser("page", help="write the figures of docs/scale.md")
    writing.add_argument("--out", type=Path, required=True, help="file that has the runs")
    writing.add_argument("--docs", type=Path, required=True, help="folder that has scale.md")
    options = parser.parse_args(arguments)
    if options.command == "measure":
        started = time.perf_counter()
        measure(SMALL_CASES if options.small else CASES, options.out)
        print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
        return
    from pipelines.costs.page import write_page  # matplotlib takes a while to load

    if not options.out.exists():
        parser.error(f"{options.out} is not there: write it with `measure --out {options.out}`.")
    write_page(read(options.out), options.docs)


if __name__ == "__main__":
    main()
