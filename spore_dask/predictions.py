"""Predictions on disk: what `predict` has left, opened by its path.

The folder of a source's predictions holds for each run a folder `prediction-ID`; `prediction.json`
names the one finished last. Memory: what is asked for.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import zarr

from spore_dask.errors import InputError
from spore_dask.runs import open_published
from spore_dask.store import Folder, address

RESULT = "prediction-"
PUBLISHED = {"labels": np.int32, "confidence": np.float32}
"""The arrays of a prediction, and their types."""
POINTER = "prediction.json"
SUMMARY = "summary.json"


class Prediction:
    """Labels of new points on disk, opened by their path.

    Parameters
    ----------
    path : str
        The `out` of `predict`.
    id : str, optional
        Which of the predictions there; the one finished last by default.
    """

    def __init__(self, path: str | os.PathLike[str], id: str | None = None) -> None:
        self.folder = Folder(address(path))
        id = id or (self.folder.read_json(POINTER) or {}).get("id", "")
        self.result = self.folder.child(RESULT + id)
        summary = self.result.read_json(SUMMARY) if id else None
        if summary is None:
            raise InputError(
                f"There is no finished prediction {id + ' ' if id else ''}at {self.folder.url!r}: "
                "make one with spore_dask.predict(run, source, out)."
            )
        self.path: str = self.folder.url
        self.id: str = id
        self.summary: dict[str, Any] = summary
        """The run and the source, counts, recall, memory projected and used, checksums."""

    @property
    def labels(self) -> zarr.Array[Any]:
        """Zarr int32 array (n,): the cluster of each row, -1 for none."""
        return self._open("labels")

    @property
    def confidence(self) -> zarr.Array[Any]:
        """Zarr float32 array (n,): the label's share of the votes; 1 for copies of fitted points.

        0 where nobody has voted.
        """
        return self._open("confidence")

    def _open(self, name: str) -> zarr.Array[Any]:
        """Open an array, which keeps this object and so a temporary folder alive."""
        array = open_published(self.result, name, self.summary["n_points"], PUBLISHED[name])
        array.store.__dict__["run"] = self
        return array

    def __repr__(self) -> str:
        n_points, n_left = self.summary["n_points"], self.summary["n_left"]
        return (
            f"<Prediction of {n_points} points: {n_left / n_points:.1%} in no cluster, "
            f"at {self.path!r}>"
        )
