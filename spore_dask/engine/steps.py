"""How far a stage is, told as it goes."""

from __future__ import annotations

import time
from typing import Any

from spore_dask.engine.processes import Outcome
from spore_dask.progress import Consumer, Event


class Steps:
    """How far a stage is."""

    def __init__(self, stage: str, n_tasks: int, progress: Consumer) -> None:
        self.stage = stage
        self.n_tasks = n_tasks
        self._progress = progress
        self._n_done = 0
        self._start = time.monotonic()

    def tell(self, kind: str, **more: Any) -> None:
        """Send an event."""
        seconds = time.monotonic() - self._start
        self._progress(Event(kind, self.stage, self._n_done, self.n_tasks, seconds, **more))

    def done(self, outcome: Outcome) -> None:
        """Count a task and tell about it."""
        self._n_done += 1
        self.tell(
            "task-done",
            process=outcome.process,
            task_seconds=outcome.seconds,
            peak_nbytes=outcome.peak_nbytes,
        )

    def name(self, number: int, item: Any) -> str:
        """Return words for a task."""
        text = repr(item)
        text = text if len(text) <= 200 else text[:200] + "..."
        return f"In stage {self.stage!r}, task {number + 1} of {self.n_tasks}: {text}"
