"""How much of the true neighbours a graph has. Pure: a few numbers."""

from __future__ import annotations

import dataclasses
import math
import warnings

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True)
class Recall:
    """How much of the true neighbours a graph has."""

    certified: float
    """Share of the rows that are proven to be right."""
    sampled: float
    """Share of the true neighbours found, over sampled points."""
    error: float
    """Standard error of `sampled`; 0 where everything is certified."""

    def __str__(self) -> str:
        if self.certified == 1:
            return "exact, every row certified"
        return f"recall {self.sampled:.4f} +- {self.error:.4f}, {self.certified:.1%} certified"

    def warn_if_below(self, target: float, stacklevel: int) -> None:
        """Say so where a graph has less than was asked for."""
        if self.sampled < target:
            warnings.warn(
                f"The graph has {self}, but recall_target is {target:g}: the data is hard for an "
                "approximate search; use knn='exact', or accept what it has.",
                stacklevel=stacklevel + 1,
            )


CERTIFIED = Recall(certified=1.0, sampled=1.0, error=0.0)
"""What an exact search has."""


def sampled_recall(shares: NDArray[np.floating]) -> Recall:
    """Return the recall that the shares found of sampled points tell."""
    error = float(shares.std() / math.sqrt(len(shares)))
    return Recall(certified=0.0, sampled=float(shares.mean()), error=error)
