"""Run one contestant in this process: `python -m pipelines.scale.contestants JOB.json`.

Reads the job, and the data that it names: a .npy file, mapped, or a Zarr array. Compiles on a few
drawn rows, marks the start, clusters, and writes the labels and what it took. Imports numpy alone
before a contestant runs, so that any Python that has a contestant's package can run it.

All have two threads or two processes. K-means variants are told the true number of clusters. The
HDBSCAN variants get as `min_cluster_size` the paper's default for as many points (at most 30
where clusters are small). As `min_samples` they get its `density_neighbors`: their own default,
`min_cluster_size`, smooths far more. All else is at its default. The process ends with the one
that started it.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[Any]

N_SAMPLED = 50_000
"""Rows that HDBSCAN on a sample clusters."""
N_QUERIED = 100_000
"""Rows whose nearest sampled row is looked up at once."""
FEW_COLUMNS = 16
"""Up to here trees find neighbours; beyond, approximate searches do."""
CHUNK_NBYTES = 32 << 20
"""Size of the blocks that dask-ml reads, at most; there are eight at least."""
CHOOSING = ("places", "excerpts", "trials", "sample", "voters", "reference")
"""Steps of a fit that compare configurations."""
N_WARM, N_WARM_CLUSTERS = 2000, 8
"""Rows that all compile on."""
PARENT_SECONDS = 0.5
"""How often a process looks for its parent."""
STARTED, FINISHED, LABELS = "started", "finished.json", "labels.npy"
"""Files that a process leaves in its folder."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What a contestant is to cluster, with what it may use and may know."""

    contestant: str
    source: str
    """Path of the data: a Zarr array for ours, a .npy file for the others."""
    folder: str
    """Where it may write."""
    n_points: int
    n_columns: int
    n_clusters: int
    """The true number, for those that must be told."""
    min_cluster_size: int
    min_samples: int
    sample_min_cluster_size: int
    """The same for a sample."""
    sample_min_samples: int
    memory_limit: int
    """Bytes that a process may use."""
    n_threads: int = 2


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One that clusters."""

    name: str
    title: str
    package: str
    """The distribution that it comes from."""
    module: str
    """What is imported to see whether it is there."""
    cluster: Callable[[Job, Any], tuple[Labels, dict[str, Any]]]
    """From a job and a source (of the data or of the warm-up) to labels and further facts."""
    kind: str
    """"density" if it is density-based, "sample" if on a sample, "centres" for K-means."""
    ours: bool = False
    peer: bool = False
    """Whether it needs the Python of the author's package."""
    optional: bool = False
    """Whether it is run only if it is asked for."""
    n_crowd: int = 0
    """Rows of one blob that it compiles on too: with many columns these are searched otherwise."""


def mapped(source: str) -> NDArray[np.float32]:
    """Map a .npy file, so that only the pages that are touched are read."""
    return np.load(source, mmap_mode="r")


def cluster_ours(job: Job, source: Any, **options: Any) -> tuple[Labels, dict[str, Any]]:
    """Fit with defaults: from Zarr to a run on disk, two workers, the cap as memory limit."""
    import spore_dask
    from spore_dask.engine import peak_nbytes

    spent = [0.0]

    def watch(event: Any) -> None:
        if event.kind == "stage-end" and event.stage in CHOOSING:
            spent.append(event.seconds)

    out = str(Path(job.folder) / "run") if isinstance(source, str) else None
    where = {"memory_limit": job.memory_limit, "n_workers": job.n_threads}
    run = spore_dask.fit(source, out, keep="labels", progress=watch, **where, **options)
    summary, choice = run.summary, run.choice or {}
    facts = {
        "own_peak_nbytes": max(summary["peak_nbytes"].values()),
        "resident_nbytes": peak_nbytes(),  # the system's mark is set back by each stage
        "recall": summary["recall"]["sampled"],
        "stage_seconds": {
            name: stage["seconds"]
            for name, stage in summary["stages"].items()
            if "seconds" in stage
        }
        | ({"trials": sum(spent)} if choice else {}),
        "choice": {name: choice[name] for name in ("params", "score", "n_trials") if choice},
    }
    return np.asarray(run.labels[...]), facts


def cluster_paper(job: Job, source: Any) -> tuple[Labels, dict[str, Any]]:
    """Fit with the paper's parameters, in one pass."""
    return cluster_ours(job, source, params="paper")


def cluster_author(job: Job, source: Any, **options: Any) -> tuple[Labels, dict[str, Any]]:
    """Fit the author's package."""
    from spore_clustering import SPORE

    return SPORE(n_jobs=job.n_threads, **options).fit(data_of(source)).labels_, {}


def cluster_author_exact(job: Job, source: Any) -> tuple[Labels, dict[str, Any]]:
    """Fit the author's package with exact neighbours."""
    return cluster_author(job, source, exact_knn=True)


def data_of(source: Any) -> NDArray[np.float32]:
    """Return the rows of a source, mapped if it is a file."""
    return mapped(source) if isinstance(source, str) else source


def cluster_fast_hdbscan(job: Job, source: Any) -> tuple[Labels, dict[str, Any]]:
    """Fit fast_hdbscan."""
    from fast_hdbscan import HDBSCAN

    model = HDBSCAN(min_cluster_size=job.min_cluster_size, min_samples=job.min_samples)
    return model.fit(data_of(source)).labels_, {}


def cluster_hdbscan(job: Job, source: Any) -> tuple[Labels, dict[str, Any]]:
    """Fit hdbscan."""
    from hdbscan import HDBSCAN

    model = HDBSCAN(
        min_cluster_size=job.min_cluster_size,
        min_samples=job.min_samples,
        core_dist_n_jobs=job.n_threads,
    )
    return model.fit(data_of(source)).labels_, {}


def cluster_sample(job: Job, source: Any) -> tuple[Labels, dict[str, Any]]:
    """Fit fast_hdbscan on a sample; other rows take the label of their nearest sampled row."""
    from fast_hdbscan import HDBSCAN

    points = data_of(source)
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(len(points), min(N_SAMPLED, len(points)), replace=False))
    sample = np.asarray(points[rows])
    model = HDBSCAN(
        min_cluster_size=job.sample_min_cluster_size, min_samples=job.sample_min_samples
    )
    labels = model.fit(sample).labels_
    nearest = nearest_of(sample, job)
    parts = [
        labels[nearest(np.asarray(points[first : first + N_QUERIED]))]
        for first in range(0, len(points), N_QUERIED)
    ]
    return np.concatenate(parts), {}


def nearest_of(sample: NDArray[np.float32], job: Job) -> Callable[[Any], NDArray[np.int64]]:
    """Return a function that looks up the nearest sampled row."""
    if sample.shape[1] <= FEW_COLUMNS:
        from pykdtree.kdtree import KDTree

        tree = KDTree(sample)
        return lambda points: tree.query(points, k=1)[1].astype(np.int64)
    from pynndescent import NNDescent

    index = NNDescent(sample, random_state=0, n_jobs=job.n_threads)
    return lambda points: index.query(points, k=1)[0][:, 0]


def cluster_kmeans(job: Job, source: Any) -> tuple[Labels, dict[str, Any]]:
    """Fit scikit-learn's KMeans."""
    from sklearn.cluster import KMeans

    return KMeans(job.n_clusters, random_state=0).fit(data_of(source)).labels_, {}


def cluster_minibatch(job: Job, source: Any) -> tuple[Labels, dict[str, Any]]:
    """Fit scikit-learn's MiniBatchKMeans."""
    from sklearn.cluster import MiniBatchKMeans

    return MiniBatchKMeans(job.n_clusters, random_state=0).fit(data_of(source)).labels_, {}


def cluster_dask_ml(job: Job, source: Any) -> tuple[Labels, dict[str, Any]]:
    """Fit dask-ml's KMeans on two processes, with rows read from the file as they are needed."""
    import dask.array as da
    import distributed
    from dask_ml.cluster import KMeans

    chunk = max(1, min(CHUNK_NBYTES // (4 * job.n_columns), -(-job.n_points // 8)))
    sizes = tuple(min(chunk, job.n_points - first) for first in range(0, job.n_points, chunk))
    with (
        distributed.LocalCluster(
            n_workers=job.n_threads,
            threads_per_worker=1,
            memory_limit=job.memory_limit,
            dashboard_address=None,
            security=True,
        ) as local,
        distributed.Client(local),
    ):
        if isinstance(source, str):
            chunks, meta = (sizes, (job.n_columns,)), np.empty((0, 0), "f4")
            points = da.map_blocks(read_block, source, chunks=chunks, dtype="f4", meta=meta)
        else:
            points = da.from_array(source, chunks=(chunk, job.n_columns))
        if points.nbytes < job.memory_limit // 4:
            points = points.persist()  # as one does with data that fits
        model = KMeans(job.n_clusters, random_state=0).fit(points)
        return model.labels_.compute(), {}


def read_block(source: str, block_info: Any = None) -> NDArray[np.float32]:
    """Read the rows of one block of a .npy file."""
    first, last = block_info[None]["array-location"][0]
    return np.array(mapped(source)[first:last])


OURS, PAPER = "spore_dask", "spore_dask_paper"
"""The one that others are compared with, as a user calls it, and the same with the parameters of
the paper."""
CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant(OURS, "spore_dask", "spore-dask", "spore_dask", cluster_ours, "density",
                   ours=True, n_crowd=20_000),
        Contestant(PAPER, 'spore_dask, params="paper"', "spore-dask", "spore_dask",
                   cluster_paper, "density", ours=True, optional=True, n_crowd=20_000),
        Contestant("fast_hdbscan", "fast_hdbscan", "fast-hdbscan", "fast_hdbscan",
                   cluster_fast_hdbscan, "density"),
        Contestant("hdbscan", "hdbscan", "hdbscan", "hdbscan", cluster_hdbscan, "density"),
        Contestant("spore_clustering", "spore-clustering", "spore-clustering",
                   "spore_clustering", cluster_author, "density", peer=True),
        Contestant("spore_clustering_exact", "spore-clustering, exact", "spore-clustering",
                   "spore_clustering", cluster_author_exact, "density", peer=True),
        Contestant("hdbscan_sample", f"fast_hdbscan on {N_SAMPLED:,} rows", "fast-hdbscan",
                   "fast_hdbscan", cluster_sample, "sample"),
        Contestant("kmeans", "KMeans", "scikit-learn", "sklearn", cluster_kmeans, "centres"),
        Contestant("minibatch_kmeans", "MiniBatchKMeans", "scikit-learn", "sklearn",
                   cluster_minibatch, "centres"),
        Contestant("dask_ml_kmeans", "dask-ml KMeans", "dask-ml", "dask_ml", cluster_dask_ml,
                   "centres"),
    )
}  # fmt: skip
"""All, ours first."""


def warm_sets(contestant: Contestant, job: Job) -> Iterator[NDArray[np.float32]]:
    """Draw rows to compile on: a few blobs, and one large one if it is asked for."""
    rng = np.random.default_rng(0)
    centres = rng.uniform(0, 10, (N_WARM_CLUSTERS, job.n_columns))
    rows = centres[rng.integers(0, N_WARM_CLUSTERS, N_WARM)]
    yield (rows + rng.standard_normal(rows.shape)).astype(np.float32)
    if contestant.n_crowd and job.n_columns > FEW_COLUMNS:
        yield rng.standard_normal((contestant.n_crowd, job.n_columns), dtype=np.float32)


def resident_nbytes() -> int:
    """Return the peak resident memory of this process, mapped files included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def small_job(job: Job) -> Job:
    """Return the job with sizes that fit the rows of the warm-up."""
    return dataclasses.replace(
        job,
        n_points=N_WARM,
        n_clusters=N_WARM_CLUSTERS,
        min_cluster_size=20,
        min_samples=10,
        sample_min_cluster_size=20,
        sample_min_samples=10,
    )


def end_with(parent: int) -> None:
    """End this process when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def run(job: Job) -> None:
    """Warm up, cluster, and write what came out."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    contestant, folder = CONTESTANTS[job.contestant], Path(job.folder)
    importlib.import_module(contestant.module)
    for rows in warm_sets(contestant, job):
        contestant.cluster(small_job(job), rows)
    (folder / STARTED).touch()
    start = time.perf_counter()
    labels, facts = contestant.cluster(job, job.source)
    facts["seconds"] = time.perf_counter() - start
    np.save(folder / LABELS, np.asarray(labels, np.int32))
    facts.setdefault("resident_nbytes", resident_nbytes())
    facts["version"] = importlib.metadata.version(contestant.package)
    part = folder / f"{FINISHED}.part"
    part.write_text(json.dumps(facts))
    part.replace(folder / FINISHED)


if __name__ == "__main__":
    # Workers that import this module again find its functions under the same name.
    from pipelines.scale import contestants

    contestants.run(contestants.Job(**json.loads(Path(sys.argv[1]).read_text())))
