"""The paces of stages from fits of samples, by hand."""

import dataclasses

import pytest

from spore_dask.costs import Load, Pace, Size
from spore_dask.memory import Shape
from spore_dask.paces import (
    CROWDED,
    LEAST_SECONDS,
    LIST_SECONDS,
    PAGE_SECONDS,
    PIECE_SECONDS,
    SENT_SECONDS,
    Timed,
    find_paces,
    n_lists,
    on_workers,
)

SHAPE = Shape(1000, 3, 4, k=10, longest_k=20, n_partitions=5, shard_rows=200)
SIZE = Size(SHAPE, 2, 50.0, 100)


def pace_of(stage, few, split, many):
    """Return the pace that (work, tasks, seconds) of fits tell of."""
    timed = [
        {} if given is None else {stage: Timed(Load(given[0], given[1]), given[2])}
        for given in (few, split, many)
    ]
    return find_paces(*timed)[stage]


def test_work_tasks_and_what_is_fixed_are_told_apart():
    found = pace_of("graph", (100, 1, 0.2), (100, 8, 0.9), (1000, 2, 1.2))
    assert found.per_task == pytest.approx(0.1)  # 7 tasks more: .7 s more
    assert found.per_work == pytest.approx(0.001)  # 900 units more: 1 - .1 s more
    assert found.fixed == pytest.approx(0.0)
    found = pace_of("graph", (100, 1, 0.3), (100, 8, 1.0), (1000, 2, 1.3))
    assert found.fixed == pytest.approx(0.1)
    assert found.seconds(Load(1000, 2), 1) == pytest.approx(1.3)


def test_times_that_contradict_each_other():
    slower = pace_of("graph", (100, 1, 0.5), (100, 8, 0.4), (1000, 2, 0.3))
    assert slower == Pace(fixed=0.3, per_work=0.0)
    steep = pace_of("graph", (100, 1, 0.0), (100, 8, 0.7), (1000, 2, 1.2))
    assert steep == Pace(0.0, pytest.approx(0.001), pytest.approx(0.1))


def test_few_that_tell_nothing_of_many():
    for few in (None, (600, 1, 0.9)):  # something else, and nearly as many
        found = pace_of("graph", few, (100, 8, 0.7), (1000, 2, 1.0))
        assert (found.fixed, found.per_work) == (0.0, 0.001)
    assert pace_of("fragments", (0, 1, 0.1), (0, 8, 0.1), (0, 2, 0.1)) == Pace(0.1, 0.0)


def test_the_coordinator_takes_a_least_time_and_reads_pages():
    found = pace_of("publish", (100, 0, 0.1), (100, 0, 0.1), (1000, 0, 0.1))
    assert found == Pace(0.1, LEAST_SECONDS["publish"], per_piece=PAGE_SECONDS)
    for few in ((100, 0, 0.01), (600, 0, 0.01), None):  # too short to tell
        short = pace_of("publish", few, (100, 0, 0.012), (1000, 0, 0.025))
        assert short == Pace(0.012, LEAST_SECONDS["publish"], per_piece=PAGE_SECONDS)
    short = pace_of("publish", None, None, (1000, 0, 0.025))
    assert short == Pace(0.025, LEAST_SECONDS["publish"], per_piece=PAGE_SECONDS)
    long = pace_of("publish", (100, 0, 0.01), (100, 0, 0.01), (1000, 0, 0.1))
    assert (long.fixed, long.per_work) == (pytest.approx(0.0), pytest.approx(1e-4))
    load = Load(1e9, n_pieces=1000, alone=True)
    few, many = (
        {"expand": Timed(each, 10.0)} for each in (dataclasses.replace(load, work=1), load)
    )
    assert find_paces(few, {}, many)["expand"].fixed == pytest.approx(10 - 1000 * PAGE_SECONDS)


def test_reading_has_the_tasks_of_points():
    timed = [
        {stage: Timed(Load(work, n_tasks), seconds) for stage in ("scan", "points")}
        for work, n_tasks, seconds in ((100, 1, 0.2), (100, 8, 0.9), (1000, 1, 1.1))
    ]
    for stages in timed:
        stages["scan"] = Timed(Load(stages["points"].load.work, 1), 0.1)
    assert find_paces(*timed)["scan"].per_task == pytest.approx(0.1)


def test_what_workers_add():
    pace = Pace(1.0, 0.01, 0.1)
    for crowded, per_work in ((False, 0.01), (True, CROWDED * 0.01)):
        found = on_workers("density", pace, SIZE, crowded)
        assert found == Pace(1 + 3 * LIST_SECONDS, per_work, 0.1, SENT_SECONDS, PIECE_SECONDS)
        assert on_workers("expand", pace, SIZE, crowded) == pace


def test_lists_of_tasks():
    assert [n_lists(s, SIZE) for s in ("scan", "points", "graph", "fragments")] == [1, 3, 1, 2]
    assert n_lists("graph", dataclasses.replace(SIZE, n_rounds=2)) == 13
    long = dataclasses.replace(SIZE.shape, k=SIZE.shape.longest_k)
    assert n_lists("graph", dataclasses.replace(SIZE, n_rounds=2, shape=long)) == 12
