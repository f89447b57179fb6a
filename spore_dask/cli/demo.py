"""The demo: clusters of varied density and shape, written to Zarr and found again.

Writes the data and a run into a folder, or into a temporary one.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from typing import Any

import spore_dask
from spore_dask.cli.showing import Answer, run_answer
from spore_dask.datasets import blobs_and_shapes
from spore_dask.progress import Consumer
from spore_dask.store import Folder, address


def demo_answer(
    n_points: int,
    n_columns: int,
    seed: int,
    memory_limit: str,
    folder: str | None,
    say: Any,
    progress: Consumer,
) -> Answer:
    """Generate data, cluster it out of core, and tell what was found."""
    with contextlib.ExitStack() as stack:
        data, truth = blobs_and_shapes(n_points, n_columns, seed, dtype="float32")
        place = Folder(address(folder or stack.enter_context(tempfile.TemporaryDirectory())))
        source = place.child(f"demo-{n_points}-{n_columns}-{seed}.zarr")
        if not source.exists():
            place.write_zarr(source.name, data, -(-n_points // 16))
        del data
        say(f"Generated {n_points:,} points in {n_columns} columns, {truth.max() + 1} clusters.")
        say("Compiling; after the first run this comes from a cache ...")
        spore_dask.fit(blobs_and_shapes(6000, n_columns, seed, dtype="float32")[0], n_workers=2)
        started = time.perf_counter()
        run = spore_dask.fit(source.url, memory_limit=memory_limit, seed=seed, progress=progress)
        answer = run_answer(run, time.perf_counter() - started)
        agreement = _agreement(truth, run.labels[...])
    lines = [*answer.lines, f"Agreement with the truth (ARI): {agreement:.3f}"]
    if folder is None:
        lines = [line for line in lines if not line.startswith("Labels: ")]
    return Answer({**answer.document, "agreement": agreement}, lines)


def _agreement(truth: Any, labels: Any) -> float:
    """Return the adjusted Rand index."""
    from sklearn.metrics import adjusted_rand_score  # slow to import

    return float(adjusted_rand_score(truth, labels))
