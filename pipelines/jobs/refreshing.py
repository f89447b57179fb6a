"""The job `refresh`: cluster today's data so that clusters keep their numbers, and publish.

    OUTPUT/runs/RUN/          the fit, as `spore_dask.fit` leaves it; RUN is DATE-ID
    OUTPUT/predictions/RUN/   today's points labelled by the last run, while it is needed
    OUTPUT/published/RUN/     what readers see, and `latest.json`: see `publishing`
    OUTPUT/refused/RUN/       the report of a run that drifted too far

Today's points may be other points than yesterday's. So they get labels by today's fit and, by
prediction, by the last one; clusters that have most in common keep their number. A step that is
done is found done, so that the same command continues. Memory: that of a fit; else one chunk of
labels and a record a cluster.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import click
import numpy as np

import spore_dask
from pipelines.jobs import drift, matching, publishing
from pipelines.jobs.documents import Job
from pipelines.jobs.fitting import finish, lacks_report, told
from pipelines.jobs.places import address, chunks_of
from pipelines.jobs.publishing import Published
from pipelines.jobs.records import Work, workers
from spore_dask.cli import Answer, Voice

DRIFTED = 8
"""Exit code of a refresh that was not published, because of its drift."""


class DriftError(click.ClickException):
    """Today's clusters are further from the last ones than the limit allows."""

    exit_code = DRIFTED


def refresh_answer(job: Job, voice: Voice) -> Answer:
    """Do the job, or find it done; tell what was published."""
    work = Work(job, voice, job.run_name)
    last = publishing.latest(work.output)
    if last is not None and last.name == job.run_name:
        return _told(work, _published_run(work, last), last, done_before=True)
    check_last(job, last)
    with work.recorded():
        published, run = _refresh(work)
        _finish(work, published, run)
    return _told(work, run, published)


def _published_run(work: Work, last: Published) -> spore_dask.Run:
    """Return the fit of a run that readers see already; do what a killed start has left undone."""
    run = _fitted(last)
    if last.document["package"] == spore_dask.__version__:  # refuse data that has changed
        run = spore_dask.fit(address(work.job.input), run.path, **work.job.options)
    if work.finished() is None or lacks_report(work, run):
        with work.recorded():
            _finish(work, last, run)
    return run


def _finish(work: Work, published: Published, run: spore_dask.Run) -> None:
    """Note what was found, write the report, and remove what is not to be kept."""
    job, output = work.job, work.output
    finish(work, run, published=published.place.url)
    publishing.remove_run(output.child(publishing.PREDICTIONS).child(job.run_name))
    publishing.remove_published(output.child(publishing.REFUSED).child(job.run_name))
    if job.keep_runs is not None:
        for name in publishing.prune(output, job.keep_runs, published):
            work.say(f"removed {name}")


def _refresh(work: Work) -> tuple[Published, spore_dask.Run]:
    """Fit, match, publish, and make readers see it."""
    job, output = work.job, work.output
    last = publishing.latest(output)  # again: nobody else moves it now
    check_last(job, last)
    work.say(f"run {job.run_name} begins, into {output.url}")
    with workers(job) as where:
        out = f"{output.url}/{publishing.RUNS}/{job.run_name}"
        source, where = address(job.input), {"progress": work.progress, **where}
        run = spore_dask.fit(source, out, **where, **job.options)
        published = _published_before(work, last, run)
        if published is None:
            prediction = None if last is None else _predict(work, last, where)
            _confirm(work, run, prediction)
            published = _publish(work, run, last, prediction)
    work.lock.check()
    _confirm(work, run)
    publishing.move_pointer(published)
    work.say(f"{publishing.POINTER} is {published.name} now")
    return published, run


def _confirm(work: Work, *found: spore_dask.Run | spore_dask.Prediction | None) -> None:
    """Refuse to publish what belongs to data that is no longer there."""
    source = address(work.job.input)
    now = spore_dask.open_source(source, work.job.component).identity
    if any(one.summary["identity"] != now for one in found if one is not None):
        raise spore_dask.InputError(
            f"The input {source!r} changed while the job worked on it, so nothing was published: "
            "restore it with its times (cp -p) and start the job again, or give it another path."
        )


def check_last(job: Job, last: Published | None) -> None:
    """Refuse what cannot follow the last run: an older date, or data with other columns."""
    if last is None:
        return
    if job.date < last.date:  # readers would see older data as the latest
        raise spore_dask.ParameterError(
            f"The date is {job.date}, but {last.name} was published already: give a date from "
            f"{last.date} on."
        )
    source, known = address(job.input), _fitted(last).summary["n_columns"]
    _, n_columns = spore_dask.open_source(source, job.component).shape
    if n_columns != known:
        raise spore_dask.InputError(
            f"The input {source!r} has {n_columns} columns, but {last.name} was fitted on {known}: "
            "give the same columns, or another output."
        )


def _published_before(work: Work, last: Published | None, run: spore_dask.Run) -> Published | None:
    """Return what a killed start has published whole, but for the pointer."""
    found = publishing.open_published(work.output, work.job.run_name)
    before = None if last is None else last.name
    asked = {"before": before, "fit": run.id, "least_overlap": work.job.least_overlap}
    if found is None or any(found.document[name] != value for name, value in asked.items()):
        return None
    drifted = found.document["drift"]
    if drifted is not None and drifted > work.job.limits.get("drift", 1):
        return None
    found.verify()
    return found


def _fitted(published: Published) -> spore_dask.Run:
    """Open the fit of a published run."""
    path = f"{published.output.url}/{publishing.RUNS}/{published.name}"
    try:
        return spore_dask.open_run(path, published.document["fit"])
    except spore_dask.InputError as error:
        raise spore_dask.InputError(
            f"The fit of the last published run is not there ({error}) Restore it, or remove "
            f"{published.output.url}/{publishing.POINTER} to begin anew."
        ) from None


def _predict(work: Work, last: Published, where: dict[str, Any]) -> spore_dask.Prediction:
    """Label today's points by the last run."""
    work.say(f"labelling the points by {last.name}")
    out = f"{work.output.url}/{publishing.PREDICTIONS}/{work.job.run_name}"
    source, component = address(work.job.input), work.job.component
    return spore_dask.predict(_fitted(last), source, out, component=component, **where)


def _publish(
    work: Work,
    run: spore_dask.Run,
    last: Published | None,
    prediction: spore_dask.Prediction | None,
) -> Published:
    """Number today's clusters, tell the drift, and write what readers will see."""
    found = {
        "run": work.job.run_name,
        "input": work.job.asked()["input"],
        "n_points": run.summary["n_points"],
        "n_clusters": run.n_clusters,
        "noise": run.summary["n_noise"] / run.summary["n_points"],
        "thresholds": dataclasses.asdict(run.thresholds),
        "limits": work.job.limits,
        "within_limits": True,
        "before": None,
    }
    numbers, next_number = np.arange(run.n_clusters), 0
    if last is not None and prediction is not None:
        next_number = int(last.document["next_number"])
        compared = _compare(work.job, run, last, prediction, next_number)
        numbers = compared.numbers
        found |= _about_last(last, prediction) | drift.measure(compared)
        _check_drift(work, found)
    clusters = _clusters(work.job, run, numbers, last)
    facts = {
        "fit": run.id,
        "identity": run.summary["identity"],
        "package": spore_dask.__version__,
        "before": None if last is None else last.name,
        "drift": found.get("drift"),
        "least_overlap": work.job.least_overlap,
        "sequence": 1 if last is None else int(last.document["sequence"]) + 1,
        "next_number": max(next_number, int(numbers.max(initial=-1)) + 1),
        "published": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    texts = {publishing.DRIFT: found, publishing.DRIFT_PAGE: drift.page(found)}
    return publishing.write_published(
        work.output, work.job.run_name, run.labels, clusters, texts, facts
    )


def _compare(
    job: Job,
    run: spore_dask.Run,
    last: Published,
    prediction: spore_dask.Prediction,
    next_number: int,
) -> drift.Comparison:
    """Match today's clusters with the last ones."""
    numbers_before = last.numbers
    by_last_run = prediction.labels
    chunks = ((labels, np.asarray(by_last_run[rows])) for rows, labels in chunks_of(run.labels))
    overlaps = matching.count_overlaps(chunks, run.n_clusters, len(numbers_before))
    matched = matching.match(overlaps, job.least_overlap)
    numbers = matching.number(matched, numbers_before, next_number)
    return drift.Comparison(overlaps, matched, numbers, numbers_before)


def _about_last(last: Published, prediction: spore_dask.Prediction) -> dict[str, Any]:
    """Return what a drift report says of the last run."""
    n_points = last.document["n_points"]
    chunks = chunks_of(prediction.confidence)
    total = sum(float(confidence.sum(dtype=np.float64)) for _, confidence in chunks)
    return {
        "before": {
            "run": last.name,
            "n_points": n_points,
            "n_clusters": last.document["n_clusters"],
            "noise": last.document["n_noise"] / n_points,
            "thresholds": dataclasses.asdict(_fitted(last).thresholds),
        },
        "noise_by_last_run": prediction.summary["n_left"] / prediction.summary["n_points"],
        "mean_confidence": total / prediction.summary["n_points"],
    }


def _check_drift(work: Work, found: dict[str, Any]) -> None:
    """Refuse a drift beyond the limit; the report of it stays."""
    work.say(
        f"{found['stay']:.1%} of the points stay; {found['n_kept']} clusters kept, "
        f"{len(found['born'])} new, {len(found['gone'])} gone"
    )
    limit = work.job.limits.get("drift", 1.0)
    if found["drift"] <= limit:
        return
    found["within_limits"] = False
    place = work.output.child(publishing.REFUSED).child(work.job.run_name)
    place.write(publishing.DRIFT, found)
    place.write(publishing.DRIFT_PAGE, drift.page(found))
    raise DriftError(
        f"The drift of {work.job.run_name} is {found['drift']:.3f}, but limits.drift is {limit}: "
        f"nothing was published; see {place.url}/drift.html, and raise the limit if all is well."
    )


def _clusters(
    job: Job, run: spore_dask.Run, numbers: Any, last: Published | None
) -> list[dict[str, Any]]:
    """Return a record for each cluster: its number, since when it has it, and what the fit says."""
    since = {} if last is None else {one["number"]: one["since"] for one in last.clusters}
    table = run.clusters
    return [
        {
            "number": number,
            "label": label,
            "since": since.get(number, job.run_name),
            **{name: table[name][label].item() for name in table.dtype.names or ()},
        }
        for label, number in enumerate(numbers.tolist())
    ]


def _told(
    work: Work, run: spore_dask.Run, published: Published, done_before: bool = False
) -> Answer:
    """Tell what was published."""
    facts = {"published": published.place.url, "drift": published.document["drift"]}
    return told(work, run, done_before, run_name=published.name, **facts)
