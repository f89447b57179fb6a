"""Rows of the graph at hand during Expansion: a cache of pages with a byte budget.

Reads pages of a few consecutive rows, those next to each other in one go. Each row is needed just
once, when its point expands, so what matters is to read pages shortly before that, and to let go
those that were read first. Where all have room, they are taken as they are on disk, by mapping.
Memory: the slots, 4 bytes a page, and one batch that is being read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spore_dask.kernels.expand import Slots
from spore_dask.memory import PAGE_ROWS
from spore_dask.store import AtHand, RowFiles
from spore_dask.threads import in_threads

BATCH_NBYTES = 1 << 20
"""What is read at a time."""


class Pages:
    """The pages of one graph, some of them at hand.

    Parameters
    ----------
    files : two RowFiles
        Neighbours and distances.
    width : int
        Columns of a row that count; the others are left out.
    budget_nbytes : int
        What the slots may take; there is at least one.
    """

    def __init__(self, files: Sequence[RowFiles], width: int, budget_nbytes: int) -> None:
        self._files = neighbors, distances = files
        self.n_rows = int(neighbors.starts[-1])
        self.n_pages = -(-self.n_rows // PAGE_ROWS)
        row_nbytes = width * (neighbors.dtype.itemsize + distances.dtype.itemsize)
        self.n_slots = max(1, min(self.n_pages, budget_nbytes // (PAGE_ROWS * row_nbytes)))
        size = self.n_slots * PAGE_ROWS, width
        self.slots = Slots(
            np.full(self.n_pages, -1, np.int32),
            PAGE_ROWS,
            np.empty(size, neighbors.dtype),
            np.empty(size, distances.dtype),
        )
        self._at_hand: list[AtHand] = []
        self._page_in_slot = np.full(self.n_slots, -1, np.int64)
        self._is_kept = np.zeros(self.n_slots, bool)
        self._oldest = 0
        self.read_nbytes = 0
        """Bytes read so far."""
        file_nbytes = neighbors.row_nbytes + distances.row_nbytes
        self._pages_per_batch = max(1, BATCH_NBYTES // (PAGE_ROWS * file_nbytes))

    @property
    def nbytes(self) -> int:
        """Bytes of all pages on disk."""
        return self.n_rows * sum(files.row_nbytes for files in self._files)

    def bring(self, pages: NDArray[np.int64]) -> int:
        """Bring pages in, as many as there are slots for, the first ones first.

        Pages that are at hand and asked for stay; of the others, those brought first make room.
        Returns the number of pages that were read.
        """
        pages = pages[np.sort(np.unique(pages, return_index=True)[1])][: self.n_slots]
        slots = self.slots.slot_of_page[pages]
        missing = pages[slots < 0]
        if not len(missing):
            return 0
        room = self._make_room(len(missing), slots[slots >= 0])
        for first in range(0, len(missing), self._pages_per_batch):
            batch = slice(first, first + self._pages_per_batch)
            self._read(missing[batch], room[batch])
        return len(missing)

    def bring_all(self) -> None:
        """Bring every page, where there is a slot for each."""
        neighbors, _ = self._files
        starts, width = neighbors.starts, self.slots.neighbors.shape[1:]
        if neighbors.row_shape != width or (starts[:-1] % PAGE_ROWS).any():
            self.bring(np.arange(self.n_pages))
            return
        found = in_threads(RowFiles.all_at_hand, self._files)
        if not np.array_equal(*(each.begins for each in found)):  # one of them was not mapped
            self.bring(np.arange(self.n_pages))
            return
        self._at_hand = found
        starts, firsts = starts[:-1][np.diff(starts) > 0], np.arange(self.n_pages) * PAGE_ROWS
        files = np.searchsorted(starts, firsts, side="right") - 1
        slots = (firsts - starts[files] + found[0].begins[files]) // PAGE_ROWS
        arrays = (each.rows for each in found)
        self.slots = Slots(slots.astype(np.int32), PAGE_ROWS, *arrays)
        self.read_nbytes += self.nbytes

    def check(self) -> None:
        """Notice whether files that are mapped have changed since."""
        in_threads(AtHand.check, self._at_hand)

    def _make_room(self, n_wanted: int, kept: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return slots to fill next, from the oldest on, none of them among the `kept`."""
        n_looked_at = min(n_wanted + len(kept), self.n_slots)
        in_turn = (self._oldest + np.arange(n_looked_at)) % self.n_slots
        self._is_kept[kept] = True
        room = in_turn[~self._is_kept[in_turn]][:n_wanted]
        self._is_kept[kept] = False
        if n_wanted:
            self._oldest = int(room[-1] + 1) % self.n_slots
        left = self._page_in_slot[room]
        self.slots.slot_of_page[left[left >= 0]] = -1
        return room

    def _read(self, pages: NDArray[np.int64], room: NDArray[np.int64]) -> None:
        """Read some pages into some slots."""
        by_place = np.argsort(pages)
        pages, room = pages[by_place], room[by_place]
        breaks = np.flatnonzero(np.diff(pages) > 1) + 1
        firsts = pages[np.append(0, breaks)] * PAGE_ROWS
        lasts = np.minimum((pages[np.append(breaks, len(pages)) - 1] + 1) * PAGE_ROWS, self.n_rows)
        for files, target in zip(self._files, self.slots[2:], strict=True):
            found = np.empty((len(pages) * PAGE_ROWS, *files.row_shape), files.dtype)
            self.read_nbytes += files.read_ranges(firsts, lasts, found).nbytes
            width = target.shape[1]
            whole_pages = found[:, :width].reshape(len(pages), PAGE_ROWS * width)
            target.reshape(self.n_slots, PAGE_ROWS * width)[room] = whole_pages
        self._page_in_slot[room] = pages
        self.slots.slot_of_page[pages] = room
