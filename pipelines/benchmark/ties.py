"""Measure how far the order of rows and columns moves SPORE's best ARI, where distances tie.

Reads a folder of datasets, writes OUT/ties.json: {dataset: {"given": ARI, "orders": [ARI, ...]}}.
Coordinates that are rounded have many equal distances and densities; the order of rows decides
among them, and that of columns moves the last bits of sums. Memory: one dataset and its graph.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

from pipelines.benchmark.methods import Facts, Floats, Labels
from pipelines.benchmark.preparing import CLIP_MINMAX, chosen, load
from pipelines.benchmark.records import write_json
from pipelines.benchmark.spores import SPORES

MOST_POINTS = 20_000
"""Larger datasets are left out."""


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
        orders = [best_ari(*reordered(one.x, one.y, seed)) for seed in range(n_orders)]
        found[name] = {"given": given, "orders": orders}
        write_json(out / "ties.json", found)
        least, most = min([given, *orders]), max([given, *orders])
        say(f"{name}: {given:.4f} as given, {least:.4f} to {most:.4f} in {n_orders} other orders")


def reordered(x: Floats, y: Labels, seed: int) -> tuple[Floats, Labels]:
    """Return rows and columns in a random order."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(len(x)), rng.permutation(x.shape[1])
    return np.ascontiguousarray(x[rows][:, columns]), y[rows]


def best_ari(x: Floats, y: Labels, n_draws: int = 50, seed: int = 42) -> float:
    """Return the ARI of SPORE's best configuration."""
    method = SPORES["SPORE"]
    facts = Facts(len(x), x.shape[1], len(np.unique(y)))
    configs = method.configurations(facts, n_draws, seed)
    shared = method.share(x, configs)
    return max(float(adjusted_rand_score(y, method.labels(x, one, shared))) for one in configs)
