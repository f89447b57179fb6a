"""Measure how far the order of what ties moves SPORE's best ARI.

Reads a folder of datasets, writes OUT/ties.json: {dataset: {"given": ARI, "orders": [ARI, ...]}}.
Coordinates that are rounded have many equal distances and densities. Among them rows decide here;
elsewhere it may be anything, such as the last bits of sums and products: the author's package has
its distances from scikit-learn, by products beyond 15 columns. Memory: one dataset and its graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

from pipelines.benchmark.methods import Config, Facts, Floats, Labels
from pipelines.benchmark.preparing import CLIP_MINMAX, chosen, load
from pipelines.benchmark.records import write_json
from pipelines.benchmark.spores import SPORES, exact_graph, most_neighbors
from spore_dask.search import Rows, neighbor_rows

MOST_POINTS = 20_000
"""Larger datasets are left out."""
N_MORE = 20
"""Neighbours beyond the last, with which those may change places that are as far away."""
LAST_DIGITS = 1e-12
"""Share of a distance that is drawn at random."""


def write_ties(
    out: Path,
    folder: Path | None,
    names: list[str] | None,
    n_orders: int,
    say: Callable[[str], None] = print,
) -> None:
    """Write the best ARI in the given order, and in some random ones, for each dataset."""
    found = {}
    for name, n_points in chosen(folder, names).items():
        if n_points > MOST_POINTS:
            continue
        one = load(folder, name, CLIP_MINMAX)
        given = best_ari(one.x, one.y)
        orders = [ari_of_order(one.x, one.y, seed) for seed in range(n_orders)]
        found[name] = {"given": given, "orders": orders}
        write_json(out / "ties.json", found)
        least, most = min([given, *orders]), max([given, *orders])
        say(f"{name}: {given:.4f} as given, {least:.4f} to {most:.4f} in {n_orders} other orders")


def reordered(x: Floats, y: Labels, seed: int) -> tuple[Floats, Labels]:
    """Return rows and columns in a random order."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(len(x)), rng.permutation(x.shape[1])
    return np.ascontiguousarray(x[rows][:, columns]), y[rows]


def ari_of_order(x: Floats, y: Labels, seed: int) -> float:
    """Return the best ARI with rows, columns and equal distances in a random order."""
    x, y = reordered(x, y, seed)
    return best_ari(x, y, functools.partial(shuffled_graph, seed=seed))


def best_ari(
    x: Floats,
    y: Labels,
    graph: Callable[[Floats, list[Config]], Rows] = exact_graph,
    n_draws: int = 50,
    draws_seed: int = 42,
) -> float:
    """Return the ARI of SPORE's best configuration on a graph."""
    method = SPORES["SPORE"]
    facts = Facts(len(x), x.shape[1], len(np.unique(y)))
    configs = method.configurations(facts, n_draws, draws_seed)
    shared = graph(x, configs)
    return max(float(adjusted_rand_score(y, method.labels(x, one, shared))) for one in configs)


def shuffled_graph(x: Floats, configs: list[Config], seed: int) -> Rows:
    """Find all true neighbours, at distances whose last digits are drawn, in that order.

    Copies stay at distance 0.
    """
    k = most_neighbors(len(x), configs)
    found = neighbor_rows(x, min(k + N_MORE, len(x) - 1), "exact")
    drawn = np.random.default_rng(seed).random(found.distances.shape)
    distances = found.distances * (1 + LAST_DIGITS * drawn)
    distances[:, 0] = -1  # itself stays first
    order = np.lexsort((found.neighbors, distances), axis=1)[:, : k + 1]
    neighbors = np.take_along_axis(found.neighbors, order, axis=1)
    return Rows(neighbors, np.maximum(np.take_along_axis(distances, order, axis=1), 0))
