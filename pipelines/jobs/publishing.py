"""What readers follow: published runs, and `latest.json`, which names one of them.

    OUTPUT/latest.json               {"run": RUN, ...}, written last, in one piece
    OUTPUT/published/RUN/labels      Zarr int32, numbers that stay from run to run, -1 for noise
    OUTPUT/published/RUN/clusters.json, drift.json, drift.html
    OUTPUT/published/RUN/published.json    counts and checksums, written when all else is there

A run is read again and compared with its checksums before the pointer moves to it, and never
changes while the pointer is on it. Memory: one chunk of labels, a record a cluster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import zlib
from typing import Any

import numpy as np
import zarr

import spore_dask
from pipelines.jobs.matching import NOISE, Integers
from pipelines.jobs.places import Place, chunks_of

POINTER = "latest.json"
DOCUMENT = "published.json"
CLUSTERS = "clusters.json"
LABELS = "labels"
DRIFT, DRIFT_PAGE = "drift.json", "drift.html"
FOLDER, RUNS, PREDICTIONS, REFUSED = "published", "runs", "predictions", "refused"
VERSION = 1
HALF = re.compile(r"\.[0-9a-f]{32}\.partial\Z")
"""How the name of a file ends that a killed job was writing."""
NAME = re.compile(r"(\d{4}-\d{2}-\d{2}(?:T\d{4})?)-[0-9a-f]{12}")


@dataclasses.dataclass(frozen=True)
class Published:
    """A run that was published, or is to be."""

    output: Place
    name: str
    document: dict[str, Any]
    """Counts, checksums, and the run that it was matched with."""

    @property
    def place(self) -> Place:
        """Its folder."""
        return self.output.child(FOLDER).child(self.name)

    @property
    def labels(self) -> zarr.Array[Any]:
        """Zarr int32 array (N,): the number of each row's cluster, -1 for noise."""
        return self.place.open_array(LABELS)

    @property
    def clusters(self) -> list[dict[str, Any]]:
        """A record for each cluster, in the order of the fit's labels."""
        return list(self.place.read(CLUSTERS)["clusters"])

    @property
    def numbers(self) -> Integers:
        """The number of each of the fit's labels."""
        return np.array([one["number"] for one in self.clusters], np.int64)

    @property
    def date(self) -> str:
        """The date that it is of."""
        return date_of(self.name)

    def verify(self) -> None:
        """Read all again; raise `DamagedError` if anything is not as it was written."""
        sums, counts = [], dict.fromkeys(self.numbers.tolist(), 0)
        n_noise = 0
        for _, labels in chunks_of(self.labels):
            sums.append(zlib.crc32(labels.data))
            for number, count in zip(*np.unique(labels, return_counts=True), strict=True):
                if number == NOISE:
                    n_noise += int(count)
                elif int(number) in counts:
                    counts[int(number)] += int(count)
        known = {one["number"]: one["size"] for one in self.clusters}
        if (sums, counts, n_noise) != (
            self.document["checksums"],
            known,
            self.document["n_noise"],
        ):
            raise spore_dask.DamagedError(
                f"The published run at {self.place.url!r} is damaged: its labels are not those "
                "that were written; remove it, and refresh again."
            )


def date_of(name: str) -> str:
    """Return the date in the name of a run."""
    found = NAME.fullmatch(name)
    if found is None:  # such as a path that leads elsewhere
        raise spore_dask.DamagedError(
            f"{name!r} is not the name of a run, such as 2026-11-16-0123456789ab: restore "
            f"{POINTER}, or remove it to begin anew."
        )
    return found[1]


def open_published(output: Place, name: str) -> Published | None:
    """Open a published run; None if it is not complete."""
    date_of(name)
    document = output.child(FOLDER).child(name).read(DOCUMENT)
    return None if document is None else Published(output, name, document)


def latest(output: Place) -> Published | None:
    """Open the run that `latest.json` names; None if nothing was published yet."""
    pointer = output.read(POINTER)
    if pointer is None:
        return None
    name = str(pointer.get("run") if isinstance(pointer, dict) else pointer)
    found = open_published(output, name)
    if found is None:
        raise spore_dask.DamagedError(
            f"{output.url}/{POINTER} names {name!r}, which is not there: restore it, or remove "
            f"{POINTER} to begin anew."
        )
    return found


def write_published(
    output: Place,
    name: str,
    labels: zarr.Array[Any],
    clusters: list[dict[str, Any]],
    texts: dict[str, Any],
    facts: dict[str, Any],
) -> Published:
    """Write a run for readers, and read it again; the pointer stays where it is.

    Parameters
    ----------
    output, name
        Where it goes.
    labels
        Those of the fit; a cluster's number is in its record in `clusters`.
    texts
        Further documents, by name.
    facts
        What the last document says beside counts and checksums.
    """
    place = output.child(FOLDER).child(name)
    remove_published(place)
    numbers = np.array([*(one["number"] for one in clusters), NOISE], np.int32)
    checksums, n_noise = [], 0
    for _, found in chunks_of(labels):
        stable = numbers[found]  # noise is -1, so the last
        place.append_labels(LABELS, stable)
        checksums.append(zlib.crc32(stable.data))
        n_noise += int((found == NOISE).sum())
    place.write(CLUSTERS, {"version": VERSION, "clusters": clusters})
    for file, content in texts.items():
        place.write(file, content)
    document = {
        "version": VERSION,
        "run": name,
        "n_points": labels.shape[0],
        "n_clusters": len(clusters),
        "n_noise": n_noise,
        "checksums": checksums,
        **facts,
    }
    written = Published(output, name, document)
    written.verify()
    place.write(DOCUMENT, document)
    return written


def remove_published(place: Place) -> None:
    """Remove what was published, or refused, under a name; files of others there stay."""
    place.remove(DOCUMENT)  # what says that it is whole, first
    for name in place.names():
        if HALF.sub("", name) in {DOCUMENT, LABELS, CLUSTERS, DRIFT, DRIFT_PAGE}:
            place.remove(name)
    place.remove_if_empty()


def move_pointer(published: Published) -> None:
    """Make readers see a run, in one write."""
    pointer = {
        "version": VERSION,
        "run": published.name,
        "labels": f"{FOLDER}/{published.name}/{LABELS}",
        "sequence": published.document["sequence"],
    }
    published.output.write(POINTER, pointer)


def remove_run(place: Place) -> None:
    """Remove a fit or a prediction, or what a kill has left of one: at last an empty folder.

    One that is not marked as ours stays.
    """
    with contextlib.suppress(spore_dask.InputError):
        spore_dask.remove_run(place.url)
        place.remove_if_empty()


def _order(published: Published) -> tuple[str, int]:
    """Return what orders runs from old to new: where all began anew, the sequence did too."""
    return published.date, int(published.document["sequence"])


def prune(output: Place, keep_runs: int, newest: Published) -> list[str]:
    """Remove all but some published runs and what they were made from; return their names.

    What was never published goes as well where it is of a date before all that stay.
    """
    names = [name for name in output.child(FOLDER).names() if NAME.fullmatch(name)]
    opened = [open_published(output, name) for name in names]
    known = {one.name: one for one in opened if one is not None}
    ranked = sorted(known, key=lambda name: _order(known[name]), reverse=True)
    kept = {newest.name, *[name for name in ranked if name != newest.name][: keep_runs - 1]}
    oldest = min(date_of(name) for name in kept)
    removed = []
    others = {each for folder in (RUNS, REFUSED) for each in output.child(folder).names()}
    for name in sorted({*names, *filter(NAME.fullmatch, others)} - kept):
        if name in known or date_of(name) < oldest:
            output.remove(f"job-{name}.json")
            remove_published(output.child(REFUSED).child(name))
            remove_run(output.child(PREDICTIONS).child(name))
            remove_published(output.child(FOLDER).child(name))
            remove_run(output.child(RUNS).child(name))  # last: while it is there, the name is known
            if not output.child(RUNS).exists(name):
                removed.append(name)
    return removed
