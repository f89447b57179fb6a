"""Read labelled datasets, and prepare them as the paper does: scaled columns, then some reduced.

Reads .npz files with X and y, or what ships with scikit-learn. Memory: three copies of one dataset.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from pipelines.benchmark.methods import Floats, Labels
from spore_dask import InputError

CLIP_MINMAX, STANDARD = "clip-minmax", "standard"
SCALINGS = (CLIP_MINMAX, STANDARD)
REACH = 6
"""Deviations that clipping leaves on either side of the mean."""
VARIANTS: dict[str, dict[str, int | None]] = {
    "trapped_lovers": {"trapped_lovers_2d": 2, "trapped_lovers_3d": None},
    "pbmc3k": {"pbmc3k": 50},
}
"""What files become of which the paper takes principal components; None keeps all columns."""
ONLY_IF_NAMED = {"mnist"}
"""Sets that the paper does not have, too large to be run unasked."""
SHIPPED: dict[str, Callable[..., Any]] = {
    "iris": load_iris,
    "wine": load_wine,
    "digits": load_digits,
    "wdbc": load_breast_cancer,
}


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Points with their true labels."""

    name: str
    x: Floats
    """(N, D)"""
    y: Labels
    """(N,)"""
    n_raw_columns: int
    """Columns before any reduction."""
    scaling: str = "none"


def read_folder(folder: Path) -> Iterator[Dataset]:
    """Read each .npz file that has X and y, by name, as it is; those without labels are left out.

    Raises
    ------
    InputError
        Before the first one, if there is none.
    """
    for stem in labelled(folder):
        yield _read(folder, stem)


def labelled(folder: Path) -> dict[str, int]:
    """Return the files of a folder that have labels, by name, and how many points each has."""
    found = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            if {"X", "y"} <= set(file.files):
                found[path.stem] = len(file["y"])
    if not found:
        raise InputError(
            f"{str(folder)!r} has no labelled data: name a folder of .npz files with the arrays X "
            "and y, or none for the datasets that ship with scikit-learn."
        )
    return found


def _read(folder: Path, stem: str) -> Dataset:
    with np.load(folder / f"{stem}.npz") as file:
        x, y = np.asarray(file["X"], np.float64), file["y"]
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise InputError(
            f"{stem}.npz has X of shape {x.shape} and y of shape {y.shape}, but they must be "
            "(N, D) and (N,)."
        )
    return Dataset(stem, x, y, x.shape[1])


def shipped() -> list[Dataset]:
    """Return the labelled datasets that ship with scikit-learn, as they are."""
    return [_load_shipped(name) for name in SHIPPED]


def _load_shipped(name: str) -> Dataset:
    x, y = SHIPPED[name](return_X_y=True)
    return Dataset(name, np.asarray(x, np.float64), y, x.shape[1])


def scaled(x: Floats, scaling: str) -> Floats:
    """Scale the columns.

    Parameters
    ----------
    x : array (N, D)
    scaling : {"clip-minmax", "standard"}
        Clipped to their mean +- 6 deviations (of the population) and mapped to [0, 1], in the
        arithmetic of scikit-learn: another order of operations moves last bits, and with them ties.
        Or mean 0 and deviation 1.

    Returns
    -------
    float64 array (N, D)
    """
    x = np.asarray(x, np.float64)
    if scaling == STANDARD:
        return np.asarray(StandardScaler().fit_transform(x))
    if scaling != CLIP_MINMAX:
        raise InputError(f"scaling is {scaling!r}, but it must be one of {', '.join(SCALINGS)}.")
    mean, reach = x.mean(axis=0), REACH * x.std(axis=0)
    return np.asarray(MinMaxScaler().fit_transform(np.clip(x, mean - reach, mean + reach)))


def prepared(raw: Dataset, scaling: str) -> list[Dataset]:
    """Scale a dataset, then reduce it where the paper does; `trapped_lovers` becomes two."""
    x = scaled(raw.x, scaling)
    return [
        Dataset(name, reduced(x, n_columns), raw.y, raw.n_raw_columns, scaling)
        for name, n_columns in variants(raw.name).items()
    ]


def variants(stem: str) -> dict[str, int | None]:
    """Return what a file becomes: names, and principal components if only some are kept."""
    return VARIANTS.get(stem, {stem: None})


def reduced(x: Floats, n_columns: int | None) -> Floats:
    """Keep some principal components, or all columns."""
    if n_columns is None or n_columns >= x.shape[1]:
        return np.ascontiguousarray(x)
    return np.ascontiguousarray(PCA(n_columns, random_state=42).fit_transform(x))


def available(folder: Path | None) -> dict[str, int]:
    """Return the prepared datasets that a folder, or None for scikit-learn, gives, and their N."""
    if folder is None:
        return {one.name: len(one.y) for one in shipped()}
    return {name: n for stem, n in labelled(folder).items() for name in variants(stem)}


def chosen(folder: Path | None, names: list[str] | None) -> dict[str, int]:
    """Return the datasets that are asked for, all but the very large by default, and their N."""
    known = available(folder)
    names = names or [name for name in known if name not in ONLY_IF_NAMED]
    for name in names:
        if name not in known:
            raise InputError(
                f"There is no dataset {name!r}; here are {', '.join(known)}: choose among them, or "
                "name the folder that has it."
            )
    return {name: known[name] for name in names}


def load(folder: Path | None, name: str, scaling: str) -> Dataset:
    """Read and prepare one dataset."""
    if folder is None:
        return prepared(_load_shipped(name), scaling)[0]
    stem = next((stem for stem, made in VARIANTS.items() if name in made), name)
    return next(one for one in prepared(_read(folder, stem), scaling) if one.name == name)
