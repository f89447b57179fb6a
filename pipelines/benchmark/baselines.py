"""The baselines of the paper: their search spaces, and how a configuration is run.

Reads rows in memory; writes nothing. Draws are those of scikit-learn's ParameterSampler within the
bounds of the paper's appendix, both ends included. Every method gives the same labels from what
configurations share as from scratch, with any number of threads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import randint, uniform
from sklearn.cluster import DBSCAN, HDBSCAN, KMeans
from sklearn.model_selection import ParameterSampler
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from pipelines.benchmark.distances import distance_matrix
from pipelines.benchmark.dpc import Pairs, dpc_labels, measure_pairs
from pipelines.benchmark.methods import Config, Facts, Floats, Labels, Method
from pipelines.benchmark.snn_dbscan import Numbers, nearest_lists, snn_dbscan_labels
from spore_dask import threads

TREE_COLUMNS = 15
"""Columns up to which scikit-learn's trees find neighbours faster than comparing all pairs."""
MATRIX_ROWS, MATRIX_COLUMNS = 10_000, 100
"""Rows up to which, and columns beyond which, HDBSCAN works on a matrix of distances.

scikit-learn makes two more of its size and orders every column; with fewer columns it is faster to
compare pairs as they come up, which is what its trees amount to.
"""


def drawn(space: dict[str, Any], n_draws: int, seed: int) -> list[Config]:
    """Draw configurations, with numbers as JSON can hold them."""
    sampler = ParameterSampler(space, n_draws, random_state=check_random_state(seed))
    return [
        {name: value.item() if isinstance(value, np.generic) else value for name, value in config}
        for config in map(dict.items, sampler)
    ]


def between(low: float, high: float) -> Any:
    """Return the distribution over the integers from low to high, at least 1 and never empty."""
    least = max(1, int(low))
    return randint(least, max(least, int(high)) + 1)


def min_samples_space(facts: Facts) -> Any:
    """Return the densities of core points that the paper tries, which grow with the columns."""
    n_points, root = facts.n_points, math.sqrt(facts.n_points)
    columns = facts.n_columns
    return between(min(root, columns), min(n_points, 3 * root, 3 * columns))


def nothing(x: Floats, configs: list[Config]) -> None:
    """Share nothing."""


# DBSCAN: eps is a percentile of the distances to the min_samples-th neighbour


def dbscan_configurations(facts: Facts, n_draws: int, seed: int) -> list[Config]:
    """Return the default, scikit-learn's min_samples and the median, and the draws."""
    space = {"min_samples": min_samples_space(facts), "q_eps": uniform(12.5, 87.5)}
    default = {"min_samples": min(5, facts.n_points), "q_eps": 50.0}
    return [default, *drawn(space, n_draws, seed)]


def neighbor_distances(x: Floats, configs: list[Config]) -> Floats:
    """Return each point's distances to its nearest, itself first, as many as a configuration has.

    Like DBSCAN, the number of neighbours includes the point itself.
    """
    most = max(config["min_samples"] for config in configs)
    search = NearestNeighbors(n_neighbors=most, algorithm=_search_of(x), n_jobs=threads.n_threads())
    distances: Floats = search.fit(x).kneighbors(x)[0]
    return distances


def dbscan_eps(distances: Floats, config: Config) -> float:
    """Return the percentile; if it is 0, the smallest positive number, for equal points only."""
    eps = np.percentile(distances[:, config["min_samples"] - 1], config["q_eps"])
    return max(float(eps), float(np.finfo(np.float64).tiny))


def dbscan_labels(x: Floats, config: Config, shared: Floats | None) -> Labels:
    """Cluster with scikit-learn's DBSCAN."""
    distances = neighbor_distances(x, [config]) if shared is None else shared
    eps, min_samples = dbscan_eps(distances, config), config["min_samples"]
    model = DBSCAN(
        eps=eps, min_samples=min_samples, algorithm=_search_of(x), n_jobs=threads.n_threads()
    )
    return np.asarray(model.fit_predict(x), np.int64)


def _search_of(x: Floats) -> str:
    """Choose by the columns alone: scikit-learn's own choice depends on k, and rounds otherwise."""
    return "kd_tree" if x.shape[1] <= TREE_COLUMNS else "brute"


# HDBSCAN: scikit-learn's; the paper has that of the hdbscan package, which does not count the point
# itself in min_samples


def hdbscan_configurations(facts: Facts, n_draws: int, seed: int) -> list[Config]:
    """Return the default of the hdbscan package, and the draws."""
    n_points = facts.n_points
    most = max(1, n_points - 1)
    log2_n = math.floor(math.log2(n_points))
    space = {
        "min_cluster_size": between(max(2, n_points**0.3), n_points**0.7),
        "min_samples": between(1, min(most, 2 * log2_n)),
        "cluster_selection_method": ["leaf", "eom"],
    }
    default = {
        "min_cluster_size": 5,
        "min_samples": min(most, 5),
        "cluster_selection_method": "eom",
    }
    return [default, *drawn(space, n_draws, seed)]


def hdbscan_distances(x: Floats, configs: list[Config]) -> Floats | None:
    """Return the distances of all pairs where they are cheaper than trees, else None."""
    if len(x) > MATRIX_ROWS or x.shape[1] <= MATRIX_COLUMNS:
        return None
    return distance_matrix(x)


def hdbscan_labels(x: Floats, config: Config, shared: Floats | None) -> Labels:
    """Cluster with scikit-learn's HDBSCAN; its min_samples counts the point itself."""
    distances = hdbscan_distances(x, [config]) if shared is None else shared
    model = HDBSCAN(
        **(config | {"min_samples": config["min_samples"] + 1}),
        metric="euclidean" if distances is None else "precomputed",
        n_jobs=threads.n_threads(),
        copy=True,  # it would change the shared matrix
    )
    return np.asarray(model.fit_predict(x if distances is None else distances), np.int64)


# K-means: one configuration


def kmeans_configurations(facts: Facts, n_draws: int, seed: int) -> list[Config]:
    """Return the only configuration."""
    return [
        {
            "n_clusters": facts.n_classes,
            "init": "k-means++",
            "n_init": 5,
            "random_state": seed,
        }
    ]


def kmeans_labels(x: Floats, config: Config, shared: None) -> Labels:
    """Cluster with scikit-learn's KMeans, on one thread: sums of several depend on their number."""
    with threadpool_limits(1):
        return np.asarray(KMeans(**config).fit_predict(x), np.int64)


# DPC


def dpc_configurations(facts: Facts, n_draws: int, seed: int) -> list[Config]:
    """Return the default and the draws of d_c, with as many clusters as there are classes."""
    space = {"q_dc": uniform(0, 50), "k": [facts.n_classes]}
    return [{"q_dc": 5.0, "k": facts.n_classes}, *drawn(space, n_draws, seed)]


def dpc_share(x: Floats, configs: list[Config]) -> Pairs:
    """Return the distances of all pairs."""
    return measure_pairs(x)


def dpc_run(x: Floats, config: Config, shared: Pairs | None) -> Labels:
    """Cluster by density peaks."""
    pairs = measure_pairs(x) if shared is None else shared
    return dpc_labels(pairs, config["q_dc"], config["k"])


# SNN-DBSCAN: the threshold is a fraction of the lists' length


def snn_dbscan_configurations(facts: Facts, n_draws: int, seed: int) -> list[Config]:
    """Return the default and the draws."""
    log2_n, root = math.floor(math.log2(facts.n_points)), math.isqrt(facts.n_points)
    space = {
        "k": between(log2_n, root),
        "f": uniform(0, 0.875),
        "min_samples": min_samples_space(facts),
    }
    default = {"k": min(10, facts.n_points - 1), "f": 0.4, "min_samples": 5}
    return [default, *drawn(space, n_draws, seed)]


def snn_lists(x: Floats, configs: list[Config]) -> Numbers:
    """Return neighbour lists as long as the longest of a configuration."""
    return nearest_lists(x, max(config["k"] for config in configs))


def snn_run(x: Floats, config: Config, shared: Numbers | None) -> Labels:
    """Cluster by shared neighbours."""
    lists = snn_lists(x, [config]) if shared is None else shared
    k = config["k"]
    threshold = math.floor(config["f"] * k)
    return snn_dbscan_labels(lists[:, :k], threshold, config["min_samples"])


BASELINES: dict[str, Method] = {
    method.name: method
    for method in (
        Method("DBSCAN", dbscan_configurations, neighbor_distances, dbscan_labels),
        Method("HDBSCAN", hdbscan_configurations, hdbscan_distances, hdbscan_labels),
        Method("KMeans", kmeans_configurations, nothing, kmeans_labels),
        Method("DPC", dpc_configurations, dpc_share, dpc_run),
        Method("SNN_DBSCAN", snn_dbscan_configurations, snn_lists, snn_run),
    )
}
