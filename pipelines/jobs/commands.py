"""The commands `python -m pipelines fit|tune|refresh JOB.yaml`."""

from __future__ import annotations

from collections.abc import Callable

import click

from pipelines.jobs.documents import FIT, REFRESH, TUNE, Job, checked_date, read_job
from pipelines.jobs.fitting import fit_answer
from pipelines.jobs.planning import dry_answer
from pipelines.jobs.refreshing import DRIFTED, refresh_answer
from pipelines.jobs.tuning import tune_answer
from spore_dask.cli import EXIT_CODES, Answer, Command, Commands, Option, Session, Voice

JOB_EXIT_CODES = dict(
    sorted({**EXIT_CODES, DRIFTED: "drift beyond the limit: not published"}.items())
)


class Jobs(Commands):
    """The jobs; they end as the commands of spore-dask do."""

    program = "python -m pipelines"
    resumable = (FIT, TUNE, REFRESH)
    exit_codes = JOB_EXIT_CODES
    stamped = True


@click.group(cls=Jobs, context_settings={"help_option_names": ["-h", "--help"]})
def commands() -> None:
    """Run a job that a YAML file describes, from a scheduler.

    The same command continues a job that was stopped; one that is done is found done.
    """


def _add(kind: str, function: Callable[[Job, Voice], Answer]) -> None:
    """Make a command of what does a job."""

    def run(voice: Voice, file: str, date: str | None, dry_run: bool) -> Answer:
        day = checked_date(date)
        session = click.get_current_context().find_object(Session)
        if session is not None and date is None:  # to continue tomorrow what is of today
            session.args = [*session.args, "--date", day]
        job = read_job(file, kind, day, import_class=not dry_run)
        return dry_answer(job) if dry_run else function(job, voice)

    run.__doc__ = function.__doc__
    own = [
        Option(["--date"], help="What stands for {date} in the file. Default: today, in UTC."),
        Option(["--dry-run"], is_flag=True, help="Check file and input, tell what it takes."),
    ]
    commands.add_command(Command(kind, run, arguments=["file"], own=own, configurable=False))


def fit(job: Job, voice: Voice) -> Answer:
    """Cluster the input that FILE names."""
    return fit_answer(job, voice)


def tune(job: Job, voice: Voice) -> Answer:
    """Choose parameters for the input that FILE names, and cluster with them."""
    return tune_answer(job, voice)


def refresh(job: Job, voice: Voice) -> Answer:
    """Cluster today's input, keep the clusters' numbers, and publish.

    Clusters are matched with those published last; `latest.json` in the output moves to the new
    labels when they are complete.
    """
    return refresh_answer(job, voice)


_add(FIT, fit)
_add(TUNE, tune)
_add(REFRESH, refresh)
