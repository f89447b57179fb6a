"""Voters: further configurations on samples of the rows, which only contribute to the scores.

Tasks read the coordinates of the samples, one for each shard of the points. Then one task for each
sample clusters it with every configuration. Reads the points; writes `points/`, one array per
shard, and `votes/`, one array per sample.
Memory: one shard of coordinates; or the graph of a sample, and four bytes per row and voter.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spore_dask.clustering import GraphInMemory, grouped
from spore_dask.engine import Engine
from spore_dask.params import Params
from spore_dask.points import CACHE, Points
from spore_dask.search import neighbor_rows
from spore_dask.shards import GraphRows
from spore_dask.store import FINITE, Folder
from spore_dask.tasks import Receipt, Work, run_work


@dataclasses.dataclass(frozen=True)
class PollSpec:
    """Which configurations cluster which samples."""

    folder: Folder
    points: Points
    graph: GraphRows
    samples: tuple[NDArray[np.int64], ...]
    """The points of each sample."""
    voters: tuple[tuple[Params, ...], ...]
    """The configurations for each sample."""
    needs_nbytes: int


def poll(engine: Engine, spec: PollSpec) -> list[NDArray[np.int32]]:
    """Return the labels of each sample by each of its voters, or those that an earlier call left.

    An array has the shape (voters, points of the sample).
    """
    read_samples(engine, spec)
    vote = functools.partial(_vote, spec)
    work = Work("voters", vote, range(len(spec.samples)), spec.needs_nbytes)
    run_work(engine, spec.folder, work)
    votes = spec.folder.child("votes")
    return [
        votes.read_array(str(i), shape=(len(voters), len(sample)), dtype=np.int32)
        for i, (voters, sample) in enumerate(zip(spec.voters, spec.samples, strict=True))
    ]


def read_samples(engine: Engine, spec: PollSpec) -> None:
    """Write the coordinates of all samples, where an earlier call has not."""
    shards = range(spec.graph.n_shards)
    work = Work("sample", functools.partial(_read, spec), shards, spec.needs_nbytes, light=True)
    run_work(engine, spec.folder, work)


def _read(spec: PollSpec, shard: int) -> Receipt:
    """Write the coordinates of the points of all samples that are in a shard."""
    CACHE.budget_nbytes = 0
    first, last = spec.graph.span(shard)
    places = np.concatenate(spec.samples)
    here = places[(places >= first) & (places < last)]
    spec.folder.child("points").write_array(
        str(shard), spec.points.coordinates(first, last)[here - first]
    )
    return {"n_points": len(here)}


def read_sample(spec: PollSpec, number: int) -> NDArray[np.floating]:
    """Return the coordinates of one sample, which tasks have written."""
    places = np.concatenate(spec.samples)
    shards = places // spec.graph.shard_rows
    every = np.empty((len(places), spec.points.n_columns), spec.points.dtype)
    for shard in range(spec.graph.n_shards):
        here = shards == shard
        every[here] = spec.folder.child("points").read_array(
            str(shard), shape=every[here].shape, dtype=every.dtype, limits=FINITE
        )
    first = sum(len(sample) for sample in spec.samples[:number])
    return every[first : first + len(spec.samples[number])].copy()


def _vote(spec: PollSpec, number: int) -> Receipt:
    """Cluster one sample with every configuration."""
    labels = voter_labels(read_sample(spec, number), spec.voters[number])
    spec.folder.child("votes").write_array(str(number), labels)
    return {"n_voters": len(labels)}


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
    graph = GraphInMemory(rows.neighbors, rows.distances, points)
    labels = np.empty((len(resolved), len(points)), np.int32)
    for group in grouped(resolved):
        for number in group:
            labels[number] = graph.cluster(resolved[number]).labels
    return labels
