"""`SPORE`, a scikit-learn clusterer, in memory or out of core.

Reads an array, leaves its results in attributes. Memory for an array in memory: the neighbour
graph, 8 or 12 bytes for each of N * (K + 1) entries, two copies of the data, and 100 bytes a point;
for a source on disk, or with options of `fit`: that of `fit`, and the labels. What stays in memory
for predictions: the working coordinates, and from the first one on a second time in cells.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from spore_dask.api import PARAMS, fit
from spore_dask.clustering import Clustering, GraphInMemory
from spore_dask.clusters import NOISE
from spore_dask.comparing import (
    Comparison,
    choose_in_memory,
    compare,
    longest_rows,
)
from spore_dask.coordinates import check_options, learn_coordinates, refuse_masked
from spore_dask.errors import DataWarning
from spore_dask.excerpts import Asked, best_finalist, choose_from, finalists
from spore_dask.inputs import is_lazy
from spore_dask.kernels.reassign import gates_of
from spore_dask.memory import excerpt_points, shape_of
from spore_dask.params import Params, ResolvedParams
from spore_dask.plan import RECALL, working_itemsize
from spore_dask.predicting import predict
from spore_dask.recall import Recall
from spore_dask.reference import N_TRIALS
from spore_dask.runs import Run
from spore_dask.search import KNN, neighbor_rows
from spore_dask.spaces import Trial, is_open
from spore_dask.stages.scan import sample_facts
from spore_dask.telling import data_warnings
from spore_dask.tuning import DETAIL, TRIALS
from spore_dask.voting import Voters

OUT_OF_CORE = (
    "out",
    "graph",
    "component",
    "knn_index",
    "n_partitions",
    "memory_limit",
    "cache_limit",
    "client",
    "n_workers",
    "progress",
)
"""Options that ask for a run on disk."""


class SPORE(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Cluster by growing skeletons over a nearest-neighbour graph, densest seeds first.

    Parameters of the algorithm that are not given are chosen, as `spore_dask.fit` does.

    Parameters
    ----------
    params : {"auto", "paper"}, default "auto"
        "auto" chooses the parameters that are not given: many configurations are compared over one
        neighbour graph. "paper" takes the defaults of the paper for them, which are named below.
    n_trials : int, default 31
        How many configurations "auto" draws.
    detail : {"auto", "coarse", "fine"}, default "auto"
        Which of the stable levels "auto" takes, from few large clusters to many small ones.
    min_cluster_size : float or int, optional
        In [0, 1) an exponent, M = floor(N**value); from 1 on a count M. Smaller clusters are
        fragments, which their neighbours vote into the larger ones. Default: 0.45.
    density_neighbors : int, optional
        Rank of the neighbour whose distance gives the density order.
        Default: half of `expansion_neighbors` if that is given, else min(M, log2 N).
    expansion_neighbors : int, optional
        Neighbours that an expanding point looks at. Default: min(M, 2 * density_neighbors).
    reassignment_neighbors : int, optional
        Neighbours that vote on a fragment. Default: min(M, 2 * expansion_neighbors).
    max_connectivity : int, optional
        Upper limit of the three counts above. Default: N - 1.
    min_connectivity : int, optional
        Lower limit of the number of neighbours in the graph. Default: 1.
    retention_rate : float in [0, 1], optional
        Share of `expansion_neighbors` that must survive for a point to expand; the higher, the
        thinner the skeletons. Wins over `min_retained`.
    min_retained : int, optional
        Survivors that a point needs to expand. Default: 1.
    z_percentile : float in [0, 100], optional
        Expansion threshold; the lower, the more readily clusters part. Default: 50.
    z : float, optional
        Expansion threshold in deviations. Wins over `z_percentile`.
    max_z_percentile : float in [0, 100], optional
        How far from a cluster's own density a fragment may be and still join it. Default: 100.
    max_z : float, optional
        The same in deviations. Wins over `max_z_percentile`.
    max_scr_rounds : int, optional
        Rounds of reassignment at most. Default: 10.
    seeding_order : {"density", "random", "none"}, optional
        Order in which clusters are seeded. Default: "density".
    post_reassignment_policy : {"noise", "none"}, optional
        Whether clusters that stay smaller than M become noise or are kept. Default: "noise".
    knn : {"auto", "exact", "approximate"}, default "auto"
        Neighbour search; "auto" is exact wherever that is cheap enough.
    metric : {"euclidean", "cosine"}, default "euclidean"
        "cosine" measures chords between the rows scaled to length 1.
    scale : {None, "clip-minmax", "standard"}, default None
        "clip-minmax" clips columns to their mean +- 6 deviations and maps them to [0, 1];
        "standard" gives them mean 0 and deviation 1.
    seed : int, default 42
        Seed of the "random" seeding order and of the approximate search.
    recall_target : float, default 0.97
        Share of the true neighbours that an approximate search aims for.
    out : path or URL, optional
        Folder of a run on disk. This and the following options are those of `spore_dask.fit`: an
        array is clustered in memory unless one of them is given (`resume` and `keep` aside); any
        other source goes the way of `fit`.
    graph : Graph, Run or path, optional
        An earlier graph of the same source.
    resume : bool, default True
        Whether to take up what an earlier call has left.
    component : str, optional
        Path of the array in the Zarr group at the source.
    knn_index : {"cells", "pynndescent"}, optional
        Index of an approximate search.
    n_partitions : int, optional
        Parts that the points are shared out among.
    memory_limit : int or str, optional
        What each process may use, such as "1GiB".
    cache_limit : int or str, optional
        What the coordinator's cache of neighbour rows may take.
    client : distributed.Client or str, optional
        A Dask cluster, or its scheduler's address.
    n_workers : int, optional
        Local processes; 0 runs everything in this one.
    progress : optional
        True or "bar", "log", a pathlib.Path for a file, a function of one event, or a list.
    keep : {"predict", "labels", "all"}, default "predict"
        What stays on disk.

    Attributes
    ----------
    labels_ : int32 array (N,)
        Clusters 0, 1, ... in the order in which they were seeded; -1 is noise.
    provenance_ : int16 array (N,)
        How each point got its label: 0 in Expansion (the skeletons), r in round r of
        reassignment, -1 noise.
    n_clusters_ : int
    clusters_ : structured array (n_clusters_,)
        Fields `size`, `skeleton_size`, `mean` and `std` (of the distances that the cluster
        admitted), `seed_row`.
    thresholds_ : Thresholds
        `extent`, `z`, `max_z` and the statistics that clusters start with.
    params_ : ResolvedParams
        The counts that the parameters came to.
    choice_ : dict or None
        How the parameters were chosen, as in `Run.choice`; None where all were given.
    exact_ : bool
        Whether the neighbour search was exact.
    recall_ : Recall
        What share of the true neighbours it found: `certified`, `sampled` and its `error`.
    run_ : Run
        What `fit` has left on disk; None for a clustering in memory.
    n_features_in_ : int
    """

    def __init__(
        self,
        *,
        params: str = "auto",
        n_trials: int = N_TRIALS,
        detail: str = "auto",
        min_cluster_size: float | None = None,
        density_neighbors: int | None = None,
        expansion_neighbors: int | None = None,
        reassignment_neighbors: int | None = None,
        max_connectivity: int | None = None,
        min_connectivity: int | None = None,
        retention_rate: float | None = None,
        min_retained: int | None = None,
        z_percentile: float | None = None,
        z: float | None = None,
        max_z_percentile: float | None = None,
        max_z: float | None = None,
        max_scr_rounds: int | None = None,
        seeding_order: str | None = None,
        post_reassignment_policy: str | None = None,
        knn: str = "auto",
        metric: str = "euclidean",
        scale: str | None = None,
        seed: int = 42,
        recall_target: float = 0.97,
        out: Any = None,
        graph: Any = None,
        resume: bool = True,
        component: str | None = None,
        knn_index: str | None = None,
        n_partitions: int | None = None,
        memory_limit: int | str | None = None,
        cache_limit: int | str | None = None,
        client: Any = None,
        n_workers: int | None = None,
        progress: Any = None,
        keep: str = "predict",
    ) -> None:
        self.params = params
        self.n_trials = n_trials
        self.detail = detail
        self.min_cluster_size = min_cluster_size
        self.density_neighbors = density_neighbors
        self.expansion_neighbors = expansion_neighbors
        self.reassignment_neighbors = reassignment_neighbors
        self.max_connectivity = max_connectivity
        self.min_connectivity = min_connectivity
        self.retention_rate = retention_rate
        self.min_retained = min_retained
        self.z_percentile = z_percentile
        self.z = z
        self.max_z_percentile = max_z_percentile
        self.max_z = max_z
        self.max_scr_rounds = max_scr_rounds
        self.seeding_order = seeding_order
        self.post_reassignment_policy = post_reassignment_policy
        self.knn = knn
        self.metric = metric
        self.scale = scale
        self.seed = seed
        self.recall_target = recall_target
        self.out = out
        self.graph = graph
        self.resume = resume
        self.component = component
        self.knn_index = knn_index
        self.n_partitions = n_partitions
        self.memory_limit = memory_limit
        self.cache_limit = cache_limit
        self.client = client
        self.n_workers = n_workers
        self.progress = progress
        self.keep = keep

    def fit(self, X: Any, y: Any = None) -> Self:
        """Cluster the rows of `X`; `y` is ignored.

        `X` is an array (N, D) of finite numbers, N >= 2, or any source of `spore_dask.fit`.
        """
        given = [name for name in OUT_OF_CORE if getattr(self, name) is not None]
        if given or isinstance(X, str | os.PathLike) or is_lazy(X):
            return self._fit_run(X)
        return self._fit_array(X)

    def _fit_run(self, X: Any) -> Self:
        """Cluster a source of any size."""
        names = inspect.signature(fit).parameters.keys() & self.get_params().keys()
        names |= {field.name for field in dataclasses.fields(Params)}
        run = fit(X, **{name: getattr(self, name) for name in names})
        self.run_: Run | None = run
        self.labels_ = np.asarray(run.labels[...])
        self.provenance_ = np.asarray(run.provenance[...])
        self.clusters_ = run.clusters
        self.n_clusters_ = run.n_clusters
        self.thresholds_ = run.thresholds
        self.params_ = ResolvedParams(**run.summary["params"])
        self.choice_ = run.choice
        self.recall_ = Recall(**run.summary["recall"])
        self.exact_ = self.recall_.certified == 1
        self.n_features_in_ = int(run.summary["n_columns"])
        return self

    def _fit_array(self, X: ArrayLike) -> Self:
        """Cluster an array in memory."""
        names = [field.name for field in dataclasses.fields(Params)]
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        asked = Params(**given)
        PARAMS.check("params", self.params)
        TRIALS.check("n_trials", self.n_trials)
        DETAIL.check("detail", self.detail)
        KNN.check("knn", self.knn)
        RECALL.check("recall_target", self.recall_target)
        check_options(self.scale, self.metric)
        refuse_masked(X)
        data = validate_data(
            self, X, dtype="numeric", ensure_all_finite=False, ensure_min_samples=2
        )
        points, self._learned = learn_coordinates(data, self.scale, self.metric)
        compared = None
        if self.params == "auto" and is_open(given):
            fixed = {name: value for name, value in given.items() if name != "seed"}
            compared = compare(points.shape, fixed, self.seed, n_trials=self.n_trials)
        self.choice_ = None
        facts, tried, numbers = sample_facts(data), [Trial(asked, 1.0)], [0]
        on_excerpts = compared and self._asked_of_excerpts(data, points, compared)
        if compared is not None:
            tried = list(compared.trials)
        if on_excerpts:
            excerpt, chosen = choose_from(points, on_excerpts, self.detail)
            numbers = finalists(on_excerpts, excerpt, chosen)
            tried = [tried[number] for number in numbers]
        k = longest_rows(tried, len(points))
        rows = neighbor_rows(points, k, self.knn, self.seed, self.recall_target)
        rows.recall.warn_if_below(self.recall_target, stacklevel=3)
        graph = GraphInMemory(rows.neighbors, rows.distances, points)
        if on_excerpts and len(numbers) > 1:
            labels = [
                graph.cluster(one.params.resolve(len(points))).labels[excerpt.rows] for one in tried
            ]
            best = best_finalist(on_excerpts, excerpt, numbers, labels)
            chosen = dataclasses.replace(chosen, best=best)
        if compared is not None:
            if on_excerpts:
                facts["n_pieces"] = excerpt.n_pieces
            else:
                chosen = choose_in_memory(graph, compared, self.detail)
                facts["n_pieces"] = chosen.facts[0]["n_pieces"]
            asked = compared.trials[chosen.best].params
            self.choice_ = chosen.document(compared)
            facts["warnings"] = chosen.warnings
        self.params_ = asked.resolve(len(points))
        found = graph.cluster(self.params_)
        self._warn(data, asked, found, facts)
        self.run_ = None
        self.labels_ = found.labels
        self.provenance_ = found.provenance
        self.clusters_ = found.clusters
        self.n_clusters_ = len(found.clusters)
        self.thresholds_ = found.thresholds
        self.exact_ = rows.exact
        self.recall_ = rows.recall
        reach = self.params_.reassignment_neighbors
        gates = gates_of(found.clusters, found.thresholds.max_z, reach)
        self._voters = Voters(points, found.labels, gates, rows.recall, self.seed)
        return self

    def _asked_of_excerpts(
        self, data: NDArray[Any], points: NDArray[np.floating], compared: Comparison
    ) -> Asked | None:
        """Return what to try on excerpts, as a fit on disk does; None for fewer points."""
        n_points, n_columns = points.shape
        k = longest_rows(compared.trials, n_points)
        size = excerpt_points(shape_of(n_points, n_columns, working_itemsize(data.dtype), k))
        if size is None:
            return None
        n_compared = len(compared.rows)
        trials, fixed = compared.trials, compared.fixed
        return Asked(n_points, size, trials, None, fixed, n_compared, self.seed)

    def _warn(self, data: Any, asked: Params, found: Clustering, facts: dict[str, Any]) -> None:
        """Warn of what a user should know about the result."""
        noise = float((found.labels == NOISE).mean())
        is_scaled = self.scale is not None or self.metric == "cosine"
        smallest = found.smallest
        sentences = data_warnings(asked, self.params_, smallest, noise, facts, is_scaled)
        for text in (*facts.get("warnings", ()), *sentences):
            warnings.warn(text, DataWarning, stacklevel=4)

    def fit_predict(self, X: Any, y: Any = None) -> NDArray[np.int32]:
        """Cluster the rows of `X` and return their labels."""
        return self.fit(X).labels_

    def predict(self, X: Any) -> NDArray[np.int32]:
        """Return the labels that the fitted points vote for, as `spore_dask.predict` does.

        A copy of a fitted point gets that point's label; -1 is for points that nobody votes on.

        Parameters
        ----------
        X : array (n, D), or any source of `spore_dask.predict` after a fit out of core

        Returns
        -------
        int32 array (n,)
        """
        check_is_fitted(self)
        if self.run_ is not None:
            names = ["memory_limit", "client", "n_workers", "progress"]
            names += ["component"] if isinstance(X, str | os.PathLike) else []
            found = predict(self.run_, X, **{name: getattr(self, name) for name in names})
            return np.asarray(found.labels[...])
        refuse_masked(X)
        data = validate_data(self, X, dtype="numeric", ensure_all_finite=False, reset=False)
        return self._voters.predict(self._learned.apply(data))[0]
