"""Excerpts of large data, on which parameters are chosen in place of the whole.

One excerpt is thin: rows drawn from all of the data. It shows large structure, but small clusters
vanish from it. The other is dense: all points near a few places. It has the true density, so that
small clusters are whole, but it misses most of the space. Both are functions of the rows and the
seed alone, whatever the chunks, partitions and workers.

Tasks read the source once more and write the points that belong to an excerpt. Then one task for
each excerpt clusters it in memory with every configuration. Reads the source; writes for each
excerpt the rows that are compared, their labels in each trial, and a sample of the points.
Memory: the chunks that one task reads; or an excerpt with its neighbour graph.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.choosing import (
    EXPONENT,
    LARGE_SHARE,
    SAMPLE_ROWS,
    SAMPLE_SIZE,
    Choice,
    Level,
    similarity,
)
from spore_dask.clustering import GraphInMemory
from spore_dask.comparing import (
    Chosen,
    Facts,
    beside_chance,
    chosen_of,
    compare,
    compare_in_memory,
    longest_rows,
)
from spore_dask.coordinates import Transform
from spore_dask.engine import Engine
from spore_dask.params import Params
from spore_dask.partitions import sample_rows
from spore_dask.search import neighbor_rows
from spore_dask.spaces import Trial
from spore_dask.stages.scan import Scan
from spore_dask.store import FINITE, Folder, Limits, Source
from spore_dask.tasks import Receipt, Work, run_work
from spore_dask.threads import one_thread
from spore_dask.trials import LABELS, ROWS, read_labels

THIN, DENSE = "thin", "dense"
NAMES = (DENSE, THIN)
N_PLACES = 4
"""Places that the dense excerpt is taken from."""
PIECE = 1 / 8
"""A cluster is large, too, if it has this share of the points near a place."""
REACH, MARGIN = 2, 16
"""Points that are looked at near a place: so many times those that are taken, and a few more."""
BLOCK_NBYTES = 4 << 20
FINAL_RATIO = 10
"""Trials are run on all points where they are more than so many times those of an excerpt."""
FINAL_SCORE, N_FINALISTS = 0.8, 4
"""These are as many at most, with this share of the highest score."""
READ = "read"
"""Folder of what tasks have read."""
SAMPLE = "sample"
"""Array of points."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """What is tried on excerpts of how much data."""

    n_points: int
    """Points of the whole data."""
    size: int
    """Points of each excerpt, at most."""
    trials: tuple[Trial, ...]
    space: Mapping[str, Any] | None
    fixed: Mapping[str, Any]
    n_compared: int
    seed: int

    @property
    def n_near(self) -> int:
        """Points that are taken near each place."""
        return self.size // N_PLACES

    def thin_rows(self) -> NDArray[np.int64]:
        """Draw the rows of the thin excerpt, ascending."""
        return sample_rows(self.n_points, self.size, self.seed + 1)

    def place_rows(self) -> list[int]:
        """Draw the rows that are the places of the dense excerpt."""
        return sorted(random.Random(self.seed).sample(range(self.n_points), N_PLACES))


@dataclasses.dataclass(frozen=True)
class ExcerptSpec:
    """Where excerpts are taken from, and where they go."""

    asked: Asked
    folder: Folder
    source: Source
    transform: Transform
    n_parts: int
    """Tasks that read the source."""
    reading_nbytes: int
    """Projected peak of a task that reads the source."""
    choosing_nbytes: int
    """Projected peak of a task that clusters an excerpt."""


@dataclasses.dataclass(frozen=True)
class Excerpt:
    """What the trials made of one excerpt."""

    name: str
    n_points: int
    choice: Choice
    facts: list[Facts]
    large: float
    """Share of its clustered points that are in large clusters, in the best trial."""
    rows: NDArray[np.int64]
    """Which of its points were compared, or their input rows."""
    labels: NDArray[np.int32]
    """(n_trials, n_rows)"""
    sample: NDArray[np.int64]
    """Which of its points are a uniform sample of it."""
    n_pieces: int = 0
    """Connected pieces that the graph of all points has if it is like that of the excerpt."""

    def chosen(self, detail: str) -> Chosen:
        """Return the trial to take for a detail."""
        found = chosen_of(self.choice, self.facts, detail)
        return dataclasses.replace(found, excerpt=(self.name, self.n_points))


def choose_from(points: NDArray[np.floating], asked: Asked, detail: str) -> tuple[Excerpt, Chosen]:
    """Choose parameters for points in memory, on the excerpts that a fit on disk takes of them.

    Returns the excerpt that was used, with the input rows that were compared, and the choice.
    """
    places = points[asked.place_rows()].astype(np.float64)
    near = [_nearest(_squares(points, place), asked) for place in places]
    rows = {DENSE: np.unique(np.concatenate(near)), THIN: asked.thin_rows()}
    taken = {name: np.ascontiguousarray(points[here]) for name, here in rows.items()}
    excerpts = {name: try_on(name, taken[name], asked) for name in NAMES}
    used = best_excerpt(excerpts)
    sample = taken[used.name][used.sample]
    chosen = beside_chance(used.chosen(detail), sample, asked.seed, asked.fixed)
    used = dataclasses.replace(
        used, rows=rows[used.name][used.rows], n_pieces=excerpts[DENSE].n_pieces
    )
    return used, chosen


def finalists(asked: Asked, excerpt: Excerpt, chosen: Chosen) -> list[int]:
    """Return the best trial, and those about as good that share its graph and order.

    These are run on all points where an excerpt is a small part of them: what is whole in it may
    be joined, or fall apart, among all points.
    """
    scores = excerpt.choice.scores
    is_settled = chosen.is_degenerate or chosen.detail != "auto"
    if is_settled or excerpt.n_points * FINAL_RATIO >= asked.n_points:
        return [chosen.best]

    def graph_of(trial: int) -> tuple[int, int, int]:
        counts = asked.trials[trial].params.resolve(asked.n_points)
        return counts.density_neighbors, counts.expansion_neighbors, counts.k

    near = scores >= FINAL_SCORE * scores[chosen.best]
    ranked = [int(trial) for trial in np.argsort(-scores, kind="stable") if near[trial]]
    ranked = [trial for trial in ranked if graph_of(trial) == graph_of(chosen.best)]
    return [chosen.best, *(trial for trial in ranked if trial != chosen.best)][:N_FINALISTS]


def best_finalist(
    asked: Asked, excerpt: Excerpt, numbers: Sequence[int], labels: Sequence[NDArray[np.integer]]
) -> int:
    """Return the finalist that agrees most with the trials of an excerpt.

    `labels` are those that each finalist gave the compared rows of the excerpt.
    """
    weights = np.array([trial.weight for trial in asked.trials])
    factors = np.array([asked.trials[number].factor for number in numbers])
    alike = similarity(np.array(labels), excerpt.labels) ** EXPONENT @ weights
    return numbers[int(np.argmax(alike * factors))]


def try_on(name: str, points: NDArray[np.floating], asked: Asked) -> Excerpt:
    """Cluster one excerpt with every configuration, and choose the best."""
    n_points = len(points)
    share = n_points / asked.n_points if name == THIN else 1.0
    trials = tuple(
        trial._replace(params=at_share(trial.params, asked.n_points, share))
        for trial in asked.trials
    )
    compared = compare(
        points.shape, asked.fixed, asked.seed, space=asked.space, n_compared=asked.n_compared
    )
    compared = dataclasses.replace(compared, trials=trials)
    found = neighbor_rows(points, longest_rows(trials, n_points), seed=asked.seed)
    graph = GraphInMemory(found.neighbors, found.distances, points)
    chosen, labels = compare_in_memory(graph, compared)
    reach = trials[0].params.resolve(n_points).expansion_neighbors
    best = labels[chosen.best]
    sizes = np.unique(best[best >= 0], return_counts=True)[1] * (n_points / len(best))
    least = min(SAMPLE_SIZE * asked.n_points / SAMPLE_ROWS, PIECE * asked.n_near)
    return Excerpt(
        name=name,
        n_points=n_points,
        choice=chosen.choice,
        facts=list(chosen.facts),
        large=float(sizes[sizes >= least].sum() / max(sizes.sum(), 1)),
        rows=compared.rows,
        labels=labels,
        sample=compared.rows[compared.samples[0]],
        n_pieces=round(graph.n_pieces(reach) * asked.n_points / n_points),
    )


def try_on_excerpts(engine: Engine, spec: ExcerptSpec, scanned: Scan) -> dict[str, Excerpt]:
    """Cluster both excerpts with every configuration, or take up what an earlier call has left."""
    parts = [*zip(scanned.ranges, scanned.checksums, strict=True)]
    ends = [last for _, last in scanned.ranges]
    places = [(row, *parts[bisect.bisect_right(ends, row)]) for row in spec.asked.place_rows()]
    find = functools.partial(_coordinates, spec)
    found = run_work(engine, spec.folder, Work("places", find, places, spec.reading_nbytes))
    centres = np.array([receipt["point"] for receipt in found])
    read = functools.partial(_read, spec, centres, _reaches(spec.asked, centres, scanned.sample()))
    items = [*enumerate(parts)]
    run_work(engine, spec.folder, Work("excerpts", read, items, spec.reading_nbytes))
    choose = functools.partial(_choose, spec)
    receipts = run_work(engine, spec.folder, Work("trials", choose, NAMES, spec.choosing_nbytes))
    for name in NAMES:
        spec.folder.child(name).remove(READ)
    return {
        name: _opened(spec, name, receipt) for name, receipt in zip(NAMES, receipts, strict=True)
    }


def best_excerpt(excerpts: Mapping[str, Excerpt]) -> Excerpt:
    """Return the excerpt to choose on: the thin one, unless small clusters would vanish from it."""
    dense = excerpts[DENSE]
    has_choice = np.isfinite(dense.choice.scores).any()
    return dense if has_choice and dense.large < LARGE_SHARE else excerpts[THIN]


def at_share(params: Params, n_points: int, share: float) -> Params:
    """Return the counts that parameters come to for all points, on a share of them drawn at random.

    Of a cluster only that share is drawn, so that the minimum size is multiplied by it.
    """
    resolved = params.resolve(n_points)
    size = resolved.min_cluster_size
    return dataclasses.replace(
        params,
        min_cluster_size=max(min(size, 2), round(size * share)),
        density_neighbors=resolved.density_neighbors,
        expansion_neighbors=resolved.expansion_neighbors,
        reassignment_neighbors=resolved.reassignment_neighbors,
    )


def _coordinates(spec: ExcerptSpec, item: tuple[int, tuple[int, int], int]) -> Receipt:
    """Return the working coordinates of a row, which is one of those of a task."""
    row, (first, last), checksum = item
    data = spec.source.read_again(first, last, checksum)[row - first : row - first + 1]
    return {"point": spec.transform.apply(data, row)[0].tolist()}


def _reaches(
    asked: Asked, centres: NDArray[np.float64], sample: NDArray[np.floating]
) -> list[float]:
    """Return a squared distance from each place within which there are enough points."""
    wanted = REACH * round(asked.n_near / asked.n_points * len(sample)) + MARGIN
    if wanted >= len(sample):
        return [np.inf] * len(centres)
    squares = (_squares(sample, centre) for centre in centres)
    return [float(np.partition(each, wanted)[wanted]) for each in squares]


def _squares(points: NDArray[np.floating], centre: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the squared distances of points from a place."""
    found = np.empty(len(points))
    step = max(1, BLOCK_NBYTES // (8 * points.shape[1]))
    for first in range(0, len(points), step):
        apart = points[first : first + step].astype(np.float64)
        apart -= centre
        apart *= apart
        apart.sum(axis=1, out=found[first : first + step])
    return found


def _nearest(squares: NDArray[np.float64], asked: Asked) -> NDArray[np.int64]:
    """Return the points that are nearest to a place by (distance, number), given the squares."""
    here = np.arange(len(squares))
    if len(here) > asked.n_near:
        here = np.flatnonzero(squares <= np.partition(squares, asked.n_near)[asked.n_near])
    return here[np.lexsort((here, squares[here]))[: asked.n_near]]


def _read(
    spec: ExcerptSpec,
    centres: NDArray[np.float64],
    reaches: Sequence[float],
    item: tuple[int, tuple[tuple[int, int], int]],
) -> Receipt:
    """Write what belongs to the excerpts, or may belong, of the rows of one task."""
    number, ((first, last), checksum) = item
    points = spec.transform.apply(spec.source.read_again(first, last, checksum), first)
    drawn = spec.asked.thin_rows()
    drawn = drawn[np.searchsorted(drawn, first) : np.searchsorted(drawn, last)] - first
    squares = np.empty((len(points), len(centres)))
    for place, centre in enumerate(centres):
        squares[:, place] = _squares(points, centre)
    near = [np.zeros(0, np.int64)]
    for apart, reach in zip(squares.T, reaches, strict=True):
        here = np.flatnonzero(apart <= reach)
        near.append(here[_nearest(apart[here], spec.asked)])
    dense = np.unique(np.concatenate(near))
    for name, rows in ((THIN, drawn), (DENSE, dense)):
        folder = spec.folder.child(name).child(READ)
        folder.write_array(f"rows-{number}", first + rows)
        folder.write_array(f"points-{number}", points[rows])
        folder.write_array(f"squares-{number}", squares[rows])
    return {"n_thin": len(drawn), "n_dense": len(dense)}


def _gather(spec: ExcerptSpec, name: str) -> tuple[NDArray[np.int64], NDArray[np.floating]]:
    """Return the rows of an excerpt, ascending, and their points."""
    folder, limits = spec.folder.child(name).child(READ), Limits(0, spec.asked.n_points)
    rows, squares = np.zeros(0, np.int64), np.zeros((0, N_PLACES))
    for number in range(spec.n_parts):
        rows = np.append(rows, folder.read_array(f"rows-{number}", shape=(None,), limits=limits))
        if name == DENSE:
            read = folder.read_array(f"squares-{number}", shape=(None, N_PLACES))
            squares = np.concatenate([squares, read])
            nearest = [_nearest(apart, spec.asked) for apart in squares.T]
            kept = np.unique(np.concatenate(nearest))
            rows, squares = rows[kept], squares[kept]
    points = np.empty((len(rows), spec.source.shape[1]), spec.transform.dtype)
    for number in range(spec.n_parts):
        here = folder.read_array(f"rows-{number}", shape=(None,), limits=limits)
        shape = len(here), points.shape[1]
        read = folder.read_array(f"points-{number}", shape=shape, limits=FINITE)
        wanted = np.isin(here, rows, assume_unique=True)
        points[np.searchsorted(rows, here[wanted])] = read[wanted]
    return rows, points


def _choose(spec: ExcerptSpec, name: str) -> Receipt:
    """Cluster one excerpt with every configuration, and keep what is compared."""
    with one_thread():
        rows, points = _gather(spec, name)
        found = try_on(name, points, spec.asked)
    folder = spec.folder.child(name)
    folder.write_array(ROWS, rows[found.rows])
    for number, labels in enumerate(found.labels):
        folder.child(LABELS).write_array(str(number), labels)
    folder.write_array(SAMPLE, points[found.sample])
    scores = [float(score) if np.isfinite(score) else None for score in found.choice.scores]
    return {
        "best": found.choice.best,
        "scores": scores,
        "levels": [level._asdict() for level in found.choice.levels],
        "facts": found.facts,
        "large": found.large,
        "n_points": len(points),
        "n_pieces": found.n_pieces,
    }


def _opened(spec: ExcerptSpec, name: str, receipt: Receipt) -> Excerpt:
    """Return what the trials made of an excerpt, from what its task has left."""
    folder, limits = spec.folder.child(name), Limits(0, spec.asked.n_points)
    scores = [-np.inf if score is None else score for score in receipt["scores"]]
    levels = tuple(Level(**level) for level in receipt["levels"])
    rows = folder.read_array(ROWS, shape=(None,), dtype=np.int64, limits=limits)
    return Excerpt(
        name=name,
        n_points=receipt["n_points"],
        choice=Choice(receipt["best"], np.array(scores), levels),
        facts=receipt["facts"],
        large=receipt["large"],
        rows=rows,
        labels=read_labels(folder, len(spec.asked.trials), len(rows)),
        sample=np.zeros(0, np.int64),
        n_pieces=receipt["n_pieces"],
    )


def read_sample_of(folder: Folder) -> NDArray[np.floating]:
    """Return the working coordinates of a uniform sample of an excerpt."""
    return folder.read_array(SAMPLE, shape=(None, None), limits=FINITE)
