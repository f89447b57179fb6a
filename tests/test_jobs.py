"""Scheduled jobs: files that ask, commands that do, and what readers see meanwhile."""

import ast
import importlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import distributed  # noqa: F401  (what is set before its defaults are there would undo them)
import numpy as np
import pytest
import yaml
import zarr
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import spore_dask
from pipelines.jobs import documents, drift, matching, publishing
from pipelines.jobs.commands import JOB_EXIT_CODES, commands
from pipelines.jobs.documents import KEYS, parameter_options, read_job
from pipelines.jobs.places import MISSING_LABEL, Place, without_secrets
from pipelines.jobs.tuning import best_document
from spore_dask.cli import EXIT_CODES
from tests import paper

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "pipelines.md"
SIZE, N_NOISE = 250, 30
SECRET = "not-to-be-found"
PAPER = {"min_cluster_size": 50, "params": "paper"}
QUICK = {"n_workers": 0, **PAPER}
MODULES = [ROOT / "pipelines" / "__main__.py", *(ROOT / "pipelines" / "jobs").glob("*.py")]

AT_STAGE = """
import os, signal, sys
from pipelines.jobs import commands, records
stage, action = sys.argv[1:3]
def hear(event):
    if event.kind == "stage-start" and event.stage == stage:
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        print("there", flush=True)
        sys.stdin.read()
records.consumer_of = lambda progress, quiet: hear
commands.commands(sys.argv[3:])
"""
"""Runs a job that, at the start of a stage, is killed or waits until its input is closed."""
AT_WRITE = """
import os, signal, sys
from pipelines.jobs import commands
from pipelines.jobs.places import Place
when, target = sys.argv[1:3]
def dying(write):
    def do(self, name, *values):
        if when == "before" and name == target:
            os.kill(os.getpid(), signal.SIGKILL)
        found = write(self, name, *values)
        if when == "after" and name == target:
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    return do
Place.write, Place.append_labels = dying(Place.write), dying(Place.append_labels)
commands.commands(sys.argv[3:])
"""
"""Runs a job that is killed before or after it writes something."""
IMPATIENT = """
import sys
from pipelines.jobs import commands
from spore_dask import patience
patience.FIRST_WAIT_SECONDS = 0.0
commands.commands(sys.argv[1:])
"""
"""Runs a job that does not wait long for a store."""


def write_points(path, centres, seed=0, n_noise=N_NOISE):
    """Write blobs and noise; return from which blob each row was drawn."""
    rng = np.random.default_rng(seed)
    blobs = [centre + 0.05 * rng.standard_normal((SIZE, 2)) for centre in centres]
    data = np.concatenate([*blobs, rng.uniform(-1, 6, (n_noise, 2))])
    truth = np.repeat([*range(len(centres)), -1], [SIZE] * len(centres) + [n_noise])
    order = rng.permutation(len(data))
    array = zarr.create_array(path, shape=data.shape, dtype="f4", chunks=(300, 2), overwrite=True)
    array[...] = data[order]
    return truth[order]


def write_job(folder, **asked):
    file = folder / "job.yaml"
    asked = {"input": "x.zarr", "output": "out", "parameters": QUICK, **asked}
    paths = {name: str(folder / asked[name]) for name in ("input", "output")}
    file.write_text(yaml.safe_dump({**asked, **paths}))
    return file


def invoke(*args):
    return CliRunner().invoke(commands, [str(arg) for arg in args])


def command(*args, code=None, **settings):
    """Start a real process: the command, or a script that runs it."""
    start = ["-m", "pipelines"] if code is None else ["-c", code]
    call = [sys.executable, *start, *(str(arg) for arg in args)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(call, cwd=ROOT, text=True, **pipes, **settings)


def finish(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.fixture
def folder(tmp_path):
    write_points(tmp_path / "x.zarr", [(0, 0), (2, 0), (4, 0)])
    return tmp_path


# Files


def bad_files():
    good = "input: x.zarr\noutput: out\n"
    yield "inptu: x.zarr\noutput: out", "no key 'inptu'; did you mean 'input'?"
    yield good + "zzz: 1", "no key 'zzz'; there are cluster, component,"
    yield "output: out", "input is missing"
    yield "input: x.zarr\noutput:", "output is missing"
    yield "input: 5\noutput: out", "input is 5, but it must be a path"
    yield "input: 2026-11-16\noutput: out", "input is datetime.date"
    yield "input: ' '\noutput: out", "input is ' '"
    yield "- input", "must hold lines such as"
    yield "", "must hold lines such as"
    yield "1: 2", "must hold lines such as"
    yield "a: [", "cannot be read as YAML"
    yield "input: !!python/object/apply:os.system ['true']\noutput: out", "cannot be read as YAML"
    yield "? [a]\n: 1", "cannot be read as YAML"
    yield good + "input: y.zarr", "'input' is there twice"
    yield good + "parameters: {seed: 1, seed: 2}", "'seed' is there twice"
    yield good + "parameters: 3", "parameters is 3"
    yield good + "parameters: {min_cluster_siz: 3}", "did you mean 'min_cluster_size'?"
    yield good + "parameters: {min_cluster_size: -3}", "min_cluster_size is -3"
    yield good + "parameters: {min_cluster_size: many}", "min_cluster_size is 'many'"
    yield good + "parameters: {min_cluster_size: [3]}", "min_cluster_size is [3]"
    yield good + "parameters: {expansion_neighbors: 2.5}", "expansion_neighbors is 2.5"
    yield good + "parameters: {expansion_neighbors: true}", "expansion_neighbors is True"
    yield good + "parameters: {z: .nan}", "z is nan"
    yield good + "parameters: {metric: 3}", "parameters.metric is 3"
    yield good + "parameters: {knn: fast}", "must be one of auto, exact, approximate"
    yield good + "parameters: {cache_limit: much}", "parameters.cache_limit is 'much'"
    yield good + "parameters: {memory_limit: 1GB}", "belongs beside parameters"
    yield good + "parameters: {keep: all}", "belongs beside parameters"
    yield good + "parameters: {client: tcp://a}", "no key 'parameters.client'"
    yield good + "parameters: {resume: false}", "no key 'parameters.resume'"
    yield good + "parameters: {y: y.npy}", "no key 'parameters.y'"
    yield good + "cluster: 3", "cluster is 3"
    yield good + "cluster: {}", "cluster is {}"
    yield good + "cluster: {kind: slrum}", "cluster: The kind of the cluster is 'slrum'"
    yield good + "cluster: {kind: local, workers: 2}", "cluster: cluster has the key 'workers'"
    yield good + "cluster: {kind: slurm, memory: 1GiB, walltime: 12:00:00}", "put it in quotes"
    yield (
        good + "cluster: {kind: address, address: tls://a:1, tls: {ca: a, cert: b, key: c}}",
        ("cluster: tls has ca 'a', but that file cannot be read"),
    )
    yield "input: x.zarr\noutput: x.zarr", "output is 'x.zarr', but that is the input, or in it"
    yield "input: ./x.zarr/\noutput: x.zarr/out", "output is 'x.zarr/out', but that is the input"
    yield "input: s3://b/x\noutput: s3://b/x/", "that is the input, or in it"
    yield "input: s3://key:hidden@b/x\noutput: out", "input: The address 's3://***@b/x' has"
    yield "input: x.zarr\noutput: s3://key:hidden@b/x", "output: The address 's3://***@b/x' has"
    yield good + "cluster: {kind: local}\nparameters: {n_workers: 2}", "n_workers goes with local"
    yield good + "memory_limit: lots", "memory_limit is 'lots'"
    yield good + "memory_limit: 0", "memory_limit is 0"
    yield good + "memory_limit: true", "memory_limit is True"
    yield good + "progress: loud", "progress is 'loud'"
    yield good + "report: 3", "report is 3"
    yield good + "keep: nothing", "keep is 'nothing'"
    yield good + "keep_runs: 2", "no key 'keep_runs'"
    yield "input: x-{day}.zarr\noutput: out", "has {day} in it, but only {date} is known"


@pytest.mark.parametrize(("text", "said"), list(bad_files()))
def test_files_that_are_refused(text, said, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(spore_dask.ParameterError, match=re.escape(said)) as caught:
        read_job(str(file), "fit")
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limits: {drift: 2}", "limits.drift is 2, but it must be a number in [0, 1]"),
        ("limits: {drfit: 0.1}", "no key 'limits.drfit'; did you mean 'drift'?"),
        ("limits: 0.1", "limits is 0.1"),
        ("keep_runs: 0", "keep_runs is 0"),
        ("least_overlap: 0.01", "least_overlap is 0.01"),
        ("keep: labels", "keep is 'labels', but"),
        ("parameters: {graph: g}", "no key 'parameters.graph'"),
        ("parameters: {space: {z: [1]}}", "no key 'parameters.space'"),
    ],
)
def test_files_of_a_refresh_that_are_refused(text, said, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(f"input: x.zarr\noutput: out\n{text}")
    with pytest.raises(spore_dask.ParameterError, match=re.escape(said)):
        read_job(str(file), "refresh")


@pytest.mark.parametrize("date", ["2026-13-01", "today", "2026-11-16T99", "2026-11-16/.."])
def test_dates_that_are_refused(date, folder):
    with pytest.raises(spore_dask.ParameterError, match="one such as 2026-11-16"):
        read_job(str(write_job(folder)), "fit", date)


def test_a_file_with_everything(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(
        "input: s3://bucket/{date}/x.zarr\noutput: out\ncomponent: a/b\nmemory_limit: 2GiB\n"
        "cluster: {kind: slurm, jobs: 4, memory: 2GiB, account: secret}\nprogress: json\n"
        "report: r-{date}.html\nkeep: all\nlimits: {drift: 0.3}\nkeep_runs: 3\nleast_overlap: 0.5\n"
        "parameters: {min_cluster_size: '60', z: 1.5, metric: cosine, seed: null}\n"
    )
    job = read_job(str(file), "refresh", "2026-11-16T0930")
    assert job.input == "s3://bucket/2026-11-16T0930/x.zarr"
    assert job.report == "r-2026-11-16T0930.html"
    assert job.parameters == {"min_cluster_size": 60, "z": 1.5, "metric": "cosine"}
    assert job.limits == {"drift": 0.3}
    assert job.options["component"] == "a/b"
    assert job.run_name == f"2026-11-16T0930-{job.id}"
    assert publishing.date_of(job.run_name) == job.date
    assert job.asked()["cluster"] == "slurm"
    assert "secret" not in json.dumps(job.asked())


def test_nulls_and_merged_keys(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("input: x.zarr\noutput: out\nreport:\nlimits: {drift: null}\n")
    assert read_job(str(file), "refresh").limits == {}
    file.write_text(
        "input: x.zarr\noutput: out\ncluster:\n  kind: class\n  class: distributed.LocalCluster\n"
        "  options:\n    worker_kwargs: &more {a: 1, b: 2}\n"
        "    scheduler_kwargs: {<<: *more, b: 3}\n"
    )
    assert read_job(str(file), "fit").cluster["options"]["scheduler_kwargs"] == {"a": 1, "b": 3}


def test_the_id_is_a_function_of_what_is_asked(folder):
    def id_of(kind="fit", **asked):
        return read_job(str(write_job(folder, **asked)), kind, "2026-11-16").id

    assert id_of() == id_of(output="other", memory_limit="2GiB", report=True, progress="none")
    assert id_of(parameters={**QUICK, "n_workers": 2}) == id_of()
    others = [id_of(parameters={}), id_of(input="y.zarr"), id_of(component="a")]
    assert len({id_of(), *others, id_of("tune", parameters={})}) == 5


def test_addresses_are_kept_without_secrets(tmp_path):
    assert without_secrets("s3://key:secret@bucket/x") == "s3://bucket/x"
    assert without_secrets("s3://key:sec/ret@bucket/x") == "s3://bucket/x"
    file = tmp_path / "job.yaml"
    graph = "parameters: {graph: 's3://key:hidden@bucket/g'}"
    file.write_text(f"input: s3://bucket/x\noutput: s3://bucket/y\n{graph}")
    assert "hidden" not in json.dumps(read_job(str(file), "fit").asked())


def test_the_page_tells_every_key_and_exit_code():
    text = PAGE.read_text()
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", text, re.M)
    own = {code: meaning for code, meaning in JOB_EXIT_CODES.items() if code not in EXIT_CODES}
    assert {int(code): meaning for code, meaning in rows} == own
    assert own.keys() == {8}
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.M)) >= set(KEYS)
    for block in re.findall(r"```yaml\n(.*?)```", text, re.S):
        assert yaml.safe_load(block)


def test_jobs_use_public_names_only():
    public = {"spore_dask", "spore_dask.cli", "spore_dask.datasets"}
    assert len(MODULES) > 8
    for path in MODULES:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
                assert all(n in public for n in names if n.startswith("spore_dask")), path
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("spore_dask"):
                assert node.module in public, path
                known = importlib.import_module(node.module).__all__
                assert {alias.name for alias in node.names} <= set(known), path
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "spore_dask":
                assert node.attr in {*spore_dask.__all__, "__version__"}, (path, node.attr)


def test_parameters_are_those_of_the_functions():
    names = set(parameter_options("fit"))
    assert {"min_cluster_size", "metric", "params", "n_trials", "graph", "n_workers"} <= names
    assert not names & {"client", "progress", "out", "source", "keep"}
    assert {"y", "space", "sample", "detail"} <= set(parameter_options("tune"))
    assert "params" not in parameter_options("tune")
    assert names - set(parameter_options("refresh")) == {"graph"}
    assert documents.API.keys() == set(documents.KINDS)


# Matching


def naive_match(today, before, least_overlap):
    """Try all ways to match; return the most points in common that any has."""
    pairs = {}
    for a, b in itertools.product(set(today) - {-1}, set(before) - {-1}):
        common = sum((today == a) & (before == b))
        if common and common >= least_overlap * sum((today == a) | (before == b)):
            pairs[a, b] = common
    best = 0
    for n in range(len(pairs) + 1):
        for chosen in itertools.combinations(pairs, n):
            if len({a for a, _ in chosen}) == len({b for _, b in chosen}) == n:
                best = max(best, sum(pairs[pair] for pair in chosen))
    return pairs, best


@given(
    st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), min_size=1, max_size=40),
    st.sampled_from([0.1, 0.3, 0.6]),
    st.integers(1, 7),
)
def test_the_most_points_in_common_are_matched(pairs, least_overlap, step):
    today, before = np.array(pairs, np.int32).T
    chunks = [(today[i : i + step], before[i : i + step]) for i in range(0, len(today), step)]
    overlaps = matching.count_overlaps(chunks, 4, 4)
    counted = zip(overlaps.today, overlaps.before, overlaps.counts, strict=True)
    assert {(a, b): n for a, b, n in counted} == {
        pair: pairs.count(pair) for pair in sorted(set(pairs))
    }
    found = matching.match(overlaps, least_overlap)
    allowed, best = naive_match(today, before, least_overlap)
    chosen = [(a, b) for a, b in enumerate(found) if b != matching.NONE]
    assert len({b for _, b in chosen}) == len(chosen)
    assert sum(allowed[pair] for pair in chosen) == best


def test_numbers_are_kept_or_new():
    numbers = matching.number(np.array([1, -1, 0, -1]), np.array([7, 3]), 9)
    assert numbers.tolist() == [3, 9, 7, 10]


def compare(pairs, n_today, n_before):
    table = np.repeat(np.array([pair[:2] for pair in pairs]), [n for *_, n in pairs], axis=0)
    overlaps = matching.count_overlaps([tuple(table.T)], n_today, n_before)
    matched = matching.match(overlaps, 0.3)
    before = 10 + np.arange(n_before)
    numbers = matching.number(matched, before, 20)
    return drift.measure(drift.Comparison(overlaps, matched, numbers, before))


def test_drift_tells_what_has_changed():
    pairs = [(0, 0, 60), (1, 0, 40), (2, 1, 50), (2, 2, 50), (3, -1, 30), (-1, -1, 10), (-1, 3, 10)]
    found = compare(pairs, 4, 4)
    assert found["splits"] == [{"number": 10, "into": [10, 20]}]
    assert [one["from"] for one in found["merges"]] == [[11, 12]]
    assert len(found["born"]) == 2
    assert len(found["gone"]) == 2
    assert 13 in found["gone"]
    assert found["stay"] == pytest.approx((60 + 50 + 10) / 250)
    assert found["drift"] == pytest.approx(1 - found["stay"])
    assert [one["size"] for one in found["clusters"]] == [100 - 40, 40, 100, 30]


def test_the_page_of_drift_escapes_what_it_shows():
    found = {
        "run": "<b>run</b>",
        "input": "<script>alert(1)</script>",
        "before": None,
        "n_points": 5,
        "n_clusters": 1,
        "noise": 0.2,
    }
    page = drift.page(found)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<b>" not in page


# fit


def test_fit_to_the_end_and_again(folder):
    file = write_job(folder, report=True)
    code, out, err = finish(command("fit", file, "--json"))
    assert code == 0, err
    found = json.loads(out)
    expected = paper.fit(folder / "x.zarr", folder / "expected", **QUICK)
    run = spore_dask.open_run(folder / "out")
    assert found["run"]["id"] == run.id
    assert (run.labels[...] == expected.labels[...]).all()
    lines = err.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    assert f"run {found['job_id']} done: 3 clusters, " in lines[-1]
    record = json.loads((folder / "out" / f"job-{found['job_id']}.json").read_text())
    assert (record["state"], record["exit"], record["run"]["id"]) == ("done", 0, run.id)
    assert Path(record["report"]).exists()
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.npy")}
    again = invoke("fit", file, "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["done_before"]
    assert {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.npy")} == before
    write_points(folder / "x.zarr", [(0, 0), (3, 3), (4, 0)], seed=5)
    changed = invoke("fit", file)
    assert changed.exit_code == 3
    assert "has changed since" in changed.stderr


def test_a_report_that_is_asked_for_later_is_written(folder):
    assert invoke("fit", write_job(folder)).exit_code == 0
    (record,) = (folder / "out").glob("job-*.json")
    for wanted in (True, str(folder / "r-{date}.html")):
        file = write_job(folder, report=wanted)
        again = invoke("fit", file, "--json", "--date", "2026-11-16")
        assert json.loads(again.stdout)["done_before"]
        report = Path(json.loads(record.read_text())["report"])
        assert report.exists()
    assert report == folder / "r-2026-11-16.html"
    before = report.stat().st_mtime_ns
    assert invoke("fit", file, "--date", "2026-11-16").exit_code == 0
    assert report.stat().st_mtime_ns == before


def test_a_record_that_names_no_run_is_of_no_finished_job(folder):
    file = write_job(folder)
    assert invoke("fit", file).exit_code == 0
    (record,) = (folder / "out").glob("job-*.json")
    known = json.loads(record.read_text())
    del known["run"], known["crc32"]
    record.write_text(json.dumps(known))
    again = invoke("fit", file, "--json")
    assert again.exit_code == 0, again.stderr
    assert not json.loads(again.stdout)["done_before"]
    assert json.loads(record.read_text())["run"]


def test_what_killed_jobs_were_writing_is_removed(folder):
    half = folder / "out" / f"job-{'0' * 12}.json.{'1' * 32}.partial"
    with spore_dask.hold(folder / "out"):
        half.write_text("{")
        (folder / "out" / f"job-{'2' * 12}.json").write_text("{}")
    with spore_dask.hold(folder / "out"):
        assert not half.exists()


def test_a_result_that_was_removed_is_made_again(folder):
    file = write_job(folder)
    assert invoke("fit", file).exit_code == 0
    run = spore_dask.open_run(folder / "out")
    Place(run.path).remove(f"result-{run.id}")
    again = invoke("fit", file, "--json")
    assert again.exit_code == 0
    assert not json.loads(again.stdout)["done_before"]


def test_a_fit_that_is_killed_continues(folder):
    file = write_job(folder)
    code, _, _ = finish(command("expand", "kill", "fit", file, code=AT_STAGE))
    assert code == -signal.SIGKILL
    (record,) = (folder / "out").glob("job-*.json")
    assert json.loads(record.read_text())["state"] == "running"
    result = invoke("fit", file)
    assert result.exit_code == 0, result.stderr
    assert "neighbors" not in result.stderr  # it was done
    assert json.loads(record.read_text())["state"] == "done"
    expected = paper.fit(folder / "x.zarr", folder / "expected", **QUICK)
    assert (spore_dask.open_run(folder / "out").labels[...] == expected.labels[...]).all()


def test_a_second_start_is_refused_and_a_signal_stops_cleanly(folder):
    file = write_job(folder)
    first = command("density", "wait", "fit", file, code=AT_STAGE)
    assert first.stdout.readline() == "there\n"
    second = invoke("fit", file)
    assert second.exit_code == 7, second.stderr
    assert f"Process {first.pid}" in second.stderr
    assert "Process" not in second.stdout
    (record,) = (folder / "out").glob("job-*.json")
    assert json.loads(record.read_text())["pid"] == first.pid
    first.send_signal(signal.SIGTERM)
    code, _, err = finish(first)
    assert code == 143
    assert re.search(r"continue with: python -m pipelines fit \S+ --date \d{4}-\d\d-\d\d$", err)
    assert json.loads(record.read_text())["exit"] == 143
    assert invoke("fit", file).exit_code == 0


def test_bad_files_and_bad_input_end_in_a_sentence(folder):
    file = write_job(folder, parameters={"min_cluster_siz": 3})
    code, out, err = finish(command("fit", file, "--json"))
    assert code == 2
    assert json.loads(out)["exit_code"] == 2
    assert "did you mean 'min_cluster_size'?" in err
    assert len(err.splitlines()) == 1
    missing = invoke("fit", folder / "nothing.yaml")
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (2, True)
    absent = invoke("fit", write_job(folder, input="absent.zarr", output="other"))
    assert (absent.exit_code, "no Zarr array" in absent.stderr) == (3, True)
    assert not (folder / "out").exists()


@pytest.mark.parametrize("kind", ["fit", "tune", "refresh"])
def test_a_dry_run_tells_and_writes_nothing(kind, folder):
    parameters = {"n_workers": 0} if kind == "tune" else QUICK
    file = write_job(folder, parameters=parameters)
    before = sorted(folder.rglob("*"))
    result = invoke(kind, file, "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "memory a process" in result.stdout
    assert sorted(folder.rglob("*")) == before
    absent = invoke(
        kind, write_job(folder, input="absent.zarr", parameters=parameters), "--dry-run"
    )
    assert absent.exit_code == 3


def test_a_dry_run_imports_nothing_that_the_file_names(folder, monkeypatch):
    (folder / "noisy_clusters.py").write_text(
        "from pathlib import Path\nfrom distributed import LocalCluster\n"
        f"Path({str(folder / 'imported')!r}).touch()\n"
    )
    monkeypatch.syspath_prepend(folder)
    section = {"kind": "class", "class": "noisy_clusters.LocalCluster"}
    file = write_job(folder, cluster=section, parameters={})
    result = invoke("fit", file, "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert not (folder / "imported").exists()
    read_job(str(file), "fit")
    assert (folder / "imported").exists()
    for name in ("noisy clusters.LocalCluster", "noisy_clusters"):
        section = {"kind": "class", "class": name}
        wrong = invoke("fit", write_job(folder, cluster=section, parameters={}), "--dry-run")
        assert wrong.exit_code == 2
        assert "cluster: class is 'noisy" in wrong.stderr


def test_quiet_is_silence(folder):
    result = invoke("fit", write_job(folder), "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_a_fit_on_a_cluster_finds_the_same(folder):
    cluster = {"kind": "local", "n_workers": 1, "memory_limit": "1GiB"}
    result = invoke("fit", write_job(folder, cluster=cluster, parameters=PAPER))
    assert result.exit_code == 0, result.stderr
    expected = paper.fit(folder / "x.zarr", folder / "expected", **QUICK)
    assert (spore_dask.open_run(folder / "out").labels[...] == expected.labels[...]).all()
    for more in ([], ["--dry-run"]):
        file = write_job(folder, cluster={"kind": "locl"}, parameters={}, output="other")
        wrong = invoke("fit", file, *more)
        assert wrong.exit_code == 2
        assert "did you mean 'local'?" in wrong.stderr
        assert not (folder / "other").exists()


# tune


def test_tune_writes_what_fit_accepts(folder):
    file = write_job(folder, parameters={"n_workers": 0, "n_trials": 3, "metric": "euclidean"})
    code, out, err = finish(command("tune", file, "--json"))
    assert code == 0, err
    found = json.loads(out)
    best = folder / "out" / f"best-{found['job_id']}.yaml"
    assert found["best"] == str(best)
    asked = yaml.safe_load(best.read_text())
    chosen = {name: v for name, v in found["tuning"]["best_params"].items() if v is not None}
    assert asked["parameters"] == {
        "n_workers": 0,
        "metric": "euclidean",
        **chosen,
        "params": "paper",
    }
    fitted = invoke("fit", best, "--json")
    assert fitted.exit_code == 0, fitted.stderr
    run = json.loads(fitted.stdout)["run"]
    labels = [spore_dask.open_run(folder / "out", id).labels[...] for id in _ids(run, found["run"])]
    assert (labels[0] == labels[1]).all()
    again = invoke("tune", file, "--json")
    assert json.loads(again.stdout)["done_before"]


def test_what_tune_writes_keeps_the_date_open(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(
        f"input: {tmp_path}/x-{{date}}.zarr\noutput: {tmp_path}/out\ncomponent: a/{{date}}\n"
        "report: s3://bucket/r-{date}.html\nparameters: {n_trials: 3, seed: 1}\n"
    )
    best = tmp_path / "best.yaml"
    job = read_job(str(file), "tune", "2026-11-16")
    best.write_text(best_document(job, {"z": 1.5, "metric": None}))
    found = read_job(str(best), "refresh", "2026-11-17")
    assert found.input == f"{tmp_path}/x-2026-11-17.zarr"
    assert (found.component, found.report) == ("a/2026-11-17", "s3://bucket/r-2026-11-17.html")
    assert found.parameters == {"seed": 1, "z": 1.5, "params": "paper"}


def _ids(*documents):
    return [document["id"] for document in documents]


# refresh

DAYS = {
    "2026-11-01": {"a": (0, 0), "b": (2, 0), "c": (4, 0)},
    "2026-11-02": {"d": (0, 3), "a": (0.03, 0), "b": (2, 0.03)},
    "2026-11-03": {"b": (2, 0.06), "e": (4, 0), "d": (0, 3), "a": (0.06, 0)},
}
"""Where clusters are on each day: some move, come and go; e is where c was, after a day without."""


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """The data of each day, and what each row was drawn from."""
    folder = tmp_path_factory.mktemp("days")
    names = {}
    for seed, (date, centres) in enumerate(DAYS.items()):
        truth = write_points(folder / f"{date}.zarr", list(centres.values()), seed)
        names[date] = np.array([*centres, "noise"])[truth]
    return folder, names


def refresh_job(folder, place, **asked):
    job = {"input": str(folder / "{date}.zarr"), "output": str(place), "parameters": QUICK}
    file = place.parent / f"{place.name}.yaml"
    file.write_text(yaml.safe_dump(job | asked))
    return file


def numbers_of(output, names):
    """Return the number that most rows of each blob have in what was published last."""
    labels = publishing.latest(Place(str(output))).labels[...]
    found = {}
    for name in sorted({*names} - {"noise"}):
        values, counts = np.unique(labels[names == name], return_counts=True)
        assert counts.max() > 0.9 * SIZE
        found[name] = int(values[counts.argmax()])
    return found


def test_clusters_keep_their_numbers_over_three_days(days, tmp_path):
    folder, names = days
    file, numbers = refresh_job(folder, tmp_path / "out", keep_runs=2), []
    for date in DAYS:
        result = invoke("refresh", file, "--date", date)
        assert result.exit_code == 0, result.stderr
        numbers.append(numbers_of(tmp_path / "out", names[date]))
        publishing.latest(Place(str(tmp_path / "out"))).verify()
    first, second, third = numbers
    assert sorted(first.values()) == [0, 1, 2]
    assert second == {"a": first["a"], "b": first["b"], "d": 3}
    assert third == {**second, "e": 4}
    last = publishing.latest(Place(str(tmp_path / "out")))
    assert last.document["next_number"] == 5
    found = last.place.read("drift.json")
    assert found["born"] == [4]
    assert found["stay"] > 0.7
    assert 0 < found["mean_confidence"] < 1
    assert "New: 1" in (tmp_path / "out" / "published" / last.name / "drift.html").read_text()
    kept = sorted(path.name for path in (tmp_path / "out" / "published").iterdir())
    assert [name[:10] for name in kept] == list(DAYS)[1:]
    assert sorted(path.name for path in (tmp_path / "out" / "runs").iterdir()) == kept
    since = {one["number"]: one["since"][:10] for one in last.clusters}
    assert (since[third["a"]], since[third["e"]]) == ("2026-11-01", "2026-11-03")
    again = invoke("refresh", file, "--date", date, "--json")
    assert (again.exit_code, json.loads(again.stdout)["done_before"]) == (0, True)
    for more in ([], ["--dry-run"]):
        back = invoke("refresh", file, "--date", "2026-11-02", *more)
        assert back.exit_code == 2
        assert "give a date from 2026-11-03 on" in back.stderr


def test_data_with_other_columns_is_refused_before_it_is_clustered(tmp_path):
    file = refresh_job(tmp_path, tmp_path / "out")
    write_points(tmp_path / "2026-11-01.zarr", [(0, 0), (2, 0)])
    assert invoke("refresh", file, "--date", "2026-11-01").exit_code == 0
    data = np.random.default_rng(0).standard_normal((500, 3))
    zarr.create_array(tmp_path / "2026-11-02.zarr", data=data)
    for more in ([], ["--dry-run"]):
        result = invoke("refresh", file, "--date", "2026-11-02", *more)
        assert result.exit_code == 3, result.stderr
        assert "has 3 columns, but 2026-11-01-" in result.stderr
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 1


def test_the_newest_runs_stay_also_after_all_began_anew(tmp_path):
    output = Place(str(tmp_path))
    dates = {"2026-11-01": 6, "2026-11-02": 7, "2026-11-03": 1, "2026-11-04": 2}
    for date, sequence in dates.items():
        name = f"{date}-0123456789ab"
        output.child("published").child(name).write("published.json", {"sequence": sequence})
    newest = publishing.open_published(output, name)
    assert publishing.prune(output, 2, newest) == [
        "2026-11-01-0123456789ab",
        "2026-11-02-0123456789ab",
    ]


def test_the_same_rows_again_do_not_drift(days, tmp_path):
    folder, _ = days
    file = refresh_job(folder, tmp_path / "out", input=str(folder / "2026-11-01.zarr"))
    assert invoke("refresh", file, "--date", "2026-11-01").exit_code == 0
    code, out, err = finish(command("refresh", file, "--date", "2026-11-02", "--json"))
    assert code == 0, err
    assert json.loads(out)["drift"] == 0
    first, second = (tmp_path / "out" / "published").iterdir()
    assert (
        publishing.open_published(Place(str(tmp_path / "out")), first.name).labels[...]
        == publishing.open_published(Place(str(tmp_path / "out")), second.name).labels[...]
    ).all()


def test_a_drift_beyond_the_limit_is_not_published(days, tmp_path):
    folder, _ = days
    output = Place(str(tmp_path / "out"))
    strict = refresh_job(folder, tmp_path / "out", limits={"drift": 0.1})
    assert invoke("refresh", strict, "--date", "2026-11-01").exit_code == 0
    before = publishing.latest(output).name
    result = invoke("refresh", strict, "--date", "2026-11-02", "--json")
    assert result.exit_code == 8
    assert json.loads(result.stdout)["exit_code"] == 8
    assert "limits.drift is 0.1: nothing was published" in result.stderr
    assert publishing.latest(output).name == before
    (report,) = (tmp_path / "out" / "refused").glob("2026-11-02-*/drift.html")
    assert "not published" in report.read_text()
    assert len(list((tmp_path / "out" / "published").iterdir())) == 1
    lenient = refresh_job(folder, tmp_path / "out", limits={"drift": 0.9})
    assert invoke("refresh", lenient, "--date", "2026-11-02").exit_code == 0
    assert publishing.latest(output).date == "2026-11-02"


def test_readers_see_whole_runs_whenever_a_refresh_is_killed(days, tmp_path):
    folder, names = days
    output = Place(str(tmp_path / "out"))
    file = refresh_job(folder, tmp_path / "out")
    assert invoke("refresh", file, "--date", "2026-11-01").exit_code == 0
    old = publishing.latest(output).name
    moments = [
        ("after", "labels", old),
        ("before", "drift.json", old),
        ("before", "published.json", old),
        ("before", "latest.json", old),
        ("after", "latest.json", None),
    ]
    for when, target, expected in moments:
        args = (when, target, "refresh", file, "--date", "2026-11-02")
        code, _, err = finish(command(*args, code=AT_WRITE))
        assert code == -signal.SIGKILL, err
        found = publishing.latest(output)
        found.verify()
        assert found.name == (expected or found.name)
        assert (found.date == "2026-11-02") == (expected is None)
    record = f"job-{publishing.latest(output).name}.json"
    assert output.read(record)["state"] == "running"
    assert output.child("predictions").names() != []
    assert invoke("refresh", file, "--date", "2026-11-02").exit_code == 0
    assert output.read(record)["state"] == "done"
    assert output.child("predictions").names() == []
    numbers = numbers_of(tmp_path / "out", names["2026-11-02"])
    assert numbers["d"] == 3


def test_two_refreshes_at_once_are_refused(days, tmp_path):
    folder, _ = days
    file = refresh_job(folder, tmp_path / "out")
    first = command("density", "wait", "refresh", file, "--date", "2026-11-01", code=AT_STAGE)
    assert first.stdout.readline() == "there\n"
    assert invoke("refresh", file, "--date", "2026-11-02").exit_code == 7  # another run
    code, _, err = finish(first)
    assert code == 0, err
    assert publishing.latest(Place(str(tmp_path / "out"))).date == "2026-11-01"


def test_what_was_damaged_is_told(days, tmp_path):
    folder, _ = days
    file = refresh_job(folder, tmp_path / "out")
    assert invoke("refresh", file, "--date", "2026-11-01").exit_code == 0
    output = Place(str(tmp_path / "out"))
    last = publishing.latest(output)
    labels = zarr.open_array(f"{last.place.url}/labels", mode="r+")
    labels[3] = labels[3] + 1
    with pytest.raises(spore_dask.DamagedError, match="its labels are not those"):
        last.verify()
    Path(f"{last.place.url}/labels/c/0").unlink()
    assert (last.labels[:10] == MISSING_LABEL).all()  # not a cluster, not noise
    with pytest.raises(spore_dask.DamagedError, match="its labels are not those"):
        last.verify()
    for pointer in ({"run": "../../elsewhere"}, {"run": "2026-11-01-000000000000"}, ["x"]):
        (tmp_path / "out" / "latest.json").write_text(json.dumps(pointer))
        result = invoke("refresh", file, "--date", "2026-11-02")
        assert result.exit_code == 5, result.stderr
    (tmp_path / "out" / "latest.json").write_text("{")
    assert invoke("refresh", file, "--date", "2026-11-02").exit_code == 5


def test_a_fit_that_is_gone_is_told(days, tmp_path):
    folder, _ = days
    file = refresh_job(folder, tmp_path / "out")
    assert invoke("refresh", file, "--date", "2026-11-01").exit_code == 0
    Place(str(tmp_path / "out")).remove("runs")
    result = invoke("refresh", file, "--date", "2026-11-02")
    assert result.exit_code == 3
    assert "latest.json to begin anew" in result.stderr


@pytest.fixture
def bucket(monkeypatch):
    """An S3 server of this machine, reached by what the environment says."""
    boto3 = pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*running.get_host_and_port()))
        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        yield client
        client.close()
    finally:
        running.stop()


def download(client, folder):
    """Copy all that a job has written to a folder."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix="out/"):
        for entry in page["Contents"]:
            target = folder / entry["Key"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(client.get_object(Bucket="bucket", Key=entry["Key"])["Body"].read())


def test_a_refresh_from_and_to_an_object_store(bucket, days, tmp_path):
    folder, names = days
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.put_object(
                Bucket="bucket", Key=str(path.relative_to(folder)), Body=path.read_bytes()
            )
    places = {"input": "s3://bucket/{date}.zarr", "output": "s3://bucket/out"}
    file = refresh_job(folder, tmp_path / "remote", **places)
    for date in list(DAYS)[:2]:
        code, out, err = finish(command("refresh", file, "--date", date, "--json"))
        assert code == 0, err
        assert SECRET not in out + err
        download(bucket, tmp_path)
    found = numbers_of(tmp_path / "out", names[date])
    publishing.latest(Place(str(tmp_path / "out"))).verify()
    assert found["d"] == 3
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET.encode() not in written


@pytest.mark.parametrize(
    ("credentials", "code", "said"),
    [(SECRET, 6, "make sure that it can be reached"), (None, 3, "needs credentials in")],
)
def test_a_store_that_cannot_be_reached(credentials, code, said, folder):
    pytest.importorskip("s3fs")
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_EC2_METADATA_DISABLED": "true"}
    environment = {n: v for n, v in os.environ.items() if not n.startswith("AWS_")} | nowhere
    if credentials:
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
        environment |= dict.fromkeys(names, credentials)
    file = folder / "job.yaml"
    file.write_text("input: s3://bucket/x.zarr\noutput: s3://bucket/out\n")
    process = command("fit", file, code=IMPATIENT, env=environment | {"HOME": str(folder)})
    found, _, err = finish(process)
    assert found == code, err
    assert said in err
    assert SECRET not in err
    assert len(err.splitlines()) == 1


def test_many_clusters_are_matched_without_a_square_table():
    rng = np.random.default_rng(0)
    n_clusters = 20_000
    labels = np.arange(200_000) % n_clusters
    other = rng.permutation(n_clusters)[labels]
    chunks = ((labels[i : i + 5000], other[i : i + 5000]) for i in range(0, len(labels), 5000))
    overlaps = matching.count_overlaps(chunks, n_clusters, n_clusters)
    found = matching.match(overlaps, 0.3)
    assert (found[labels] == other).all()
