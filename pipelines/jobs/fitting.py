"""The job `fit`: cluster an input with given parameters.

Reads the input; writes a run into the output, as `spore_dask.fit` does, a record of the job, and a
report if one is asked for. The same job again continues what was begun, or finds it done.
"""

from __future__ import annotations

from typing import Any

import spore_dask
from pipelines.jobs.documents import Job
from pipelines.jobs.places import address
from pipelines.jobs.records import Work, workers
from spore_dask.cli import Answer, Voice, run_answer


def fit_answer(job: Job, voice: Voice) -> Answer:
    """Do the job, or find it done; tell what it came to."""
    work = Work(job, voice, job.id)
    run = _finished(work)
    if run is not None:
        return told(work, run, done_before=True)
    with work.recorded():
        work.say(f"run {job.id} begins, into {work.output.url}")
        run = fit(work, work.output.url)
        note_run(work, run)
        write_report(work, run)
    return told(work, run)


def _finished(work: Work) -> spore_dask.Run | None:
    """Return the run if it was finished before; refuse it if the data has changed since."""
    known = work.finished()
    if known is None:
        return None
    try:
        spore_dask.open_run(work.output.url, known["run"]["id"])
    except spore_dask.InputError:  # removed since
        return None
    return spore_dask.fit(address(work.job.input), work.output.url, **work.job.options)


def fit(work: Work, out: str) -> spore_dask.Run:
    """Cluster the input of a job into a folder."""
    job = work.job
    with workers(job) as where:
        source = address(job.input)
        return spore_dask.fit(source, out, progress=work.progress, **where, **job.options)


def note_run(work: Work, run: spore_dask.Run) -> None:
    """Keep what a run has found in the job's record."""
    found = {name: run.summary[name] for name in ("n_points", "n_noise", "n_clusters")}
    work.note(run={"path": run.path, "id": run.id, **found})


def write_report(work: Work, run: spore_dask.Run) -> None:
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
