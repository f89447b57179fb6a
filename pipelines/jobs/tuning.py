"""The job `tune`: choose parameters for an input, and cluster it with them.

Reads the input; writes what `spore_dask.tune` does, a record of the job, and `best-ID.yaml`: a file
that the job `fit` accepts, with the parameters that were chosen.
"""

from __future__ import annotations

from typing import Any

import yaml

import spore_dask
from pipelines.jobs.documents import Job
from pipelines.jobs.fitting import note_run, told, write_report
from pipelines.jobs.places import address
from pipelines.jobs.records import Work, workers
from spore_dask.cli import Answer, Voice, tuning_answer

ONLY_TUNE = ("y", "n_trials", "space", "sample")
"""Parameters of `tune` that `fit` does not have."""


def tune_answer(job: Job, voice: Voice) -> Answer:
    """Do the job, or find it done; tell which parameters were chosen."""
    work = Work(job, voice, job.id)
    known = work.finished()
    if known is not None and _is_there(work, known):
        tuning = spore_dask.tune(address(job.input), work.output.url, **job.options)
        return _told(work, tuning, known["best"], done_before=True)
    with work.recorded():
        work.say(f"run {job.id} begins, into {work.output.url}")
        with workers(job) as where:
            source, out = address(job.input), work.output.url
            tuning = spore_dask.tune(source, out, progress=work.progress, **where, **job.options)
        name = f"best-{job.id}.yaml"
        work.output.write(name, best_document(job, tuning.best_params))
        best = f"{work.output.url}/{name}"
        work.note(best=best, best_params=tuning.best_params)
        note_run(work, tuning.run)
        write_report(work, tuning.run)
    return _told(work, tuning, best)


def _is_there(work: Work, known: dict[str, Any]) -> bool:
    """Tell whether what an earlier start has left is still there."""
    try:
        spore_dask.open_run(work.output.url, known["run"]["id"])
    except spore_dask.InputError:
        return False
    return known["best"].rsplit("/", 1)[-1] in work.output.names()


def best_document(job: Job, best: dict[str, Any]) -> str:
    """Return a file for the job `fit`, with the parameters that were chosen."""
    chosen = {name: value for name, value in job.parameters.items() if name not in ONLY_TUNE}
    chosen |= {name: value for name, value in best.items() if value is not None}
    asked = job.asked()
    about = {
        "input": asked["input"],
        "component": job.component,
        "output": asked["output"],
        "parameters": chosen,
        "memory_limit": job.memory_limit,
        "keep": job.keep,
    }
    given = {name: value for name, value in about.items() if value is not None}
    head = "# Chosen by the job tune; add the section `cluster:` of that job, if it had one.\n"
    return f"{head}{yaml.safe_dump(given, sort_keys=False)}"


def _told(work: Work, tuning: spore_dask.Tuning, best: str, done_before: bool = False) -> Answer:
    """Tell what was chosen."""
    work.say(f"the best parameters are in {best}")
    found = tuning_answer(tuning, work.seconds).document
    del found["run"]  # told below
    return told(work, tuning.run, done_before, best=best, tuning=found)
