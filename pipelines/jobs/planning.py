"""What a job would do and take, before it does: the option `--dry-run`.

Reads the file of a job, a sample of its input, and what was published before. Writes nothing.
"""

from __future__ import annotations

from typing import Any

import spore_dask
from pipelines.jobs import publishing
from pipelines.jobs.documents import REFRESH, Job
from pipelines.jobs.places import Place, address
from pipelines.jobs.refreshing import check_last
from pipelines.jobs.tuning import CHOOSING
from spore_dask.cli import Answer, estimate_answer

NOT_ESTIMATED = {*CHOOSING, "params"}


def dry_answer(job: Job) -> Answer:
    """Check the input, and tell what a fit of it would take."""
    options = {name: value for name, value in job.options.items() if name not in NOT_ESTIMATED}
    source, out = address(job.input), address(job.output)
    last = publishing.latest(Place(out)) if job.kind == REFRESH else None
    check_last(job, last)
    found = estimate_answer(spore_dask.estimate(source, out, **{**_size_of(job), **options}))
    asked = job.asked()
    lines = [
        f"{job.kind} {job.run_name if job.kind == REFRESH else job.id}",
        f"input: {asked['input']}",
        f"output: {asked['output']}",
    ]
    document: dict[str, Any] = {"job_id": job.id, "asked": asked, "estimate": found.document}
    if job.kind == REFRESH:
        document["latest"] = None if last is None else last.name
        lines.append(f"published last: {document['latest'] or 'nothing'}")
    return Answer(document, [*lines, "", *found.lines])


def _size_of(job: Job) -> dict[str, Any]:
    """Return how many workers there will be, and what each may use, as far as the file says."""
    cluster = job.cluster if isinstance(job.cluster, dict) else {}
    counts = [cluster[name] for name in ("n_workers", "jobs", "scale") if name in cluster]
    limit = cluster.get("memory_limit")
    found = {"n_workers": counts[0] if counts else None, "memory_limit": limit, **job.workers}
    return {name: value for name, value in found.items() if value is not None}
