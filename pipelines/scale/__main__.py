"""`python -m pipelines.scale run|page`: measure ours beside its peers, and write the page."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from dask.utils import parse_bytes

from pipelines.scale.cells import write_machine
from pipelines.scale.contestants import CONTESTANTS
from pipelines.scale.generating import FAMILIES
from pipelines.scale.running import ROOT, Settings, check_earlier, run_cells
from spore_dask import SporeError

POINTS = (100_000, 1_000_000, 10_000_000)
COLUMNS = (2, 8, 64, 384)
OPTIONAL = [name for name, contestant in CONTESTANTS.items() if contestant.optional]
USUAL = [name for name in CONTESTANTS if name not in OPTIONAL]
PEER_PYTHON = ROOT / ".venv-peer" / "bin" / "python"


class Count(click.ParamType):
    """A whole number, also written as 1e6."""

    name = "number"

    def convert(self, value: object, param: object, ctx: object) -> int:
        """Read it."""
        try:
            number = float(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a number.")
        if number < 1 or not number.is_integer():
            self.fail(f"{value!r} is not a whole number from 1 on.")
        return int(number)


def parse_cell(text: str) -> tuple[int, int]:
    """Read columns and points, as in 384x1e7."""
    columns, _, points = text.partition("x")
    try:
        return int(columns), int(float(points))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not COLUMNSxPOINTS, as in 384x1e7.") from None


@click.group(help=__doc__)
def commands() -> None:
    """Group the commands."""


@commands.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("scale-results"))
@click.option("--points", type=Count(), multiple=True, default=POINTS, help="Again for more.")
@click.option("--columns", type=Count(), multiple=True, default=COLUMNS, help="Again for more.")
@click.option("--without", multiple=True, metavar="COLUMNSxPOINTS", help="A cell to leave out.")
@click.option("--only", type=click.Choice(list(CONTESTANTS)), multiple=True, help="Contestants.")
@click.option("--also", type=click.Choice(OPTIONAL), multiple=True, help="Beside the usual ones.")
@click.option("--cap", default="2GiB", help="Private memory of each process.")
@click.option("--limit", default=3600.0, help="Seconds for each contestant in each cell.")
@click.option("--factor", default=3.0, help="Times what ours took, for the others (>= 60 s).")
@click.option("--peer-python", default=str(PEER_PYTHON), help="Has spore-clustering 1.0.0.")
@click.option("--work", type=click.Path(path_type=Path), help="Where data is generated.")
@click.option("--seed", default=0, help="Seed of the data.")
@click.option("--family", type=click.Choice(list(FAMILIES)), default="shapes", help="Of data.")
@click.option("--background", type=click.FloatRange(0, 0.9), help="Share of rows in no cluster.")
def run(
    out: Path,
    points: tuple[int, ...],
    columns: tuple[int, ...],
    without: tuple[str, ...],
    only: tuple[str, ...],
    also: tuple[str, ...],
    family: str,
    background: float | None,
    **options: object,
) -> None:
    """Measure all contestants, ours first; what OUT has already is not run again."""
    left_out = {parse_cell(text) for text in without}
    cells = {(c, n) for c in columns for n in points} - left_out
    wanted = {*(only or USUAL), *also}
    names = tuple(name for name in CONTESTANTS if name in wanted)
    settings = Settings(
        out=out,
        contestants=names,
        memory_limit=parse_bytes(str(options["cap"])),
        limit_seconds=float(str(options["limit"])),
        factor=float(str(options["factor"])),
        peer_python=str(options["peer_python"]),
        work=options["work"] if isinstance(options["work"], Path) else None,
        seed=int(str(options["seed"])),
        family=family,
        background=FAMILIES[family] if background is None else background,
        say=lambda line: print(line, flush=True),
    )
    try:
        check_earlier(settings)
        write_machine(out, sys.argv[1:])
        run_cells(settings, cells)
    except SporeError as error:
        raise click.ClickException(str(error)) from None


@commands.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="What `run` wrote.")
@click.option("--docs", type=click.Path(path_type=Path), required=True, help="Folder of the page.")
def page(out: Path, docs: Path) -> None:
    """Write tables and plots of OUT into DOCS/results.md, in the section of its family of data."""
    from pipelines.scale.page import write_page

    try:
        write_page(out, docs)
    except SporeError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    commands()
