"""Publish: bring labels into the order of the input's rows, in this process.

Reads the labels and rounds of the points and their input rows; writes `labels` (int32) and
`provenance` (int16), Zarr in row order, and `clusters`, a record for each cluster.
Memory: 7 bytes a point, 4 MiB, and 56 bytes a cluster (80 for a moment). A scatter in memory,
of which Expansion needs more anyway, takes the place of an exchange through the disk.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.clusters import CLUSTER_TABLE, LARGE, NOISE, label_dtype
from spore_dask.engine import Engine
from spore_dask.shards import GraphRows
from spore_dask.store import Folder, Limits
from spore_dask.tasks import Receipt, run_stage

UNKNOWN = int(np.iinfo(np.int32).min)
CHUNK_ROWS = 1 << 20
STEP_ROWS = 1 << 17
"""Points that are scattered at a time."""


@dataclasses.dataclass(frozen=True)
class PublishSpec:
    """What is to be published."""

    settled: Folder
    """Has `labels`, `rounds` and `clusters` of the points."""
    graph: GraphRows


def publish(engine: Engine, folder: Folder, spec: PublishSpec) -> Receipt:
    """Write what users read, or take up what was done before."""
    return run_stage(engine, folder, functools.partial(_build, engine, spec))


def _build(engine: Engine, spec: PublishSpec, folder: Folder) -> Receipt:
    graph = spec.graph
    labels = np.full(graph.n_points, UNKNOWN, np.int32)
    provenance = np.empty(graph.n_points, np.int16)
    clusters, settled = _read_clusters(spec), spec.settled
    table = _new_table(clusters)
    by_seed = np.argsort(table["seed_row"], kind="stable")
    seeds = table["seed_row"][by_seed]
    size, rounds_end = (graph.n_points,), np.iinfo(np.int16).max + 1
    arrays = (
        graph.array("rows"),
        settled.open_rows("labels", size, label_dtype(*size), Limits(NOISE, len(table))),
        settled.open_rows("rounds", size, np.int16, Limits(NOISE, rounds_end)),
    )
    firsts = range(0, graph.n_points, STEP_ROWS)
    with engine.here("publish", len(firsts)) as done:
        for first in firsts:
            last = min(first + STEP_ROWS, graph.n_points)
            rows, found, rounds = (array.read(first, last) for array in arrays)
            labels[rows], provenance[rows] = found, rounds
            here = slice(*np.searchsorted(seeds, (first, last)))
            table["seed_row"][by_seed[here]] = rows[seeds[here] - first]
            numbers, counts = np.unique(found[found != NOISE], return_counts=True)
            table["size"][numbers] += counts
            done()
    if int(labels.min()) == UNKNOWN:
        raise graph.folder.damaged("array", "rows", f"row {np.argmin(labels)} is not in it")
    folder.write_array("clusters", table)
    return {
        "n_clusters": len(table),
        "n_noise": int((provenance == NOISE).sum()),
        "n_skeleton": int((provenance == 0).sum()),
        "checksums": {
            "labels": _write(folder, "labels", labels),
            "provenance": _write(folder, "provenance", provenance),
        },
    }


def _read_clusters(spec: PublishSpec) -> NDArray[Any]:
    """Read the records of the final clusters."""
    clusters = spec.settled.read_array("clusters", shape=(None,), dtype=LARGE)
    if why := Limits(0, spec.graph.n_points).broken_by(clusters["seed"]):
        raise spec.settled.damaged("array", "clusters.npy", why)
    return clusters


def _new_table(clusters: NDArray[Any]) -> NDArray[Any]:
    """Return the table of clusters, but for sizes, and with points in place of the seeds' rows."""
    table = np.zeros(len(clusters), CLUSTER_TABLE)
    names = ("skeleton_size", "mean", "std", "seed_row")
    for name, known in zip(names, ("size", "mean", "std", "seed"), strict=True):
        table[name] = clusters[known]
    return table


def _write(folder: Folder, name: str, values: NDArray[Any]) -> list[int]:
    """Write an array in chunks; return the checksum of each."""
    folder.write_zarr(name, values, CHUNK_ROWS, fill_value=int(np.iinfo(values.dtype).min))
    firsts = range(0, len(values), CHUNK_ROWS)
    return [zlib.crc32(values[first : first + CHUNK_ROWS].data) for first in firsts]


def publish_one_cluster(engine: Engine, folder: Folder, n_points: int) -> Receipt:
    """Publish the result that is defined for points that are all the same."""

    def build(folder: Folder) -> Receipt:
        table = np.array([(n_points, n_points, 0.0, 0.0, 0)], CLUSTER_TABLE)
        folder.write_array("clusters", table)
        checksums = {
            "labels": _write(folder, "labels", np.zeros(n_points, np.int32)),
            "provenance": _write(folder, "provenance", np.zeros(n_points, np.int16)),
        }
        facts = {"n_clusters": 1, "n_noise": 0, "n_skeleton": n_points}
        return {**facts, "checksums": checksums}

    return run_stage(engine, folder, build)
