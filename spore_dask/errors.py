"""The errors that users meet: each is a `SporeError` and the builtin a caller would expect."""

from __future__ import annotations


class SporeError(Exception):
    """Base of every error that spore_dask raises on purpose."""


class ParameterError(SporeError, ValueError):
    """A parameter has a value outside its allowed range."""


class DataWarning(UserWarning):
    """The result is correct, but the data or a parameter makes it less than it seems."""


class LimitError(ParameterError):
    """What is asked for does not fit the memory limit, or the disk."""


class InputError(SporeError, ValueError):
    """The data, or a neighbour graph, cannot be clustered as given."""


class FullDiskError(OSError, LimitError):
    """There is no room left on the disk: the same call continues once there is."""


class DamagedError(SporeError, OSError):
    """What is on disk is not what was written.

    Parameters
    ----------
    what : str
        What is damaged, and how it was noticed.
    place : str
        Address of the file, where it is one.
    remedy : str
        What to do.
    """

    def __init__(self, what: str, place: str = "", remedy: str = "") -> None:
        super().__init__(f"{what}: {remedy}." if remedy else what)
        self.what, self.place, self.remedy = what, place, remedy

    def __reduce__(self) -> tuple[type[DamagedError], tuple[str, str, str]]:
        """Travel from a worker with everything that is known."""
        return type(self), (self.what, self.place, self.remedy)


class StoreError(SporeError, OSError):
    """A disk or an object store failed again and again: trying later may help."""


class DeniedError(SporeError, PermissionError):
    """An object store does not let this process in."""


class ClusterError(SporeError, RuntimeError):
    """Workers or their scheduler failed: trying again may help."""


class BusyError(ClusterError):
    """Another process is at work on the same output."""


class PreflightError(ClusterError):
    """A worker of a cluster is not fit for the run: mend it, or leave it out, and call again."""
