"""Runs on disk: what a fit has left, opened by its path.

A run's folder holds the folders of its stages, each named by what it depends on, and for each
configuration that was fitted a folder `result-ID` with what users read. `run.json` names the one
finished last. Memory: what is asked for; `verify` has one chunk of rows at a time.
"""

from __future__ import annotations

import contextlib
import os
import warnings
import zlib
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from spore_dask.clusters import CLUSTER_TABLE, NOISE, Thresholds
from spore_dask.errors import (
    BusyError,
    DamagedError,
    DataWarning,
    DeniedError,
    InputError,
    SporeError,
    StoreError,
)
from spore_dask.fragments import ARRAYS as FRAGMENT_ARRAYS
from spore_dask.fragments import Fragments
from spore_dask.locks import locked
from spore_dask.params import one_of
from spore_dask.shards import ARRAYS, GraphRows, Longer
from spore_dask.store import (
    OUR_FOLDER,
    OUR_LOCK,
    OWNER,
    Folder,
    Limits,
    RowFiles,
    address,
    check_owner,
    half_of,
    our_folders,
    remove_ours,
    remove_stage,
)
from spore_dask.tasks import MARKER

POINTER = "run.json"
SUMMARY = "summary.json"
CHOICE = "choice.json"
RESULT = "result-"
PUBLISHED = {"labels": np.int32, "provenance": np.int16}
"""The arrays of a result, and their types."""
KEEP = one_of("labels", "predict", "all")
KEPT: dict[str, tuple[str, ...]] = {
    "labels": (),
    "predict": ("scan", "points", "graph", "density", "reassign"),
    "all": ("scan", "points", "graph", "density", "seeds", "expand", "fragments", "reassign"),
}
"""Stages whose folders stay, for each value of `keep`."""


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
        with self.result.understood(SUMMARY):
            n_points, n_clusters = int(summary["n_points"]), int(summary["n_clusters"])
            if not 0 <= n_clusters <= n_points:
                raise ValueError(f"{n_clusters} clusters of {n_points} points")
        self.summary: dict[str, Any] = summary
        """Parameters asked and resolved, thresholds, recall, seconds, bytes and peaks."""

    @property
    def labels(self) -> zarr.Array[Any]:
        """Zarr int32 array (N,): the cluster of each input row, -1 for noise."""
        return self._open("labels")

    @property
    def provenance(self) -> zarr.Array[Any]:
        """Zarr int16 array (N,): 0 in Expansion, r in round r of reassignment, -1 noise."""
        return self._open("provenance")

    def _open(self, name: str) -> zarr.Array[Any]:
        """Open a published array, which keeps this run and so a temporary folder alive."""
        array = open_published(self.result, name, self.summary["n_points"], PUBLISHED[name])
        array.store.__dict__["run"] = self
        return array

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return int(self.summary["n_clusters"])

    @property
    def clusters(self) -> NDArray[Any]:
        """A record for each cluster: size, skeleton_size, mean, std, seed_row."""
        size = (self.n_clusters,)
        return self.result.read_array("clusters", shape=size, dtype=CLUSTER_TABLE)

    @property
    def choice(self) -> dict[str, Any] | None:
        """How the parameters were chosen; None where all were given.

        `params`, `score`, `n_trials`, and `levels`: stable results from coarse to fine.
        """
        found: dict[str, Any] | None = self.result.read_json(CHOICE)
        return found

    @property
    def graph(self) -> tuple[str, str]:
        """Path and name of the graph that was clustered."""
        path, name = self.summary["graph"]
        return path or self.path, name

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


def warn_of(run: Run, stacklevel: int) -> None:
    """Warn of what a user should know about a run."""
    for text in run.summary.get("warnings", []):
        warnings.warn(text, DataWarning, stacklevel=stacklevel + 1)


def run_ids(folder: Folder) -> list[str]:
    """Return the names of the results in a run's folder that are complete."""
    names = [name for name in our_folders(folder) if name.startswith(RESULT)]
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
    try:
        return _verify_result(run) | _verify_stages(run) | _verify_graph(run)
    except DamagedError as error:
        raise _damaged(run, error.what, error.place) from error
    except SporeError:
        raise
    except Exception as error:  # whatever a decoder makes of damaged bytes
        raise _damaged(run, f"something cannot be read ({error})") from error


def _verify_result(run: Run) -> dict[str, int]:
    """Check what was published."""
    known = run.result.read_json(MARKER)
    table = run.clusters
    sizes = np.zeros(run.n_clusters, np.int64)
    counts = {"n_noise": 0, "n_skeleton": 0}
    checked = {"labels": 0, "provenance": 0, "clusters": int(table.nbytes)}
    step = run.labels.chunks[0]
    for i, first in enumerate(range(0, run.labels.shape[0], step)):
        part = slice(first, first + step)
        labels, provenance = np.asarray(run.labels[part]), np.asarray(run.provenance[part])
        for name, values in (("labels", labels), ("provenance", provenance)):
            if zlib.crc32(np.ascontiguousarray(values).data) != known["checksums"][name][i]:
                raise DamagedError(f"chunk {i} of {name!r} does not have its checksum")
            checked[name] += values.nbytes
        numbers, here = np.unique(labels[labels != NOISE], return_counts=True)
        sizes[numbers] += here
        counts["n_noise"] += int(((labels == NOISE) & (provenance == NOISE)).sum())
        counts["n_skeleton"] += int((provenance == 0).sum())
    if any(counts[name] != known[name] for name in counts) or (sizes != table["size"]).any():
        raise DamagedError("its labels are not in the numbers that were published")
    return checked


def _verify_stages(run: Run) -> dict[str, int]:
    """Check that the stages that are kept are there, and their arrays, which have checksums."""
    checked = {}
    for name in KEPT[run.summary["keep"]]:
        stage = run.summary["stages"].get(name)
        if stage is None:
            continue
        folder = run.folder.child(stage["name"])
        if not folder.exists(MARKER):
            raise DamagedError(f"stage {stage['name']!r} is not there", folder.child(MARKER).url)
        checked[name] = sum(folder.read_array(array).nbytes for array in folder.arrays())
        if name != "graph":
            checked[name] += sum(_read_rows(rows) for rows in folder.row_arrays())
        if name == "fragments":
            found = Fragments.from_summary(folder, folder.read_json(MARKER) or {})
            checked[name] += sum(_read_rows(found.array(part)) for part in FRAGMENT_ARRAYS)
    return checked


def _verify_graph(run: Run) -> dict[str, int]:
    """Check the rows of the graph, if it is there, which one that was given must be."""
    path, name = run.graph
    folder = Folder(path).child(name)
    summary = folder.read_json("graph.json")
    if summary is None:
        if run.summary["graph_given"] and run.summary["keep"] != "labels":
            place = folder.child("graph.json").url
            raise DamagedError("the graph that it was made from is not there", place)
        return {}
    graph = GraphRows.from_summary(folder, summary)
    checked = {name: _read_rows(graph.array(name)) for name in ARRAYS}
    for name in Longer._fields:
        checked[f"longer.{name}"] = _read_rows(graph.longer_array(name))
    return {name: nbytes for name, nbytes in checked.items() if nbytes}


def _read_rows(files: RowFiles) -> int:
    """Read all rows, which compares them with their checksums; return their bytes."""
    for first, last in zip(files.starts.tolist(), files.starts[1:].tolist(), strict=False):
        files.read(first, last)
    return int(files.starts[-1]) * files.row_nbytes


def open_published(result: Folder, name: str, n_rows: int, dtype: Any) -> zarr.Array[Any]:
    """Open an array that was published; refuse one of another size or dtype."""
    array = result.open_array(name)
    if (array.shape, array.dtype) != ((n_rows,), np.dtype(dtype)):
        why = f"{array.shape} of {array.dtype}, but there are {n_rows} of {np.dtype(dtype)}"
        raise _unreadable(array, why)
    return array


def read_published(
    array: zarr.Array[Any], first: int, last: int, limits: Limits | None = None
) -> NDArray[Any]:
    """Read some rows of what was published, or raise `DamagedError`."""
    try:
        values = np.asarray(array[first:last])
    except (StoreError, DeniedError):
        raise
    except Exception as error:  # whatever a decoder makes of damaged bytes
        raise _unreadable(array, str(error)) from error
    kind = values.dtype.kind
    missing = np.isnan(values) if kind == "f" else values == np.iinfo(values.dtype).min
    if missing.any():
        raise _unreadable(array, f"some of the rows {first} to {last - 1} are missing")
    if limits is not None and (why := limits.broken_by(values)):
        raise _unreadable(array, why)
    return values


def read_published_rows(
    array: zarr.Array[Any], rows: NDArray[np.int64], limits: Limits | None = None
) -> NDArray[Any]:
    """Read some ascending rows of what was published, a chunk at a time."""
    step = array.chunks[0]
    found = np.empty(len(rows), array.dtype)
    for first in np.unique(rows // step).tolist():
        part = slice(*np.searchsorted(rows, (first * step, (first + 1) * step)))
        values = read_published(array, first * step, (first + 1) * step, limits)
        found[part] = values[rows[part] - first * step]
    return found


def _unreadable(array: zarr.Array[Any], why: str) -> DamagedError:
    place = str(array.store_path).removeprefix("file://")
    return DamagedError(
        f"What was published at {place!r} is damaged ({why})",
        remedy="remove the folder that it is in, and fit, or predict, again",
    )


def _damaged(run: Run, what: str, place: str = "") -> DamagedError:
    """Say what is damaged in a run, and which folders are to be removed to make it anew."""
    stage = stage_of(run.folder, place) or run.result.name
    folders = dict.fromkeys((run.folder.child(stage).url, run.result.url))
    remove = " and ".join(repr(folder) for folder in folders)
    if place and not f"{place}/".startswith(f"{run.path}/"):
        remove = f"{place!r} (and the stage that it is part of) and {run.result.url!r}"
    return DamagedError(
        f"The run at {run.path!r} is damaged: {what}", place, f"remove {remove} and fit again"
    )


def stage_of(folder: Folder, place: str) -> str:
    """Return which of the folders in a run's folder a place is in; "" if in none."""
    inside = place.removeprefix(f"{folder.url}/")
    name, _, rest = inside.partition("/")
    return name if rest and inside != place else ""


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
    check_owner(run.folder)
    with locked(run.folder, "clean"):
        return _clean(run, keep)


def remove_run(path: str | os.PathLike[str]) -> None:
    """Remove all that calls have written to a folder; files of others in it stay.

    Parameters
    ----------
    path : path or URL
        The `out` of `fit`, `tune`, `build_graph` or `predict`. If nothing else is in it, the
        folder goes too. Where there is none, nothing happens.
    """
    folder = Folder(address(path))
    check_owner(folder)
    if any(name == OWNER or OUR_LOCK.fullmatch(half_of(name) or name) for name in folder.names()):
        with locked(folder, "remove"):
            remove_ours(folder)
        folder.remove_if_empty()


def point_to(folder: Folder, pointer: str, id: str) -> None:
    """Name the result that was asked for last; if it is named already, nothing is written.

    So calls that find all done stay out of the way of others.
    """
    if (folder.read_json(pointer) or {}).get("id") != id:
        folder.write_json(pointer, {"id": id})


def _clean(run: Run, keep: str) -> int:
    """Remove what is not to be kept, while nobody else works in the run's folder."""
    run.result.sweep()
    names = [stage["name"] for stage in reversed(run.summary["stages"].values())]
    folders = {name: run.folder.child(name) for name in names}  # what depends on others first
    run.summary["keep"] = keep
    run.result.write_json(SUMMARY, run.summary)
    wanted = kept_stages(run.folder)
    gone = [name for name in names if name not in wanted and not name.startswith(RESULT)]
    gone = [name for name in gone if OUR_FOLDER.fullmatch(name)]  # a document may say anything
    return sum(remove_stage(folders[name]) for name in gone)


def keep_at_most(run: Run, keep: str) -> None:
    """Remove what is no longer to be kept; what was not kept before stays away."""
    least = min(keep, run.summary["keep"], key=list(KEPT).index)
    # What is left of a removal that was killed can wait until nobody works there.
    with contextlib.suppress(*[BusyError] if least == run.summary["keep"] else []):
        clean(run, least)


def kept_stages(folder: Folder, besides: str = "") -> set[str]:
    """Return the names of the stages that results in a run's folder, but for one, have kept.

    And those of the graph that was built there by itself.
    """
    wanted = _stages_of_graph(folder, (folder.read_json("graph.json") or {}).get("name"))
    for id in run_ids(folder):
        summary = folder.child(RESULT + id).read_json(SUMMARY)
        stages, kept = summary["stages"], KEPT[summary["keep"]]
        if id != besides:
            wanted |= {stages[name]["name"] for name in kept if name in stages}
            path, name = summary["graph"]
            wanted |= _stages_of_graph(folder, name if kept and not path else None)
    return wanted


def _stages_of_graph(folder: Folder, name: str | None) -> set[str]:
    """Return the names of a graph and of the stages that it was made from, if it is there."""
    summary = folder.child(name).read_json("graph.json") if name else None
    return set() if summary is None else {str(name), summary["points"], summary["scan"]}


def remove_stages(folder: Folder) -> None:
    """Remove a folder of stages; what says that any of them is done goes first."""
    for name in folder.names():
        if "." not in name:  # no file
            remove_stage(folder.child(name))
    folder.remove()
