"""Voters: further configurations on a sample of the rows, to help choose among few trials.

They can be had for next to nothing, and vote, but cannot be chosen. Tasks read the coordinates of
the sample, one for each shard of the points; one task clusters them with every configuration.
Reads the points; writes `points/`, one array a shard, and `votes`.
Memory: one shard of coordinates; or the graph of the sample, and four bytes a row and voter.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spore_dask.clustering import cluster_rows
from spore_dask.engine import Engine
from spore_dask.params import Params
from spore_dask.points import CACHE, Points
from spore_dask.search import neighbor_rows
from spore_dask.shards import GraphRows
from spore_dask.store import FINITE, Folder
from spore_dask.tasks import Receipt, Work, run_stage, run_work

N_VOTERS = 50
MOST_ROWS = 5000
"""Rows that are clustered at most."""
MOST_NBYTES = 64 << 20
"""Bytes that their coordinates have at most."""
VOTES = "votes"


@dataclasses.dataclass(frozen=True)
class PollSpec:
    """Who is asked, and about which points."""

    folder: Folder
    points: Points
    graph: GraphRows
    places: NDArray[np.int64]
    """The points of the sample."""
    voters: tuple[Params, ...]
    needs_nbytes: int


def poll(engine: Engine, spec: PollSpec) -> NDArray[np.int32]:
    """Return the labels of the sample by each voter, or take up what was done before."""
    run_stage(engine, spec.folder, functools.partial(_build, engine, spec))
    size = len(spec.voters), len(spec.places)
    votes: NDArray[np.int32] = spec.folder.read_array(VOTES, shape=size, dtype=np.int32)
    return votes


def _build(engine: Engine, spec: PollSpec, folder: Folder) -> Receipt:
    read, vote = functools.partial(_read, spec), functools.partial(_vote, spec)
    shards = range(spec.graph.n_shards)
    run_work(engine, folder, Work("sample", read, shards, spec.needs_nbytes, light=True))
    run_work(engine, folder, Work("voters", vote, [len(spec.voters)], spec.needs_nbytes))
    return {"n_voters": len(spec.voters)}


def _read(spec: PollSpec, shard: int) -> Receipt:
    """Write the coordinates of the points of the sample that are in a shard."""
    CACHE.budget_nbytes = 0
    first, last = spec.graph.span(shard)
    here = np.flatnonzero((spec.places >= first) & (spec.places < last))
    found = spec.points.coordinates(first, last)[spec.places[here] - first]
    spec.folder.child("points").write_array(str(shard), found)
    return {"n_points": len(here)}


def _vote(spec: PollSpec, n_voters: int) -> Receipt:
    """Cluster the sample with every configuration."""
    shards = spec.places // spec.graph.shard_rows
    sample = np.empty((len(spec.places), spec.points.n_columns), spec.points.dtype)
    for shard in range(spec.graph.n_shards):
        here = shards == shard
        sample[here] = spec.folder.child("points").read_array(
            str(shard), shape=sample[here].shape, dtype=sample.dtype, limits=FINITE
        )
    spec.folder.write_array(VOTES, voter_labels(sample, spec.voters))
    return {"n_voters": n_voters}


def voter_labels(points: NDArray[np.floating], voters: Sequence[Params]) -> NDArray[np.int32]:
    """Cluster a few thousand points with each configuration, over one graph.

    Parameters
    ----------
    points : float32 or float64 array (N, D), C-contiguous, N at least 2
        Working coordinates of the sampled rows, searched as if they were all there is.
    voters : sequence of Params

    Returns
    -------
    int32 array (len(voters), N)
        -1 is noise.
    """
    resolved = [params.resolve(len(points)) for params in voters]
    rows = neighbor_rows(points, max(params.k for params in resolved))
    labels = np.empty((len(resolved), len(points)), np.int32)
    for number, params in enumerate(resolved):
        neighbors = np.ascontiguousarray(rows.neighbors[:, : params.k + 1])
        distances = np.ascontiguousarray(rows.distances[:, : params.k + 1])
        labels[number] = cluster_rows(neighbors, distances, points, params).labels
    return labels
