"""SPORE and its ablations as methods of the benchmark: one graph, many configurations.

SPORE-ANN searches every dataset by probes, with the recall that they are made for; the estimator
would search small ones exactly, since that is faster there. Memory: the neighbour graph, 12 bytes
for each of N * (K + 1) entries, and twice that for a moment.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.stats import randint, uniform
from sklearn.model_selection import ParameterSampler
from sklearn.utils import check_random_state

from pipelines.benchmark.methods import Config, Facts, Floats, Labels, Method
from spore_dask import SPORE, Params, cluster_graph
from spore_dask.approximate import approximate_rows
from spore_dask.memory import shape_of
from spore_dask.search import Rows, neighbor_rows

SEED = 42
"""Of random seeding, and of the approximate search."""


def drawn(n_points: int, n_draws: int, seed: int) -> list[Config]:
    """Draw configurations from the space of the paper."""
    log2_n = math.floor(math.log2(n_points))
    space = {
        "z_percentile": uniform(12.5, 87.5),
        "retention_rate": uniform(0, 0.875),
        "min_cluster_size": uniform(0.3, 0.4),
        "expansion_neighbors": randint(log2_n, 3 * log2_n),
    }
    sampler = ParameterSampler(space, n_draws, random_state=check_random_state(seed))
    return [
        {name: np.asarray(value).item() for name, value in config.items()} for config in sampler
    ]


def configurations(fixed: Config, facts: Facts, n_draws: int, seed: int) -> list[Config]:
    """Return the default and what is drawn, each with what is fixed; all variants draw the same."""
    return [{**config, **fixed} for config in [{}, *drawn(facts.n_points, n_draws, seed)]]


def exact_graph(x: Floats, configs: list[Config]) -> Rows:
    """Find all true neighbours that any of the configurations needs."""
    return neighbor_rows(x, most_neighbors(len(x), configs), "exact")


def approximate_graph(x: Floats, configs: list[Config]) -> Rows:
    """Find most of the neighbours that any of the configurations needs, by probes."""
    k = most_neighbors(len(x), configs)
    n_partitions = shape_of(*x.shape, x.itemsize, k).n_partitions
    return Rows(*approximate_rows(x, k, n_partitions, seed=SEED))


def most_neighbors(n_points: int, configs: list[Config]) -> int:
    """Return the K that is enough for each of the configurations."""
    return max(Params(**config).resolve(n_points).k for config in configs)


def exact_labels(x: Floats, config: Config, shared: Rows | None) -> Labels:
    """Cluster with exact neighbours: those at hand, or the estimator's own."""
    if shared is not None:
        return labels_on(shared, x, config)
    return np.asarray(SPORE(params="paper", knn="exact", **config).fit(x).labels_, np.int64)


def approximate_labels(x: Floats, config: Config, shared: Rows | None) -> Labels:
    """Cluster with neighbours found by probes, at hand or not."""
    return labels_on(shared or approximate_graph(x, [config]), x, config)


def labels_on(rows: Rows, x: Floats, config: Config) -> Labels:
    """Cluster over a graph that has at least the neighbours that the configuration needs."""
    width = most_neighbors(len(x), [config]) + 1
    # Kernels are compiled anew for rows that do not lie behind each other.
    neighbors, distances = (
        np.ascontiguousarray(array[:, :width]) for array in (rows.neighbors, rows.distances)
    )
    return np.asarray(cluster_graph(neighbors, distances, x, **config), np.int64)


def variant(name: str, **fixed: int | str) -> Method:
    """Return SPORE with some parameters fixed."""
    return Method(name, functools.partial(configurations, fixed), exact_graph, exact_labels)


SPORES: dict[str, Method] = {
    method.name: method
    for method in (
        variant("SPORE"),
        Method(
            "SPORE-ANN",
            functools.partial(configurations, {}),
            approximate_graph,
            approximate_labels,
        ),
        variant("SPORE-MSR-0", max_scr_rounds=0),
        variant("SPORE-RandSeed", seeding_order="random", seed=SEED),
    )
}
