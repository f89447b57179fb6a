"""Benchmarks of `fit` and `predict`: equality, bytes, memory, speed, scaling, estimates, choice.

    python -m pipelines.fits [PART ...] [--peer-python PATH] [--data FOLDER]
    python -m pipelines.fits choice [--points 1e6] [--columns 2 8 64] [--runs 2]

Prints one line a measurement, with the aim beside it. Fits have the parameters of the paper; only
`choice` compares them with fits that choose their own. `speed` compares with fast_hdbscan (if it is
installed) and, given a Python 3.12 that has it, with spore-clustering. `predict` takes mnist and
`estimate` also glove100 and fashion from the folder of the real datasets, if it is there.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from pipelines.graphs import generate, timed, write_zarr
from pipelines.scale.generating import BACKGROUND, mixture, write_labels
from pipelines.scale.generating import write_zarr as write_mixture
from spore_dask import (
    Params,
    build_graph,
    cluster_graph,
    estimate,
    fit,
    open_run,
    predict,
)
from spore_dask.datasets import blobs_and_shapes
from spore_dask.estimates import StageEstimate

N_WORKERS = 2


@contextlib.contextmanager
def cluster() -> Iterator[Any]:
    """Start workers, and let them and this process load what a fit needs."""
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=N_WORKERS, threads_per_worker=1, dashboard_address=None, security=True
        ) as local,
        distributed.Client(local) as client,
    ):
        x, _ = blobs_and_shapes(20_000, 2, dtype=np.float32)
        for _ in range(2):
            fit(x, client=client, params="paper")
        yield client


def equality(options: argparse.Namespace, folder: Path) -> None:
    """Compare labels of 200,000 points, many of them copies, with those from the same graph."""
    x, _ = blobs_and_shapes(200_000, 2, dtype=np.float32)
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(x))
    x[rows[:30_000]] = x[rows[30_000 + rng.integers(0, 3000, 30_000)]]
    x[rows[40_000:45_000]] = x[rows[45_000]]
    k = Params().resolve(len(x)).k
    graph = build_graph(write_zarr(folder / "copies.zarr", x), folder / "graph", k, n_workers=2)
    expected = cluster_graph(*graph.to_memory(), x)
    for n_workers, n_chunks, n_partitions, cache in (
        (0, 1, None, None),
        (1, 7, 3, 0),
        (2, 16, 9, "5MB"),
        (3, 200, 23, 0),
        (3, 16, None, None),
    ):
        name = f"{n_workers}-{n_chunks}-{n_partitions}"
        source = write_zarr(folder / f"{name}.zarr", x, n_chunks)
        given = {"n_workers": n_workers, "n_partitions": n_partitions, "cache_limit": cache}
        run = fit(source, params="paper", **given)
        n_equal = int((np.asarray(run.labels[...]) == expected).sum())
        print(
            f"equality   200,000 x 2 with 35,000 copies, {n_chunks} chunks, {n_workers} workers, "
            f"{n_partitions or 'default'} partitions, cache_limit {cache}: {n_equal} labels equal "
            f"(aim {len(x)}), {run.n_clusters} clusters"
        )


def read_bytes(options: argparse.Namespace, folder: Path) -> None:
    """Print what expansion reads with a cache of a tenth of the graph."""
    for n_columns in (3, 8):
        x, _ = blobs_and_shapes(1_000_000, n_columns, dtype=np.float32)
        source = write_zarr(folder / f"bytes{n_columns}.zarr", x)
        k = Params().resolve(len(x)).expansion_neighbors
        cache = len(x) * (k + 1) * 8 // 10
        run = fit(source, cache_limit=cache, n_workers=N_WORKERS, params="paper")
        facts = run.summary["stages"]["expand"]
        print(
            f"bytes      1,000,000 x {n_columns}, cache {facts['cache_nbytes'] / 1e6:.0f} MB: "
            f"expansion read {facts['read_nbytes'] / 1e6:.0f} MB: "
            f"{facts['read_nbytes'] / facts['graph_nbytes']:.2f} times the graph of "
            f"{facts['graph_nbytes'] / 1e6:.0f} MB (aim 2.5), {facts['seconds']:.1f} s"
        )


FIT = """
import json, os, sys
from spore_dask import fit
run = fit(sys.argv[1], memory_limit=sys.argv[2], n_workers=2, params="paper")
print(json.dumps({"own": str(os.getpid()), "id": run.id}))
"""


def memory(options: argparse.Namespace, folder: Path) -> None:
    """Fit large data with 1 GiB a process; print peaks."""
    for n_points, n_columns in ((10_000_000, 2), (5_000_000, 8)):
        source = generate(folder / f"big{n_columns}.zarr", n_points, n_columns)
        command = [sys.executable, "-c", FIT, source, "1GiB"]
        seconds, done = timed(
            lambda command=command: subprocess.run(command, check=True, capture_output=True)
        )
        own = json.loads(done.stdout.splitlines()[-1])["own"]
        summary = open_run(source.removesuffix(".zarr") + ".spore").summary
        peaks = summary["peak_nbytes"]
        driver = next(nbytes for name, nbytes in peaks.items() if name.endswith(f":{own}"))
        cache = min(summary["stages"]["expand"][name] for name in ("cache_nbytes", "graph_nbytes"))
        print(
            f"memory     {n_points} x {n_columns}: peaks {sorted(v >> 20 for v in peaks.values())} "
            f"MiB of 1024; coordinator {driver >> 20} MiB with a cache of {cache >> 20} MiB: "
            f"beside it and an interpreter's {options.interpreter >> 20} MiB, "
            f"{(driver - cache - options.interpreter) / n_points:.1f} bytes a point (aim 16); "
            f"{seconds:.0f} s: {stage_line(summary)}"
        )


def stage_line(summary: dict[str, Any]) -> str:
    """Return the seconds of each stage."""
    return ", ".join(
        f"{name} {stage['seconds']:.1f}"
        for name, stage in summary["stages"].items()
        if "seconds" in stage
    )


HDBSCAN = """
import sys, time
import numpy as np
from fast_hdbscan import HDBSCAN
x = np.load(sys.argv[1])
HDBSCAN().fit(x[:20000])
start = time.perf_counter()
HDBSCAN().fit(x)
print(time.perf_counter() - start)
"""
AUTHOR = """
import sys, time
import numpy as np
from spore_clustering import SPORE
x = np.load(sys.argv[1])
options = {"n_jobs": 2} | ({"exact_knn": True} if sys.argv[2] == "exact" else {})
SPORE(**options).fit(x[:2000])
start = time.perf_counter()
SPORE(**options).fit(x)
print(time.perf_counter() - start)
"""


def peer_seconds(python: str, code: str, *arguments: str) -> float:
    """Return the seconds that a peer takes in a process of its own, after its compilation."""
    done = subprocess.run([python, "-c", code, *arguments], capture_output=True)
    if done.returncode:
        print("           " + done.stderr.decode().strip().splitlines()[-1])
        return float("nan")
    return float(done.stdout.splitlines()[-1])


def speed(options: argparse.Namespace, folder: Path) -> None:
    """Compare a fit of 1,000,000 x 2 from Zarr with in-memory peers."""
    x, _ = blobs_and_shapes(1_000_000, 2, dtype=np.float32)
    source = write_zarr(folder / "speed.zarr", x)
    np.save(folder / "speed.npy", x)
    path = str(folder / "speed.npy")
    peers = [("fast_hdbscan", sys.executable, HDBSCAN, "defaults", 0.4)]
    if options.peer_python:
        peers.append(("spore-clustering exact", options.peer_python, AUTHOR, "exact", 1 / 5))
        peers.append(("spore-clustering default", options.peer_python, AUTHOR, "default", 1 / 20))
    for _ in range(6):  # compiles what any worker, and this process, may need
        fit(x[:20_000], n_workers=N_WORKERS, params="paper")
    for i in range(options.runs):
        seconds = fit_once("workers of its own", source, folder / f"own-{i}", n_workers=N_WORKERS)
        for name, python, code, argument, aim in peers if i < options.peer_runs else []:
            other = peer_seconds(python, code, path, argument)
            print(f"speed      {name} {other:.1f} s: {seconds / other:.3f} (aim {aim:.2f})")
    with cluster() as client:
        for i in range(options.runs):
            fit_once("workers at hand", source, folder / f"speed-{i}", client=client)


def fit_once(what: str, source: str, out: Path, **options: Any) -> float:
    """Fit, print what it took and what came after the neighbours, and return the seconds."""
    searched = []

    def watch(event: Any) -> None:
        if (event.stage, event.kind) == ("neighbors", "stage-end"):
            searched.append(time.perf_counter())

    seconds, run = timed(lambda: fit(source, out, params="paper", progress=watch, **options))
    after = time.perf_counter() - searched[0]
    print(
        f"speed      1,000,000 x 2, {what}: {seconds:.2f} s, of which {after:.2f} s after the "
        f"neighbours, {after / seconds:.0%} (aim 30%): {stage_line(run.summary)}"
    )
    return seconds


def scaling(options: argparse.Namespace, folder: Path) -> None:
    """Fit ten and a hundred times the points, at equal k and with defaults."""
    equal = {"density_neighbors": 19, "expansion_neighbors": 38, "reassignment_neighbors": 76}
    sources = [generate(folder / f"scale{n}.zarr", n, 2) for n in (100_000, 1_000_000, 10_000_000)]
    with cluster() as client:
        for name, params, aim in (("equal k", equal, 13), ("defaults", {}, 15)):
            seconds = [
                timed(
                    lambda s=source, p=params, n=name: fit(
                        s, f"{s}-{n.replace(' ', '')}", client=client, params="paper", **p
                    )
                )[0]
                for source in sources
            ]
            ratios = [seconds[1] / seconds[0], seconds[2] / seconds[1]]
            print(
                f"scaling    x 2, {name}: 10^5 {seconds[0]:.2f}, 10^6 {seconds[1]:.2f}, 10^7 "
                f"{seconds[2]:.1f} s: {ratios[0]:.1f} and {ratios[1]:.1f} times (aim {aim})"
            )


ESTIMATED = """
import json, sys, time
from spore_dask import fit
source, out, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
fit(source, out + "-before", n_workers=2, params="paper", **given)
started = time.perf_counter()
run = fit(source, out, n_workers=2, keep="all", params="paper", **given)
print(json.dumps({"seconds": time.perf_counter() - started, "stages": run.summary["stages"]}))
"""


def estimates(options: argparse.Namespace, folder: Path) -> None:
    """Compare what `estimate` says with what a fit then takes.

    The fit has a process of its own, so that its memory is not that of the estimate or of a case
    before. Another one comes first, which compiles: estimates are without that.
    """
    farthest: dict[str, tuple[float, str]] = {}
    for case, source, given in estimate_cases(options.data, folder):
        said = estimate(source, n_workers=N_WORKERS, **given)
        command = [sys.executable, "-c", ESTIMATED, source, f"{source}-fit", json.dumps(given)]
        done = subprocess.run(command, check=True, capture_output=True)
        found = json.loads(done.stdout.splitlines()[-1])
        whole = Compared(said.seconds, found["seconds"], "s", 1)
        print(f"estimate   {case}: {whole} (aim 2)")
        for name, stage in found["stages"].items():
            if name not in said.stages:  # such as fragments, where the sample had none
                print(f"           {name:<10} not foreseen")
                continue
            compared = compare_stage(said.stages[name], stage)
            print(f"           {name:<10} " + "; ".join(map(str, compared.values())))
            for what, one in compared.items():
                place = f"{name} of {case}"
                farthest[what] = max(farthest.get(what, (0.0, "")), (one.factor, place))
    farthest_of = (f"{what} {by:.2f} ({place})" for what, (by, place) in farthest.items())
    print(f"estimate   farthest off: {', '.join(farthest_of)} (aim 2)")


SIZES = ((300_000, 2), (1_000_000, 2), (1_000_000, 8), (200_000, 64), (100_000, 384))
REAL = {"glove100": {"metric": "cosine"}, "mnist": {}, "fashion": {"scale": "clip-minmax"}}


def estimate_cases(data: Path, folder: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield what to estimate: a name, a source and options of `fit`."""
    for n_points, n_columns in SIZES:
        name = f"{n_points} x {n_columns}"
        yield name, generate(folder / f"{name}.zarr".replace(" ", ""), n_points, n_columns), {}
    for name, given in REAL.items():
        if (data / f"{name}.npz").exists():
            with np.load(data / f"{name}.npz") as file:
                x = file["X"].astype(np.float32)
            yield f"{name}, {len(x)} x {x.shape[1]}", write_zarr(folder / f"{name}.zarr", x), given


@dataclasses.dataclass(frozen=True)
class Compared:
    """What was estimated and found."""

    span: tuple[float, float]
    found: float
    unit: str
    digits: int

    @property
    def factor(self) -> float:
        """By which factor it is outside, if it is."""
        low, high = self.span
        return max(1.0, low / self.found, self.found / high)

    def __str__(self) -> str:
        low, high, found = (f"{value:.{self.digits}f}" for value in (*self.span, self.found))
        said = low if low == high else f"{low} to {high}"
        return f"{said} {self.unit}, found {found}: {self.factor:.2f} times off"


def compare_stage(said: StageEstimate, found: dict[str, Any]) -> dict[str, Compared]:
    """Compare the time, the disk and the memory of a stage."""
    low, high = (nbytes / 1e6 for nbytes in said.disk_nbytes)
    memory = said.memory_nbytes / 2**20
    return {
        "time": Compared(said.seconds, found["seconds"], "s", 2),
        "disk": Compared((low, high), found["nbytes"] / 1e6, "MB", 1),
        "memory": Compared((memory, memory), found["peak_nbytes"] / 2**20, "MiB", 0),
    }


MNIST = {"retention_rate": 0.5}
"""The best of five configurations that were tried with the labels at hand."""


def predictions(options: argparse.Namespace, folder: Path) -> None:
    """Fit some points, predict others: how well, how fast, in how much memory."""
    if (options.data / "mnist.npz").exists():
        predict_digits(options.data / "mnist.npz", folder)
    x, _ = blobs_and_shapes(2_000_000, 2, dtype=np.float32)
    source, new = (
        write_zarr(folder / f"{name}.zarr", x[which::2]) for which, name in enumerate(("x", "new"))
    )
    del x
    with cluster() as client:
        fit_seconds, run = timed(lambda: fit(source, client=client, params="paper"))
        for _ in range(2):  # the first compiles
            seconds, _ = timed(lambda: predict(run, new, folder / f"{time.time()}", client=client))
    own = np.mean(predict(run, source, n_workers=N_WORKERS).labels[...] == run.labels[...])
    print(
        f"predict    1,000,000 new points, run of 1,000,000 x 2: {seconds:.2f} s, "
        f"{seconds / fit_seconds:.2f} times the fit's {fit_seconds:.2f} s; fitted points get their "
        f"own label: {own:.4%} (aim 100%)"
    )
    command = [sys.executable, "-c", PREDICT, run.path, new, str(folder / "out"), "800MiB"]
    done = subprocess.run(command, check=True, capture_output=True)
    print(f"predict    {memory_line(json.loads(done.stdout.splitlines()[-1]))}")


PREDICT = """
import json, sys
from spore_dask import predict
found = predict(*sys.argv[1:4], memory_limit=sys.argv[4], n_workers=2)
print(json.dumps(found.summary))
"""


def memory_line(summary: dict[str, Any]) -> str:
    """Say what a prediction was projected to need, and what its processes took."""
    needs = max(summary["needs_nbytes"].values())
    own = f":{os.getpid()}"  # which has the data in memory
    peaks = [n >> 20 for name, n in summary["peak_nbytes"].items() if not name.endswith(own)]
    return (
        f"peaks {sorted(peaks)} MiB, projected {needs >> 20} MiB and a cache of "
        f"{summary['cache_nbytes'] >> 20} MiB, limit {summary['memory_limit'] >> 20} MiB"
    )


def predict_digits(path: Path, folder: Path) -> None:
    """Fit 60,000 digits, predict the other 10,000, and compare both with the truth."""
    with np.load(path) as file:
        x, y = (file["X"] / 255).astype(np.float32), file["y"]
    order = np.random.default_rng(0).permutation(len(x))
    source = write_zarr(folder / "digits.zarr", x[order[:60_000]])
    new = write_zarr(folder / "new-digits.zarr", x[order[60_000:]])
    del x
    for name, params in (("defaults", {}), (str(MNIST), MNIST)):
        given = {"n_workers": N_WORKERS, "params": "paper", **params}
        fit_seconds, run = timed(lambda given=given: fit(source, **given))
        seconds, found = timed(lambda run=run: predict(run, new, n_workers=N_WORKERS))
        scores = [
            adjusted_rand_score(truth, np.asarray(labels[...]))
            for truth, labels in zip(
                np.split(y[order], [60_000]), (run.labels, found.labels), strict=True
            )
        ]
        print(
            f"predict    mnist, {name}: ARI {scores[0]:.4f} of 60,000 fitted, {scores[1]:.4f} of "
            f"10,000 new: {scores[1] - scores[0]:+.4f} (aim within 0.02); noise "
            f"{run.summary['n_noise'] / 60_000:.2%} and {found.summary['n_left'] / 10_000:.2%}; "
            f"{fit_seconds:.1f} and {seconds:.1f} s; recall "
            f"{found.summary['recall']['sampled']:.3f}; {memory_line(found.summary)}"
        )


CHOICE_AIMS = {2: 4.0, 8: 2.0, 64: 1.5}
"""For numbers of columns, the time of a fit that chooses its parameters over that of one pass."""
WARM_POINTS = 21_000
"""Beyond 20,000 points a choice takes all its steps."""


def choice(options: argparse.Namespace, folder: Path) -> None:
    """Compare fits that choose their parameters with fits in one pass, taking turns."""
    n_points = int(options.points)
    for n_columns in options.columns:
        drawn = mixture(n_columns)
        source, truth = folder / f"choice-{n_columns}.zarr", folder / "truth.npy"
        write_mixture(source, drawn, n_points)
        write_labels(truth, drawn, n_points)
        small, y = drawn.rows(0, WARM_POINTS)[0], np.load(truth)
        for params in 2 * ("paper", "auto"):  # compiles what workers and this process need
            fit(small, n_workers=N_WORKERS, params=params)
        seconds: dict[str, list[float]] = {"paper": [], "auto": []}
        for i in range(options.runs):
            for params, spent in seconds.items():
                out = folder / f"choice-{n_columns}-{params}-{i}"
                spent.append(
                    choose_once(f"{n_points:,} x {n_columns}", str(source), out, params, y)
                )
                shutil.rmtree(out)
        ratio = np.median(seconds["auto"]) / np.median(seconds["paper"])
        aim = CHOICE_AIMS.get(n_columns)
        print(f"choice     {n_points:,} x {n_columns}: {ratio:.2f} times (aim {aim})", flush=True)
        shutil.rmtree(source)


def choose_once(what: str, source: str, out: Path, params: str, y: NDArray[np.int32]) -> float:
    """Fit, print what it took and found, and return the seconds."""
    steps: dict[str, float] = {}

    def watch(event: Any) -> None:
        if event.kind == "stage-end":
            steps[event.stage] = steps.get(event.stage, 0.0) + event.seconds

    given = {"n_workers": N_WORKERS, "params": params, "progress": watch}
    seconds, run = timed(lambda: fit(source, out, **given))
    inside = y != BACKGROUND
    ari = adjusted_rand_score(y[inside], np.asarray(run.labels[...])[inside])
    score = f", score {run.choice['score']:.3f}" if run.choice else ""
    print(
        f"choice     {what}, {params}: {seconds:.1f} s, ARI {ari:.3f}, {run.n_clusters} clusters"
        f"{score}: " + ", ".join(f"{name} {spent:.1f}" for name, spent in steps.items()),
        flush=True,
    )
    return seconds


PARTS = {
    "equality": equality,
    "bytes": read_bytes,
    "memory": memory,
    "speed": speed,
    "scaling": scaling,
    "estimate": estimates,
    "predict": predictions,
    "choice": choice,
}


def interpreter_nbytes() -> int:
    """Return the peak of a process that has fitted next to nothing."""
    code = (
        "import sys, numpy as np; from spore_dask import fit\n"
        "x = np.random.default_rng(0).random((2000, 2)).astype('f4')\n"
        "run = fit(x, n_workers=2, params='paper')\n"
        "import os; own = f':{os.getpid()}'\n"
        "print([v for k, v in run.summary['peak_nbytes'].items() if k.endswith(own)][0])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return int(done.stdout.splitlines()[-1])


def main(arguments: list[str] | None = None) -> None:
    """Run the parts that the command line asks for."""
    parser = argparse.ArgumentParser(prog="fits", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which; all by default")
    parser.add_argument("--peer-python", help="a Python 3.12 with spore-clustering")
    parser.add_argument("--runs", type=int, default=1, help="repetitions in `speed` and `choice`")
    parser.add_argument("--peer-runs", type=int, default=1, help="repetitions of the peers")
    parser.add_argument("--points", type=float, default=1e6, help="points in `choice`")
    parser.add_argument("--columns", type=int, nargs="+", default=[*CHOICE_AIMS], help="the same")
    beside = Path(__file__).parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=beside, help="folder of the real datasets")
    options = parser.parse_args(arguments)
    if not options.parts or "memory" in options.parts:
        options.interpreter = interpreter_nbytes()
    for name in options.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            PARTS[name](options, Path(folder))
            print(f"           {name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
