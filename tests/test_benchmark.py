"""The benchmark: preparation, draws, the search under limits, runs on Dask, the command line."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from scipy.stats import randint, uniform
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import ParameterSampler
from sklearn.utils import check_random_state

from pipelines.benchmark import commands, paper, running, ties
from pipelines.benchmark.child import BEGIN, FEW_POINTS, TRIAL, Job, warm_up
from pipelines.benchmark.methods import Facts, Method
from pipelines.benchmark.preparing import (
    Dataset,
    available,
    chosen,
    load,
    prepared,
    read_folder,
    scaled,
    shipped,
)
from pipelines.benchmark.protocol import Settings, best_of, search
from pipelines.benchmark.records import (
    DONE,
    FAILED,
    OVER_MEMORY,
    OVER_TIME,
    Trial,
    path_of,
    read_searches,
)
from pipelines.benchmark.running import Plan, is_finished, run_all, run_task, tasks_of
from pipelines.benchmark.spores import SPORES, approximate_graph, exact_graph
from pipelines.benchmark.watching import Limits, _Watch
from spore_dask import ClusterError, InputError
from tests.acting import N_POINTS, acting
from tests.clusters import is_alive, wait_until
from tests.conftest import GOLDEN

ROOT = Path(__file__).parents[1]
DATA = GOLDEN.parent / "data"
FAST = Settings(n_draws=3, n_reruns=2, limit_seconds=20, budget_seconds=60)


# Preparation


def test_clip_minmax_by_hand():
    """One far value in a hundred is clipped at mean + 6 deviations; a constant column becomes 0."""
    x = np.zeros((100, 3))
    x[:, 1] = np.arange(100)
    x[0, 0], x[:, 2] = 1.0, 7.0
    found = scaled(x, "clip-minmax")
    reach = 0.01 + 6 * np.sqrt(0.01 * 0.99)
    assert reach < 1
    np.testing.assert_allclose(found[:2, 0], [1, 0])
    np.testing.assert_allclose(found[:, 1], np.arange(100) / 99)
    np.testing.assert_array_equal(found[:, 2], 0)


def test_clipping_moves_what_lies_between():
    x = np.concatenate((np.zeros((199, 1)), [[1.0]]))
    x[:100] = 0.1
    mean, std = x.mean(), x.std()
    found = scaled(x, "clip-minmax")
    assert mean + 6 * std < 1
    np.testing.assert_allclose(found[0, 0], 0.1 / (mean + 6 * std))


def test_standard_by_hand():
    found = scaled(np.array([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]]), "standard")
    np.testing.assert_allclose(found, [[-np.sqrt(1.5), 0], [0, 0], [np.sqrt(1.5), 0]])
    assert found.dtype == np.float64


def test_unknown_scaling_is_refused():
    with pytest.raises(InputError, match="'log', but it must be one of clip-minmax, standard"):
        scaled(np.zeros((2, 2)), "log")


def test_coordinates_of_the_reference():
    """Bit for bit: another order of operations breaks ties differently."""
    files = [path for path in sorted(GOLDEN.glob("*.npz")) if path.stem != "duplicates"]
    if not files or not DATA.exists():
        pytest.skip("the golden labels are not beside the project")
    for path in files:
        with np.load(path) as file:
            expected = file["X"]
        found = load(DATA, path.stem, "clip-minmax")
        if path.stem == "trapped_lovers_2d":  # principal components are those of a LAPACK
            np.testing.assert_allclose(found.x, expected, atol=1e-9)
        else:
            np.testing.assert_array_equal(found.x, expected, err_msg=path.stem)


def test_datasets_of_the_paper():
    if not DATA.exists():
        pytest.skip("the data is not beside the project")
    assert set(paper.DATASETS) == set(available(DATA)) - {"mnist"} == set(chosen(DATA, None))
    assert list(chosen(DATA, ["mnist"])) == ["mnist"]
    reduced = {
        name: load(DATA, name, "clip-minmax") for name in paper.DATASETS if "trapped" in name
    }
    shapes = {name: (one.x.shape[1], one.n_raw_columns) for name, one in reduced.items()}
    assert shapes == {"trapped_lovers_2d": (2, 3), "trapped_lovers_3d": (3, 3)}


def test_folders(tmp_path):
    with pytest.raises(InputError, match="has no labelled data"):
        list(read_folder(tmp_path))
    np.savez(tmp_path / "b.npz", X=np.arange(8).reshape(4, 2), y=np.arange(4))
    np.savez(tmp_path / "a.npz", X=np.ones((3, 5)), y=np.arange(3))
    np.savez(tmp_path / "c.npz", X=np.ones((3, 5)))
    assert [(one.name, one.x.shape, one.x.dtype) for one in read_folder(tmp_path)] == [
        ("a", (3, 5), np.float64),
        ("b", (4, 2), np.float64),
    ]
    assert available(tmp_path) == {"a": 3, "b": 4}
    np.savez(tmp_path / "d.npz", X=np.ones((3, 5)), y=np.arange(4))
    with pytest.raises(InputError, match=r"X of shape \(3, 5\) and y of shape \(4,\)"):
        list(read_folder(tmp_path))


def test_shipped():
    sizes = {one.name: (*one.x.shape, len(np.unique(one.y))) for one in shipped()}
    assert sizes == {
        "iris": (150, 4, 3),
        "wine": (178, 13, 3),
        "digits": (1797, 64, 10),
        "wdbc": (569, 30, 2),
    }
    assert available(None) == {name: n for name, (n, _, _) in sizes.items()}
    with pytest.raises(InputError, match="no dataset 'moon'; here are iris, wine, digits, wdbc"):
        chosen(None, ["moon"])


def test_components_are_taken_after_scaling():
    rng = np.random.default_rng(0)
    raw = Dataset(
        "pbmc3k", rng.normal(size=(200, 60)) * rng.random(60), rng.integers(0, 2, 200), 60
    )
    (one,) = prepared(raw, "standard")
    assert one.x.shape == (200, 50)
    assert one.scaling == "standard"
    assert one.n_raw_columns == 60
    total = one.x.var(axis=0).sum() / 60  # each of the 60 scaled columns has variance 1
    assert 0.9 < total < 1


# SPORE and its ablations


def test_draws_are_those_of_the_paper():
    """The constant entries that the reference passes along do not change what is drawn."""
    space = {
        "z_percentile": uniform(12.5, 87.5),
        "retention_rate": uniform(0, 0.875),
        "min_cluster_size": uniform(0.3, 0.4),
        "expansion_neighbors": randint(10, 30),
        **{name: [None] for name in ("nn_kwargs", "n_jobs", "shuffle_for_hnsw", "exact_knn")},
        "seeding_order": ["density"],
        "shuffle_seed": [42],
    }
    expected = list(ParameterSampler(space, 50, random_state=check_random_state(42)))
    found = SPORES["SPORE"].configurations(Facts(1500, 2, 3), 50, 42)
    assert found[0] == {}
    assert len(found) == 51
    for ours, theirs in zip(found[1:], expected, strict=True):
        assert ours == {name: theirs[name] for name in ours}
        assert len(ours) == 4
    assert json.loads(json.dumps(found)) == found


def test_variants_draw_the_same():
    facts = Facts(300, 2, 2)
    plain = SPORES["SPORE"].configurations(facts, 5, 1)
    fixed = {
        "SPORE-ANN": {},
        "SPORE-MSR-0": {"max_scr_rounds": 0},
        "SPORE-RandSeed": {"seeding_order": "random", "seed": 42},
    }
    assert [*SPORES] == ["SPORE", *fixed]
    for name, more in fixed.items():
        found = SPORES[name].configurations(facts, 5, 1)
        assert found == [{**config, **more} for config in plain]
    assert plain != SPORES["SPORE"].configurations(facts, 5, 2)


@pytest.mark.parametrize("name", SPORES)
def test_shared_graph_gives_the_labels_from_scratch(name):
    """Exactly where neighbours are exact; here probes meet all cells, and are so too."""
    one = load(None, "iris", "clip-minmax")
    method = SPORES[name]
    configs = method.configurations(Facts(150, 4, 3), 6, 42)
    shared = method.share(one.x, configs)
    found = [method.labels(one.x, config, shared) for config in configs]
    for config, labels in zip(configs, found, strict=True):
        np.testing.assert_array_equal(labels, method.labels(one.x, config, None))
    assert len({labels.tobytes() for labels in found}) > 1


def test_approximate_neighbors_are_approximate():
    x = np.random.default_rng(0).normal(size=(3000, 20))
    true, found = (
        graph(x, [{"expansion_neighbors": 10}]) for graph in (exact_graph, approximate_graph)
    )
    assert found.neighbors.shape == true.neighbors.shape
    same = np.mean(found.neighbors == true.neighbors)
    assert 0.8 < same < 1
    assert not found.exact
    assert true.exact


# The search


TOY = Dataset(
    "toy",
    np.random.default_rng(0).random((N_POINTS, 2)),
    np.array(["a", "b", "c"] * (N_POINTS // 3)),
    5,
    "clip-minmax",
)


def outcomes(found):
    return [(trial.number, trial.outcome) for trial in found.trials]


def test_search_records_everything():
    configs = [{"wrong": 60}, {"wrong": 0}, {"wrong": 300}]
    found = search(TOY, acting(configs), FAST)
    assert outcomes(found) == [(0, DONE), (1, DONE), (2, DONE)]
    truth = np.arange(N_POINTS) % 3
    for trial, config in zip(found.trials, configs, strict=True):
        labels = truth.copy()
        labels[: config["wrong"]] = -1
        assert trial.config == config
        assert trial.ari == adjusted_rand_score(truth, labels)
        assert trial.noise == config["wrong"] / N_POINTS
        assert trial.n_clusters == 3
        assert 0 <= trial.seconds <= FAST.limit_seconds
    assert found.trials[1].nmi == pytest.approx(1)
    assert found.best == 1
    assert [(one.number, one.config, one.ari) for one in found.reruns] == [(1, configs[1], 1.0)] * 2
    assert (found.n_points, found.n_columns, found.n_raw_columns) == (N_POINTS, 2, 5)
    assert (found.n_classes, found.n_wanted, found.scaling) == (3, 3, "clip-minmax")
    assert (found.limit_seconds, found.budget_seconds) == (20, 60)
    assert found.memory_nbytes == FAST.memory_nbytes


def test_equal_aris_are_told_apart_by_time():
    def trial(number, ari, seconds, outcome=DONE):
        return Trial(number, {}, outcome, seconds=seconds, ari=ari)

    assert best_of([trial(0, 0.5, 1.0), trial(1, 0.7, 3.0), trial(2, 0.7, 2.0)]) == 2
    assert best_of([trial(0, -0.1, 1.0), trial(1, None, 130.0, OVER_TIME)]) == 0
    assert best_of([trial(0, None, None, FAILED)]) is None
    found = search(TOY, acting([{"sleep": 0.3}, {}, {"sleep": 0.2}]), FAST)
    assert {one.ari for one in found.trials} == {1.0}
    seconds = [one.seconds for one in found.trials]
    assert seconds[0] >= 0.3
    assert seconds[2] >= 0.2
    assert found.best == np.argmin(seconds)


def test_errors_and_deaths_are_told_and_the_search_goes_on():
    """However many processes die: only slow configurations end a search."""
    configs = [{"raise": "too\nbad"}, {"exit": 3}, {"length": 7}, {"exit": 4}, {"wrong": 9}]
    found = search(TOY, acting(configs), dataclasses.replace(FAST, n_reruns=1))
    assert outcomes(found) == [*((number, FAILED) for number in range(4)), (4, DONE)]
    assert [trial.reason for trial in found.trials[:4]] == [
        "ValueError: too",
        "The process ended with code 3: out of luck",
        f"There are labels of shape (7,) for {N_POINTS} points.",
        "The process ended with code 4: out of luck",
    ]
    assert found.best == 4
    assert [one.number for one in found.reruns] == [4]


def test_slow_configurations_are_killed_in_time():
    """After the second one, the search gives up."""
    settings = dataclasses.replace(FAST, limit_seconds=5.0, n_reruns=0)
    configs = [{}, {"sleep": 600, "child": 600.125}, {"wrong": 5}, {"sleep": 600}, {}]
    found = search(TOY, acting(configs), settings)
    assert outcomes(found) == [(0, DONE), (1, OVER_TIME), (2, DONE), (3, OVER_TIME)]
    assert found.trials[1].reason == "More than 5 s."
    assert found.n_wanted == 5
    assert found.best == 0
    wait_until(lambda: not any("sleep(600.125)" in line for line in command_lines()))


def command_lines():
    return map(command_line, psutil.process_iter())


def command_line(process):
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def test_a_trial_that_ends_just_too_late_is_over_time():
    settings = dataclasses.replace(FAST, limit_seconds=0.01, n_reruns=0)
    found = search(TOY, acting([{"sleep": 0.04}]), settings)
    assert outcomes(found) == [(0, OVER_TIME)]
    assert found.best is None


class Silent:
    """A process that has said these lines, and lives on."""

    def __init__(self, *lines):
        self.lines = list(lines)

    def how_it_ended(self):
        return None

    def new_lines(self):
        said, self.lines = self.lines, []
        return said

    def used_nbytes(self):
        return 0


@pytest.mark.parametrize("n_todo", [1, 2])
def test_a_limit_after_the_last_trial_ends_nothing_else(n_todo):
    done = Trial(0, {}, DONE, seconds=0.1, ari=1.0)
    lines = [
        {"what": BEGIN, "item": 0},
        {"what": TRIAL, "trial": dataclasses.asdict(done)},
    ]
    watch = _Watch(Silent(*lines), [(0, {}), (1, {})][:n_todo], Limits(60, -1.0, 1 << 30))
    assert watch.is_over(lambda trial: False)
    assert not watch.ended  # so that the process is stopped
    report = watch.spent()
    assert [one.outcome for one in report.trials] == [DONE, OVER_TIME][:n_todo]
    assert report.stopped == (n_todo == 2)


def test_warm_up_runs_the_default_of_a_few_points():
    """The first configuration may be out of bounds for so few."""
    ran = []

    def labels(x, config, shared):
        ran.append((len(x), config, shared))
        return np.zeros(len(x))

    method = Method(
        "recording",
        lambda facts, n_draws, seed: [dataclasses.asdict(facts)],
        lambda x, configs: configs,
        labels,
    )
    x, y = np.zeros((10 * FEW_POINTS, 3)), np.arange(10 * FEW_POINTS) % 20
    warm_up(Job("", method, [(5, {"n_points": 9999})], True, 1.0), x, y)
    expected = {"n_points": FEW_POINTS, "n_columns": 3, "n_classes": 2}
    assert ran == [(FEW_POINTS, expected, [expected])]


def test_memory_is_limited():
    settings = dataclasses.replace(FAST, memory_nbytes=600 << 20, n_reruns=1)
    found = search(TOY, acting([{"wrong": 3}, {"eat": 2000}, {}]), settings)
    assert outcomes(found) == [(0, DONE), (1, OVER_MEMORY), (2, DONE)]
    assert found.trials[1].reason.endswith(" GB in use, of 0.63 GB.")


@pytest.mark.parametrize(
    ("share", "outcome", "reason"),
    [
        ({"raise": "no"}, FAILED, "In what configurations share: ValueError: no"),
        ({"exit": 5}, FAILED, "In what configurations share: The process ended with code 5: "),
        ({"sleep": 600}, OVER_TIME, "In what configurations share: After "),
    ],
)
def test_what_is_shared_may_fail(share, outcome, reason):
    settings = dataclasses.replace(FAST, budget_seconds=1.0) if outcome == OVER_TIME else FAST
    found = search(TOY, acting([{}, {}], share=share), settings)
    assert outcomes(found) == [(0, outcome)]
    assert found.trials[0].reason.startswith(reason)
    assert (found.n_wanted, found.best, found.reruns) == (2, None, [])


def test_the_budget_ends_a_search():
    settings = dataclasses.replace(FAST, budget_seconds=8.0, limit_seconds=7.5, n_reruns=1)
    found = search(TOY, acting([{"sleep": 2.5}] * 20, share={"sleep": 0.2}), settings)
    assert 0.2 <= found.shared_seconds < 8
    assert 2 <= len(found.trials) <= 4
    assert found.n_wanted == 20
    assert {trial.outcome for trial in found.trials[:-1]} == {DONE}
    assert len(found.reruns) == 1


def test_a_slow_best_one_is_run_again_once():
    """From scratch it takes longer than the limit, which the search alone did not."""
    settings = dataclasses.replace(FAST, limit_seconds=5.0, n_reruns=5)
    shared = {"wrong": 1}
    found = search(TOY, acting([{"scratch": 5.5}], share=shared), settings)
    assert outcomes(found) == [(0, DONE)]
    (rerun,) = found.reruns
    assert rerun.outcome == DONE
    assert rerun.seconds >= 5.5


# Runs


def plan_of(out, data, methods, settings=FAST):
    return Plan(out, data, ["clip-minmax"], None, methods, settings)


@pytest.fixture
def data(tmp_path):
    """A folder with two datasets."""
    folder = tmp_path / "data"
    folder.mkdir()
    for n_more in (0, 60):
        y = np.arange(N_POINTS + n_more) % 3
        np.savez(folder / f"toy{n_more}.npz", X=np.random.default_rng(0).random((len(y), 2)), y=y)
    return folder


def scores_in(out):
    return {
        (one.dataset, one.method): [(trial.config, trial.ari, trial.nmi) for trial in one.trials]
        for one in read_searches(out)
    }


def test_parallel_equals_serial(tmp_path, data):
    """What a dataset has wrong shows on the workers only: all others are finished first."""
    methods = [acting([{"wrong": n}, {"wrong": 200 - n}], f"{n}") for n in (10, 30)]
    serial = plan_of(tmp_path / "serial", data, methods)
    for task in tasks_of(serial):
        run_task(task)
    np.savez(data / "odd.npz", X=np.ones((9, 2)), y=np.ones(9)[:, None])
    plan, said = plan_of(tmp_path / "parallel", data, methods), []
    with pytest.raises(ClusterError, match=r"^2 of 6 searches were lost, the first of .* odd \d"):
        run_all(plan, n_workers=2, say=said.append)
    assert [line.split()[0] for line in said] == [f"{n}/6" for n in range(1, 7)]
    assert sum(": lost, InputError: odd.npz has X of shape (9, 2)" in line for line in said) == 2
    assert len(scores_in(plan.out)) == 4
    assert scores_in(plan.out) == scores_in(serial.out)


def test_what_is_there_is_found_done(tmp_path, data):
    plan, said = plan_of(tmp_path, data, [acting([{}], "A")]), []
    for task in tasks_of(plan):
        run_task(task)
    run_all(plan, say=said.append)
    assert said == ["2 of 2 searches are there already"]
    assert not (tmp_path / "machine.json").exists()


def test_large_tasks_outlive_the_worker_that_they_were_tied_to(tmp_path, data, monkeypatch):
    """A nanny starts it again under another address."""
    found = running._first_workers
    firsts = iter([lambda client: ["tcp://127.0.0.1:9"]])
    monkeypatch.setattr(running, "_first_workers", lambda client: next(firsts, found)(client))
    monkeypatch.setattr(running, "LARGE_POINTS", N_POINTS)
    monkeypatch.setattr(running, "RESTART_SECONDS", 0.5)
    plan, said = plan_of(tmp_path, data, [acting([{}], "A")]), []
    run_all(plan, n_workers=1, say=said.append)
    assert [line.split()[0] for line in said] == ["1/2", "2/2"]
    assert [one.dataset for one in read_searches(tmp_path)] == ["toy0", "toy60"]


def test_more_threads_than_processors_are_refused(tmp_path, data, monkeypatch):
    monkeypatch.setattr(running, "n_processors", lambda: 5)
    settings = dataclasses.replace(FAST, n_threads=2)
    plan = plan_of(tmp_path / "out", data, [acting([{}], "A")], settings)
    with pytest.raises(InputError, match=r"--workers 3 with --threads 2 each need 6 .* but 5 can"):
        run_all(plan, n_workers=3)
    assert not plan.out.exists()
    running.check_processors(2, 2)


def test_large_datasets_come_first(tmp_path):
    plan = Plan(tmp_path, None, ["standard"], ["iris", "digits", "wine"], [SPORES["SPORE"]], FAST)
    assert [task.dataset for task in tasks_of(plan)] == ["digits", "wine", "iris"]


def test_files_of_another_configuration_are_refused(tmp_path, data):
    task = tasks_of(plan_of(tmp_path, data, [acting([{}], "A")]))[0]
    assert not is_finished(task)
    run_task(task)
    assert is_finished(task)
    for name, value in (("n_draws", 4), ("seed", 1), ("limit_seconds", 3), ("budget_seconds", 9)):
        other = dataclasses.replace(task, settings=dataclasses.replace(FAST, **{name: value}))
        with pytest.raises(InputError, match=f"but {value} is asked for: choose another --out"):
            is_finished(other)


DRIVER = """
import sys
from pathlib import Path
from pipelines.benchmark.protocol import Settings
from pipelines.benchmark.running import Plan, run_all
from tests.acting import acting
if __name__ == "__main__":
    out, data = map(Path, sys.argv[1:])
    methods = [acting([{}], "quick"), acting([{"sleep": 600}], "slow")]
    settings = Settings(n_reruns=0, limit_seconds=500)
    run_all(Plan(out, data, ["clip-minmax"], None, methods, settings), n_workers=1)
"""


def test_a_killed_driver_leaves_nothing_behind_and_is_resumed(tmp_path, data):
    out = tmp_path / "out"
    (data / "toy60.npz").unlink()
    quick = path_of(out, "clip-minmax", "toy0", "quick")
    driver = psutil.Popen(
        [sys.executable, "-c", DRIVER, str(out), str(data)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(quick.exists, seconds=300)
        below = driver.children(recursive=True)
        lines = [command_line(process) for process in below]
    finally:
        driver.kill()
        driver.wait()
    (folder,) = {line.split()[3] for line in lines if "pipelines.benchmark.child" in line}
    wait_until(lambda: not any(is_alive(process) for process in below))
    assert not Path(folder).exists()
    settings = Settings(n_reruns=0, limit_seconds=500)
    methods = [acting([{}], "quick"), acting([{}], "slow")]
    first, second = tasks_of(plan_of(out, data, methods, settings))
    assert [is_finished(first), is_finished(second)] == [True, False]
    run_task(second)
    assert [one.method for one in read_searches(out)] == ["quick", "slow"]


# Commands


def test_run_from_the_command_line(tmp_path, capsys):
    """What a user starts: two datasets and two methods, on a cluster of its own."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "pipelines.benchmark", "run", "--out", str(out)]
    command += ["--sets", "iris", "wine", "--methods", "SPORE", "KMeans", "--draws", "3"]
    command += ["--reruns", "2", "--scaling", "clip-minmax", "--workers", "1"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 4
    found = {(one.dataset, one.method): one for one in read_searches(out)}
    assert set(found) == {(d, m) for d in ("iris", "wine") for m in ("SPORE", "KMeans")}
    assert found["iris", "SPORE"].trials[0].ari == pytest.approx(0.5503, abs=1e-4)
    assert all(len(one.reruns) == 2 for one in found.values())
    text = (out / "machine.json").read_text()
    machine = json.loads(text)
    assert str(tmp_path) not in text
    assert os.uname().nodename not in text
    assert machine["command"] == (
        "python -m pipelines.benchmark run --out OUT --sets iris wine --scaling clip-minmax "
        "--methods SPORE KMeans --draws 3 --reruns 2 --workers 1"
    )
    assert machine["settings"]["n_draws"] == 3
    assert {"numpy", "scikit-learn", "numba", "dask", "spore_dask"} <= set(machine["versions"])
    command[command.index("3")] = "4"
    with pytest.raises(SystemExit, match="2"):
        commands.main(command[3:])
    assert capsys.readouterr().err.startswith("run: The search of clip-minmax ")
    assert json.loads((out / "machine.json").read_text()) == machine


def test_commands_refuse_what_cannot_work(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        commands.main(["run", "--out", str(tmp_path), "--sets", "moon"])
    assert "There is no dataset 'moon'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        commands.main(["run", "--out", str(tmp_path), "--data", str(tmp_path)])
    assert "has no labelled data" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        commands.main(["run", "--out", str(tmp_path), "--limit", "0"])
    assert "0 is not more than 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_equal_distances_in_a_random_order():
    """They are the true neighbours but for those at the distance of the last."""
    x = np.random.default_rng(0).integers(0, 5, (80, 3)).astype(float)
    configs = [{"expansion_neighbors": 6}]
    expected = exact_graph(x, configs)
    found = ties.shuffled_graph(x, configs, seed=1)
    np.testing.assert_allclose(found.distances, expected.distances, rtol=1e-11)
    np.testing.assert_array_equal(found.neighbors[:, 0], np.arange(80))
    assert (np.diff(found.distances) >= 0).all()
    apart = np.linalg.norm(x[found.neighbors] - x[:, None], axis=2)
    np.testing.assert_allclose(apart, expected.distances, rtol=1e-11)
    assert (found.neighbors != expected.neighbors).mean() > 0.3


def test_ties(tmp_path, capsys):
    commands.main(["ties", "--out", str(tmp_path), "--sets", "iris", "--orders", "2"])
    found = json.loads((tmp_path / "ties.json").read_text())
    one = load(None, "iris", "clip-minmax")
    x, y = ties.reordered(one.x, one.y, 1)
    assert sorted(map(tuple, np.column_stack((np.sort(x, axis=1), y)))) == sorted(
        map(tuple, np.column_stack((np.sort(one.x, axis=1), one.y)))
    )
    assert found == {
        "iris": {
            "given": ties.best_ari(one.x, one.y),
            "orders": [ties.ari_of_order(one.x, one.y, seed) for seed in range(2)],
        }
    }
    assert capsys.readouterr().out.startswith("iris: 0.9039 as given, ")
