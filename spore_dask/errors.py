"""The errors that users meet: each is a `SporeError` and the builtin a caller would expect."""


class SporeError(Exception):
    """Base of every error that spore_dask raises on purpose."""


class ParameterError(SporeError, ValueError):
    """A parameter has a value outside its allowed range."""


class LimitError(ParameterError):
    """What is asked for does not fit the memory limit, or the disk."""


class InputError(SporeError, ValueError):
    """The data, or a neighbour graph, cannot be clustered as given."""


class DamagedError(SporeError, OSError):
    """What is on disk is not what was written."""


class ClusterError(SporeError, RuntimeError):
    """Workers or their scheduler failed: trying again may help."""


class BusyError(ClusterError):
    """Another process is at work on the same output."""
