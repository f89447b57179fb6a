"""The commands `python -m pipelines.benchmark run|ties|page`."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path

from pipelines.benchmark.baselines import BASELINES
from pipelines.benchmark.preparing import SCALINGS
from pipelines.benchmark.protocol import Settings
from pipelines.benchmark.running import Plan, default_settings, run_all
from pipelines.benchmark.spores import SPORES
from pipelines.benchmark.ties import write_ties
from spore_dask import SporeError
from spore_dask.threads import n_threads

METHODS = {**SPORES, **BASELINES}
HIDDEN = {"out": "OUT", "data": "FOLDER", "scheduler": "ADDRESS"}
"""Options whose values name places, and what stands for these where others read it."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command; an error that was foreseen ends it with one sentence and code 2."""
    options = parser().parse_args(arguments)
    try:
        options.function(options)
    except SporeError as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    top = argparse.ArgumentParser(prog="pipelines.benchmark", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    _add_run(commands.add_parser("run", help="search configurations, one file a search"))
    _add_ties(commands.add_parser("ties", help="see how far the order of the data moves results"))
    page = commands.add_parser("page", help="write tables and plots from the files")
    page.set_defaults(function=write_the_page)
    page.add_argument("--out", type=Path, required=True, help="what `run` wrote")
    page.add_argument("--docs", type=Path, required=True, help="folder of the page")
    return top


def _add_run(run: argparse.ArgumentParser) -> None:
    run.set_defaults(function=run_searches)
    run.add_argument("--out", type=Path, required=True, help="folder of the results")
    _add_data(run)
    run.add_argument("--scaling", nargs="+", choices=SCALINGS, default=list(SCALINGS))
    run.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    given = Settings()
    run.add_argument("--draws", type=_count, default=given.n_draws, help="beside the default")
    run.add_argument("--seed", type=_count, default=given.seed, help="of the draws")
    run.add_argument(
        "--limit", type=_seconds, default=given.limit_seconds, help="seconds for a configuration"
    )
    run.add_argument(
        "--budget", type=_seconds, default=given.budget_seconds, help="seconds for a search"
    )
    run.add_argument("--reruns", type=_count, default=given.n_reruns, help="of the best one")
    run.add_argument("--workers", type=_some, default=min(2, n_threads()), help="local processes")
    run.add_argument("--threads", type=_some, help="for each search; 1 if workers are several")
    run.add_argument("--memory", type=float, help="GB for each search; a fair share by default")
    run.add_argument("--scheduler", metavar="ADDRESS", help="of a Dask cluster to use instead")


def _add_ties(ties: argparse.ArgumentParser) -> None:
    ties.set_defaults(function=measure_ties)
    ties.add_argument("--out", type=Path, required=True, help="folder of the results")
    _add_data(ties)
    ties.add_argument("--orders", type=_some, default=10, help="random orders of each dataset")


def _add_data(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--data", type=Path, help="folder of .npz files; scikit-learn's own datasets by default"
    )
    command.add_argument("--sets", nargs="+", metavar="NAME", help="which; all by default")


def _count(text: str) -> int:
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


def _some(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _seconds(text: str) -> float:
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the settings that the command line asks for."""
    asked = Settings(
        n_draws=options.draws,
        seed=options.seed,
        limit_seconds=options.limit,
        budget_seconds=options.budget,
        n_reruns=options.reruns,
    )
    settings = default_settings(asked, options.workers)
    if options.threads is not None:
        settings = dataclasses.replace(settings, n_threads=options.threads)
    if options.memory is not None:
        settings = dataclasses.replace(settings, memory_nbytes=int(options.memory * 1e9))
    return settings


def run_searches(options: argparse.Namespace) -> None:
    """Run the searches of the command line that have no file yet."""
    plan = Plan(
        out=options.out.absolute(),
        folder=None if options.data is None else options.data.absolute(),
        scalings=options.scaling,
        sets=options.sets,
        methods=[METHODS[name] for name in options.methods],
        settings=settings_of(options),
    )
    run_all(plan, options.scheduler, options.workers, told_command(options), say=_say)


def told_command(options: argparse.Namespace) -> str:
    """Return the command with every option that was not left alone, but without places."""
    plain = parser().parse_args([options.command, "--out", "OUT"])
    words = ["python", "-m", "pipelines.benchmark", options.command]
    for name, value in vars(options).items():
        if name in HIDDEN and value is not None:
            words += [f"--{name}", HIDDEN[name]]
        elif name not in ("function", "command") and value != getattr(plain, name):
            values = value if isinstance(value, list) else [value]
            words += [f"--{name}", *map(str, values)]
    return shlex.join(words)


def measure_ties(options: argparse.Namespace) -> None:
    """Measure how far the order of the data moves SPORE's best ARI."""
    write_ties(options.out, options.data, options.sets, options.orders, say=_say)


def write_the_page(options: argparse.Namespace) -> None:
    """Write tables and plots; what they need is loaded only here."""
    from pipelines.benchmark.page import write_page

    write_page(options.out, options.docs)


def _say(line: str) -> None:
    print(line, flush=True)
