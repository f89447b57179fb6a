"""The job `tune`: choose parameters for an input, and cluster it with them.

Reads the input; writes what `spore_dask.tune` does, a record of the job, and `best-ID.yaml`: a file
that the job `fit` accepts, with the parameters that were chosen.
"""

from __future__ import annotations

from typing import Any

import yaml

import spore_dask
from pipelines.jobs.documents import Job
from pipelines.jobs.fitting import finish, lacks_report, told
from pipelines.jobs.places import address
from pipelines.jobs.records import Work, workers
from spore_dask.cli import Answer, Voice, tuning_answer

CHOOSING = ("y", "n_trials", "detail", "space", "sample")
"""Parameters that tell how to choose others."""


def tune_answer(job: Job, voice: Voice) -> Answer:
    """Do the job, or find it done; tell which parameters were chosen."""
    work = Work(job, voice, job.id)
    source, out = address(job.input), work.output.url
    name = f"best-{job.id}.yaml"
    best = f"{out}/{name}"
    if work.finished() is not None and work.output.exists(name):
        tuning = spore_dask.tune(source, out, **job.options)
        if lacks_report(work, tuning.run):
            with work.recorded():
                finish(work, tuning.run, best=best, best_params=tuning.best_params)
        return _told(work, tuning, best, done_before=True)
    with work.recorded():
        work.say(f"run {job.id} begins, into {out}")
        with workers(job) as where:
            tuning = spore_dask.tune(source, out, progress=work.progress, **where, **job.options)
        work.output.write(name, best_document(job, tuning.best_params))
        finish(work, tuning.run, best=best, best_params=tuning.best_params)
    return _told(work, tuning, best)


def best_document(job: Job, best: dict[str, Any]) -> str:
    """Return a file for the jobs `fit` and `refresh`, with the parameters that were chosen.

    It has `{date}` where the file of this job has it. All else is the paper's, as in the trials.
    """
    chosen = {name: value for name, value in job.parameters.items() if name not in CHOOSING}
    chosen |= {name: value for name, value in best.items() if value is not None}
    chosen["params"] = "paper"
    texts = job.undated
    about = {
        "input": address(texts["input"]),
        "component": texts.get("component"),
        "output": address(texts["output"]),
        "parameters": chosen,
        "memory_limit": job.memory_limit,
        "keep": job.keep,
        "report": address(texts["report"]) if "report" in texts else job.report or None,
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
