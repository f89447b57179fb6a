"""Measure the out-of-core graph: exactness, recall, memory, speed, start, scaling, row lengths.

Each part generates its data (or takes that beside the project), builds graphs with the public API,
and prints figures beside their targets; speed is a ratio to peers run right before. Writes to a
temporary folder; the parts "memory" and "scaling" need about 12 GB of disk there.

    python -m pipelines.graphs [part ...] [--data FOLDER] [--runs N]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import zarr
from numpy.typing import NDArray

from spore_dask import Graph, Run, build_graph, fit
from spore_dask.coordinates import working_coordinates
from spore_dask.datasets import blobs_and_shapes
from spore_dask.fitting import MOST_FRAGMENTS

N_CHECKED = 2000
N_THREADS = 2
BLOCK = 1_000_000
Array = NDArray[Any]


def write_zarr(path: Path, x: Array, n_chunks: int = 8) -> str:
    """Write an array in chunks of rows."""
    chunk = -(-len(x) // n_chunks), x.shape[1]
    zarr.create_array(str(path), shape=x.shape, dtype=x.dtype, chunks=chunk)[...] = x
    return str(path)


def crowded(n_points: int, n_columns: int, share: float = 0.05) -> Array:
    """Generate points of varied density, some of them copies of others."""
    x, _ = blobs_and_shapes(n_points, n_columns, dtype=np.float32)
    rng = np.random.default_rng(1)
    copies = np.flatnonzero(rng.random(n_points) < share)
    x[copies] = x[rng.integers(0, n_points // 100, len(copies))]
    return x


def brute_force(points: Array, row: int) -> Array:
    """Return the distances of one point to all, summed column by column."""
    total = np.zeros(len(points), points.dtype)
    for column in range(points.shape[1]):
        difference = points[:, column] - points[row, column]
        total += difference * difference
    return np.sqrt(total)


def true_rows(points: Array, row: int, k: int) -> tuple[Array, Array]:
    """Return the row itself and its k nearest by (distance, row), and the distances."""
    distances = brute_force(points, row)
    distances[row] = -1
    near = np.flatnonzero(distances <= np.partition(distances, k)[k])
    order = near[np.lexsort((near, distances[near]))][: k + 1]
    distances[row] = 0
    return order, distances[order]


@contextlib.contextmanager
def cluster(n_workers: int = N_THREADS) -> Iterator[Any]:
    """Start workers as a fit would, and let them load what they need."""
    import dask
    import distributed

    with (
        # Dask's profiler looks at each thread a hundred times a second; our own workers have none.
        dask.config.set({"distributed.worker.profile.enabled": False}),
        distributed.LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address=None, security=True
        ) as local,
        distributed.Client(local) as client,
        tempfile.TemporaryDirectory() as folder,
    ):
        rng = np.random.default_rng(0)
        for n_columns, knn in ((2, "exact"), (40, "approximate")):
            x = rng.random((20_000, n_columns)).astype(np.float32)
            for i in range(2):
                build_graph(x, f"{folder}/{n_columns}-{i}", 20, knn=knn, client=client)
        yield client


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Run something; return the seconds it took, and its result."""
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


PEERS = {
    "pykdtree": """
import numpy as np, time, sys
from pykdtree.kdtree import KDTree
x = np.load(sys.argv[1]); k = int(sys.argv[2])
KDTree(x[:1000]).query(x[:1000], k + 1)
start = time.perf_counter()
distances, neighbors = KDTree(x).query(x, k + 1)
seconds = time.perf_counter() - start
""",
    "pynndescent": """
import numpy as np, time, sys, warnings
warnings.simplefilter("ignore")
import numba
from pynndescent import NNDescent
numba.set_num_threads(2)
x = np.load(sys.argv[1]); k = int(sys.argv[2])
rng = np.random.default_rng(0)
for n in (5000, 20000): NNDescent(x[rng.permutation(len(x))[:n]], n_neighbors=k + 1, random_state=1)
start = time.perf_counter()
neighbors = NNDescent(x, n_neighbors=k + 1, random_state=1).neighbor_graph[0]
seconds = time.perf_counter() - start
""",
}
REPORT = """
import json
rows = json.loads(sys.argv[3])
print(json.dumps({"seconds": seconds, "rows": neighbors[rows].tolist()}))
"""


def run_peer(name: str, points: Array, k: int, rows: list[int]) -> dict[str, Any]:
    """Run a peer in a process of its own with two threads, after its compilation."""
    threads = dict.fromkeys(
        ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(N_THREADS)
    )
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", points)
        command = [sys.executable, "-c", PEERS[name] + REPORT, f"{folder}/x.npy", str(k)]
        done = subprocess.run(
            [*command, json.dumps(rows)], env=os.environ | threads, capture_output=True, check=True
        )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def recall_of(found: list[Array], points: Array, rows: list[int], k: int) -> float:
    """Return the share of the true neighbours found, ties counted as found."""
    middle = points.mean(axis=0, dtype=np.float64)
    centred = points - middle
    lengths = np.einsum("ij,ij->i", centred, centred)
    hits = 0
    for first in range(0, len(rows), 50):
        part = rows[first : first + 50]
        squares = lengths - 2 * centred[part] @ centred.T
        for neighbors, row, near in zip(found[first : first + 50], part, squares, strict=True):
            near[row] = np.inf
            limit = np.partition(near, k - 1)[k - 1]
            others = np.unique(np.asarray(neighbors, np.int64))
            others = others[(others >= 0) & (others != row)]
            hits += min(k, int((near[others] <= limit + 1e-9 * lengths[row]).sum()))
    return hits / (k * len(rows))


def rows_of(graph: Graph, rows: list[int]) -> tuple[Array, Array]:
    """Return some rows of a graph in the numbering of the input."""
    number = np.asarray(graph.rows[...])
    place = np.empty(len(number), np.int64)
    place[number] = np.arange(len(number))
    neighbors = graph.neighbors.oindex[place[rows]]
    return number[neighbors], graph.distances.oindex[place[rows]]


def some_rows(n_points: int, n_wanted: int) -> list[int]:
    """Draw rows to check."""
    drawn = np.random.default_rng(7).choice(n_points, min(n_points, n_wanted), replace=False)
    return sorted(drawn.tolist())


def load(folder: Path, name: str) -> Array:
    """Load one of the real datasets."""
    with np.load(folder / f"{name}.npz") as file:
        x: Array = file["X"]
        return x


def exactness(options: argparse.Namespace, folder: Path) -> None:
    """Compare sampled rows with brute force, ids and distances."""
    with cluster() as client:
        for n_points, n_columns, k in ((1_000_000, 2, 38), (1_000_000, 3, 38), (300_000, 8, 36)):
            x = crowded(n_points, n_columns)
            source = write_zarr(folder / f"{n_points}x{n_columns}.zarr", x)
            graph = build_graph(source, folder / f"out{n_points}x{n_columns}", k, client=client)
            rows = some_rows(n_points, N_CHECKED)
            neighbors, distances = rows_of(graph, rows)
            equal = 0
            for i, row in enumerate(rows):
                ids, near = true_rows(x, row, k)
                equal += np.array_equal(neighbors[i], ids) and np.array_equal(distances[i], near)
            print(
                f"exactness  {n_points} x {n_columns}, k = {k}: {equal} of {len(rows)} rows equal "
                f"brute force; certified {graph.recall.certified}"
            )


def recall(options: argparse.Namespace, folder: Path) -> None:
    """Measure recall on real data by brute force, for both indexes."""
    aims = [("mnist", "euclidean", 0.97, 0.95), ("fashion", "euclidean", 0.97, 0.95)]
    aims.append(("glove100", "cosine", 0.95, 0.90))
    with cluster() as client:
        for name, metric, cells_aim, descent_aim in aims:
            x = load(options.data, name)
            points = working_coordinates(x, None, metric)
            source = write_zarr(folder / f"{name}.zarr", x)
            rows = some_rows(len(x), 1000)
            for index, aim in (("cells", cells_aim), ("pynndescent", descent_aim)):
                out = folder / f"{name}-{index}"
                seconds, graph = timed(
                    lambda source=source, out=out, metric=metric, index=index: build_graph(
                        source, out, 50, metric=metric, knn_index=index, knn="approximate",
                        client=client,
                    )
                )  # fmt: skip
                found = recall_of(list(rows_of(graph, rows)[0]), points, rows, 50)
                shards = -(-graph.n_points // graph.neighbors.chunks[0])
                print(
                    f"recall     {name}, {index}: {found:.4f} (aim {aim}); the run says "
                    f"{graph.recall}; {shards} shards, {seconds:.1f} s"
                )


GENERATE = """
import sys, numpy as np, zarr
from spore_dask.datasets import blobs_and_shapes
path, n_points, n_columns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chunk = 250_000
target = zarr.create_array(path, shape=(n_points, n_columns), dtype="f4", chunks=(chunk, n_columns))
shared = blobs_and_shapes(min(n_points, 1_000_000), n_columns, dtype=np.float32)[0]
rng = np.random.default_rng(3)
for first in range(0, n_points, chunk):
    size = min(chunk, n_points - first)
    base = shared[rng.integers(0, len(shared), size)]
    target[first : first + size] = base + rng.normal(0, 0.002, base.shape).astype(np.float32)
"""


def generate(path: Path, n_points: int, n_columns: int) -> str:
    """Write a large array, in a process of its own so that its memory does not count."""
    arguments = [str(path), str(n_points), str(n_columns)]
    subprocess.run([sys.executable, "-c", GENERATE, *arguments], check=True)
    return str(path)


def disk_nbytes(folder: Path) -> int:
    """Return the size of all files in a folder, while others write there."""
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(root, file)).st_size
    return total


BUILD = """
import json, sys
from spore_dask import build_graph
graph = build_graph(sys.argv[1], sys.argv[2], int(sys.argv[3]), memory_limit="1GiB", n_workers=2)
print(json.dumps(graph.summary["peak_nbytes"]))
"""


def memory(options: argparse.Namespace, folder: Path) -> None:
    """Build large graphs with 1 GiB a process; print peaks of memory and disk."""
    for n_points, n_columns, k in ((10_000_000, 3, 46), (3_000_000, 8, 42)):
        source = generate(folder / f"big{n_columns}.zarr", n_points, n_columns)
        out = folder / f"big{n_columns}"
        start = time.perf_counter()
        command = [sys.executable, "-c", BUILD, source, str(out), str(k)]
        run = subprocess.Popen(command, stdout=subprocess.PIPE)
        most = 0
        reader: list[bytes] = []
        thread = threading.Thread(target=lambda r=run, into=reader: into.append(r.communicate()[0]))
        thread.start()
        while thread.is_alive():
            most = max(most, disk_nbytes(out))
            thread.join(0.5)
        seconds = time.perf_counter() - start
        peaks = json.loads(reader[0].splitlines()[-1])
        input_nbytes = n_points * n_columns * 4
        graph_nbytes = n_points * (k + 1) * 8
        print(
            f"memory     {n_points} x {n_columns}, k = {k}: peak "
            f"{max(peaks.values()) / 2**20:.0f} MiB of 1024 (all: "
            f"{sorted(value >> 20 for value in peaks.values())}); disk {most / 1e9:.2f} GB = "
            f"{most / (input_nbytes + graph_nbytes):.2f} x (input + graph), aim 2.5; "
            f"{seconds:.0f} s"
        )


def compare(
    name: str, x: Array, k: int, peers: list[str], aim: float, options: dict[str, Any]
) -> None:
    """Print the time of a graph, from Zarr to Zarr, over that of the fastest peer in memory."""
    folder, client = options.pop("folder"), options.pop("client")
    points = working_coordinates(x, None, options.get("metric", "euclidean"))
    source = write_zarr(folder / f"speed-{name}.zarr", x)
    rows = some_rows(len(x), 500)
    for run in range(options.pop("runs")):
        best, parts = np.inf, []
        for peer in peers:
            done = run_peer(peer, points, k, rows)
            best = min(best, done["seconds"])
            found = recall_of(done["rows"], points, rows, k)
            parts.append(f"{peer} {done['seconds']:.2f} s (recall {found:.4f})")
        out = folder / f"speed-{name}-{run}"
        seconds, graph = timed(
            lambda out=out: build_graph(source, out, k, client=client, **options)
        )
        found = recall_of(list(rows_of(graph, rows)[0]), points, rows, k)
        print(
            f"speed      {name}, k = {k}: {seconds:.2f} s (recall {found:.4f}), "
            f"{', '.join(parts)}: {seconds / best:.2f} (aim {aim})"
        )


def speed(options: argparse.Namespace, folder: Path) -> None:
    """Compare with in-memory peers on the same data, two workers against two threads."""
    generated = {
        "1,000,000 x 2": (lambda: blobs_and_shapes(1_000_000, 2, dtype=np.float32)[0], 38),
        "500,000 x 8": (lambda: blobs_and_shapes(500_000, 8, dtype=np.float32)[0], 36),
        "mnist": (lambda: load(options.data, "mnist"), 50),
        "glove100": (lambda: load(options.data, "glove100"), 50),
    }
    peers = {"1,000,000 x 2": ["pykdtree"], "500,000 x 8": ["pykdtree", "pynndescent"]}
    aims = {"1,000,000 x 2": 0.8, "500,000 x 8": 0.5, "mnist": 0.8, "glove100": 1.2}
    more: dict[str, Any] = {"glove100": {"metric": "cosine", "recall_target": 0.945}}
    with cluster() as client:
        for name, (make, k) in generated.items():
            if options.only in name and ("x" in name or options.data.exists()):
                given = {"folder": folder, "client": client, "runs": options.runs}
                given |= more.get(name, {})
                compare(name, make(), k, peers.get(name, ["pynndescent"]), aims[name], given)


FIRST = """
import time
start = time.perf_counter()
import sys, numpy as np
from spore_dask import build_graph
x = np.random.default_rng(0).random((int(sys.argv[2]), 3)).astype(np.float32)
build_graph(x, sys.argv[1], 20, n_workers=0)
print(time.perf_counter() - start)
"""


def start(options: argparse.Namespace, folder: Path) -> None:
    """Time a new process to its first result, and a small graph from end to end."""
    for i, (n_points, aim) in enumerate(((1000, "10 s"), (1000, "10 s"), (10_000, "3 s"))):
        command = [sys.executable, "-c", FIRST, str(folder / f"start{i}"), str(n_points)]
        done = subprocess.run(command, check=True, capture_output=True)
        print(
            f"start      new process, {n_points} points to their graph: "
            f"{float(done.stdout):.2f} s (aim {aim}){', caches may be cold' if i == 0 else ''}"
        )


def stage_seconds(source: str, out: Path, k: int, client: Any) -> tuple[float, float]:
    """Return the seconds of the whole and of the stage "neighbors"."""
    events: list[Any] = []
    seconds, _ = timed(lambda: build_graph(source, out, k, client=client, progress=events.append))
    ends = [e.seconds for e in events if e.kind == "stage-end" and e.stage == "neighbors"]
    return seconds, ends[0]


def scaling(options: argparse.Namespace, folder: Path) -> None:
    """Measure more workers, more points, and many copies."""
    x = blobs_and_shapes(1_000_000, 3, dtype=np.float32)[0]
    million = write_zarr(folder / "million.zarr", x, 16)
    tenth = write_zarr(folder / "tenth.zarr", x[:100_000], 16)
    ratios = []
    for run in range(options.runs):
        with cluster(1) as client:
            one = stage_seconds(million, folder / f"one{run}", 38, client)[1]
        with cluster() as client:
            whole, two = stage_seconds(million, folder / f"two{run}", 38, client)
        ratios.append(one / two)
        print(f"scaling    1,000,000 x 3, neighbors: 1 worker {one:.2f} s, 2 workers {two:.2f} s: "
              f"{one / two:.2f} times as fast (aim 1.7; median so far {np.median(ratios):.2f})",
              flush=True)  # fmt: skip
    with cluster() as client:
        small = stage_seconds(tenth, folder / "small", 38, client)[0]
        large_source = generate(folder / "large.zarr", 10_000_000, 3)
        large = stage_seconds(large_source, folder / "large", 38, client)[0]
        print(f"scaling    x 3, k = 38: 10^5 {small:.2f}, 10^6 {whole:.2f}, 10^7 {large:.2f} s: "
              f"{whole / small:.1f} and {large / whole:.1f} times (aim 13)")  # fmt: skip
        x = blobs_and_shapes(1_000_000, 8, dtype=np.float32)[0]
        source = write_zarr(folder / "distinct.zarr", x, 16)
        distinct = stage_seconds(source, folder / "distinct", 36, client)[0]
        x[np.random.default_rng(0).permutation(len(x))[:300_000]] = x[0]
        source = write_zarr(folder / "identical.zarr", x, 16)
        identical = stage_seconds(source, folder / "identical", 36, client)[0]
        print(f"scaling    1,000,000 x 8: {distinct:.2f} s, with 300,000 identical rows "
              f"{identical:.2f} s: {identical / distinct:.2f} times (aim 1.5)")  # fmt: skip


def lengths(options: argparse.Namespace, folder: Path) -> None:
    """Compare a second search, for fragments, with long rows for all points."""
    sources = {
        name: write_zarr(folder / f"{name}.zarr", load(options.data, name))
        for name in ("mnist", "fashion")
        if (options.data / f"{name}.npz").exists()
    }
    sources["200,000 x 64"] = generate(folder / "wide.zarr", 200_000, 64)
    cases = [(source, "approximate", z) for source in sources for z in (50, 85)]
    sources["30,000 x 64"] = generate(folder / "less.zarr", 30_000, 64)
    cases += [("30,000 x 64", "exact", z) for z in (50, 85)]
    with cluster() as client:
        for name, knn, z in cases:
            said = []
            for most, kind in ((1.0, "fragments apart"), (-1.0, "long rows for all")):
                with mock.patch.dict(MOST_FRAGMENTS, dict.fromkeys(MOST_FRAGMENTS, most)):
                    runs = [
                        fit(
                            sources[name], folder / f"{name}-{knn}-{z}-{kind}-{i}", knn=knn,
                            z_percentile=z, params="paper", client=client,
                        )
                        for i in range(options.runs + 1)  # the first loads what is compiled
                    ]  # fmt: skip
                said.append(f"{kind} {search_costs(runs[1:])}")
            share = 1 - runs[0].summary["n_skeleton"] / runs[0].summary["n_points"]
            print(
                f"lengths    {name}, {knn}, z_percentile {z}, {share:.0%} are fragments:", end=" "
            )
            print(*said, sep="; ", flush=True)


def search_costs(runs: list[Run]) -> str:
    """Say how long equal fits searched for neighbours, and what that has left on disk."""
    stages = [run.summary["stages"] for run in runs]
    seconds = np.median(
        [sum(each[s]["seconds"] for s in ("graph", "fragments")) for each in stages]
    )
    nbytes = sum(stages[0][stage]["nbytes"] for stage in ("graph", "fragments"))
    recall = stages[0]["fragments"].get("recall", runs[0].summary["recall"]["sampled"])
    return f"{seconds:.1f} s, {nbytes / 1e6:.0f} MB, recall {recall:.3f}"


PARTS = {
    part.__name__: part for part in (exactness, recall, memory, speed, start, scaling, lengths)
}


def main(arguments: list[str] | None = None) -> None:
    """Run the parts that the command line asks for."""
    parser = argparse.ArgumentParser(prog="graphs", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which; all by default")
    beside = Path(__file__).parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=beside, help="folder of the real datasets")
    parser.add_argument("--runs", type=int, default=1, help="repetitions of each comparison")
    parser.add_argument("--only", default="", help="comparisons of speed whose name has this")
    options = parser.parse_args(arguments)
    for name in options.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[name](options, Path(folder))


if __name__ == "__main__":
    main()
