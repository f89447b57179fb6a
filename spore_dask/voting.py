"""Labels for new points in memory: the vote of their nearest fitted points.

Reads working coordinates of both, and what is known of the clusters; writes nothing.
Memory: the fitted points once more, in cells, and for each thread the buffers of one block.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from spore_dask.approximate import PILOT_POINTS, Partitions, search_sample, split_points
from spore_dask.exact import Block, Others, blocks, build_cells, number_dtype
from spore_dask.kernels.cells import Cells
from spore_dask.kernels.copies import large_groups
from spore_dask.kernels.reassign import Gates, poll
from spore_dask.meeting import (
    Aim,
    choose_aim,
    in_blocks,
    meet_by_cells,
    meet_by_probes,
    meet_by_products,
    passes,
)
from spore_dask.memory import shape_of
from spore_dask.partitions import find_copies
from spore_dask.pilot import CELLS, choose_search, compared_from_cells
from spore_dask.recall import Recall
from spore_dask.shards import Entries
from spore_dask.threads import in_threads

Votes = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Labels, and the share of the votes that each has."""


@dataclasses.dataclass(frozen=True)
class Voters:
    """Fitted points in memory that vote on new ones."""

    points: NDArray[np.floating]
    """Working coordinates."""
    labels: NDArray[np.int32]
    """Cluster of each, -1 for one that has no vote."""
    gates: Gates
    recall: Recall
    """What share of true neighbours the fit found: new points are searched as well as that."""
    seed: int

    def predict(self, queries: NDArray[np.floating]) -> Votes:
        """Return the label of each new point, and the share of the votes that it has.

        Parameters
        ----------
        queries : array (n, D), C-contiguous
            Working coordinates, in the dtype of the fitted ones.
        """
        with threadpool_limits(limits=1, user_api="blas"):
            if self.recall.certified < 1:
                return self._by_probes(queries)
            return self._by_cells(queries) if self._prune else self._by_products(queries)

    @functools.cached_property
    def _rows(self) -> NDArray[Any]:
        """The rows that are searched: of many copies, as many as may vote, and one more."""
        searched = np.ones(len(self.points), bool)
        for group in large_groups(self.points, larger_than=self.gates.reach + 1):
            searched[group[self.gates.reach + 1 :]] = False
        return np.flatnonzero(searched).astype(number_dtype(len(self.points)))

    @functools.cached_property
    def _cells(self) -> Cells:
        """The points in the cells of a k-d tree."""
        return build_cells(np.ascontiguousarray(self.points[self._rows]), self._rows)

    @functools.cached_property
    def _prune(self) -> bool:
        """Whether cells compare less than products with all points."""
        compared = compared_from_cells(self._cells, min(self.gates.reach, len(self._rows) - 1))
        return choose_search("exact", compared, *self.points.shape) == CELLS

    @functools.cached_property
    def _index(self) -> tuple[Partitions, Aim]:
        """The points in partitions and cells around centres, and which of them to probe."""
        points, k = self.points[self._rows], self.gates.reach
        n_points, n_columns = points.shape
        n_partitions = shape_of(n_points, n_columns, points.itemsize, k).n_partitions
        index = split_points(points, n_partitions, self.seed)
        truth = search_sample(index, k, PILOT_POINTS, self.seed)
        aim, _ = choose_aim(index, truth.sample, truth.lists.numbers, self.recall.sampled)
        return index, aim

    def _by_cells(self, queries: NDArray[np.floating]) -> Votes:
        """Let cells of new points meet cells of fitted ones."""
        cells, k = self._cells, self.gates.reach
        fitted = Others(cells.low[:1], cells.high[:1], np.zeros(1, np.int64), lambda _: cells)
        own = build_cells(queries, np.arange(len(queries)))
        labels = self.labels[cells.rows]

        def ask(block: Block) -> Votes:
            entries = meet_by_cells(own, block, fitted, len(self.points), k)
            return self._poll(entries, labels)

        return _in_order(in_threads(ask, blocks(own, k)), own.rows)

    def _by_products(self, queries: NDArray[np.floating]) -> Votes:
        """Let new points meet all fitted ones."""
        part, k = in_blocks(0, self.points[self._rows]), self.gates.reach
        labels = self.labels[self._rows]

        def ask(which: slice) -> Votes:
            fitted = [(part, self._rows)]
            return self._poll(meet_by_products(queries[which], fitted, len(self.points), k), labels)

        found = in_threads(ask, passes(len(queries), k, queries.itemsize))
        return _in_order(found, np.arange(len(queries)))

    def _by_probes(self, queries: NDArray[np.floating]) -> Votes:
        """Let new points meet the cells that they probe; copies of fitted points are looked up."""
        (index, aim), k = self._index, self.gates.reach
        labels = self.labels[self._rows[np.concatenate(index.input_rows)]]

        def ask(which: slice) -> Votes:
            return self._poll(meet_by_probes(queries[which], index, k, aim), labels)

        width = max(k, aim.n_probes)
        found = in_threads(ask, passes(len(queries), width, queries.itemsize))
        winners, shares = _in_order(found, np.arange(len(queries)))
        copies = find_copies(queries, self.points, np.arange(len(self.points)))
        winners[copies >= 0], shares[copies >= 0] = self.labels[copies[copies >= 0]], 1
        return winners, shares

    def _poll(self, entries: Entries, labels: NDArray[np.int32]) -> Votes:
        """Count the votes of rows, given the label of every number that they name."""
        winners, shares = poll(labels[entries.neighbors], entries.distances, self.gates)
        return winners, shares


def _in_order(found: list[Votes], rows: NDArray[np.integer]) -> Votes:
    """Return what blocks have found in the order of the new points, given the row of each."""
    winners, shares = np.empty(len(rows), np.int32), np.empty(len(rows), np.float32)
    winners[rows] = np.concatenate([labels for labels, _ in found])
    shares[rows] = np.concatenate([part for _, part in found])
    return winners, shares
