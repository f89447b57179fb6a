"""The commands of `spore-dask`: each calls one public function, and tells what it returned."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click
from dask.utils import format_bytes

import spore_dask
from spore_dask.cli import showing
from spore_dask.cli.command import Command, Voice, id_option, progress_option
from spore_dask.cli.demo import demo_answer
from spore_dask.cli.options import Option
from spore_dask.cli.running import Commands
from spore_dask.cli.showing import Answer
from spore_dask.cli.status import status_answer, watch


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(spore_dask.__version__, prog_name="spore-dask")
def commands() -> None:
    """Cluster large data with SPORE.

    Data is a Zarr array (N, D): `import` makes one. A run is a folder: the same command
    continues one that was stopped, `status` shows it from another terminal.
    """


def _command(
    name: str, *arguments: str, **settings: Any
) -> Callable[[Callable[..., Answer]], Command]:
    """Make a command of a function."""

    def make(function: Callable[..., Answer]) -> Command:
        made = Command(name, function, arguments=arguments, **settings)
        commands.add_command(made)
        return made

    return make


def report_option() -> Option:
    """Return what says whether a run gets a report."""
    text = "Whether to write an HTML report into the run."
    return Option(["--report/--no-report"], default=True, show_default=True, help=text)


@_command(
    "fit",
    "source",
    "[out]",
    api=["fit", "Params"],
    own=[report_option(), progress_option()],
)
def fit(voice: Voice, source: str, out: str | None, report: bool, **options: Any) -> Answer:
    """Cluster SOURCE, a Zarr array of any size, into the folder OUT.

    OUT is beside the source by default: x.zarr to x.spore. The same command continues what was
    begun, or finds it done.
    """
    started = time.perf_counter()
    run = spore_dask.fit(source, out, progress=voice.progress, **options)
    answer = showing.run_answer(run, time.perf_counter() - started)
    if report:
        _add_report(run, answer)
    return answer


def _add_report(run: spore_dask.Run, answer: Answer) -> None:
    """Write the report of a run; one that fails does not make the run fail."""
    try:
        place = spore_dask.report(run)
    except Exception as error:
        click.echo(f"spore-dask: warning: no report was written ({error}).", err=True)
        return
    answer.document["report"] = place
    answer.lines.append(f"Report: {place}")


@_command("graph", "source", "out", api=["build_graph"], own=[progress_option()])
def graph(voice: Voice, source: str, out: str, **options: Any) -> Answer:
    """Build the neighbour graph of SOURCE in the folder OUT."""
    started = time.perf_counter()
    built = spore_dask.build_graph(source, out, progress=voice.progress, **options)
    return showing.graph_answer(built, time.perf_counter() - started)


@_command(
    "tune",
    "source",
    "[out]",
    api=["tune", "fit", "Params"],
    leave_out=["params"],
    own=[report_option(), progress_option()],
)
def tune(voice: Voice, source: str, out: str | None, report: bool, **options: Any) -> Answer:
    """Choose parameters for SOURCE, and cluster it with them.

    OUT is the folder of the run, as in fit. Parameters that are given stay the same in all trials.
    """
    started = time.perf_counter()
    found = spore_dask.tune(source, out, progress=voice.progress, **options)
    answer = showing.tuning_answer(found, time.perf_counter() - started)
    if report:
        _add_report(found.run, answer)
    return answer


@_command(
    "predict", "run", "source", "[out]", api=["predict"], own=[id_option(), progress_option()]
)
def predict(
    voice: Voice, run: str, source: str, out: str | None, id: str | None, **options: Any
) -> Answer:
    """Give the points of SOURCE labels by a vote of those of RUN."""
    started = time.perf_counter()
    fitted = spore_dask.open_run(run, id)
    found = spore_dask.predict(fitted, source, out, progress=voice.progress, **options)
    return showing.prediction_answer(found, time.perf_counter() - started)


@_command(
    "estimate",
    "source",
    "[out]",
    api=["fit", "Params"],
    leave_out=["resume", "params", "n_trials"],
)
def estimate(voice: Voice, source: str, out: str | None, **options: Any) -> Answer:
    """Tell what fit would take in memory, disk and time.

    Reads and clusters a sample, and writes nothing that stays. With --scheduler, give
    --memory-limit and --workers of its cluster.
    """
    return showing.estimate_answer(spore_dask.estimate(source, out, **options))


@_command(
    "status",
    "run",
    own=[Option(["--watch"], is_flag=True, help="Follow until nothing runs any more.")],
)
def status(voice: Voice, run: str, **options: bool) -> Answer:
    """Tell how far RUN is, from any terminal, or what it has found."""
    answer = status_answer(run)
    if options["watch"]:
        watch(run, silent=voice.json or voice.quiet)
        answer = status_answer(run)
    return answer


@_command("report", "run", "[out]", api=["report"], own=[id_option()])
def report(voice: Voice, run: str, out: str | None, id: str | None, **options: Any) -> Answer:
    """Write what RUN has found, and what it took, as one HTML file."""
    place = spore_dask.report(spore_dask.open_run(run, id), out, **options)
    return Answer({"path": place}, [f"Report: {place}"])


@_command("verify", "run", own=[id_option()])
def verify(voice: Voice, run: str, id: str | None) -> Answer:
    """Read RUN again, and compare it with its checksums and counts."""
    opened = spore_dask.open_run(run, id)
    checked = spore_dask.verify(opened)
    nbytes = format_bytes(sum(checked.values()))
    document = {"path": opened.path, "id": opened.id, "checked_nbytes": checked}
    return Answer(document, [f"Nothing is damaged: {nbytes} of {opened.path} are as written."])


@_command("clean", "run", api=["clean"], own=[id_option()])
def clean(voice: Voice, run: str, id: str | None, **options: str) -> Answer:
    """Remove stages of RUN that are not to be kept; results stay."""
    opened = spore_dask.open_run(run, id)
    freed = spore_dask.clean(opened, **options)
    document = {"path": opened.path, "id": opened.id, "freed_nbytes": freed}
    return Answer(document, [f"Freed {format_bytes(freed)}; the labels stay."])


@_command("import", "source", "[out]", api=["import_data"], own=[progress_option()])
def import_data(voice: Voice, source: str, out: str | None, **options: Any) -> Answer:
    """Write the numbers of a file to a Zarr array OUT.

    SOURCE is .npy, .npz, Parquet, CSV, HDF5 or .h5ad. OUT is beside the source by default:
    x.csv to x.zarr.
    """
    place = spore_dask.import_data(source, out, progress=voice.progress, **options)
    return showing.import_answer(place)


@_command("export", "run", "out", api=["export_labels"], own=[id_option(), progress_option()])
def export(voice: Voice, run: str, out: str, id: str | None, **options: Any) -> Answer:
    """Write the labels of RUN, or of a prediction, to a file OUT."""
    what = run if id is None else spore_dask.open_run(run, id)
    place = spore_dask.export_labels(what, out, progress=voice.progress, **options)
    return Answer({"path": place}, [f"Labels: {place}"])


@_command(
    "demo",
    own=[
        Option(["--points"], default=1_000_000, show_default=True, help="Points to generate."),
        Option(["--columns"], default=2, show_default=True, help="Columns to generate."),
        Option(["--seed"], default=0, show_default=True, help="Seed of the generator."),
        Option(["--memory-limit"], default="1GiB", show_default=True, help="For each process."),
        Option(["--folder"], help="Where to keep data and run. Default: nowhere."),
        progress_option(),
    ],
)
def demo(voice: Voice, points: int, columns: int, **options: Any) -> Answer:
    """Generate clusters of varied density and shape, and find them.

    They are written to Zarr and found out of core.
    """
    return demo_answer(points, columns, say=voice.say, progress=voice.progress, **options)
