"""Expand: grow skeletons over the graph on disk, in this process.

Streams the seed order and reads rows of the graph in pages, the queue's and the next seeds' ahead
of time. Reads the graph and the seeds; writes `skeletons` (the cluster number of each point) and
`clusters/` (a record for each cluster, in pieces).
Memory: labels and queue (8 bytes a point, 16 beyond 2**31 points), the cache of pages with half a
byte a point, 4 bytes for each point that has copies, and a record for each seed of one piece.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.checkpoints import Checkpoints
from spore_dask.clusters import Thresholds, expansion_settings, label_dtype
from spore_dask.engine import Engine
from spore_dask.exact import number_dtype
from spore_dask.kernels import expand as kernel
from spore_dask.memory import PAGE_ROWS
from spore_dask.orders import Order
from spore_dask.pages import Pages
from spore_dask.params import ResolvedParams
from spore_dask.shards import GraphRows
from spore_dask.store import Folder, Limits
from spore_dask.tasks import Receipt, run_stage

STEPS_PER_CALL = 1 << 20
"""Points that expand before it is asked whether a checkpoint is due."""
MOST_AHEAD = 1 << 14
"""Points whose rows are read ahead at most."""
LEAST_AHEAD = 64
"""Seeds whose rows are read ahead; doubled each time that all of them were of use."""
PAGES_AROUND = 8
"""Pages next to each other that are read together while a cluster grows."""
LARGE_QUEUE = 1000
"""Points in the queue that tell that a cluster will push out what was read for later seeds."""


WRONG = {
    kernel.REPEATED: ("neighbors", "names a point twice"),
    kernel.MISSING: ("longer", "should be there, because it has copies"),
}
"""What a row can be found to be while it is used, and where it is."""


@dataclasses.dataclass(frozen=True)
class ExpandSpec:
    """What Expansion is asked for."""

    graph: GraphRows
    seeds: Order
    params: ResolvedParams
    thresholds: Thresholds
    cache_nbytes: int
    """What the pages at hand may take."""


def expand(engine: Engine, folder: Folder, spec: ExpandSpec) -> Receipt:
    """Grow the skeletons, or take up what was done before."""
    summary = run_stage(engine, folder, functools.partial(_build, engine, spec))
    Checkpoints(folder).remove()
    return summary


def _build(engine: Engine, spec: ExpandSpec, folder: Folder) -> Receipt:
    expansion = Expansion(folder, spec)
    with engine.here("expand", spec.seeds.n_ranges) as done:
        expansion.run(done)
    folder.write_all_rows("skeletons", expansion.growth.labels)
    return expansion.facts()


class Expansion:
    """An expansion under way."""

    def __init__(self, folder: Folder, spec: ExpandSpec) -> None:
        graph = spec.graph
        self.folder, self.spec = folder, spec
        self.settings = expansion_settings(spec.params, spec.thresholds)
        self.settings["n_steps"] = STEPS_PER_CALL
        self.pages, self.longer_pages = _open_rows(graph, spec.params.k, spec.cache_nbytes)
        points = [graph.longer_points(shard) for shard in np.flatnonzero(graph.n_longer).tolist()]
        none = np.empty(0, number_dtype(graph.n_points))
        self.longer = kernel.Longer(np.concatenate([none, *points]), self.longer_pages.slots)
        self.growth = kernel.Growth(
            state=np.zeros(1, kernel.STATE),
            labels=np.full(graph.n_points, kernel.UNASSIGNED, label_dtype(graph.n_points)),
            queue=np.empty(graph.n_points, number_dtype(graph.n_points)),
            closed=np.empty(int(np.diff(spec.seeds.starts).max()), kernel.CLUSTER),
        )
        self.checkpoints = Checkpoints(folder)
        self.largest = [0, 0]
        self.read_before = 0
        self.n_ahead = LEAST_AHEAD
        self.piece = self._take_up()

    def facts(self) -> Receipt:
        """Return what is to be known of the expansion so far."""
        caches = self.pages, self.longer_pages
        return {
            "n_clusters": int(self.growth.state["cluster"][0]),
            "largest": self.largest,
            "read_nbytes": self.read_before + sum(pages.read_nbytes for pages in caches),
            "graph_nbytes": sum(pages.nbytes for pages in caches),
            "cache_nbytes": self.spec.cache_nbytes,
        }

    def run(self, done: Callable[[], None]) -> None:
        """Expand from every seed, a piece of the order at a time."""
        for piece in range(self.spec.seeds.n_ranges):
            if piece == self.piece:
                self._expand_piece(self.spec.seeds.points(piece))
                self.piece += 1
                if self.checkpoints.due():
                    self._save()
            done()
        self._check_rows()
        if int(self.growth.labels.min()) == kernel.UNASSIGNED:
            point = int(np.argmin(self.growth.labels))
            raise self.spec.seeds.folder.damaged("array", "order", f"point {point} is not in it")

    def _check_rows(self) -> None:
        """Notice whether rows that are mapped have changed since they came."""
        for pages in (self.pages, self.longer_pages):
            pages.check()

    def _expand_piece(self, seeds: NDArray[Any]) -> None:
        """Expand from the seeds of one piece, and write the clusters that ended in it."""
        growth = self.growth
        while True:
            ended = kernel.expand(self.settings, seeds, self.pages.slots, self.longer, growth)
            if ended == kernel.DONE:
                break
            if ended in WRONG:
                point = int(growth.queue[growth.state["head"][0]])
                name, what = WRONG[int(ended)]
                why = f"the row of point {point} {what}"
                raise self.spec.graph.folder.damaged("array", name, why)
            if ended >= 0:
                self._fetch(int(ended), seeds)
            if self.checkpoints.due():
                self._save()
        closed = growth.closed[: growth.state["n_closed"][0]]
        self.largest = sorted([*self.largest, *np.sort(closed["size"])[-2:].tolist()])[-2:]
        self.folder.child("clusters").write_array(str(self.piece), closed)
        growth.state["seed"] = growth.state["n_closed"] = 0

    def _fetch(self, wanted: int, seeds: NDArray[Any]) -> None:
        """Bring the page that is wanted, and with it those that are wanted next."""
        growth, now = self.growth, self.growth.state[0]
        head, tail = int(now["head"]), int(now["tail"])
        soon = growth.queue[head : min(tail, head + MOST_AHEAD)]
        if wanted >= self.pages.n_pages:
            points = self.longer.points
            places = np.minimum(np.searchsorted(points, soon), len(points) - 1)
            self.longer_pages.bring(places[points[places] == soon] // PAGE_ROWS)
            return
        if tail - head > LARGE_QUEUE:
            self.n_ahead = LEAST_AHEAD
        if tail == 1:
            later = seeds[int(now["seed"]) :]
            later = later[growth.labels[later] == kernel.UNASSIGNED][: self.n_ahead]
            soon = np.append(soon, later)
            self.n_ahead = min(2 * self.n_ahead, MOST_AHEAD, self.pages.n_slots)
        pages = soon.astype(np.int64) // PAGE_ROWS
        self.pages.bring(pages if tail == 1 else np.append(pages, self._around(pages)))

    def _around(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the pages near some pages that a growing cluster may need next."""
        groups = np.unique(pages // PAGES_AROUND)
        near = (groups[:, None] * PAGES_AROUND + np.arange(PAGES_AROUND)).ravel()
        near = near[near < len(self.growth.labels) // PAGE_ROWS]
        points = near[:, None] * PAGE_ROWS + np.arange(PAGE_ROWS)
        free: NDArray[np.bool_] = (self.growth.labels[points] == kernel.UNASSIGNED).any(axis=1)
        return near[free]

    def _save(self) -> None:
        """Keep where the expansion stands."""
        self._check_rows()
        growth, now = self.growth, self.growth.state[0]
        head, tail = int(now["head"]), int(now["tail"])
        arrays = {
            "state": growth.state,
            "labels": growth.labels,
            "seed": growth.queue[: min(1, tail)],
            "queue": growth.queue[head:tail],
            "closed": growth.closed[: int(now["n_closed"])],
        }
        self.checkpoints.save(arrays, {**self.facts(), "piece": self.piece})

    def _take_up(self) -> int:
        """Go on where a killed expansion was last saved; return the piece of seeds it was at."""
        known = self.checkpoints.last()
        if known is None:
            return 0
        facts, read = known
        growth, n_points = self.growth, len(self.growth.labels)
        growth.state[:] = read("state", shape=(1,), dtype=kernel.STATE)
        with self.checkpoints.understood():
            self.read_before, piece = int(facts["read_nbytes"]), int(facts["piece"])
            self.largest = [int(size) for size in facts["largest"]]
            self._check_state(piece)
        now = growth.state[0]
        head, tail = int(now["head"]), int(now["tail"])
        labels, queue, closed = growth.labels, growth.queue, growth.closed[: int(now["n_closed"])]
        limits = Limits(kernel.UNASSIGNED, int(now["cluster"]) + 1)
        labels[:] = read("labels", shape=labels.shape, dtype=labels.dtype, limits=limits)
        for name, into in (("seed", queue[: min(1, tail)]), ("queue", queue[head:tail])):
            within = Limits(0, n_points)
            into[:] = read(name, shape=into.shape, dtype=into.dtype, limits=within)
        with self.checkpoints.understood():
            if tail > (n_labelled := int((labels != kernel.UNASSIGNED).sum())):
                raise ValueError(f"{tail} points are queued, but {n_labelled} have a cluster")
        closed[:] = read("closed", shape=closed.shape, dtype=closed.dtype)
        return piece

    def _check_state(self, piece: int) -> None:
        """Raise `ValueError` if an expansion of these points cannot stand where it was saved."""
        now, seeds = self.growth.state[0], self.spec.seeds
        if not 0 <= piece <= seeds.n_ranges or len(self.largest) != 2:
            raise ValueError(f"piece {piece} of {seeds.n_ranges}, largest {self.largest}")
        n_seeds = int(np.diff(seeds.starts)[piece]) if piece < seeds.n_ranges else 0
        if not (
            0 <= now["head"] <= now["tail"] <= len(self.growth.queue)
            and 0 <= now["n_closed"] <= now["seed"] - (now["tail"] > 0)
            and now["seed"] <= n_seeds
            and now["n_closed"] <= now["cluster"] <= len(self.growth.labels)
        ):
            raise ValueError(f"the state is {now}, which cannot be")


def _open_rows(graph: GraphRows, k: int, cache_nbytes: int) -> tuple[Pages, Pages]:
    """Open rows and longer rows with a cache, and read them if it holds them all.

    Their distances were looked at when densities were measured.
    """
    budgets = _share_out(graph, cache_nbytes)
    files = graph.array("neighbors"), graph.array("distances").without_limits()
    longer = [graph.longer_array(name) for name in ("neighbors", "distances")]
    at_hand = (
        Pages(files, min(graph.k, k) + 1, budgets[0]),
        Pages(longer, min(graph.longest_k, k) + 1, budgets[1]),
    )
    for pages in at_hand:
        if pages.n_slots == pages.n_pages:
            pages.bring_all()
    return at_hand


def _share_out(graph: GraphRows, cache_nbytes: int) -> tuple[int, int]:
    """Share out a budget between rows and longer rows, as their sizes are."""
    n_longer = int(graph.n_longer.sum()) * (graph.longest_k + 1)
    share = n_longer / (n_longer + graph.n_points * (graph.k + 1))
    return int(cache_nbytes * (1 - share)), int(cache_nbytes * share)
