"""The command `spore-dask`. The only module that prints."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from typing import Any

import click

import spore_dask
from spore_dask.datasets import blobs_and_shapes
from spore_dask.errors import SporeError
from spore_dask.store import Folder, address


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(spore_dask.__version__, prog_name="spore-dask")
def commands() -> None:
    """Cluster large data with SPORE."""


@commands.command()
@click.option("--points", default=1_000_000, show_default=True, help="Points to generate.")
@click.option("--columns", default=2, show_default=True, help="Columns to generate.")
@click.option("--seed", default=0, show_default=True, help="Seed of the generator.")
@click.option("--memory-limit", default="1GiB", show_default=True, help="For each process.")
@click.option("--folder", type=click.Path(), help="Where to keep data and run. Default: nowhere.")
def demo(points: int, columns: int, seed: int, memory_limit: str, folder: str | None) -> None:
    """Write clusters of varied density and shape to Zarr, and find them again, out of core."""
    with contextlib.ExitStack() as stack:
        place = folder or stack.enter_context(tempfile.TemporaryDirectory())
        data, truth = blobs_and_shapes(points, columns, seed, dtype="float32")
        source = Folder(address(place)).child(f"demo-{points}-{columns}-{seed}.zarr")
        if not source.exists():
            Folder(address(place)).write_zarr(source.name, data, -(-points // 16))
        del data
        click.echo(f"Generated {points:,} points in {columns} columns, {truth.max() + 1} clusters.")
        click.echo("Compiling; after the first run this comes from a cache ...")
        spore_dask.fit(blobs_and_shapes(6000, columns, seed, dtype="float32")[0], n_workers=2)
        started = time.perf_counter()
        run = spore_dask.fit(source.url, memory_limit=memory_limit, seed=seed, progress=True)
        _describe(run, truth, time.perf_counter() - started)


def _describe(run: spore_dask.Run, truth: Any, seconds: float) -> None:
    """Print what a run has found, and what it took."""
    summary = run.summary
    n_points = summary["n_points"]
    peak = max(summary["peak_nbytes"].values()) >> 20
    limit = summary["memory_limit"] >> 20
    noise, skeleton = summary["n_noise"] / n_points, summary["n_skeleton"] / n_points
    kind = "exact" if summary["recall"]["certified"] == 1 else "approximate"
    click.echo(
        f"fit took {seconds:.1f} s with {kind} neighbours (K = {summary['params']['k']}), and at "
        f"most {peak} of {limit} MiB a process."
    )
    click.echo(
        f"It found {run.n_clusters} clusters: {skeleton:.1%} of the points in their skeletons, "
        f"{1 - skeleton - noise:.1%} reassigned, {noise:.1%} noise."
    )
    click.echo(f"Agreement with the truth (ARI): {_agreement(truth, run.labels[...]):.3f}")
    click.echo("\nLargest clusters:\n  label     size  skeleton  mean distance")
    clusters = run.clusters
    for label in clusters["size"].argsort()[::-1][:10]:
        record = clusters[label]
        click.echo(
            f"  {label:5d} {record['size']:8,} {record['skeleton_size']:9,} {record['mean']:14.3g}"
        )


def _agreement(truth: object, labels: object) -> float:
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(truth, labels))


def main() -> None:
    """Run the command; an expected error is one sentence and exit code 1."""
    try:
        commands()
    except SporeError as error:
        click.echo(f"spore-dask: {error}", err=True)
        sys.exit(1)
