"""What a method must offer to be searched: its configurations, and labels for one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Config = dict[str, Any]
"""A configuration, as JSON can hold it."""
Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the search bounds of a method may depend on."""

    n_points: int
    n_columns: int
    n_classes: int
    """Given to methods that need the number of clusters."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A clustering method under the protocol."""

    name: str
    configurations: Callable[[Facts, int, int], list[Config]]
    """(facts, n_draws, seed): the default first, then the drawn ones."""
    share: Callable[[Floats, list[Config]], Any]
    """(x, configs): what all configurations have in common, a graph or distances, or None."""
    labels: Callable[[Floats, Config, Any], Labels]
    """(x, config, shared): a label for each row, -1 for noise; from scratch if shared is None."""
