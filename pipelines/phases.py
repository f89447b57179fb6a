"""Compare the time of order, expansion and SCR with two yardsticks, as ratios.

Part (a): the same phases of ``spore-clustering``, the author's package, on the same graph.
Part (b): the exact k-NN search of ``pykdtree`` that makes the graph. Reads nothing but generated
data, writes one temporary graph for part (a), prints tables; memory is a few copies of the largest
graph, about 3 GB at one million points.

    python -m pipelines.phases [--peer-python PATH]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# spore_dask, pykdtree and scikit-learn are imported where they are used: the peer's environment
# runs this file too and lacks them, and the thread counts must be set before they load.

PEER_TARGET = 50.0
SEARCH_TARGET = 0.15
OUR_REPEATS = 3
PEER_REPEATS = 2
SEARCH_REPEATS = 2


@dataclass(frozen=True)
class Graph:
    """A k-NN graph whose rows start with the point itself, and its points."""

    points: NDArray[np.float64]
    neighbors: NDArray[np.uint32]
    distances: NDArray[np.float64]

    @property
    def title(self) -> str:
        """Describe the graph in a few words."""
        n_points, n_columns = self.points.shape
        return f"{n_points:,} points x {n_columns}, K = {self.neighbors.shape[1] - 1}"


@dataclass(frozen=True)
class Search:
    """An exact search by pykdtree, and what it took."""

    graph: Graph
    tree_seconds: float
    query_seconds: float
    n_cores: float


def best_of(repeats: int, call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the shortest time of several calls, in seconds, and the last result."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def settle_ties(neighbors: NDArray[np.uint32], distances: NDArray[np.float64]) -> None:
    """Put each point first in its row, in place, and order equal distances by number."""
    tied = (distances[:, 1:] == distances[:, :-1]).any(axis=1)
    for i in np.flatnonzero(tied | (neighbors[:, 0] != np.arange(len(neighbors)))):
        row = neighbors[i]
        if i not in row:  # crowded out by its exact duplicates
            row[-1] = i
        row[:] = row[np.lexsort((row, row != i, distances[i]))]


def search(n_points: int, seed: int) -> Search:
    """Generate points and build their exact graph with default parameters."""
    from pykdtree.kdtree import KDTree

    import spore_dask
    from spore_dask.datasets import blobs_and_shapes

    points, _ = blobs_and_shapes(n_points, 2, seed, np.float64)
    k = spore_dask.Params().resolve(n_points).k
    tree_seconds, tree = best_of(1, lambda: KDTree(points))
    wall, processor = time.perf_counter(), time.process_time()
    query_seconds, found = best_of(SEARCH_REPEATS, lambda: tree.query(points, k=k + 1))
    n_cores = (time.process_time() - processor) / (time.perf_counter() - wall)
    distances, neighbors = found
    settle_ties(neighbors, distances)
    return Search(Graph(points, neighbors, distances), tree_seconds, query_seconds, n_cores)


def time_ours(graph: Graph) -> tuple[float, NDArray[np.int32]]:
    """Time ``cluster_graph`` with default parameters after a call that compiles it."""
    import spore_dask

    call = partial(spore_dask.cluster_graph, graph.neighbors, graph.distances, graph.points)
    call()
    return best_of(OUR_REPEATS, call)


def time_peer(graph: Graph, peer_python: Path) -> tuple[float, NDArray[np.int64], str]:
    """Time the peer on the graph in its own environment; return seconds, labels and version."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.npz"
        np.savez(path, X=graph.points, neighbors=graph.neighbors, distances=graph.distances)
        subprocess.run([peer_python, Path(__file__).resolve(), "--as-peer", path], check=True)
        with np.load(peer_result(path)) as result:
            return float(result["seconds"]), result["labels"], str(result["version"])


def peer_result(path: Path) -> Path:
    """Name the file that the peer leaves beside the graph."""
    return path.with_name("peer.npz")


def run_as_peer(path: Path) -> None:
    """Fit ``spore-clustering`` with a ready index, so that it does not search, and save labels."""
    from spore_clustering import SPORE

    with np.load(path) as graph:
        points, distances = graph["X"], graph["distances"]
        neighbors = graph["neighbors"].astype(np.uint64)
    n_copies = np.maximum((distances <= 0).sum(axis=1), 1).astype(np.uint64)
    extent = float(np.linalg.norm(np.ptp(points, axis=0)))
    index = SPORE.DataIndex(neighbors.shape[1] - 1, n_copies, neighbors, distances, extent)
    seconds, model = best_of(PEER_REPEATS, lambda: SPORE(dindex=index).fit(points))
    version = metadata.version("spore-clustering")
    np.savez(peer_result(path), labels=model.labels_, seconds=seconds, version=version)


def print_table(title: str, rows: list[tuple[str, float, str, str]]) -> None:
    """Print rows of what, seconds, ratio and target under a title."""
    print(f"\n{title}")
    print(f"{'what':<44}{'seconds':>10}{'ratio':>10}{'target':>10}")
    for what, seconds, ratio, target in rows:
        print(f"{what:<44}{seconds:>10.3f}{ratio:>10}{target:>10}")


def compare_with_peer(n_points: int, seed: int, peer_python: Path) -> None:
    """Print part (a): how many times faster than ``spore-clustering``, and how equal."""
    from sklearn.metrics import adjusted_rand_score

    graph = search(n_points, seed).graph
    ours, labels = time_ours(graph)
    theirs, peer_labels, version = time_peer(graph, peer_python)
    print_table(
        f"(a) order + expansion + SCR: {graph.title}",
        [
            (f"spore-clustering {version}, fit on the graph", theirs, "", ""),
            ("spore_dask.cluster_graph", ours, f"{theirs / ours:.1f}x", f">= {PEER_TARGET:.0f}x"),
        ],
    )
    score = adjusted_rand_score(labels, peer_labels)
    n_equal = np.count_nonzero(labels == peer_labels)
    print(f"ARI {score:.6f}; {n_equal:,} of {n_points:,} labels equal; {describe(labels)}")


def compare_with_search(n_points: int, seed: int, n_threads: int) -> None:
    """Print part (b): the share of the exact search's time that clustering takes."""
    found = search(n_points, seed)
    ours, labels = time_ours(found.graph)
    share = ours / found.query_seconds
    print_table(
        f"(b) clustering against the exact search: {found.graph.title}",
        [
            ("pykdtree, building the tree", found.tree_seconds, "", ""),
            ("pykdtree, KDTree.query", found.query_seconds, "", ""),
            (
                "spore_dask.cluster_graph / query",
                ours,
                f"{share:.3f}",
                f"<= {SEARCH_TARGET}",
            ),
        ],
    )
    print(f"{describe(labels)}; the query had {found.n_cores:.2f} cores for {n_threads} threads")
    if found.n_cores < 0.85 * n_threads:
        print("If other work took cores from the query, the ratio looks better than it is.")


def describe(labels: NDArray[np.int32]) -> str:
    """Count clusters and noise in a sentence."""
    return f"{labels.max() + 1:,} clusters, {np.mean(labels < 0):.2%} noise"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="phases", description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1_000_000, help="points in part (b)")
    parser.add_argument("--n-peer", type=int, default=100_000, help="points in part (a)")
    parser.add_argument("--peer-python", type=Path, help="a Python with spore-clustering 1.0.0")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated data")
    parser.add_argument("--threads", type=int, default=2, help="threads of pykdtree")
    parser.add_argument("--as-peer", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Run the parts that the command line asks for."""
    options = parse(arguments)
    if options.as_peer:
        run_as_peer(options.as_peer)
        return
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if options.peer_python:
        compare_with_peer(options.n_peer, options.seed, options.peer_python)
    else:
        print("Part (a) is skipped: give --peer-python, a Python with spore-clustering 1.0.0.")
    compare_with_search(options.n, options.seed, options.threads)


if __name__ == "__main__":
    main()
