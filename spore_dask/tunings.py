"""Tunes on disk: what `tune` has left, opened by its path.

A run's folder holds for each tune a folder `tuning-ID` with the receipts of its trials and the
labels that they gave a sample of rows, and a document that says what was chosen; `tuning.json`
names the one finished last. Memory: a record for each trial.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.errors import InputError
from spore_dask.runs import Run
from spore_dask.store import Folder, address

POINTER = "tuning.json"
"""Names the tune that was finished last."""


class Tuning:
    """A finished tune, opened by its path."""

    def __init__(self, path: str | os.PathLike[str], name: str, document: str) -> None:
        self.path = address(path)
        self.name = name
        self.summary: dict[str, Any] = Folder(self.path).child(name).read_json(document)
        """What was asked and found, in plain values."""
        self.run = Run(self.path, self.summary["run"])
        """The fit with the best parameters."""

    @property
    def best(self) -> int:
        """Number of the trial that was chosen; 0 has the default parameters."""
        return int(self.summary["best"])

    @property
    def best_params(self) -> dict[str, Any]:
        """The parameters of the space as that trial has them, and those that were fixed."""
        return dict(self.summary["params"][self.best])

    @functools.cached_property
    def trials(self) -> NDArray[Any]:
        """A record for each trial.

        The parameters, `n_clusters`, `noise` (share of all rows), `score` (how much the others
        agree with it, nan where it cannot be chosen), `ari` (nan without `y`) and `seconds`.
        """
        records = [
            {"trial": number, **params, **facts}
            for number, (params, facts) in enumerate(
                zip(self.summary["params"], self.summary["trials"], strict=True)
            )
        ]
        return _as_table(records)

    @functools.cached_property
    def levels(self) -> NDArray[Any]:
        """Good trials that divide the data ever more finely, a record for each.

        `trial`, the parameters, `n_clusters`, `noise`, `largest` (share of the points that the
        largest cluster has), `score`, and `entropy` of the cluster sizes.
        `fit(..., detail="coarse" | "fine")` takes the first or the last.
        """
        levels = self.summary["choice"]["levels"]
        return _as_table([level | level["params"] for level in levels], without=("params",))

    def __repr__(self) -> str:
        n_trials, by = len(self.summary["trials"]), "ari" if self.summary["y"] else "score"
        score = self.trials[by][self.best]
        return (
            f"<Tuning of {n_trials} trials: {by} {score:.3f} with {self.best_params}, {self.run}>"
        )


def open_tuning(path: str | os.PathLike[str]) -> Tuning:
    """Open the tune that was finished last in a run's folder.

    Parameters
    ----------
    path : path or URL
        The `out` of `tune`.
    """
    pointer = Folder(address(path)).read_json(POINTER)
    if pointer is None:
        raise InputError(
            f"There is no finished tune at {address(path)!r}: make one with "
            "spore_dask.tune(source, out)."
        )
    return Tuning(path, **pointer)


def _as_table(records: list[dict[str, Any]], without: Sequence[str] = ()) -> NDArray[Any]:
    """Return a structured array of plain records; None is nan, in columns of numbers."""
    names = [name for name in (records[0] if records else ()) if name not in without]
    columns = {name: [record[name] for record in records] for name in names}
    arrays = {}
    for name, values in columns.items():
        if not any(isinstance(value, str) for value in values):
            values = [np.nan if value is None else value for value in values]
        arrays[name] = np.array(values)
    table = np.empty(len(records), [(name, array.dtype) for name, array in arrays.items()])
    for name, array in arrays.items():
        table[name] = array
    return table
