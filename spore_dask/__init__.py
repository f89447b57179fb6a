"""SPORE density-based clustering, exact and fast, built for data larger than memory."""

from spore_dask.clustering import cluster_graph
from spore_dask.errors import InputError, ParameterError, SporeError
from spore_dask.estimator import SPORE
from spore_dask.params import Params

__all__ = ["SPORE", "InputError", "ParameterError", "Params", "SporeError", "cluster_graph"]
__version__ = "0.1.0"
