"""The cost model: its formulas by hand, its fit on made-up runs, what it says of large ones."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import zarr

from pipelines.costs import measuring
from pipelines.costs.__main__ import main
from pipelines.costs.fitting import (
    OTHER,
    Growth,
    Measured,
    Miss,
    all_loads,
    extrapolate,
    fit_model,
    leave_one_out,
    pace_name,
    runs_of,
)
from pipelines.costs.page import _errors, size_of, time_of, write_page
from pipelines.costs.predicting import Case, disk_of, memory_of, predict, traffic_of
from spore_dask import LimitError, estimates, paces
from spore_dask.costs import (
    ALONE,
    EXCHANGED,
    MOST_REACH,
    MOVED_COORDINATES,
    REACH_POWER,
    STAGES,
    Load,
    Pace,
    Size,
    loads,
    probed,
    reach_growth,
)
from spore_dask.jobs import find_job
from spore_dask.memory import Shape

BILLION = 10**9
SENT, TASK, PIECE, PAGE = 0.002, 0.01, 1e-5, 5e-6
PACES = {
    "scan": Pace(0.02, 2e-9, TASK, SENT, PIECE),
    "points, exact": Pace(0.05, 3e-7, TASK, SENT, PIECE),
    "points, approximate": Pace(0.05, 2e-8, TASK, SENT, PIECE),
    "graph, exact": Pace(0.1, 1e-9, TASK, SENT, PIECE),
    "graph, approximate": Pace(0.2, 4e-10, TASK, SENT, PIECE),
    "density": Pace(0.1, 5e-9, TASK, SENT, PIECE),
    "expand": Pace(0.01, 8e-9, TASK, SENT, PAGE),
    "fragments, exact": Pace(0.1, 2e-9, TASK, SENT, PIECE),
    "fragments, approximate": Pace(0.1, 1e-8, TASK, SENT, PIECE),
    "reassign": Pace(0.05, 9e-9, TASK, SENT, PAGE),
    "publish": Pace(0.01, 4e-8, TASK, SENT, PAGE),
    f"{OTHER}, exact": Pace(0.3, 0.003, TASK, SENT, PIECE),
    f"{OTHER}, approximate": Pace(0.4, 0.03, TASK, SENT, PIECE),
}


def size_for(case, n_partitions=None):
    """Return the size of a made-up run: in 8 columns comparisons grow as the root of the root.

    With partitions given, Expansion reads every page one and a half times.
    """
    shape, n_points = case.shape, case.n_points
    if n_partitions:
        rows = -(-n_points // n_partitions // 8) * 8
        shape = dataclasses.replace(shape, n_partitions=n_partitions, shard_rows=rows)
    n_fragments, n_pages = n_points // 10, round(1.5 * n_points / 8) if n_partitions else 0
    if case.exact:
        compared = 500.0 if case.n_columns == 2 else 1000 * n_points**0.25
        return Size(shape, 4, compared, n_fragments, 2 * compared, None, n_pages)
    compared = probed(n_points, case.n_columns, 32, 1)
    return Size(shape, 4, compared, n_fragments, 0.0, 1, n_pages)


def made_up_runs():
    runs = []
    for n_columns in (2, 8, 64):
        for n_points in (10_000, 40_000, 100_000, 300_000, 1_000_000):
            for n_workers in (1, 2):
                for n_partitions in (None, 200):
                    size = size_for(Case(n_points, n_columns, n_workers), n_partitions)
                    seconds = {
                        stage: PACES[pace_name(stage, size)].seconds(load, n_workers)
                        for stage, load in all_loads(size).items()
                    }
                    name = f"{n_points} x {n_columns}, {n_workers}, {n_partitions}"
                    n_probes = None if size.n_rounds is None else 32
                    runs.append(
                        Measured(name, size, n_workers, seconds, n_probes, n_partitions is None)
                    )
    return runs


RUNS = made_up_runs()
MODEL = fit_model(RUNS, SENT)


def document_of(runs):
    """Return what `measure` would have written of runs."""
    return {
        "machine": {"n_cores": 2, "processor": "none", "python": "3", "date": "2026-01-01"},
        "dispatch_seconds": SENT,
        "runs": [
            {
                "name": run.name,
                "size": dataclasses.asdict(run.size),
                "n_workers": run.n_workers,
                "seconds": sum(run.seconds.values()),
                "stages": {
                    stage: {"seconds": run.seconds[stage], "in_nbytes": 1, "out_nbytes": 1}
                    for stage in STAGES
                },
                "n_probes": run.n_probes,
                "usual": run.usual,
                "recall": {"sampled": 1.0},
                "worker_nbytes": 1,
                "coordinator_nbytes": 1,
            }
            for run in runs
        ],
    }


def test_loads_by_hand():
    shape = Shape(1000, 3, 4, k=10, longest_k=20, n_partitions=5, shard_rows=200)
    found = loads(Size(shape, 2, compared=50.0, n_fragments=100, fragment_compared=70.0))
    assert tuple(found) == STAGES
    assert found["scan"] == Load((1000 + 4 * 1000) * 3, 2, 2)  # all rows are drawn
    assert found["points"] == Load(1000, 7, 7, 2 * 2 * 5, n_first=2)
    assert found["graph"] == Load(1000 * (50 + 150 * 11), 5, 5)
    assert found["density"] == Load(1000 * (11 + 4 * 3), 15, 3, 25)
    assert found["expand"] == Load(1000 * 11, alone=True)
    paged = loads(Size(shape, 2, 50.0, 100, n_pages=125))
    assert paged["expand"] == Load(1000 * 11, n_pieces=125, alone=True)
    assert found["fragments"] == Load(100 * (70 + 150 * 21), 6, 6, 15)
    assert found["reassign"] == Load(1000 + 100 * 21, alone=True)
    assert found["publish"] == Load(1000, alone=True)
    assert [name for name, load in found.items() if load.alone] == list(ALONE[1:])
    ordered = loads(Size(shape, 2, 50.0, 100, orders_seeds=True))
    assert ordered["seeds"] == Load(1000, alone=True)


def test_approximate_loads_by_hand():
    shape = Shape(1000, 64, 4, k=20, longest_k=20, n_partitions=5, shard_rows=200)
    compared = probed(1000, 64, n_probes=8, n_rounds=2)
    assert compared == 64 * 64 * (8 + 2 * 32 + 1000 / 64**3)
    found = loads(Size(shape, 2, compared, n_fragments=100, n_rounds=2))
    assert found["points"].work == 64_000
    assert found["graph"] == Load(1000 * (compared + 1500 * 21 * 3), 13 * 5, 13 * 5)
    assert found["fragments"].work == 1000 * 21


def test_fragments_are_gathered_in_pieces_of_about_a_shard():
    shape = Shape(1000, 3, 4, k=10, longest_k=20, n_partitions=5, shard_rows=200)
    for n_fragments, load in (
        (0, (5, 5, 0)),
        (200, (6, 6, 15)),
        (201, (7, 7, 30)),
        (1000, (10, 10, 75)),
    ):
        found = loads(Size(shape, 2, 50.0, n_fragments, fragment_compared=70.0))["fragments"]
        assert found == Load(n_fragments * (70 + 150 * 21), *load)


def test_no_more_pieces_than_entries():
    shape = Shape(1000, 3, 4, k=10, longest_k=20, n_partitions=100, shard_rows=16)
    found = loads(Size(shape, 50, 1.0, n_fragments=7))
    assert found["points"].n_pieces == 2000
    assert found["density"].n_pieces == 1000
    assert found["fragments"].n_pieces == 21


def test_seconds_by_hand():
    load, pace = Load(1000, 16, 4, 30), Pace(1.0, 0.01, 0.1, 0.5, 0.2)
    shared = 10 + 1.6 + 6
    assert pace.seconds(load, 1) == pytest.approx(1 + 2 + shared)
    assert pace.seconds(load, 0) == pytest.approx(1 + 2 + shared)
    assert pace.seconds(load, 3) == pytest.approx(1 + 2 + shared * 6 / 16)
    assert pace.seconds(load, 100) == pytest.approx(1 + 2 + shared / 16)
    alone = Load(1000, alone=True)
    assert pace.seconds(alone, 1) == pace.seconds(alone, 100) == pytest.approx(11)


def test_work_that_is_done_in_two_lists():
    pace, load = Pace(0.0, 0.01), Load(1000, 17, n_first=1)
    assert pace.seconds(load, 0) == pace.seconds(load, 1) == pytest.approx(10)
    assert pace.seconds(load, 4) == pytest.approx(10 * (EXCHANGED + (1 - EXCHANGED) / 4))
    assert pace.seconds(load, 100) == pytest.approx(10 * (EXCHANGED + (1 - EXCHANGED) / 16))
    assert [load.most_tasks(n) for n in (0, 1, 4, 100)] == [17, 17, 5, 2]
    assert Pace(0.0, 0.0, 0.1).seconds(load, 4) == pytest.approx(0.5)


def test_growth_of_approximate_searches_by_hand():
    known = (1000, 3.0), (4000, 12.0)  # four times the points: four times the cells
    assert reach_growth(*known, 4000) == 1
    assert reach_growth(*known, 16_000) == pytest.approx(4**REACH_POWER)
    assert reach_growth(*known, 10**9) == pytest.approx((MOST_REACH / 12) ** REACH_POWER)
    slower = (1000, 3.0), (4000, 6.0)
    assert reach_growth(*slower, 16_000) == pytest.approx(2**REACH_POWER)
    assert reach_growth((1000, 3.0), (4000, 2.0), 16_000) == 1
    assert reach_growth((4000, 3.0), (4000, 3.0), 16_000) == pytest.approx(2**REACH_POWER)
    assert reach_growth((1000, 500.0), (4000, 2000.0), 16_000) == 1


def test_the_fit_recovers_known_constants():
    for name, pace in PACES.items():
        found, asked = dataclasses.astuple(MODEL.paces[name]), dataclasses.astuple(pace)
        np.testing.assert_allclose(found, asked, rtol=1e-4, atol=1e-9, err_msg=name)


def test_noise_moves_constants_a_little_and_none_below_zero():
    rng = np.random.default_rng(0)
    noisy = [
        dataclasses.replace(
            run, seconds={k: v * float(rng.uniform(0.9, 1.1)) for k, v in run.seconds.items()}
        )
        for run in RUNS
    ]
    model = fit_model(noisy, SENT)
    assert all(min(dataclasses.astuple(pace)) >= 0 for pace in model.paces.values())
    assert model.paces["graph, exact"].per_work == pytest.approx(1e-9, rel=0.1)
    assert model.paces["expand"].per_work == pytest.approx(8e-9, rel=0.1)


def test_errors_vanish_where_the_formulas_hold():
    for misses in (leave_one_out(RUNS, SENT), extrapolate(RUNS, SENT)):
        assert misses
        np.testing.assert_allclose([miss.factor for miss in misses], 1, rtol=1e-3)
    cut = {2: 100_000, 8: 100_000, 64: 100_000}
    assert all(miss.run.n_points > cut[miss.run.n_columns] for miss in extrapolate(RUNS, SENT))


def test_errors_show_where_they_do_not():
    bent = [
        dataclasses.replace(run, seconds=run.seconds | {"expand": 1e-6 * run.n_points**1.5})
        for run in RUNS
    ]
    said = [m for m in extrapolate(bent, SENT) if m.run.n_points == 1_000_000]
    assert all(miss.said["expand"] < 0.7 * miss.run.seconds["expand"] for miss in said)


def test_comparisons_grow_half_as_fast_beyond_what_was_measured():
    found = MODEL.data[8].compared
    assert found.n_points == 1_000_000
    assert found.power == pytest.approx(0.25)
    assert found.at(10_000) == pytest.approx(1000 * 10_000**0.25)
    assert found.at(10**10) == pytest.approx(found.value * 10_000**0.125)
    assert MODEL.data[2].compared.power == pytest.approx(0, abs=1e-9)
    assert Growth(10, 3.0, 0.0).at(10**9) == 3.0


@pytest.mark.parametrize("n_columns", [2, 8, 64])
@pytest.mark.parametrize("n_points", [10**8, 10**9])
def test_workers_share_all_but_what_the_coordinator_does(n_points, n_columns):
    few, many = (predict(MODEL, Case(n_points, n_columns, n)) for n in (10, 100))
    for stage in STAGES:
        if stage in ALONE:
            assert few.seconds[stage] == many.seconds[stage]
        else:
            assert many.seconds[stage] < few.seconds[stage]
            assert many.seconds[stage] > few.seconds[stage] / 10.5
    assert many.whole_seconds < few.whole_seconds
    assert few.worker_nbytes == many.worker_nbytes


def test_expansion_reads_pages_where_the_cache_is_too_small():
    assert all(data.pages_again == pytest.approx(1.5) for data in MODEL.data.values())
    for n_points, n_pages in ((10**6, 0), (10**8, 1.5 * 10**8 / 8)):
        assert Case(n_points, 2, 1).size(MODEL).n_pages == n_pages
    whole = [run for run in RUNS if not run.size.n_pages]
    assert fit_model(whole, SENT).data[2].pages_again == 2


def test_more_neighbours_take_more():
    usual, more = (predict(MODEL, Case(10**8, 2, 10, k)) for k in (None, 100))
    for stage in ("graph", "density", "expand", "reassign"):
        assert more.seconds[stage] > usual.seconds[stage]
    assert more.disk_nbytes > usual.disk_nbytes


@pytest.fixture
def plan_of(tmp_path):
    """Return the plan that a fit of data makes which has a shape and nothing else."""

    def make(case, memory_limit="64GiB"):
        chunk = case.input_shape.rows_per_task, case.n_columns
        array = zarr.create_array(
            str(tmp_path / f"{case.n_points}-{case.n_columns}.zarr"),
            shape=(case.n_points, case.n_columns),
            chunks=chunk,
            dtype="f4",
        )
        knn = "exact" if case.exact else "approximate"
        out = f"memory://costs/{case.n_points}-{case.n_columns}"
        return find_job(array, out, knn=knn).plan(memory_limit, 0)

    return make


@pytest.mark.parametrize("n_points", [10**8, BILLION])
@pytest.mark.parametrize("n_columns", [2, 8, 64])
def test_memory_and_disk_are_those_of_the_plan(plan_of, n_points, n_columns):
    case = Case(n_points, n_columns, 10)
    plan = plan_of(case)
    needs = {stage: nbytes - plan.store_nbytes for stage, nbytes in plan.memory().items()}
    assert memory_of(case) == needs
    assert disk_of(case) == (plan if case.exact else plan.whole()).disk_nbytes
    said = predict(MODEL, case)
    assert said.coordinator_nbytes == max(needs["expand"], needs["driver"])
    assert said.worker_nbytes == max(
        nbytes for stage, nbytes in needs.items() if stage not in ("driver", "expand")
    )


def test_a_billion_points_need_16_gb_of_the_coordinator(plan_of):
    said = predict(MODEL, Case(BILLION, 2, 100))
    assert 16 * BILLION < said.coordinator_nbytes < 17.2 * BILLION
    with pytest.raises(LimitError, match=r"the coordinator needs .* for 1000000000 points"):
        plan_of(Case(BILLION, 2, 100), "15GiB")
    assert said.worker_nbytes < 1.2e9


@pytest.mark.parametrize("n_columns", [2, 8, 64, 384])
def test_partitions_of_large_data_are_drawn_from_enough_rows(n_columns):
    for n_points in (10**8, BILLION):
        shape = Case(n_points, n_columns, 1).shape
        assert shape.sample_size >= (128 if n_columns < 100 else 40) * shape.n_partitions


def test_traffic_is_at_least_what_a_run_leaves():
    size = size_for(Case(10**6, 2, 1))
    moved = traffic_of(size)
    assert tuple(moved) == STAGES
    assert moved["graph"] >= 10**6 * 39 * 8
    assert moved["publish"] == 16 * 10**6


def test_figures_in_words():
    assert [time_of(s) for s in (0.04, 4.25, 99, 100, 7200, 200_000)] == [
        "0.0 s", "4.2 s", "99 s", "1.7 min", "2.0 h", "2.3 days",
    ]  # fmt: skip
    assert [size_of(n) for n in (223e3, 1.5e6, 17.2e9, 3.5e12)] == [
        "223 KB", "1.5 MB", "17.2 GB", "3.5 TB",
    ]  # fmt: skip


def test_documents_are_read_as_they_were_written(tmp_path):
    found = runs_of(json.loads(json.dumps(document_of(RUNS))))
    assert [run.size for run in found] == [run.size for run in RUNS]
    for read, run in zip(found, RUNS, strict=True):
        assert read.seconds == pytest.approx(run.seconds)


def test_the_page_gets_its_figures_between_the_marks(tmp_path):
    page = tmp_path / "scale.md"
    page.write_text("# Scale\n\n<!-- costs: begin -->\nold\n<!-- costs: end -->\n\nThe end.\n")
    write_page(document_of(RUNS), tmp_path)
    text = page.read_text()
    assert text.startswith("# Scale\n")
    assert text.endswith("The end.\n")
    assert "old" not in text
    for word in ("x 64, 100 workers", "graph, approximate", "10^9 points", "scale.dark.png"):
        assert word in text
    for theme in ("light", "dark"):
        assert (tmp_path / f"scale.{theme}.png").stat().st_size > 10_000


def off_by(factors):
    """Return misses that are off by known factors in all stages."""
    usual = [run for run in RUNS if run.usual]
    return [
        Miss(run, {stage: factor * seconds for stage, seconds in run.seconds.items()})
        for run, factor in zip(usual, factors, strict=False)
    ]


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        (
            [0.7, 0.52, 0.9],
            "3 of these 3 are too low, down to 0.5 times what was measured: expect larger fits to "
            "take longer than is said here.",
        ),
        (
            [0.7, 1.5, 1.2],
            "1 of these 3 are too low, down to 0.7 and 2 of these 3 are too high, up to 1.5 times "
            "what was measured.",
        ),
        ([1.26], "1 of these 1 are too high, up to 1.3 times what was measured."),
        ([1.0], "None of them is off."),
    ],
)
def test_the_page_says_in_which_direction_larger_fits_were_off(factors, words):
    misses = off_by(factors)
    assert _errors(misses, misses).endswith(f"\n\n{words}")


def test_the_page_of_one_size_for_each_number_of_columns(tmp_path):
    write_page(document_of([run for run in RUNS if run.n_points == 100_000]), tmp_path)
    text = (tmp_path / "scale.md").read_text()
    assert "| stage | left out: factor | share of the time |" in text
    assert "from all others (left out).\n" in text
    assert "nan" not in text
    assert "larger half" not in text


def test_the_page_of_a_single_run(tmp_path):
    write_page(document_of(RUNS[:1]), tmp_path)
    text = (tmp_path / "scale.md").read_text()
    assert "There are too few fits" in text
    assert "with 1 workers" in text
    assert "nan" not in text


def test_the_page_names_the_constants_of_estimate():
    text = " ".join((Path(__file__).parents[1] / "docs" / "scale.md").read_text().split())
    listed, sent = 1000 * paces.LIST_SECONDS, 1000 * paces.SENT_SECONDS
    piece, page = 1e6 * paces.PIECE_SECONDS, 1e6 * paces.PAGE_SECONDS
    entry, vote, label = (1e9 * paces.LEAST_SECONDS[name] for name in ALONE[1:])
    start, load = estimates.START_SECONDS, estimates.LOAD_SECONDS
    assert f"{start:g} s to start workers and {load:g} s until they have loaded libraries" in text
    assert (
        f"{listed:g} ms for each list of tasks that workers get, {sent:g} ms a message, "
        f"{piece:g} us a piece and {page:g} us a page"
    ) in text
    assert f"several workers on one machine takes {paces.CROWDED:g} times as long" in text
    distance, noise = 1e9 * paces.LEAST_SECONDS["density"], 1000 * paces.NOISE_SECONDS
    assert (
        f"density takes at least {distance:g} ns for a distance and "
        f"{MOVED_COORDINATES * distance:g} ns for a coordinate, expansion {entry:g} ns for an "
        f"entry of a row, reassignment {vote:g} ns for a point or a vote, publish {label:g} ns for "
        f"a label, which is all that is known of them where they take less than {noise:g} ms"
    ) in text
    assert f"what is compared for a point grows with its power {REACH_POWER:g}" in text
    assert f"of `points`, {EXCHANGED:g} are shared by the tasks that read the input" in text


def test_a_small_measurement_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measuring, "WARM_POINTS", 1000)
    monkeypatch.setattr(measuring, "EMPTY_TASKS", 20)
    cases = [measuring.Case(3000, 2, 1), measuring.Case(6000, 2, 1, 12)]
    out = tmp_path / "runs.json"
    measuring.measure(cases, out, print)
    measuring.measure(cases, out, lambda line: pytest.fail(f"measured again: {line}"))
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told] == [case.name for case in cases]
    document = measuring.read(out)
    assert 0 < document["dispatch_seconds"] < 1
    first, second = document["runs"]
    assert first["size"]["shape"]["n_points"] == 3000
    assert second["size"]["shape"]["n_partitions"] == 12
    assert first["size"]["compared"] > 0
    for stage in STAGES:
        assert first["stages"][stage]["seconds"] > 0
    assert first["stages"]["graph"]["n_tasks"] >= 1
    if first["stages"]["graph"]["out_nbytes"]:  # where /proc tells
        rows = 3000 * (first["size"]["shape"]["k"] + 1) * 8
        assert rows <= first["stages"]["graph"]["out_nbytes"] < 1.2 * rows
    assert first["worker_nbytes"] > 50 << 20
    main(["page", "--out", str(out), "--docs", str(tmp_path)])
    assert "x 2, 100 workers" in (tmp_path / "scale.md").read_text()


def test_a_page_of_nothing_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["page", "--out", str(tmp_path / "none.json"), "--docs", str(tmp_path)])
    assert "is not there: write it with" in capsys.readouterr().err
