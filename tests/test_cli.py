import contextlib
import errno
import inspect
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import click
import dask
import distributed  # noqa: F401  (what is set before its defaults are there would undo them)
import numpy as np
import psutil
import pytest
from click.testing import CliRunner

import spore_dask
from spore_dask import errors
from spore_dask.cli import running, showing, status
from spore_dask.cli.commands import commands
from spore_dask.datasets import blobs_and_shapes
from spore_dask.engine import NoSchedulerError, TaskTooBigError, WorkerLostError
from spore_dask.progress import Bar, Event
from spore_dask.store import Folder
from spore_dask.tracking import Tracker
from tests import paper
from tests.clusters import wait_until

COMMAND = [sys.executable, "-c", "from spore_dask.cli import main; main()"]
NAMES = [
    "fit",
    "graph",
    "tune",
    "predict",
    "estimate",
    "status",
    "report",
    "verify",
    "clean",
    "import",
    "export",
    "demo",
]
API = {
    "fit": ["fit", "Params"],
    "graph": ["build_graph"],
    "tune": ["tune", "fit", "Params"],
    "predict": ["predict"],
    "estimate": ["fit", "Params"],
    "report": ["report"],
    "verify": ["verify"],
    "clean": ["clean"],
    "import": ["import_data"],
    "export": ["export_labels"],
}
NO_OPTIONS = {
    "fit": {"source", "out", "progress"},
    "graph": {"source", "out", "progress"},
    "tune": {"source", "out", "progress", "params"},
    "predict": {"run", "source", "out", "progress"},
    "estimate": {"source", "out", "progress", "resume", "params", "n_trials"},
    "report": {"run", "out"},
    "verify": {"run"},
    "clean": {"run"},
    "import": {"source", "out", "progress"},
    "export": {"run", "out", "progress"},
}
OWN = {"report", "id", "progress", "config", "json", "quiet", "debug"}
FIT = ["fit", "--params", "paper"]


def invoke(*args, **settings):
    return CliRunner().invoke(commands, [str(arg) for arg in args], **settings)


def write_points(path, n_points=600, n_columns=2, **changes):
    data = blobs_and_shapes(n_points, n_columns, 0, dtype="float32")[0]
    for row, value in changes.items():
        data[int(row.removeprefix("row"))] = value
    Folder(str(path.parent)).write_zarr(path.name, data, 200)
    return path


@pytest.fixture
def data(tmp_path):
    return write_points(tmp_path / "x.zarr")


@pytest.fixture
def run(data):
    return paper.fit(data, n_workers=0)


# Names, defaults and help


def test_version_of_the_installed_command():
    command = Path(sys.executable).with_name("spore-dask")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"spore-dask, version {spore_dask.__version__}"


def test_the_commands_are_those_of_the_documentation():
    assert list(commands.commands) == NAMES
    text = invoke("--help").output
    assert all(re.search(rf"^  {name} +\w", text, re.M) for name in NAMES)
    assert all(re.search(rf"^  {code} +\w", text, re.M) for code in running.EXIT_CODES)
    assert "..." not in text.split("Commands:")[1].split("Exit codes:")[0]


@pytest.mark.parametrize("name", API)
def test_options_and_defaults_are_those_of_the_api(name):
    expected = {}
    for owner in API[name]:
        for parameter in inspect.signature(getattr(spore_dask, owner)).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                expected.setdefault(parameter.name, parameter.default)
    command = commands.commands[name]
    context = click.Context(command)
    found = {
        option.name: option.get_default(context)
        for option in command.get_params(context)
        if isinstance(option, click.Option) and "--help" not in option.opts
    }
    expected = {key: value for key, value in expected.items() if key not in NO_OPTIONS[name]}
    assert {key: found.get(key, "missing") for key in expected} == expected
    assert set(found) - set(expected) <= OWN | ({"report"} if name == "fit" else set())


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_a_line_of_help(name):
    result = invoke(name, "--help")
    assert result.exit_code == 0
    command = commands.commands[name]
    for option in command.get_params(click.Context(command)):
        if isinstance(option, click.Option):
            assert option.opts[0] in result.output
            assert option.help


def test_help_has_headings_and_choices():
    text = invoke("fit", "--help").output
    headings = re.findall(r"^(\w.*):$", text, re.M)
    assert headings == [
        "Options",
        "Neighbours",
        "Parameters of SPORE",
        "Where it runs",
        "What is shown",
    ]
    assert "--seeding-order [density|random|none]" in text
    assert "--scheduler ADDRESS" in text
    assert "--workers INTEGER" in text


def test_names_are_completed():
    asked = {"_SPORE_DASK_COMPLETE": "bash_complete", "COMP_CWORD": "2"}
    asked["COMP_WORDS"] = "spore-dask fit --min-cl"
    done = subprocess.run(COMMAND, env=os.environ | asked, capture_output=True, text=True)
    assert "--min-cluster-size" in done.stdout


# What commands do


def test_fit_tells_what_the_run_says(data):
    result = invoke(*FIT, data, "--workers", 0, "--min-cluster-size", 9, "--progress", "none")
    assert result.exit_code == 0, result.stderr
    run = spore_dask.open_run(data.with_suffix(".spore"))
    assert run.summary["params"]["min_cluster_size"] == 9
    assert f"Found {run.n_clusters} clusters" in result.stdout
    assert f"Labels: {run.result.url}/labels" in result.stdout
    assert f"Report: {run.path}/report" in result.stdout
    assert result.stderr == ""
    same = paper.fit(data, min_cluster_size=9)
    assert same.id == run.id


def test_json_is_one_document_and_quiet_is_silence(data):
    common = [*FIT, data, "--workers", 0, "--no-report"]
    result = invoke(*common, "--json")
    document = json.loads(result.stdout)
    run = spore_dask.open_run(document["path"])
    assert document["id"] == run.id
    assert {name: document[name] for name in run.summary} == run.summary
    assert "scan: 1 task" in result.stderr  # not a terminal: lines
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", result.stderr)
    quiet = invoke(*common, "--quiet", "--no-resume")
    assert (quiet.exit_code, quiet.output) == (0, "")


def test_progress_as_lines_of_json(data):
    result = invoke(*FIT, data, "--workers", 0, "--no-report", "--json", "--progress", "json")
    events = [json.loads(line) for line in result.stderr.splitlines()]
    assert {"scan", "expand", "publish"} <= {event["stage"] for event in events}
    assert json.loads(result.stdout)["n_points"] == 600


def test_a_report_that_fails_is_only_a_warning(data, monkeypatch):
    def report(run):
        raise RuntimeError("no ink")

    monkeypatch.setattr(spore_dask, "report", report, raising=False)
    result = invoke(*FIT, data, "--workers", 0, "--progress", "none")
    assert result.exit_code == 0
    assert result.stderr == "spore-dask: warning: no report was written (no ink).\n"


def test_a_graph_and_a_fit_on_it(data, tmp_path):
    out = tmp_path / "graph"
    result = invoke("graph", data, out, "--k", 60, "--workers", 0, "--progress", "none")
    assert result.exit_code == 0, result.stderr
    assert "600 points with 60 neighbours" in result.stdout
    assert "exact, every row certified" in result.stdout
    fitted = invoke(*FIT, data, "--graph", out, "--workers", 0, "--no-report", "--json")
    assert json.loads(fitted.stdout)["graph"][0] == str(out)


def test_estimate_prints_a_table(data, tmp_path):
    result = invoke("estimate", data, "--workers", 0)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0].split() == [
        "stage",
        "memory",
        "a",
        "process",
        "disk",
        "time",
    ]
    assert {"scan", "expand", "whole"} <= {line.split()[0] for line in result.stdout.splitlines()}
    assert os.listdir(tmp_path) == ["x.zarr"]
    assert "seconds" in json.loads(invoke("estimate", data, "--workers", 0, "--json").stdout)


def test_verify_and_clean(run):
    assert "Nothing is damaged" in invoke("verify", run.path).stdout
    freed = json.loads(invoke("clean", run.path, "--json").stdout)["freed_nbytes"]
    assert freed > 0
    assert not list(Path(run.path).glob("graph-*"))
    assert run.labels.shape == (600,)
    Path(run.result.url, "labels", "c", "0").unlink()
    result = invoke("verify", run.path, "--id", run.id)
    assert result.exit_code == 5
    assert "damaged" in result.stderr


def test_from_a_table_to_a_table(tmp_path):
    data = blobs_and_shapes(600, 2, 0)[0]
    lines = [f"p{n},{x!r},{y!r},0" for n, (x, y) in enumerate(data.tolist())]
    (tmp_path / "x.csv").write_text("\n".join(["name,a,b,c", *lines]))
    result = invoke("import", tmp_path / "x.csv", "--columns", "a,b", "--json")
    assert json.loads(result.stdout)["path"] == str(tmp_path / "x.zarr")
    assert invoke(*FIT, tmp_path / "x.zarr", "--workers", 0, "--no-report").exit_code == 0
    run = spore_dask.open_run(tmp_path / "x.spore")
    call = ["export", run.path, tmp_path / "y.csv", "--ids", tmp_path / "x.csv"]
    result = invoke(*call, "--id-column", "name", "--provenance")
    assert result.exit_code == 0, result.stderr
    table = (tmp_path / "y.csv").read_text().replace('"', "").splitlines()
    assert table[0] == "name,label,provenance"
    assert table[8] == f"p7,{run.labels[7]},{run.provenance[7]}"
    again = invoke(*call)
    assert (again.exit_code, len(again.stderr.splitlines())) == (3, 1)


def test_demo_finds_what_it_generated():
    result = invoke("demo", "--points", "5000", catch_exceptions=False)
    assert result.exit_code == 0
    assert "Generated 5,000 points in 2 columns" in result.output
    assert "Largest clusters" in result.output
    agreement = float(result.output.split("(ARI): ")[1].split()[0])
    assert agreement > 0.5


# Files of options


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "c.yaml",
            "min-cluster-size: 9\nn_workers: 0\nresume: false\nparams: paper\n",
        ),
        ("c.yml", "min_cluster_size: 9\nworkers: '0'\nscale: null\nparams: paper\n"),
        ("c.toml", "min-cluster-size = 9\nworkers = 0\nparams = 'paper'\n"),
    ],
)
def test_options_from_a_file(name, text, data, tmp_path):
    config = tmp_path / name
    config.write_text(text + {"c.toml": "seed = 5\n"}.get(name, "seed: 5\n"))
    result = invoke("fit", data, "--config", config, "--seed", 6, "--no-report", "--json")
    assert result.exit_code == 0, result.stderr
    asked = json.loads(result.stdout)["asked"]
    assert (asked["min_cluster_size"], asked["seed"]) == (9, 6)


def test_the_source_from_a_file(data, tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(f"source: {data}\nout: {tmp_path / 'there'}\nworkers: 0\nreport: no\n")
    assert invoke(*FIT, "--config", config).exit_code == 0
    assert spore_dask.open_run(tmp_path / "there").n_clusters > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("min-cluster-sise: 9", "'min-cluster-sise', .* did you mean 'min-cluster-size'"),
        ("zzzzzz: 9", "no option 'zzzzzz'"),
        ("seed: [", "cannot be read as YAML"),
        ("- seed", "holds a list"),
        ("seed: many", "'many' is not a valid integer"),
        ("config: c.yaml", "no option 'config'"),
    ],
)
def test_files_that_are_refused(text, said, data, tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(text)
    result = invoke("fit", data, "--config", config)
    assert result.exit_code == 2
    assert re.search(said, result.stderr)
    assert len(result.stderr.splitlines()) == 1


# Errors


def strict(text):
    """Read JSON as other languages do, without numbers that are none."""

    def refuse(name):
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def test_from_trials_to_new_points(tmp_path):
    source = write_points(tmp_path / "x.zarr")
    truth = blobs_and_shapes(600, 2, 0)[1]
    np.save(tmp_path / "y.npy", truth)
    (tmp_path / "y.csv").write_text("label\n" + "\n".join(map(str, truth)) + "\n")
    trials = ["--n-trials", "4", "--workers", "0"]
    said = invoke("tune", source, *trials)
    assert said.exit_code == 0, said.output
    assert "score clusters  noise  parameters" in said.stdout
    found = strict(invoke("tune", source, *trials, "--json", "--no-report").stdout)
    rates = [one["retention_rate"] for one in found["trials"]]
    assert [rate is None for rate in rates[:4]] == [True] + [False] * 3
    assert rates[4:] == [None, 0.2] * 4
    assert Path(said.stdout.split("Report: ")[1].strip()).exists()
    by_labels = [
        strict(invoke("tune", source, *trials, "--json", "--y", tmp_path / name).stdout)
        for name in ("y.npy", "y.csv")
    ]
    assert by_labels[0]["trials"] == by_labels[1]["trials"]
    assert max(one["ari"] for one in by_labels[0]["trials"]) > 0
    auto = invoke("fit", source, *trials, "--json", "--no-report")
    document = strict(auto.stdout)
    assert document["id"] == found["run"]["id"]
    assert document["choice"]["n_trials"] == len(rates)
    assert f"among {len(rates)} configurations" in said.stdout
    run = tmp_path / "x.spore"
    predicted = strict(invoke("predict", run, source, "--workers", "0", "--json").stdout)
    assert predicted["n_points"] == 600
    assert "Prediction of 600 points" in invoke("status", tmp_path / "x.predicted").stdout
    assert invoke("export", tmp_path / "x.predicted", tmp_path / "new.csv").exit_code == 0
    assert len((tmp_path / "new.csv").read_text().splitlines()) == 601


def test_import_tells_what_it_took(tmp_path):
    (tmp_path / "x.csv").write_text("name,a,b\nu,1,2\nv,3,4\n")
    said = invoke("import", tmp_path / "x.csv")
    assert "2 rows, 2 columns" in said.stdout
    assert "Left out: 'name'" in said.stdout
    (tmp_path / "x.zarr").rename(tmp_path / "other.zarr")
    found = strict(invoke("import", tmp_path / "x.csv", "--json").stdout)
    assert (found["columns"], found["left_out"]) == (["a", "b"], ["name"])


def bad_calls():
    fit, none = ["fit", "x.zarr"], "nothing.zarr"
    yield 2, "No such command", ["fti"]
    yield 2, "No such option", [*fit, "--nope"]
    yield 2, "Missing argument 'SOURCE'", ["fit"]
    yield 2, "not a valid integer", [*fit, "--seed", "x"]
    yield 2, "is not one of", [*fit, "--knn", "best"]
    yield 2, "min_cluster_size is -1", [*fit, "--min-cluster-size", "-1"]
    yield 2, "memory_limit is 'much'", [*fit, "--memory-limit", "much"]
    yield 2, "cannot be read", [*fit, "--config", "nothing.yaml"]
    yield 2, "although client is given", [*fit, "--scheduler", "tcp://[::1]:1", "--workers", "1"]
    yield 3, "no Zarr array at", ["fit", none]
    yield 3, "NaN or infinity", ["fit", "nan.zarr", "--workers", "0"]
    yield 3, "NaN or infinity", ["fit", "nan.zarr", "out", "--workers", "0", "--scale", "standard"]
    yield 3, "zero vector", ["graph", "zero.zarr", "out", "--metric", "cosine", "--workers", "0"]
    yield 3, "no finished graph", [*fit, "--graph", "nothing"]
    yield 3, "has changed since", ["fit", "changed.zarr", "--workers", "0"]
    yield 3, "Protocol not known", ["fit", "nowhere://x"]
    yield 4, "memory_limit is 1.00 MiB", [*fit, "--memory-limit", "1MiB"]
    yield 6, "no Dask scheduler answers", [*fit, "--scheduler", "tcp://127.0.0.1:1"]
    yield 2, "Missing argument 'OUT'", ["graph", "x.zarr"]
    yield 2, r"k is 600, .* in \[1, 599\]", ["graph", "x.zarr", "out", "--k", "600"]
    yield 3, "no Zarr array at", ["graph", none, "out"]
    yield 4, "memory_limit is 1.00 MiB", ["graph", "x.zarr", "out", "--memory-limit", "1MiB"]
    yield 3, "no Zarr array at", ["estimate", none]
    yield 2, "z_percentile is 101", ["estimate", "x.zarr", "--z-percentile", "101"]
    yield 4, "memory_limit is 1.00 MiB", ["estimate", "x.zarr", "--memory-limit", "1MiB"]
    yield 3, "no run at", ["status", "nothing"]
    yield 3, "no run at", ["status", "nothing", "--watch"]
    for name in ("verify", "clean"):
        yield 3, "no finished run at", [name, "nothing"]
        yield 3, "no finished run at", [name, "x.zarr"]
        yield 3, "no finished run abc", [name, "done.spore", "--id", "abc"]
    yield 2, "is not one of", ["clean", "done.spore", "--keep", "some"]
    yield 5, "is damaged", ["verify", "damaged.spore"]
    yield 5, "is damaged", ["status", "damaged.spore"]
    yield 2, "columns is 0", ["demo", "--columns", "0"]
    yield 2, "points is 0", ["demo", "--points", "0", "--folder", "demo"]
    yield 3, "no finished run at", ["predict", "nothing", "x.zarr"]
    yield 3, "no finished run at", ["report", "nothing"]
    yield 3, "no finished run abc", ["export", "done.spore", "x.csv", "--id", "abc"]
    yield 2, "Missing argument", ["import"]
    yield 3, "no file", ["import", "nothing.csv"]
    yield 3, "suffix|format|end", ["import", "x.docx"]
    yield 3, "no finished run at", ["export", "nothing", "x.csv"]
    yield 2, "x.docx", ["export", "done.spore", "x.docx"]
    yield 3, "create it first", ["export", "done.spore", "nowhere/x.csv"]
    yield 3, "no folder: give another", ["import", "x.npy", "x.npy/y.zarr"]
    yield 5, "is damaged", ["export", "broken.spore", "x.csv"]
    yield 2, "Missing argument", ["tune"]
    tune = ["tune", "x.zarr", "--workers", "0"]
    yield 3, "no Zarr array at", ["tune", none]
    yield 2, "n_trials is 2", [*tune, "--n-trials", "2"]
    yield 3, r"y has shape \(3,\)", [*tune, "--y", "y3.npy"]
    yield 4, "memory_limit is 1.00 MiB", [*tune, "--memory-limit", "1MiB"]
    for name in ("fit", "graph", "tune"):
        yield 2, "which is the source", [name, "x.zarr", "x.zarr", "--workers", "0"]
        yield 2, "which is Zarr data", [name, "x.zarr", "done.zarr", "--workers", "0"]
    yield 2, "which is the source", ["predict", "done.spore", "x.zarr", "x.zarr/inside"]
    yield 3, "has 3 columns|3 columns", ["predict", "done.spore", "wide.zarr", "--workers", "0"]
    yield 3, "NaN or infinity", ["predict", "done.spore", "nan.zarr", "--workers", "0"]
    yield 3, "is a folder", ["report", "done.spore", "x.zarr"]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder with data and runs, good and bad."""
    place = tmp_path_factory.mktemp("places")
    write_points(place / "x.zarr")
    write_points(place / "nan.zarr", row7=np.nan)
    write_points(place / "zero.zarr", row7=0)
    for name in ("done", "damaged", "changed"):
        write_points(place / f"{name}.zarr")
        run = paper.fit(place / f"{name}.zarr", n_workers=0)
        if name == "damaged":
            Path(run.result.url, "summary.json").write_text("{")
    write_points(place / "changed.zarr", row3=1)
    write_points(place / "wide.zarr", n_columns=3)
    np.save(place / "x.npy", np.ones((9, 2)))
    np.save(place / "y3.npy", np.arange(3))
    broken = paper.fit(write_points(place / "broken.zarr"), n_workers=0)
    Path(broken.result.url, "labels", "c", "0").write_bytes(b"no chunk")
    return place


def everything_in(place):
    return {path: path.stat().st_mtime_ns for path in place.rglob("*")}


@pytest.mark.parametrize(
    ("code", "said", "args"),
    list(bad_calls()),
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_calls_end_in_a_sentence_and_leave_nothing(code, said, args, places, monkeypatch):
    monkeypatch.chdir(places)
    before = everything_in(places)
    with dask.config.set({"distributed.comm.timeouts.connect": "300ms"}):
        result = invoke(*args)
    last = result.stderr.splitlines()[-1]
    assert re.search(said, last)
    assert last.startswith("spore-dask: ")
    assert (result.exit_code, result.stdout) == (code, "")
    assert "Traceback" not in result.stderr
    assert everything_in(places) == before


def test_errors_as_a_document(places):
    for args, code in ([["verify", places / "no"], 3], [["fit", "--nope"], 2], [["fti"], 2]):
        result = invoke(*args, "--json")
        document = json.loads(result.stdout)
        assert document["exit_code"] == result.exit_code == code
        assert document["error"] in result.stderr


def test_bad_data_leaves_another_run_in_the_same_folder(places):
    out = places / "done.spore"
    before = everything_in(out)
    result = invoke("fit", places / "nan.zarr", out, "--workers", 0)
    assert result.exit_code == 3
    after = everything_in(out)
    new = {path.name for path in after.keys() - before.keys()}
    assert all(name.startswith("progress-") for name in new)
    assert "failed" in invoke("status", out).stdout
    for path in after.keys() - before.keys():
        path.unlink()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ParameterError("x"), 2),
        (click.UsageError("x"), 2),
        (errors.InputError("x"), 3),
        (FileNotFoundError(errno.ENOENT, "not there", "f"), 3),
        (PermissionError(errno.EACCES, "not allowed", "f"), 3),
        (errors.LimitError("x"), 4),
        (OSError(errno.ENOSPC, "disk full"), 4),
        (MemoryError(), 4),
        (TaskTooBigError("x"), 4),
        (errors.DamagedError("x"), 5),
        (WorkerLostError("x"), 6),
        (NoSchedulerError("x"), 6),
        (running.Stopped(signal.SIGHUP), 129),
        (KeyboardInterrupt(), 130),
        (running.Stopped(signal.SIGINT), 130),
        (running.Stopped(signal.SIGTERM), 143),
        (RuntimeError("x"), 1),
        (OSError("x"), 1),
    ],
    ids=repr,
)
def test_errors_have_codes(error, code):
    assert running.exit_code(error) == code
    assert code in running.EXIT_CODES
    assert "\n" not in running.sentence(error)


@pytest.mark.parametrize("debug", [False, True])
def test_unexpected_errors_hint_at_debug(debug, monkeypatch):
    def verify(run):
        raise RuntimeError("many\nlines")

    monkeypatch.setattr(spore_dask, "open_run", lambda path, id: path)
    monkeypatch.setattr(spore_dask, "verify", verify)
    result = invoke("verify", "x", *["--debug"] * debug)
    assert result.exit_code == 1
    assert ("Traceback" in result.stderr) == debug
    hint = "" if debug else " (--debug shows where)"
    assert result.stderr.splitlines()[-1] == f"spore-dask: RuntimeError: many lines{hint}"


def test_warnings_are_sentences(monkeypatch):
    import warnings

    def verify(run):
        warnings.warn("take care", stacklevel=2)
        raise errors.InputError("no")

    monkeypatch.setattr(spore_dask, "open_run", lambda path, id: path)
    monkeypatch.setattr(spore_dask, "verify", verify)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = invoke("verify", "x")
    assert result.stderr == "spore-dask: warning: take care\nspore-dask: no\n"


# A run in progress, seen from outside


@pytest.fixture
def going_on(tmp_path):
    """A run that this process is in the middle of."""
    folder = Folder(str(tmp_path / "x.spore"))
    tracker = Tracker(folder, "fit-abc", lambda event: None)
    tracker(Event("stage-end", "scan", 3, 3, 1.5))
    tracker(Event("worker-lost", "neighbors", 0, 8, 1.5, text="gone"))
    tracker(Event("task-done", "neighbors", 2, 8, 4.0))
    tracker._write()
    return folder


def test_status_of_a_run_in_progress(going_on):
    result = invoke("status", going_on.url)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert re.match(rf"fit-abc: running for .* \(process {os.getpid()} on ", lines[0])
    assert lines[1] == "  scan: done, 3 tasks in 1.5 s"
    assert lines[2] == "  neighbors:  25%  2/8  2.0 s/task  12.0 s left"
    assert lines[3] == "  1 workers were lost"
    document = json.loads(invoke("status", going_on.url, "--json").stdout)
    assert document["state"] == "running"
    assert document["progress"][0]["seconds_left"] == 12


def test_status_of_a_run_whose_process_is_gone(going_on):
    name = "progress-fit-abc.json"
    record = going_on.read_json(name)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for changes in (
        {"pid": ended.pid},
        {"process_started": 1.0},
        {"machine": "other", "updated": 1.0},
    ):
        going_on.write_json(name, record | changes)
        assert "fit-abc: stopped" in invoke("status", going_on.url).stdout
    going_on.write_json(name, record | {"host": "other"})
    assert "fit-abc: running" in invoke("status", going_on.url).stdout


def test_status_of_a_finished_run(run):
    result = invoke("status", run.path)
    assert f"Found {run.n_clusters} clusters" in result.stdout
    document = json.loads(invoke("status", run.path, "--json").stdout)
    assert (document["state"], document["finished"]) == ("finished", [run.id])
    Path(run.path, "run.json").unlink()
    Path(run.result.url, "summary.json").unlink()
    assert "Begun, but not running" in invoke("status", run.path).stdout


def test_watch_follows_until_the_end(going_on, monkeypatch, run):
    tracker = Tracker(going_on, "fit-abc", lambda event: None)
    story = [
        lambda: tracker(Event("stage-end", "neighbors", 8, 8, 16.0)),
        lambda: tracker(Event("stage-start", "density", 0, 4)),
        lambda: going_on.remove("progress-fit-abc.json"),
    ]

    def sleep(seconds):
        story.pop(0)()
        if story:
            tracker._write()

    monkeypatch.setattr(status, "time", SimpleNamespace(sleep=sleep, time=time.time))
    result = invoke("status", run.path, "--watch")
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        "scan: done, 3 tasks in 1.5 s",
        "neighbors:  25%  2/8  2.0 s/task  12.0 s left",
    ]
    assert "density: 4 tasks" in lines
    assert f"Found {run.n_clusters} clusters" in result.stdout


# Real processes


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    place = tmp_path_factory.mktemp("larger")
    source = write_points(place / "x.zarr", 30_000)
    run = paper.fit(source, place / "whole", n_workers=0)
    return source, np.asarray(run.labels[...])


STOPPING = """
import os, signal, sys
from spore_dask.cli import main, showing
stage, tell = sys.argv.pop(1), showing._as_json
def stop(event):
    global stage
    tell(event)
    if event.kind == "task-done" and event.stage == stage:
        stage = None
        os.kill(os.getpid(), signal.SIGSTOP)
showing._as_json = stop
main()
"""
"""The command, which stops itself when the first task of a stage is done."""


@pytest.mark.parametrize(
    ("number", "stage", "n_workers"),
    [(signal.SIGINT, "neighbors", 2), (signal.SIGTERM, "expand", 0), (signal.SIGHUP, "scan", 0)],
)
def test_signals_stop_cleanly_and_the_same_command_goes_on(
    number, stage, n_workers, larger, tmp_path
):
    source, labels = larger
    call = [*FIT, str(source), str(tmp_path / "out"), f"--workers={n_workers}", "--no-report"]
    call += ["--progress", "json"]
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPING, stage, *call],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup has SIGHUP ignored
    )
    stopping = psutil.Process(process.pid)
    wait_until(lambda: stopping.status() == psutil.STATUS_STOPPED)
    workers = stopping.children(recursive=True)
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    said = process.communicate(timeout=120)[1].splitlines()
    assert process.returncode == 128 + number
    assert said[-1] == (
        f"spore-dask: stopped by {number.name}; continue with: spore-dask {' '.join(call)}"
    )
    assert not any("Traceback" in line for line in said)
    assert len(workers) >= n_workers
    assert not psutil.wait_procs(workers, timeout=60)[1]
    assert "stopped by" in invoke("status", tmp_path / "out").stdout
    result = invoke(*call, "--json")
    assert result.exit_code == 0, result.stderr
    run = spore_dask.open_run(tmp_path / "out")
    np.testing.assert_array_equal(run.labels[...], labels)
    assert not list(Path(run.path).glob("progress-*"))


def test_no_reader_is_no_reason_to_stop(data):
    call = [*COMMAND, *FIT, str(data), "--workers=0", "--no-report", "--progress=log"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(call, stdout=writer, stderr=writer, timeout=300)
    finally:
        os.close(writer)
    assert done.returncode == 141
    assert spore_dask.open_run(data.with_suffix(".spore")).n_clusters > 0


def test_bars_stay_on_one_line_of_a_narrow_terminal():
    ours, theirs = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        bar = Bar(stream, every=0.0)
        bar(Event("stage-start", "a-stage-with-a-long-name", 0, 10**9))
        bar(Event("task-done", "a-stage-with-a-long-name", 10**8, 10**9, 1e6))
        bar(Event("task-done", "short", 5, 10, 10.0))
        bar(Event("stage-failed", "short", 5, 10, 10.0, text="a long story " * 9))
    shown = ""
    with contextlib.suppress(OSError):  # the other end is closed, and all is read
        while part := os.read(ours, 10_000).decode():
            shown += part
    os.close(ours)
    assert all(len(part) < 60 for part in re.split(r"\r|\n", shown.replace("\x1b[K", "")))
    assert "short: failed after 5 of 10 tasks" in shown


def test_what_takes_long_is_told_again(monkeypatch):
    monkeypatch.setattr(showing, "TICK_SECONDS", 0.02)
    heard = []
    ticking = showing._Ticking(heard.append)
    ticking(Event("stage-start", "expand", 0, 1))
    wait_until(lambda: len(heard) >= 3)
    ticking(Event("stage-end", "expand", 1, 1, 2.0))
    n_heard = len(heard)
    time.sleep(0.1)
    assert len(heard) == n_heard
    assert heard[2].seconds > heard[1].seconds > 0
    assert {event.kind for event in heard[1:-1]} == {"task-done"}


def test_where_nothing_may_be_written_kernels_are_not_cached():
    program = (
        "import numpy, spore_dask.kernels.sums as s; print(s.exact_sum(numpy.ones(3)) >> 1074)"
    )
    no_place = os.environ | {"NUMBA_CACHE_LOCATOR_CLASSES": "IPythonCacheLocator"}
    plain = "import numba; numba.njit(cache=True)(lambda: 1)"
    command = [sys.executable, "-c"]
    refused = subprocess.run([*command, plain], env=no_place, capture_output=True, check=False)
    assert b"cannot cache" in refused.stderr
    done = subprocess.run([*command, program], env=no_place, capture_output=True, check=True)
    assert done.stdout.strip() == b"3"
