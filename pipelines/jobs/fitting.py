"""The job `fit`: cluster an input with given parameters.

Reads the input; writes a run into the output, as `spore_dask.fit` does, a record of the job, and a
report if one is asked for. The same job again continues what was begun, or finds it done.
"""

from __future__ import annotations

from typing import Any

import spore_dask
from pipelines.jobs.documents import Job
from pipelines.jobs.places import Place, address
from pipelines.jobs.records import Work, workers
from spore_dask.cli import Answer, Voice, run_answer


def fit_answer(job: Job, voice: Voice) -> Answer:
    """Do the job, or find it done; tell what it came to."""
    work = Work(job, voice, job.id)
    source, out = address(job.input), work.output.url
    if work.finished() is not None:
        run = spore_dask.fit(source, out, **job.options)  # refuses data that has changed
        if lacks_report(work, run):
            with work.recorded():
                finish(work, run)
        return told(work, run, done_before=True)
    with work.recorded():
        work.say(f"run {job.id} begins, into {out}")
        with workers(job) as where:
            run = spore_dask.fit(source, out, progress=work.progress, **where, **job.options)
        finish(work, run)
    return told(work, run)


def finish(work: Work, run: spore_dask.Run, **facts: Any) -> None:
    """Note what was found for the job's record, and write the report."""
    found = {name: run.summary[name] for name in ("n_points", "n_noise", "n_clusters")}
    work.note(run={"path": run.path, "id": run.id, **found}, **facts)
    _write_report(work, run)


def lacks_report(work: Work, run: spore_dask.Run) -> bool:
    """Tell whether a job that is done has no report where one is asked for now."""
    wanted = work.job.report
    if not wanted:
        return False
    default = f"{run.path}/report-{run.id}.html"
    folder, _, name = address(wanted if isinstance(wanted, str) else default).rpartition("/")
    return not Place(folder).exists(name)


def _write_report(work: Work, run: spore_dask.Run) -> None:
    """Write the report of a run, if one is asked for; a run does not fail with it."""
    wanted = work.job.report
    if not wanted:
        return
    try:
        place = spore_dask.report(run, wanted if isinstance(wanted, str) else None)
    except Exception as error:
        work.say(f"warning: no report was written ({error})")
        return
    work.note(report=place)


def told(work: Work, run: spore_dask.Run, done_before: bool = False, **facts: Any) -> Answer:
    """Log the last line of a job; return the document about it."""
    noise = run.summary["n_noise"] / run.summary["n_points"]
    how = "was done before" if done_before else "done"
    name = facts.get("run_name", work.job.id)
    work.say(
        f"run {name} {how}: {run.n_clusters:,} clusters, {noise:.1%} noise, "
        f"{run.summary['n_points']:,} points, {work.seconds:.1f} s"
    )
    about = {"job": work.job.kind, "job_id": work.job.id, "done_before": done_before}
    document = {**about, "seconds": work.seconds, **facts, "run": run_answer(run).document}
    return Answer(document, [])
