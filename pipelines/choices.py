"""How good the choice of parameters without labels is, on data whose labels are known.

    python -m pipelines.choices --data FOLDER [PART ...] [--only NAME ...] [--reduced FOLDER]

Each set is clustered with all trials over one exact graph. A line has the adjusted Rand index (ARI)
of the paper's default, of what is chosen and of the best trial, then the score of what is chosen,
its clusters, its noise and the share of its largest cluster. "doubted" is said where a user is
warned that the clusters may be due to chance. The parts are

sets      .npz files with X and y, prepared as in the paper: columns clipped to six deviations, then
          scaled to [0, 1], then some reduced by PCA
shapes    the small sets of `pipelines.shapes`
clouds    a few large clouds that overlap, 40,000 points
tails     clusters whose sizes follow a power law, 60,000 points; also the share of them that is
          found, by their size
reduced   .npz files with X and y that are taken as they are, such as UMAP's; beside them HDBSCAN
nothing   data without clusters, which has no ARI
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from pipelines.benchmark.preparing import CLIP_MINMAX, labelled, prepared, read_folder, scaled
from pipelines.scale.generating import BACKGROUND, clouds, tails
from pipelines.scale.running import clusters_found
from pipelines.shapes import generated
from spore_dask.choosing import LARGE
from spore_dask.clustering import Clustering, GraphInMemory
from spore_dask.comparing import choose_in_memory, compare, longest_rows
from spore_dask.params import ResolvedParams
from spore_dask.search import neighbor_rows

Labels = NDArray[Any]
Sets = Iterator[tuple[str, NDArray[Any], Labels]]
"""Names, points and true labels."""

HARD = {"har", "fashion", "pbmc3k"}
BEYOND = {"mnist"}
"""Sets that the paper does not have."""
SHAPE_SEEDS = (1, 2)
CLOUDS = (
    (3, 2, 3.0), (5, 2, 3.2), (8, 2, 3.0), (4, 3, 3.2), (6, 5, 3.5),
    (10, 8, 4.0), (3, 2, 2.6), (12, 2, 3.4), (5, 8, 4.0), (7, 4, 3.2),
)  # fmt: skip
"""Number of clouds, columns, and how far they are apart."""
TAILS = ((2, 0.0), (2, 0.1), (2, 0.2), (8, 0.0), (8, 0.2), (32, 0.0), (32, 0.1), (32, 0.2))
"""Columns, and the share of background."""
N_CLOUD, N_TAIL = 40_000, 60_000
NOTHING_SIZES = (500, 3000, 30_000)
AIMS = {"shapes": 0.80, "clouds": 0.80}
HEAD = ("default", "chosen", "best", "score", "clusters", "noise", "largest")


class Outcome(NamedTuple):
    """What was chosen for one set."""

    name: str
    aris: tuple[float, float, float]
    """Of the default, of what was chosen, of the best trial."""
    score: float
    labels: Labels
    """What was chosen."""
    is_doubted: bool
    """Whether a user is warned that the clusters may be due to chance."""


class Remembering(GraphInMemory):
    """A graph that keeps the labels of each configuration, as do its copies."""

    def __init__(self, *arrays: NDArray[Any]) -> None:
        super().__init__(*arrays)
        self.found: dict[ResolvedParams, Labels] = {}

    def cluster(self, params: ResolvedParams) -> Clustering:
        """Cluster, and keep the labels."""
        found = super().cluster(params)
        self.found[params] = found.labels
        return found


def chosen(name: str, x: NDArray[Any], y: Labels, seed: int) -> Outcome:
    """Choose parameters for a set, and compare all trials with the truth, background aside."""
    points = np.ascontiguousarray(x, np.float32 if len(x) > LARGE else np.float64)
    compared = compare(points.shape, {}, seed)
    rows = neighbor_rows(points, longest_rows(compared.trials, len(points)), "exact")
    graph = Remembering(rows.neighbors, rows.distances, points)
    choice = choose_in_memory(graph, compared, "auto")
    labels = [graph.found[trial.params.resolve(len(points))] for trial in compared.trials]
    inside = y != BACKGROUND
    aris = [adjusted_rand_score(y[inside], each[inside]) for each in labels]
    score = float(choice.choice.scores[choice.best])
    aris = aris[0], aris[choice.best], max(aris)
    return Outcome(name, aris, score, labels[choice.best], bool(choice.warnings))


def shape_of(labels: Labels) -> tuple[int, float, float]:
    """Return the number of clusters, the share of noise, and that of the largest cluster."""
    sizes = np.bincount(labels[labels >= 0], minlength=1)
    return np.count_nonzero(sizes), float(np.mean(labels < 0)), sizes.max() / len(labels)


def show(part: str, one: Outcome, more: str = "") -> None:
    """Print a line."""
    n_clusters, noise, largest = shape_of(one.labels)
    figures = "".join(f"{value:>9.3f}" for value in (*one.aris, one.score))
    print(f"{part:<9}{one.name:<28}{figures}{n_clusters:>9}{noise:>9.3f}{largest:>9.3f}"
          f"{'   doubted' if one.is_doubted else ''}{more}", flush=True)  # fmt: skip


def show_mean(part: str, outcomes: Iterable[Outcome], what: str, aim: float | None = None) -> None:
    """Print the mean of some lines, and the aim for what is chosen."""
    found = list(outcomes)
    if found:
        means = np.mean([(*one.aris, one.score) for one in found], axis=0)
        figures = "".join(f"{value:>9.3f}" for value in means)
        print(f"{part:<9}{f'mean of {len(found)}{what}':<28}{figures}"
              + (f"   aim {aim:.2f}" if aim else "")
              + f"   {sum(one.is_doubted for one in found)} doubted", flush=True)  # fmt: skip


def paper_sets(folder: Path) -> Sets:
    """Read the sets of the paper."""
    for raw in read_folder(folder):
        if raw.name not in BEYOND:
            yield from ((one.name, one.x, one.y) for one in prepared(raw, CLIP_MINMAX))


def shape_sets(folder: Path) -> Sets:
    """Generate small sets."""
    for seed in SHAPE_SEEDS:
        for name, x, y in generated(seed):
            yield f"{name} {seed}", scaled(x, CLIP_MINMAX), y


def cloud_sets(folder: Path) -> Sets:
    """Generate large clouds that overlap."""
    for seed, (n_clusters, n_columns, apart) in enumerate(CLOUDS):
        drawn = clouds(n_columns, N_CLOUD, 0.0, seed, n_clusters, apart)
        name = f"{n_clusters} clouds, {n_columns} columns, {apart}"
        yield name, *drawn.rows(0, N_CLOUD)


def tail_sets(folder: Path) -> Sets:
    """Generate clusters whose sizes follow a power law."""
    for n_columns, background in TAILS:
        drawn = tails(n_columns, N_TAIL, background)
        yield f"{n_columns} columns, {background:.0%} around", *drawn.rows(0, N_TAIL)


def reduced_sets(folder: Path) -> Sets:
    """Read sets that have few columns already."""
    for name in labelled(folder):
        with np.load(folder / f"{name}.npz") as file:
            yield name, np.asarray(file["X"]), file["y"]


def nothing_sets(folder: Path) -> Sets:
    """Generate data that is one cluster, or none."""
    for n_points in NOTHING_SIZES:
        rng = np.random.default_rng(n_points)
        one, none = np.zeros(n_points, np.int64), np.arange(n_points)
        for n_columns in (2, 8, 30):
            shape = n_points, n_columns
            yield f"normal, {n_points} x {n_columns}", rng.standard_normal(shape), one
            yield f"uniform, {n_points} x {n_columns}", rng.random(shape), none
        yield f"heavy tails, {n_points} x 3", rng.standard_t(3, (n_points, 3)), one


def beside_tails(one: Outcome, x: NDArray[Any], y: Labels) -> str:
    """Return the share of the true clusters that is found, by their size."""
    found = clusters_found(y, one.labels)
    return "   found " + ", ".join(
        f"{name}: {n / n_true:.3f} of {n_true}" for name, (n, n_true) in found.items()
    )


def beside_reduced(one: Outcome, x: NDArray[Any], y: Labels) -> str:
    """Return what HDBSCAN finds."""
    from hdbscan import HDBSCAN

    labels = HDBSCAN(min_cluster_size=30).fit(x).labels_
    n_clusters, noise, largest = shape_of(labels)
    ari = adjusted_rand_score(y, labels)
    return (
        f"   HDBSCAN: ARI {ari:.3f}, {n_clusters} clusters, noise {noise:.3f}, largest "
        f"{largest:.3f}"
    )


PARTS: dict[str, Callable[[Path], Sets]] = {
    "sets": paper_sets,
    "shapes": shape_sets,
    "clouds": cloud_sets,
    "tails": tail_sets,
    "reduced": reduced_sets,
    "nothing": nothing_sets,
}
BESIDE = {"tails": beside_tails, "reduced": beside_reduced}


def run_part(part: str, folder: Path, only: list[str], seed: int) -> None:
    """Print the lines of a part, and their means."""
    outcomes = []
    for name, x, y in PARTS[part](folder):
        if not only or any(word in name for word in only):
            outcomes.append(chosen(name, x, y, seed))
            beside = BESIDE.get(part)
            show(part, outcomes[-1], beside(outcomes[-1], x, y) if beside else "")
    if part == "sets":
        easy = [one for one in outcomes if one.name not in HARD]
        show_mean(part, easy, " that are not hard", 0.82)
    show_mean(part, outcomes, "", 0.78 if part == "sets" else AIMS.get(part))


def main(arguments: list[str] | None = None) -> None:
    """Run the parts that the command line asks for."""
    parser = argparse.ArgumentParser(prog="choices", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which; all by default")
    parser.add_argument("--data", type=Path, help="a folder of .npz files, for `sets`")
    parser.add_argument("--reduced", type=Path, help="a folder of .npz files, for `reduced`")
    parser.add_argument("--only", nargs="*", default=[], help="sets whose name has one of these")
    parser.add_argument("--seed", type=int, default=42, help="of the trials")
    options = parser.parse_args(arguments)
    folders = {"sets": options.data, "reduced": options.reduced}
    parts = options.parts or [name for name in PARTS if folders.get(name, name)]
    if any(folders.get(name, name) is None for name in parts):
        parser.error("`sets` needs --data, and `reduced` needs --reduced.")
    print(f"{'':<37}" + "".join(f"{name:>9}" for name in HEAD))
    for part in parts:
        started = time.perf_counter()
        run_part(part, folders.get(part, Path()), options.only, options.seed)
        print(f"         {part}: {time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
