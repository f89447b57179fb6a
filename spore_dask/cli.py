"""The command `spore-dask`. The only module that prints."""

from __future__ import annotations

import sys
import time

import click

import spore_dask
from spore_dask.datasets import blobs_and_shapes
from spore_dask.errors import SporeError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(spore_dask.__version__, prog_name="spore-dask")
def commands() -> None:
    """Cluster large data with SPORE."""


@commands.command()
@click.option("--points", default=100_000, show_default=True, help="Points to generate.")
@click.option("--columns", default=2, show_default=True, help="Columns to generate.")
@click.option("--seed", default=0, show_default=True, help="Seed of the generator.")
def demo(points: int, columns: int, seed: int) -> None:
    """Generate clusters of varied density and shape, and find them again."""
    data, truth = blobs_and_shapes(points, columns, seed, dtype="float32")
    click.echo(f"Generated {points:,} points in {columns} columns, {truth.max() + 1} clusters.")
    click.echo("Compiling; after the first run this comes from a cache ...")
    spore_dask.SPORE().fit(data[: max(2, points // 1000)])
    started = time.perf_counter()
    model = spore_dask.SPORE(seed=seed).fit(data)
    seconds = time.perf_counter() - started
    kind = "exact" if model.exact_ else "approximate"
    click.echo(f"SPORE took {seconds:.2f} s, with {kind} neighbours, K = {model.params_.k}.")
    noise = (model.labels_ == -1).mean()
    skeleton = (model.provenance_ == 0).mean()
    click.echo(
        f"It found {model.n_clusters_} clusters: {skeleton:.1%} of the points in their skeletons, "
        f"{1 - skeleton - noise:.1%} reassigned, {noise:.1%} noise."
    )
    click.echo(f"Agreement with the truth (ARI): {_agreement(truth, model.labels_):.3f}")
    click.echo("\nLargest clusters:\n  label     size  skeleton  mean distance")
    for label in model.clusters_["size"].argsort()[::-1][:10]:
        record = model.clusters_[label]
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
