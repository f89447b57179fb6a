"""Runs on disk: what a fit has left, opened by its path.

A run's folder holds the folders of its stages, each named by what it depends on, and for each
configuration that was fitted a folder `result-ID` with what users read. `run.json` names the one
finished last. Memory: what is asked for; `verify` has one chunk of rows at a time.
"""

from __future__ import annotations

import os
import zlib
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from spore_dask.clusters import NOISE, Thresholds
from spore_dask.errors import InputError, SporeError
from spore_dask.params import one_of
from spore_dask.store import Folder, address
from spore_dask.tasks import MARKER

POINTER = "run.json"
SUMMARY = "summary.json"
RESULT = "result-"
KEEP = one_of("labels", "predict", "all")
KEPT: dict[str, tuple[str, ...]] = {
    "labels": (),
    "predict": ("scan", "points", "graph", "density", "reassign"),
    "all": ("scan", "points", "graph", "density", "seeds", "expand", "fragments", "reassign"),
}
"""Stages whose folders stay, for each value of `keep`."""
STAGES = ("input", *KEPT["all"])


class DamagedError(SporeError, OSError):
    """What is on disk is not what was written."""


class Run:
    """A finished fit, opened by its path.

    Parameters
    ----------
    path : str
        The `out` of `fit`.
    id : str, optional
        Which of the results there; the one finished last by default.
    """

    def __init__(self, path: str | os.PathLike[str], id: str | None = None) -> None:
        self.folder = Folder(address(path))
        id = id or (self.folder.read_json(POINTER) or {}).get("id", "")
        self.result = self.folder.child(RESULT + id)
        summary = self.result.read_json(SUMMARY) if id else None
        if summary is None:
            known = ", ".join(run_ids(self.folder)) or "none"
            raise InputError(
                f"There is no finished run {id + ' ' if id else ''}at {self.folder.url!r} "
                f"(finished there: {known}): fit one with spore_dask.fit(source, out)."
            )
        self.path: str = self.folder.url
        self.id: str = id
        self.summary: dict[str, Any] = summary
        """Parameters asked and resolved, thresholds, recall, seconds, bytes and peaks."""

    @property
    def labels(self) -> zarr.Array[Any]:
        """Zarr int32 array (N,): the cluster of each input row, -1 for noise."""
        return self.result.open_array("labels")

    @property
    def provenance(self) -> zarr.Array[Any]:
        """Zarr int16 array (N,): 0 in Expansion, r in round r of reassignment, -1 noise."""
        return self.result.open_array("provenance")

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return int(self.summary["n_clusters"])

    @property
    def clusters(self) -> NDArray[Any]:
        """A record for each cluster: size, skeleton_size, mean, std, seed_row."""
        return self.result.read_array("clusters")

    @property
    def thresholds(self) -> Thresholds:
        """What the distances were measured with."""
        return Thresholds(**self.summary["thresholds"])

    def __repr__(self) -> str:
        n_points, noise = self.summary["n_points"], self.summary["n_noise"]
        return (
            f"<Run of {n_points} points: {self.n_clusters} clusters, "
            f"{noise / n_points:.1%} noise, at {self.path!r}>"
        )


def run_ids(folder: Folder) -> list[str]:
    """Return the names of the results in a run's folder that are complete."""
    names = [name for name in folder.names() if name.startswith(RESULT)]
    return [name.removeprefix(RESULT) for name in names if folder.child(name).exists(SUMMARY)]


def open_run(path: str | os.PathLike[str], id: str | None = None) -> Run:
    """Open a finished fit.

    Parameters
    ----------
    path : path or URL
        The `out` of `fit`.
    id : str, optional
        Which of the results there (`Run.id`); the one finished last by default.
    """
    return Run(path, id)


def as_run(run: Run | str | os.PathLike[str]) -> Run:
    """Return a run that is given by itself or by its path."""
    return run if isinstance(run, Run) else open_run(run)


def verify(run: Run | str | os.PathLike[str]) -> dict[str, int]:
    """Read a run again, and compare it with its checksums and its own counts.

    Parameters
    ----------
    run : Run, path or URL

    Returns
    -------
    dict
        The bytes that were checked of each array.

    Raises
    ------
    DamagedError
        If anything is not as it was written.
    """
    run = as_run(run)
    known = run.result.read_json(MARKER)
    sizes = np.zeros(run.n_clusters, np.int64)
    counts = {"n_noise": 0, "n_skeleton": 0}
    checked = {"labels": 0, "provenance": 0, "clusters": int(run.clusters.nbytes)}
    for i, (labels, provenance) in enumerate(_chunks(run)):
        for name, values in (("labels", labels), ("provenance", provenance)):
            if zlib.crc32(np.ascontiguousarray(values).data) != known["checksums"][name][i]:
                raise _damaged(run, f"chunk {i} of {name!r} does not have its checksum")
            checked[name] += values.nbytes
        sizes += np.bincount(labels[labels != NOISE], minlength=run.n_clusters)
        counts["n_noise"] += int(((labels == NOISE) & (provenance == NOISE)).sum())
        counts["n_skeleton"] += int((provenance == 0).sum())
    if any(counts[name] != known[name] for name in counts):
        raise _damaged(run, f"it has {counts}, but {known['n_noise']} noise was published")
    if (sizes != run.clusters["size"]).any():
        raise _damaged(run, "its labels do not have the sizes of its clusters")
    return checked | _verify_graph(run)


def _chunks(run: Run) -> Any:
    """Yield labels and provenance, a chunk of rows at a time."""
    labels, provenance = run.labels, run.provenance
    for first in range(0, labels.shape[0], labels.chunks[0]):
        part = slice(first, first + labels.chunks[0])
        try:
            yield np.asarray(labels[part]), np.asarray(provenance[part])
        except Exception as error:  # whatever a decoder makes of damaged bytes
            raise _damaged(run, f"rows from {first} on cannot be read ({error})") from None


def _verify_graph(run: Run) -> dict[str, int]:
    """Check the shards of the graph, if it is still there."""
    path, name = run.summary["graph"]
    folder = Folder(path).child(name)
    receipts = folder.child("receipts-neighbors")
    names = [name for name in receipts.names() if name.endswith(".json")]
    checked = dict.fromkeys(("neighbors", "distances", "rows"), 0) if names else {}
    for array in checked:
        rows = folder.open_rows(array)
        for number in (int(name.removesuffix(".json")) for name in names):
            data = rows.read(int(rows.starts[number]), int(rows.starts[number + 1]))
            if zlib.crc32(data.data) != receipts.read_json(f"{number}.json")["checksums"][array]:
                raise _damaged(run, f"shard {number} of the graph's {array!r} is not as written")
            checked[array] += data.nbytes
    return checked


def _damaged(run: Run, what: str) -> DamagedError:
    return DamagedError(
        f"The run at {run.path!r} is damaged: {what}; remove {run.result.url!r} (and the stage "
        "that is damaged) and fit again."
    )


def clean(run: Run | str | os.PathLike[str], keep: str = "labels") -> int:
    """Remove what is not to be kept of a run's stages.

    Parameters
    ----------
    run : Run, path or URL
    keep : {"labels", "predict", "all"}
        "labels" keeps only what was published; "predict" also what predictions and further fits
        with other parameters start from; "all" everything that this run has used. What other
        results in the same folder have kept stays.

    Returns
    -------
    int
        The bytes that were freed.
    """
    run = as_run(run)
    KEEP.check("keep", keep)
    run.summary["keep"] = keep
    run.result.write_json(SUMMARY, run.summary)
    wanted = _wanted(run.folder, run_ids(run.folder))
    freed = 0
    for stage in run.summary["stages"].values():
        if stage["name"] not in wanted and not stage["name"].startswith(RESULT):
            freed += _remove(run.folder.child(stage["name"]))
    return freed


def forget(folder: Folder, id: str) -> None:
    """Remove a result, and all stages but those that other results have kept."""
    folder.child(RESULT + id).remove(SUMMARY)
    _remove(folder.child(RESULT + id))
    wanted = _wanted(folder, run_ids(folder))
    for name in folder.names():
        if name.split("-")[0] in STAGES and name not in wanted:
            _remove(folder.child(name))


def _wanted(folder: Folder, ids: list[str]) -> set[str]:
    """Return the names of the stages that some results have kept."""
    wanted: set[str] = set()
    for id in ids:
        summary = folder.child(RESULT + id).read_json(SUMMARY)
        stages = summary["stages"]
        wanted |= {stages[name]["name"] for name in KEPT[summary["keep"]] if name in stages}
    return wanted


def _remove(folder: Folder) -> int:
    """Remove the folder of a stage, what says that it is done first; return its size."""
    nbytes = folder.nbytes()
    for name in ("graph.json", MARKER):
        folder.remove(name)
    folder.remove()
    return nbytes
