"""A fit under way: the whole run, from an array of any size to labels.

Reads a source, or an earlier graph; writes a run's folder: see `runs`. Each stage is named by a
hash of what it depends on, so that the same call continues, and another configuration shares what
it can and writes the rest beside. Memory of this process: 16 bytes a point and a cache of rows.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib.metadata
import platform
from typing import Any

import numpy as np
from numpy.typing import NDArray

import spore_dask
from spore_dask.clusters import Thresholds, smallest_final_size, thresholds_of
from spore_dask.engine import Engine
from spore_dask.errors import InputError, ParameterError
from spore_dask.fragments import Fragments
from spore_dask.graph import (
    FORMAT,
    Graph,
    check_disk,
    check_start,
    choose_index,
    graph_folder,
    points_folder,
    scan_folder,
    scan_source,
    search_graph,
)
from spore_dask.inputs import check_unchanged, remember_source
from spore_dask.jobs import Job
from spore_dask.orders import Order
from spore_dask.params import Params
from spore_dask.pilot import CELLS, EXACT, PROBES, PRODUCTS, PYNNDESCENT
from spore_dask.plan import FitPlan, disk_free, refuse_disk
from spore_dask.points import CACHE
from spore_dask.runs import (
    POINTER,
    SUMMARY,
    Run,
    clean,
    kept_stages,
)
from spore_dask.shares import PILOT_POINTS, cluster_sample
from spore_dask.stages.density import Density, DensitySpec, rank_points, reach_percentiles
from spore_dask.stages.expand import ExpandSpec, expand
from spore_dask.stages.fragments import FragmentSpec, gather_fragments
from spore_dask.stages.publish import PublishSpec, publish, publish_one_cluster
from spore_dask.stages.reassign import (
    ReassignSpec,
    count_clusters,
    large_clusters,
    reassign,
)
from spore_dask.stages.scan import Scan
from spore_dask.stages.seeds import order_seeds
from spore_dask.store import Folder, hash_of, remove_stage
from spore_dask.tasks import MARKER, Receipt, Work, is_done, run_work
from spore_dask.telling import data_warnings

MOST_FRAGMENTS = {CELLS: 1 / 3, PROBES: 1 / 3, PYNNDESCENT: 1 / 3, PRODUCTS: 1 / 20}
"""Share of fragments up to which they are searched apart, instead of long rows for all at once;
products compare all with all, whatever the length of rows, and would once more for fragments."""
LIBRARIES = ("numpy", "numba", "scipy", "scikit-learn", "pynndescent", "dask", "zarr")
"""What a result may depend on."""


class Fit:
    """A fit under way."""

    def __init__(
        self, engine: Engine, job: Job, plan: FitPlan, resume: bool, is_latest: bool = True
    ) -> None:
        self.engine = engine
        needs = plan.memory()
        data = job.data.known(engine, needs.get("scan", needs["driver"]))
        self.job = dataclasses.replace(job, data=data)
        self.plan = dataclasses.replace(plan, data=data)
        self.resume = resume
        self.is_latest = is_latest
        """Whether `open_run` is to take the result by default."""
        self.stages: dict[str, dict[str, Any]] = {}
        self.smallest = job.resolved.min_cluster_size
        """The minimum size, lowered to that of the second largest skeleton."""
        self.facts: dict[str, Any] = {}
        """What is known of the graph beside its summary."""
        self.warnings: list[str] = []
        """What a user should know beside what the result itself says."""

    def run(self) -> Run:
        """Return the result, if it is there; else run the stages, one after another."""
        with self.job.data.removed_when_done():
            check_unchanged(self.job.folder, self.job.data.source)
            finished = self.job.finished(self.is_latest) if self.resume else None
            return finished or self._run()

    def _run(self) -> Run:
        """Run the stages."""
        graph = self.graph(forget=not self.resume)
        extent = graph.points.extent()
        if extent <= 0:
            thresholds = Thresholds(0.0, 0.0, 0.0, 0.0, 0.0)
            n_points = self.job.resolved.n_points
            published = publish_one_cluster(self.engine, self.job.result, n_points)
        else:
            thresholds, settled = self.settle(graph, extent)
            spec = PublishSpec(settled, graph.graph_rows)
            published = publish(self.engine, self.job.result, spec)
        return self._finish(graph, thresholds, published)

    def settle(self, graph: Graph, extent: float) -> tuple[Thresholds, Folder]:
        """Cluster a graph of points that are not all the same, but do not publish.

        Returns what distances were measured with, and the folder that has the labels of points.
        """
        density = self._density(graph, extent)
        thresholds = self._thresholds(density, extent)
        return thresholds, self._cluster(graph, density, thresholds)

    def _stage(self, name: str, *depends_on: Any) -> Folder:
        """Return the folder of a stage, named by what it depends on."""
        folder = self.job.folder.child(f"{name}-{hash_of(FORMAT, *depends_on)}")
        self.stages[name] = {"name": folder.name}
        self.start_afresh(folder)
        return folder

    def start_afresh(self, folder: Folder) -> None:
        """Remove a stage that is not to be taken up, unless another result has kept it."""
        if not self.resume and folder.name not in kept_stages(self.job.folder, self.job.id):
            remove_stage(folder)

    def graph(self, *, forget: bool = False) -> Graph:
        """Return the graph to cluster: the one given, or one that is built now.

        If nothing speaks against it, an earlier result is forgotten where that is asked for.
        """
        if self.job.graph is not None:
            graph = self.check_graph(self.job.graph)
            if forget:
                self._check_room(self.plan.order_disk_nbytes + self.plan.labels_disk_nbytes)
                self._forget()
            return graph
        job, engine = self.job, self.engine
        is_new = not self.resume or check_start(job.folder, self.plan)
        was_there = is_done(scan_folder(job.folder, self.plan))
        plan, scanned, search = self._choose()
        later = plan.order_disk_nbytes + plan.labels_disk_nbytes
        check_disk(
            job.folder,
            plan,
            scanned,
            search,
            later_nbytes=later,
            afresh=not self.resume,
            is_new=is_new and not was_there,
        )
        if forget:
            self._forget()
        if was_there and not self.resume:
            self.start_afresh(scan_folder(job.folder, self.plan))
            plan, scanned, search = self._choose()
        for find in (graph_folder, points_folder):
            self.start_afresh(find(job.folder, plan, scanned, search))
        graph = search_graph(engine, job.folder, plan, scanned, search)
        graph.recall.warn_if_below(plan.options.recall_target, stacklevel=5)
        self.plan = plan
        names = graph.summary["scan"], graph.summary["points"], graph.name
        for stage, name in zip(("scan", "points", "graph"), names, strict=True):
            self.stages[stage] = {"name": name}
        return graph

    def _choose(self) -> tuple[FitPlan, Scan, str]:
        """Scan the source; return what that tells of the plan, and the way to search."""
        plan = self.plan
        scanned = scan_source(self.engine, self.job.folder, plan)
        search = self._find_search(plan, scanned)
        plan = plan.exact() if search in EXACT else plan
        if not self._few_fragments(plan, scanned, search):
            plan = plan.whole()
        return plan, scanned, search

    def _find_search(self, plan: FitPlan, scanned: Scan) -> str:
        """Return the way to search."""
        return choose_index(self.engine, plan, scanned)

    def _forget(self) -> None:
        """Remove an earlier result of the same call."""
        self.job.result.remove(SUMMARY)
        remove_stage(self.job.result)

    def check_graph(self, graph: Graph) -> Graph:
        """Refuse a graph that does not fit the source or the parameters."""
        needed_k, source, known = self.job.longest_k, self.job.data.source, graph.summary
        is_other = not source.is_copy and known["source"] != source.url  # with the same times
        if is_other or known.get("identity") != source.identity:
            raise InputError(
                f"The graph at {graph.path!r} was built from {known['source']!r} as it was then, "
                f"which is not what is now at {source.url!r}, or by an earlier version: build the "
                "graph of this source."
            )
        for name in ("metric", "scale"):
            if known[name] != getattr(self.job.options, name):
                raise ParameterError(
                    f"{name} is {getattr(self.job.options, name)!r}, but the graph at "
                    f"{graph.path!r} was built with {known[name]!r}: give the same."
                )
        n_points = graph.graph_rows.n_points
        if n_points != source.shape[0]:
            raise InputError(
                f"The graph at {graph.path!r} has {n_points} points, but the data has "
                f"{source.shape[0]} rows: build the graph of this data."
            )
        remember_source(self.job.folder, source)
        longest_k = int(graph.summary["longest_k"])
        if graph.k < self.job.head_k or longest_k < needed_k:
            raise ParameterError(
                f"The graph at {graph.path!r} has {graph.k} neighbours a row and {longest_k} for "
                f"points with copies, but these parameters need {self.job.head_k} and "
                f"{needed_k}: build one with k >= {needed_k}, or lower the neighbour counts or "
                "max_connectivity."
            )
        return graph

    def _few_fragments(self, plan: FitPlan, scanned: Scan, search: str) -> bool:
        """Tell whether to search for the neighbours of fragments in a second pass.

        An exact graph that is there will do, short or long. Approximate rows differ, so that only
        the pilot tells, with the default threshold: another one is no reason for another graph.
        """
        if plan.shape.k == plan.shape.longest_k:
            return False
        if search in EXACT:
            for found in (plan, plan.whole()):
                if is_done(graph_folder(self.job.folder, found, scanned, search)):
                    return found.shape.k == plan.shape.k
        params = self.job.resolved
        if search not in EXACT:
            params = dataclasses.replace(params, z=None, z_percentile=Params().z_percentile)
        pilot = functools.partial(cluster_sample, scanned, params)
        work = Work("pilot", pilot, [PILOT_POINTS], plan.memory()["driver"])
        folder = scanned.folder.child("pilot-" + hash_of(dataclasses.asdict(params)))
        share: float = run_work(self.engine, folder, work)[0]["share"]
        return share <= MOST_FRAGMENTS[search]

    def _density(self, graph: Graph, extent: float) -> Density:
        """Put the points in order."""
        params = self.job.resolved
        counts = params.density_neighbors, params.expansion_neighbors, params.k
        spec = DensitySpec(
            graph.points,
            graph.graph_rows,
            *counts,
            extent,
            self.plan.cache_nbytes,
            self.plan.memory()["density"],
        )
        folder = self._stage("density", graph.name, *counts)
        if not is_done(folder):
            order_nbytes = max(0, self.plan.order_disk_nbytes - folder.nbytes())
            self._check_room(order_nbytes + self.plan.labels_disk_nbytes)
        return rank_points(self.engine, folder, spec)

    def _check_room(self, nbytes: int) -> None:
        """Refuse a disk without room for what follows the graph."""
        refuse_disk(nbytes, disk_free(self.job.folder))

    def _thresholds(self, density: Density, extent: float) -> Thresholds:
        """Measure the distances."""
        params = self.job.resolved
        asked = []
        if density.reach_std > 0:
            asked += [params.z_percentile] if params.z is None else []
            asked += [params.max_z_percentile] if params.max_z is None else []
        found = dict(zip(asked, reach_percentiles(self.engine, density, asked), strict=True))
        return thresholds_of(
            params,
            extent,
            (density.reach_mean, density.reach_std),
            (density.start_mean, density.start_std),
            lambda q: found[q],
        )

    def _cluster(self, graph: Graph, density: Density, thresholds: Thresholds) -> Folder:
        """Grow skeletons and reassign fragments; return what has the labels."""
        CACHE.clear()
        params, rows = self.job.resolved, graph.graph_rows
        seeds = self._seeds(graph, density)
        limits = thresholds.z, thresholds.start_mean, thresholds.start_std, params.min_retained
        folder = self._stage("expand", density.folder.name, seeds.folder.name, *limits)
        if not is_done(folder):
            self._check_room(self.plan.labels_disk_nbytes)
        cache_nbytes = self.plan.coordinator_cache_nbytes
        growing = ExpandSpec(rows, seeds, params, thresholds, cache_nbytes)
        grown = expand(self.engine, folder, growing)
        smallest = smallest_final_size(np.array([n for n in grown["largest"] if n]), params)
        self.smallest = smallest
        n_large = count_clusters(folder, seeds.n_ranges, smallest)
        self.plan.check_clusters(n_large)
        large = large_clusters(folder, seeds.n_ranges, smallest, n_large)
        fragments = self._fragments(graph, density, folder, smallest, large["number"])
        kept = params.max_scr_rounds, params.reassignment_neighbors
        policy = params.post_reassignment_policy
        depends_on = fragments.folder.name, thresholds.max_z, *kept, policy
        settled = self._stage("reassign", *depends_on)
        voting = ReassignSpec(folder, fragments, large, params, thresholds, cache_nbytes)
        reassign(self.engine, settled, voting)
        return settled

    def _seeds(self, graph: Graph, density: Density) -> Order:
        """Return the order of the seeds."""
        params = self.job.resolved
        if params.seeding_order == "density":
            return density.order
        seed = params.seed if params.seeding_order == "random" else None
        folder = self._stage("seeds", graph.name, seed)
        return order_seeds(self.engine, folder, graph.graph_rows, seed)

    def _fragments(
        self,
        graph: Graph,
        density: Density,
        skeletons: Folder,
        smallest: int,
        large: NDArray[np.int64],
    ) -> Fragments:
        """Return the rows of the fragments, if there is to be a vote."""
        params, rows = self.job.resolved, graph.graph_rows
        folder = self._stage("fragments", skeletons.name, params.k, smallest)
        if params.max_scr_rounds == 0 or not len(large):
            del self.stages["fragments"]  # of which nothing is written
            none = np.zeros(0, np.int64)
            return Fragments(folder, rows.n_points, params.k, rows.dtype, none)
        spec = FragmentSpec(
            graph.points,
            rows,
            graph.summary["search"],
            graph.summary["found"].get("n_probes", 0),
            self.plan.shape,
            density.order,
            skeletons,
            params.k,
            self.plan.cache_nbytes,
            self.plan.memory()["fragments"],
        )
        return gather_fragments(self.engine, folder, spec, large)

    def _finish(self, graph: Graph, thresholds: Thresholds, published: Receipt) -> Run:
        """Write the summary, which makes the run complete."""
        job = self.job
        graph = Graph(graph.path, graph.name)  # read once more: nothing may be claimed without it
        self.stages["publish"] = {"name": job.result.name}
        for stage in self.stages.values():
            folder = job.folder.child(stage["name"])
            facts = folder.read_json(MARKER) or {}
            stage |= {name: fact for name, fact in facts.items() if np.isscalar(fact)}
            stage["nbytes"] = folder.nbytes()
        summary = {
            "n_points": job.resolved.n_points,
            "n_columns": job.data.source.shape[1],
            **{name: published[name] for name in ("n_clusters", "n_noise", "n_skeleton")},
            "asked": dataclasses.asdict(job.params) | dataclasses.asdict(job.options),
            "params": dataclasses.asdict(job.resolved),
            "thresholds": dataclasses.asdict(thresholds),
            "recall": dataclasses.asdict(graph.recall),
            "graph": [None if graph.path == job.folder.url else graph.path, graph.name],
            "graph_given": job.graph is not None,
            "source": job.data.source.url,
            "identity": job.data.source.identity,
            "memory_limit": self.plan.memory_limit,
            "peak_nbytes": self.engine.peaks(),
            "keep": job.keep,
            "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "versions": _versions(),
            "stages": self.stages,
            "warnings": [*self.warnings, *self._data_warnings(graph, published)],
        }
        job.data.source.confirm()
        job.result.write_json(SUMMARY, summary)
        if self.is_latest:
            job.folder.write_json(POINTER, {"id": job.id})
        run = Run(job.folder.url, job.id)
        clean(run, job.keep)
        return run

    def _data_warnings(self, graph: Graph, published: Receipt) -> list[str]:
        """Return what the data and the parameters give reason to warn of."""
        job, options = self.job, self.job.options
        scanned = Folder(graph.path).child(graph.summary["scan"]).read_json(MARKER) or {}
        noise = published["n_noise"] / job.resolved.n_points
        is_scaled = options.scale is not None or options.metric == "cosine"
        facts = scanned | self.facts
        return data_warnings(job.params, job.resolved, self.smallest, noise, facts, is_scaled)


@functools.cache
def _versions() -> dict[str, str]:
    """Return the versions of what made a result."""
    own = {"spore-dask": spore_dask.__version__, "python": platform.python_version()}
    return own | {name: importlib.metadata.version(name) for name in LIBRARIES}
