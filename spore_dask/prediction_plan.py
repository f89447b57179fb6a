"""The plan of a prediction: what it will need in memory and disk, before anything is written.

Pure arithmetic on what is known of the run and of the source; refuses what cannot work.
"""

from __future__ import annotations

import dataclasses

from spore_dask import memory
from spore_dask.inputs import Input
from spore_dask.memory import Shape
from spore_dask.plan import chunk_reason, refuse_disk, refuse_memory, store_nbytes


@dataclasses.dataclass(frozen=True)
class PredictPlan:
    """What labels for new points will need."""

    data: Input
    fitted: Shape
    """The sizes of the graph that the run was fitted with."""
    shape: Shape
    """The sizes of the new points."""
    input_shape: memory.InputShape
    n_clusters: int
    memory_limit: int
    """Bytes that each process may use."""
    disk_free: int | None
    """Bytes free where the prediction goes, if that is known."""
    disk_used: int
    """Bytes that are there already."""

    def memory(self) -> dict[str, int]:
        """Return the projected peak of a process in each stage; that of the cache is beside."""
        driver = memory.driver_nbytes(self.input_shape, self.shape)
        projected = {
            "driver": max(driver, memory.scatter_nbytes(self.shape)),
            "scan": memory.scan_nbytes(self.input_shape),
            "exchange": memory.exchange_nbytes(self.input_shape, self.shape),
            "partition": memory.gather_nbytes(self.shape),
            "predict": memory.predict_nbytes(self.fitted, self.shape, self.n_clusters),
        }
        beside = store_nbytes(self.data, self.disk_free)
        return {stage: nbytes + beside for stage, nbytes in projected.items()}

    @property
    def disk_nbytes(self) -> int:
        """Bytes that the prediction has on disk at most: points twice, or points and labels."""
        n_points, row_nbytes = self.shape.n_points, self.input_shape.row_nbytes
        copied = 0 if self.data.content is None else n_points * row_nbytes
        return copied + 2 * n_points * (self.shape.point_nbytes + memory.PREDICTED_NBYTES)

    @property
    def cache_nbytes(self) -> int:
        """Bytes of fitted partitions that a process keeps: half of what is left."""
        return max(0, (self.memory_limit - self.memory()["predict"]) // 2)

    def check(self) -> None:
        """Refuse what cannot work."""
        refuse_memory(self.memory(), self.memory_limit, self.reason)
        refuse_disk(self.disk_nbytes - self.disk_used, self.disk_free)

    def reason(self, stage: str, needed: str) -> str:
        """Say why a stage needs so much, and what to change."""
        if stage in ("scan", "exchange"):
            return chunk_reason(self.data, stage, needed)
        if stage == "predict":
            return (
                f"a vote needs {needed} for {self.n_clusters} clusters and a run of "
                f"{self.fitted.n_partitions} partitions: raise it, or fit with more partitions "
                "(n_partitions)"
            )
        return f"{stage} needs {needed} for {self.shape.n_points} new points: raise it"
