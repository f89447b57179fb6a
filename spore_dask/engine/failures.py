"""How a cluster fails its user."""

from __future__ import annotations

from spore_dask.errors import ClusterError, LimitError, ParameterError


class WorkerLostError(ClusterError):
    """Worker processes died, or went away, and the work cannot go on."""


class TaskTooBigError(WorkerLostError, LimitError):
    """Workers went past their memory limit with the same task, again and again."""


class NoSchedulerError(ClusterError, ParameterError):
    """No scheduler answers where one should be."""
