"""`fit`, the call that most users begin with: it chooses the parameters, and clusters.

Reads and writes what `fitting` and `tuning` do, and has their memory bounds.
"""

from __future__ import annotations

import os
from typing import Any

from spore_dask.fitting import Fit
from spore_dask.graph import Graph
from spore_dask.jobs import find_job, place_of_run
from spore_dask.opening import find_done, opened
from spore_dask.params import one_of
from spore_dask.runs import Run, warn_of
from spore_dask.spaces import is_open
from spore_dask.tuning import tune

PARAMS = one_of("auto", "paper")


def fit(
    source: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    graph: Graph | Run | str | os.PathLike[str] | None = None,
    resume: bool = True,
    component: str | None = None,
    knn: str = "auto",
    knn_index: str | None = None,
    recall_target: float = 0.97,
    n_partitions: int | None = None,
    metric: str = "euclidean",
    scale: str | None = None,
    memory_limit: int | str | None = None,
    cache_limit: int | str | None = None,
    client: Any = None,
    n_workers: int | None = None,
    seed: int = 42,
    progress: Any = None,
    keep: str = "predict",
    params: str = "auto",
    n_trials: int = 31,
    detail: str = "auto",
    **given: Any,
) -> Run:
    """Cluster data of any size.

    Parameters that are not given are chosen: many configurations are compared, over one neighbour
    graph or on excerpts of large data, and the one whose result the others agree with most is
    kept. `run.choice` has the choice, and how sure it is.

    Parameters
    ----------
    source : path, URL, zarr.Array, dask array or DataFrame, xarray.DataArray or array (N, D)
    out : path or URL, optional
        Folder of the run. Default: beside the source (`x.zarr` to `x.spore`); for data in memory
        a temporary folder that goes with the `Run`. The same call again continues what was begun,
        or finds it done; other parameters share what they can, and old results stay.
    graph : Graph, Run or path, optional
        An earlier graph of the same source, or a run that has one: nothing is searched again.
    resume : bool
        Whether to take up what an earlier call with the same arguments has left.
    component, knn, knn_index, recall_target, n_partitions, metric, scale, memory_limit, client, \
n_workers, seed, progress
        As in `build_graph`.
    cache_limit : int or str, optional
        What the coordinator's cache of neighbour rows may take. Default: what `memory_limit`
        leaves.
    keep : {"predict", "labels", "all"}
        What stays on disk: what predictions and fits with other parameters start from, only the
        result, or every stage. What other results in `out` have kept stays.
    params : {"auto", "paper"}
        "auto" chooses the parameters that are not given, as `tune` does. "paper" takes the
        defaults of the paper for them, in one pass.
    n_trials : int
        How many configurations "auto" draws.
    detail : {"auto", "coarse", "fine"}
        Which of the stable levels "auto" takes: see `tune`.
    **given
        The fields of `Params`, which are held fixed.

    Returns
    -------
    Run
    """
    PARAMS.check("params", params)
    given = {name: value for name, value in given.items() if value is not None}
    options = {
        "component": component,
        "graph": graph,
        "knn": knn,
        "knn_index": knn_index,
        "recall_target": recall_target,
        "n_partitions": n_partitions,
        "metric": metric,
        "scale": scale,
        "seed": seed,
        "keep": keep,
        "cache_limit": cache_limit,
        **given,
    }
    where: dict[str, Any] = {
        "memory_limit": memory_limit,
        "client": client,
        "n_workers": n_workers,
        "progress": progress,
    }
    if params == "auto" and is_open(given):
        where |= {"n_trials": n_trials, "detail": detail, "resume": resume}
        return tune(source, out, **where, **options).run
    with place_of_run(source, out) as (place, keep_place):
        job = find_job(source, place, **options)
        name = f"fit-{job.id}"
        run = find_done(job.folder, name, job.data, job.finished) if resume else None
        if run is None:
            where["reads"] = job.reads
            with opened(job.folder, name, job.plan, **where) as (engine, plan):
                run = Fit(engine, job, plan, resume).run()
        keep_place(run)
    warn_of(run, stacklevel=2)
    return run
