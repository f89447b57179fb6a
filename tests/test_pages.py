"""The cache of rows during Expansion, and checkpoints."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spore_dask.checkpoints import Checkpoints
from spore_dask.memory import PAGE_ROWS
from spore_dask.pages import Pages
from spore_dask.store import Folder, RowFiles


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """1003 rows with 5 columns in chunks of 96: neighbours are counted up, distances halves."""
    folder = Folder(str(tmp_path_factory.mktemp("pages")))
    values = np.arange(5 * 1003).reshape(1003, 5)
    arrays = []
    for name, dtype, factor in (("neighbors", np.uint32, 1), ("distances", np.float32, 0.5)):
        array = folder.create_rows(name, values.shape, dtype, 96)
        for first in range(0, len(values), 96):
            array.write(first, values[first : first + 96] * factor)
        arrays.append(array)
    return arrays


def assert_at_hand(pages, wanted):
    """Check that the rows of some pages are at hand, and are the right ones."""
    slots = pages.slots
    assert (slots.slot_of_page[wanted] >= 0).all()
    at_hand = np.flatnonzero(slots.slot_of_page >= 0)
    assert len(at_hand) <= pages.n_slots
    assert len(np.unique(slots.slot_of_page[at_hand])) == len(at_hand)
    for page in at_hand:
        rows = np.arange(page * PAGE_ROWS, min((page + 1) * PAGE_ROWS, pages.n_rows))
        first = slots.slot_of_page[page] * PAGE_ROWS
        width = slots.neighbors.shape[1]
        expected = 5 * rows[:, None] + np.arange(width)
        found = slice(first, first + len(rows))
        np.testing.assert_array_equal(slots.neighbors[found], expected)
        np.testing.assert_array_equal(slots.distances[found], expected / 2)


@given(
    width=st.integers(1, 5),
    n_slots=st.integers(1, 130),
    asked=st.lists(st.lists(st.integers(0, 125), min_size=1, max_size=60), max_size=8),
)
def test_pages_that_were_asked_for_are_at_hand(files, width, n_slots, asked):
    pages = Pages(files, width, n_slots * PAGE_ROWS * width * 8)
    assert pages.n_slots == min(n_slots, 126)
    n_read = 0
    for wanted in asked:
        missing = pages.slots.slot_of_page[np.unique(wanted)] < 0
        first_ones = list(dict.fromkeys(wanted))[: pages.n_slots]
        n_new = pages.bring(np.array(wanted))
        assert n_new <= missing.sum()
        n_read += n_new
        assert_at_hand(pages, first_ones)
    assert pages.read_nbytes <= n_read * PAGE_ROWS * 5 * 8


def test_what_was_brought_first_makes_room(files):
    pages = Pages(files, 5, 4 * PAGE_ROWS * 40)
    for page in range(4):
        pages.bring(np.array([page]))
    pages.bring(np.array([0, 9]))  # page 0 is asked for, so page 1 goes
    assert np.flatnonzero(pages.slots.slot_of_page >= 0).tolist() == [0, 2, 3, 9]
    assert pages.bring(np.array([0, 2, 3, 9])) == 0


def test_arrays_of_which_one_is_mapped_are_read_page_by_page(files, monkeypatch):
    all_at_hand = RowFiles.all_at_hand

    def map_neighbors(array):
        is_first = array is files[0]
        with mock.patch("spore_dask.store.plain.can_map", return_value=is_first):
            return all_at_hand(array)

    monkeypatch.setattr(RowFiles, "all_at_hand", map_neighbors)
    monkeypatch.setattr("spore_dask.pages.in_threads", lambda task, items: [*map(task, items)])
    pages = Pages(files, 5, 10**9)
    pages.bring_all()
    assert_at_hand(pages, np.arange(126))


@pytest.mark.parametrize("width", [3, 5])
def test_all_pages_are_read_once(files, width):
    pages = Pages(files, width, 10**9)
    assert pages.n_slots == pages.n_pages == 126
    pages.bring_all()
    assert pages.bring(np.arange(126)) == 0
    assert_at_hand(pages, np.arange(126))
    assert pages.read_nbytes == pages.nbytes == 1003 * 40


def test_a_checkpoint_is_read_back_and_the_one_before_goes(tmp_path):
    folder = Folder(str(tmp_path))
    checkpoints = Checkpoints(folder, every_seconds=0)
    assert checkpoints.last() is None
    assert checkpoints.due()
    assert not Checkpoints(folder, every_seconds=60).due()
    for number in range(3):
        checkpoints.save({"x": np.arange(number)}, {"number": number})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3", "checkpoint.json"]
    again = Checkpoints(folder)
    facts, read = again.last()
    assert facts == {"number": 2}
    assert read("x").tolist() == [0, 1]
    again.save({"x": np.arange(5)}, {"number": 9})
    assert Checkpoints(folder).last()[0] == {"number": 9}
    again.remove()
    again.remove()
    assert list(tmp_path.iterdir()) == []
