"""The neighbour graph of data larger than memory: `build_graph` and `Graph`.

Reads a source, writes a run's folder: what was scanned, the points in partitions, and the graph.
Each is named by a hash of what it depends on, so that the same call continues, and another one
writes beside. Memory of this process: the sample; of each worker: see `memory`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from spore_dask.engine import Engine
from spore_dask.errors import InputError, LimitError
from spore_dask.inputs import find_input, remembered
from spore_dask.memory import Shape
from spore_dask.opening import opened
from spore_dask.pilot import CELLS, EXACT, PRODUCTS, PYNNDESCENT, choose_search, compared_by_cells
from spore_dask.plan import (
    FEW_COLUMNS,
    Options,
    Plan,
    PlanType,
    disk_free,
    make_plan,
    refuse_disk,
)
from spore_dask.points import BOXES, MEANS, Points
from spore_dask.recall import CERTIFIED, Recall
from spore_dask.shards import GraphRows
from spore_dask.stages.approximate import ApproximateSpec, search_approximately
from spore_dask.stages.neighbors import NeighborSpec, search_exactly
from spore_dask.stages.partition import PartitionSpec, partition
from spore_dask.stages.scan import Scan, ScanSpec, scan
from spore_dask.store import Folder, address, hash_of, our_folders
from spore_dask.tasks import MARKER, Work, is_done, run_work

FORMAT = 9
"""Version of what is written; another one is another run."""
POINTER = "graph.json"
"""Names the graph that was finished last, and in its folder says what it is."""


class Graph:
    """A finished neighbour graph on disk, opened by its path.

    Parameters
    ----------
    path : str
        The `out` of `build_graph`.
    name : str, optional
        Which of the graphs there; the one finished last by default.
    """

    def __init__(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        folder = Folder(address(path))
        name = name or (folder.read_json(POINTER) or {}).get("name", "")
        summary = folder.child(name).read_json(POINTER) if name else None
        if summary is None:
            raise InputError(
                f"There is no finished graph at {folder.url!r}: build one with "
                "spore_dask.build_graph(source, out)."
            )
        self.path = folder.url
        self.name: str = name
        self.summary: dict[str, Any] = summary
        self._folder = folder.child(name)

    @property
    def n_points(self) -> int:
        """Number of points."""
        return int(self.summary["n_points"])

    @property
    def k(self) -> int:
        """Neighbours of each point."""
        return int(self.summary["k"])

    @property
    def neighbors(self) -> zarr.Array[Any]:
        """Zarr array (N, k + 1): each point's number, then those of its nearest others."""
        return self._folder.open_array("neighbors")

    @property
    def distances(self) -> zarr.Array[Any]:
        """Zarr array (N, k + 1): the distances, in the working dtype."""
        return self._folder.open_array("distances")

    @property
    def rows(self) -> zarr.Array[Any]:
        """Zarr array (N,): the input row of each point."""
        return self._folder.open_array("rows")

    @functools.cached_property
    def graph_rows(self) -> GraphRows:
        """The rows on disk, with the longer ones of points that have copies."""
        return GraphRows.from_summary(self._folder, self.summary)

    @property
    def shape(self) -> Shape:
        """The sizes of its parts."""
        points = self.points
        return Shape(
            n_points=self.n_points,
            n_columns=points.n_columns,
            itemsize=np.dtype(points.dtype).itemsize,
            k=self.k,
            longest_k=int(self.summary["longest_k"]),
            n_partitions=points.n_partitions,
            shard_rows=int(self.summary["shard_rows"]),
        )

    @property
    def points(self) -> Points:
        """The points on disk, in partitions."""
        folder = Folder(self.path).child(self.summary["points"])
        summary = folder.read_json(MARKER)
        if summary is None:
            raise InputError(
                f"The points of the graph at {self.path!r} are no longer there: build it again."
            )
        points = Points.from_summary(folder, summary)
        if (points.n_points, points.dtype) != (self.n_points, self.graph_rows.dtype):
            why = f"it has {points.n_points} points of {points.dtype}, its graph {self.n_points}"
            raise folder.damaged("document", MARKER, why)
        return points

    @property
    def recall(self) -> Recall:
        """How much of the true neighbours it has."""
        return Recall(**self.summary["recall"])

    def to_memory(self) -> tuple[NDArray[Any], NDArray[np.floating]]:
        """Return neighbours and distances in the order and numbering of the input's rows.

        Takes the memory of the graph, and of its input rows.
        """
        graph = self.graph_rows
        rows = graph.array("rows").read(0, graph.n_points)
        if (np.bincount(rows, minlength=graph.n_points) != 1).any():
            raise graph.folder.damaged("array", "rows", "a row is in it twice")
        arrays = graph.array("neighbors"), graph.array("distances")
        size = graph.n_points, graph.k + 1
        neighbors, distances = (np.empty(size, array.dtype) for array in arrays)
        for first, last in map(graph.span, range(graph.n_shards)):
            here = rows[first:last]
            neighbors[here] = rows[arrays[0].read(first, last)]
            distances[here] = arrays[1].read(first, last)
        return neighbors, distances

    def __repr__(self) -> str:
        return f"<Graph of {self.n_points} points, k = {self.k}, {self.recall}, at {self.path!r}>"


def plan_graph(
    source: Any,
    out: str | os.PathLike[str],
    k: int | None = None,
    *,
    component: str | None = None,
    memory_limit: int | str | None = None,
    client: Any = None,
    n_workers: int | None = None,
    progress: Any = None,
    **options: Any,
) -> Plan:
    """Say what `build_graph` would need with the same arguments: print the result.

    Connects to nothing: with a `client`, give the `memory_limit` of its workers.
    """
    folder = Folder(address(out))
    data = find_input(source, component, folder)
    return room_for_plan(
        folder, make_plan(data, folder, Options(k, **options), memory_limit, n_workers, Plan)
    )


def build_graph(
    source: Any,
    out: str | os.PathLike[str],
    k: int | None = None,
    *,
    component: str | None = None,
    knn: str = "auto",
    knn_index: str | None = None,
    recall_target: float = 0.97,
    n_partitions: int | None = None,
    metric: str = "euclidean",
    scale: str | None = None,
    memory_limit: int | str | None = None,
    client: Any = None,
    n_workers: int | None = None,
    seed: int = 42,
    progress: Any = None,
) -> Graph:
    """Build the k-nearest-neighbour graph of data of any size.

    Parameters
    ----------
    source : path, URL, zarr.Array, dask array or DataFrame, xarray.DataArray or array (N, D)
    out : path or URL
        Folder of the run. The same call again continues what was begun, or finds it done.
    k : int, optional
        Neighbours of each point. Default: what SPORE's default parameters need.
    component : str, optional
        Path of the array in the Zarr group at `source`.
    knn : {"auto", "exact", "approximate"}
        "auto" is exact wherever bounds prune well enough.
    knn_index : {"cells", "pynndescent"}, optional
        Index of an approximate search. Default: cells.
    recall_target : float
        Share of the true neighbours that an approximate search aims for.
    n_partitions : int, optional
        Parts that the points are shared out among. Default: by their number and size.
    metric : {"euclidean", "cosine"}
        Distance between points; "cosine" compares their directions.
    scale : {None, "clip-minmax", "standard"}
        What is done to each column first. Default: nothing.
    memory_limit : int or str, optional
        What each process may use, such as "1GiB". Default: a fair share of what
        this machine, or the control group, has.
    client : distributed.Client or str, optional
        A Dask cluster, or its scheduler's address. Default: local processes.
    n_workers : int, optional
        Local processes; 0 runs everything in this one. Default: one a processor.
    seed : int
        Seed of the sample, and of an approximate search.
    progress : optional
        True or "bar", "log", a pathlib.Path for a file, a function of one event, or a list.

    Returns
    -------
    Graph
    """
    return build_with(
        Options(k, knn, knn_index, recall_target, n_partitions, metric, scale, seed),
        source,
        out,
        component=component,
        memory_limit=memory_limit,
        client=client,
        n_workers=n_workers,
        progress=progress,
    )


def build_with(
    options: Options,
    source: Any,
    out: str | os.PathLike[str],
    *,
    component: str | None = None,
    memory_limit: int | str | None = None,
    client: Any = None,
    n_workers: int | None = None,
    progress: Any = None,
) -> Graph:
    """Build a graph like `build_graph`, with any options."""
    folder = Folder(address(out))
    data = find_input(source, component, folder)

    def plan(memory_limit: Any, n_workers: int | None) -> Plan:
        plan = make_plan(data, folder, options, memory_limit, n_workers, Plan)
        return room_for_plan(folder, plan)

    with opened(
        folder,
        "graph",
        plan,
        memory_limit=memory_limit,
        client=client,
        n_workers=n_workers,
        progress=progress,
    ) as (engine, made):
        return Graph(folder.url, _build(engine, folder, made))


def _build(engine: Engine, folder: Folder, plan: Plan) -> str:
    """Run the stages; return the name of the graph."""
    plan = dataclasses.replace(plan, data=plan.data.known(engine, plan.memory()["scan"]))
    with plan.data.removed_when_done():
        is_new = check_start(folder, plan)
        scanned = scan_source(engine, folder, plan)
        search = choose_index(engine, plan, scanned)
        plan = plan.exact() if search in EXACT else plan
        check_disk(folder, plan, scanned, search, is_new=is_new)
        graph = search_graph(engine, folder, plan, scanned, search)
    plan.data.source.confirm()
    folder.write_json(POINTER, {"name": graph.name})
    graph.recall.warn_if_below(plan.options.recall_target, stacklevel=4)
    return graph.name


def points_folder(folder: Folder, plan: Plan, scanned: Scan, search: str) -> Folder:
    """Return where the points for a way to search are."""
    kind, shape = (BOXES if search in EXACT else MEANS), plan.shape
    known = scanned.folder.name, scanned.checksum, kind, shape.n_partitions, shape.longest_k
    return folder.child("points-" + hash_of(*known))


def graph_folder(folder: Folder, plan: Plan, scanned: Scan, search: str) -> Folder:
    """Return where a graph is."""
    target = None if search in EXACT else plan.options.recall_target
    points = points_folder(folder, plan, scanned, search).name
    return folder.child("graph-" + hash_of(points, search, plan.shape.k, target))


def has_graph(folder: Folder, plan: Plan, scanned: Scan, search: str) -> bool:
    """Tell whether a graph is finished, and its points are there."""
    points = points_folder(folder, plan, scanned, search)
    return is_done(points) and graph_folder(folder, plan, scanned, search).exists(POINTER)


def room_for_plan(folder: Folder, plan: PlanType) -> PlanType:
    """Return a plan; refuse it if the disk has no room, unless there are stages to take up.

    If so, `check_disk` tells when it is known which. What a dask array is, and whether it was met
    before, is known when it has been computed and written.
    """
    is_new = not any(name.startswith("scan-") for name in our_folders(folder))
    if not plan.data.is_computed or is_new:
        check_start(folder, plan)
    else:
        refuse_disk(plan.copied_nbytes, disk_free(folder))
    return plan


def check_start(folder: Folder, plan: Plan) -> bool:
    """Refuse a disk without room for the whole run, if there is nothing of it that may count.

    Returns whether its scan is still to be made.
    """
    scanned = scan_folder(folder, plan)
    if is_done(scanned):
        return False
    graphs = (name for name in our_folders(folder) if name.startswith("graph-"))
    known = (folder.child(name).read_json(POINTER) or {} for name in graphs)
    if not any(graph.get("scan") == scanned.name for graph in known):
        copied = plan.data.folder.nbytes() if plan.data.content is not None else 0
        refuse_disk(plan.disk_nbytes - copied, disk_free(folder))
    return True


def check_disk(
    folder: Folder,
    plan: Plan,
    scanned: Scan,
    search: str,
    *,
    later_nbytes: int = 0,
    afresh: bool = False,
    is_new: bool = False,
) -> None:
    """Refuse a disk without room for what is still to be written of a graph, and later.

    What is there counts; if all is made afresh, it is removed first. A scan that is new, and was
    made only to find that there is no room, goes.
    """
    free = disk_free(folder)
    if free is None or (has_graph(folder, plan, scanned, search) and not afresh):
        return
    graph = graph_folder(folder, plan, scanned, search)
    points = points_folder(folder, plan, scanned, search)
    if is_done(points) and not afresh:
        needed = plan.search_disk_nbytes - graph.nbytes()
    else:
        found = [scanned.folder, points, *([graph] if afresh else [])]
        found += [plan.data.folder] if plan.data.content is not None else []
        needed = plan.graph_disk_nbytes - sum(stage.nbytes() for stage in found)
    try:
        refuse_disk(max(0, needed) + later_nbytes, free)
    except LimitError:
        if is_new:
            scanned.folder.remove()
        raise


def search_graph(engine: Engine, folder: Folder, plan: Plan, scanned: Scan, search: str) -> Graph:
    """Share out the points and search for their neighbours, unless that is done."""
    target = graph_folder(folder, plan, scanned, search)
    if not has_graph(folder, plan, scanned, search):
        points = _partition(engine, folder, plan, scanned, search)
        plan.data.remove()
        if search in EXACT:
            found = search_exactly(engine, target, _neighbor_spec(plan, points, search))
            recall = CERTIFIED
        else:
            found = search_approximately(engine, target, _approximate_spec(plan, points, search))
            recall = Recall(certified=0.0, sampled=found["recall"], error=found["error"])
        summary = {
            "n_points": plan.shape.n_points,
            "k": plan.shape.k,
            "longest_k": plan.shape.longest_k,
            "n_longer": found["n_longer"],
            "shard_rows": plan.shape.shard_rows,
            "dtype": points.dtype,
            "points": points.folder.name,
            "scan": scanned.folder.name,
            "source": plan.data.source.url,
            "identity": plan.data.source.identity,
            "metric": plan.options.metric,
            "scale": plan.options.scale,
            "search": search,
            "found": found,
            "recall": dataclasses.asdict(recall),
            "peak_nbytes": engine.peaks(),
        }
        plan.data.source.confirm()
        target.write_json(POINTER, summary)
    return Graph(folder.url, target.name)


def _neighbor_spec(plan: Plan, points: Points, search: str) -> NeighborSpec:
    needs = plan.memory()["neighbors"]
    return NeighborSpec(points, plan.shape, search == PRODUCTS, plan.cache_nbytes, needs)


def _approximate_spec(plan: Plan, points: Points, search: str) -> ApproximateSpec:
    return ApproximateSpec(
        points=points,
        shape=plan.shape,
        by_descent=search == PYNNDESCENT,
        recall_target=plan.options.recall_target,
        seed=plan.options.seed,
        cache_nbytes=plan.cache_nbytes,
        needs_nbytes=plan.memory()["neighbors"],
    )


def scan_source(engine: Engine, folder: Folder, plan: Plan) -> Scan:
    """Read and check the source; of one that is refused, nothing stays."""
    target = scan_folder(folder, plan)
    with remembered(folder, plan.data.source):
        if not is_done(target):
            plan.data.write(engine, plan.memory()["scan"])
        try:
            return scan(engine, target, _scan_spec(plan))
        except InputError:
            target.remove()
            raise


def scan_folder(folder: Folder, plan: Plan) -> Folder:
    """Return where the scan of a source is."""
    spec = dataclasses.asdict(dataclasses.replace(_scan_spec(plan), needs_nbytes=0))
    del spec["learned"]  # nothing, in a fit
    return folder.child("scan-" + hash_of(FORMAT, spec))


def _scan_spec(plan: Plan) -> ScanSpec:
    options = plan.options
    return ScanSpec(
        source=plan.data.source,
        rows_per_task=plan.input_shape.rows_per_task,
        sample_size=plan.input_shape.sample_size,
        scale=options.scale,
        metric=options.metric,
        seed=options.seed,
        needs_nbytes=plan.memory()["scan"],
    )


def settled_index(plan: Plan) -> str | None:
    """Return the way to search, unless it depends on the data."""
    if plan.options.knn_index == "pynndescent":
        return PYNNDESCENT
    return CELLS if plan.shape.n_columns <= FEW_COLUMNS else None


def choose_index(engine: Engine, plan: Plan, scanned: Scan) -> str:
    """Return the way to search; where it depends on the data, a pilot on the sample tells."""
    options, shape = plan.options, plan.shape
    settled = settled_index(plan)
    if settled is not None:
        return settled
    pilot = functools.partial(_pilot, scanned, shape.n_points, options.knn)
    work = Work("pilot", pilot, [shape.k], plan.memory()["driver"])
    folder = scanned.folder.child(f"pilot-{options.knn}-{shape.k}")
    compared = run_work(engine, folder, work)[0]["compared"]
    return choose_search(options.knn, compared, shape.n_points, shape.n_columns)


def _pilot(scanned: Scan, n_points: int, knn: str, k: int) -> dict[str, Any]:
    """Count what an exact search would compare."""
    sample = scanned.sample()
    return {"compared": compared_by_cells(sample, min(k, len(sample) - 1), n_points, knn)}


def _partition(engine: Engine, folder: Folder, plan: Plan, scanned: Scan, search: str) -> Points:
    """Share out the points among partitions."""
    kind, needs = (BOXES if search in EXACT else MEANS), plan.memory()
    spec = PartitionSpec(
        source=plan.data.source,
        rows_per_task=plan.input_shape.rows_per_task,
        transform=scanned.transform,
        shape=plan.shape,
        kind=kind,
        seed=plan.options.seed,
        exchange_nbytes=needs["exchange"],
        gather_nbytes=needs["partition"],
    )
    target = points_folder(folder, plan, scanned, search)
    if not is_done(target):
        plan.data.write(engine, needs["scan"])
    return partition(engine, target, spec, scanned.sample(), scanned.checksums)
