"""SPORE density-based clustering, exact and fast, built for data larger than memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spore_dask.api import fit
    from spore_dask.clustering import cluster_graph
    from spore_dask.engine import check_cluster, connect
    from spore_dask.errors import (
        BusyError,
        ClusterError,
        DamagedError,
        DataWarning,
        DeniedError,
        FullDiskError,
        InputError,
        LimitError,
        ParameterError,
        SporeError,
        StoreError,
    )
    from spore_dask.estimates import estimate
    from spore_dask.estimator import SPORE
    from spore_dask.exporting import export_labels
    from spore_dask.graph import Graph, build_graph, plan_graph
    from spore_dask.importing import import_data
    from spore_dask.locks import hold
    from spore_dask.params import Params
    from spore_dask.predicting import predict
    from spore_dask.predictions import Prediction
    from spore_dask.reporting import report
    from spore_dask.runs import Run, clean, open_run, remove_run, verify
    from spore_dask.store import Folder, open_source
    from spore_dask.tuning import tune
    from spore_dask.tunings import Tuning, open_tuning

__all__ = [
    "SPORE",
    "BusyError",
    "ClusterError",
    "DamagedError",
    "DataWarning",
    "DeniedError",
    "Folder",
    "FullDiskError",
    "Graph",
    "InputError",
    "LimitError",
    "ParameterError",
    "Params",
    "Prediction",
    "Run",
    "SporeError",
    "StoreError",
    "Tuning",
    "build_graph",
    "check_cluster",
    "clean",
    "cluster_graph",
    "connect",
    "estimate",
    "export_labels",
    "fit",
    "hold",
    "import_data",
    "open_run",
    "open_source",
    "open_tuning",
    "plan_graph",
    "predict",
    "remove_run",
    "report",
    "tune",
    "verify",
]
__version__ = "0.1.0"

_HOMES = {
    "api": ["fit"],
    "clustering": ["cluster_graph"],
    "engine": ["check_cluster", "connect"],
    "errors": [
        "BusyError",
        "ClusterError",
        "DamagedError",
        "DataWarning",
        "DeniedError",
        "FullDiskError",
        "InputError",
        "LimitError",
        "ParameterError",
        "SporeError",
        "StoreError",
    ],
    "estimator": ["SPORE"],
    "estimates": ["estimate"],
    "exporting": ["export_labels"],
    "graph": ["Graph", "build_graph", "plan_graph"],
    "importing": ["import_data"],
    "locks": ["hold"],
    "params": ["Params"],
    "predicting": ["predict"],
    "predictions": ["Prediction"],
    "reporting": ["report"],
    "runs": ["Run", "clean", "open_run", "remove_run", "verify"],
    "store": ["Folder", "open_source"],
    "tuning": ["tune"],
    "tunings": ["Tuning", "open_tuning"],
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that workers load only what they need."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"spore_dask.{module}"), name)
    raise AttributeError(f"module 'spore_dask' has no attribute {name!r}")
