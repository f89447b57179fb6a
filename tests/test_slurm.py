"""A fit on a real Slurm, which deploy/slurm/setup-one-machine.sh starts on this machine."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
import zarr

import spore_dask
from spore_dask.datasets import blobs_and_shapes
from tests import paper

ROOT = Path(__file__).parents[1]
SLURM = ROOT / "deploy" / "slurm"
SETUP = SLURM / "setup-one-machine.sh"
SECONDS = 240
"""That a job may take on a busy machine, kernels compiled anew."""

pytest.importorskip("dask_jobqueue")


def run(*command, env=None):
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=SECONDS, env=env
    )


def free_port():
    """A port that is free, and the next one too."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


@pytest.fixture(scope="module")
def slurm():
    """The environment in which Slurm's commands find a Slurm of this test's own."""
    programs = ("munged", "slurmctld", "slurmd", "sbatch")
    missing = [name for name in programs if not shutil.which(name)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: {SETUP} install")
    folder = tempfile.mkdtemp(prefix="slurm-")  # pytest's paths are too long for a socket
    env = {**os.environ, "SLURM_PORT": str(free_port()), "SLURM_CPUS": "4"}
    try:
        started = run(SETUP, "start", folder, env=env)
        if started.returncode:
            pytest.skip(f"Slurm does not start here: {started.stderr}")
        name, _, value = started.stdout.removeprefix("export ").strip().partition("=")
        yield {**env, name: value}
    finally:
        stopped = run(SETUP, "stop", folder, env=env)
        shutil.rmtree(folder, ignore_errors=True)
        assert stopped.returncode == 0, stopped.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Points that scan reads in several tasks, and the labels of a local fit."""
    folder = tmp_path_factory.mktemp("source")
    points, _ = blobs_and_shapes(2000, 2, seed=4)
    zarr.create_array(str(folder / "x.zarr"), data=points, chunks=(500, 2))
    local = paper.fit(folder / "x.zarr", folder / "local", n_workers=0)
    return folder / "x.zarr", local.labels[:]


class Driver:
    """Jobs of one output: the shipped script, submitted."""

    def __init__(self, env, folder, source, n_workers=1):
        self.output, self.log = folder / "out", folder / "driver.log"
        section = {
            **yaml.safe_load((SLURM / "job.yaml").read_text())["cluster"],
            "jobs": n_workers,
            "memory": "1GiB",
            "job_mem": "1536M",
            "walltime": "00:10:00",
            "wait": SECONDS,
            "interface": "lo",
            "python": sys.executable,
            "log_directory": str(folder / "logs"),
        }
        job = {"input": str(source), "output": str(self.output), "memory_limit": "1GiB"}
        job["parameters"] = {"params": "paper"}
        (folder / "job.yaml").write_text(yaml.safe_dump({**job, "cluster": section}))
        asked = {"JOB": folder / "job.yaml", "PYTHON": sys.executable, "SPORE": ROOT}
        self.env = {**env, **{name: str(value) for name, value in asked.items()}}

    def submit(self):
        """Submit the script; only its memory and its log are changed, on the command line."""
        options = ["--parsable", "--mem=1G", f"--output={self.log}"]
        submitted = run("sbatch", *options, SLURM / "fit.sbatch", env=self.env)
        assert submitted.returncode == 0, submitted.stderr
        return submitted.stdout.strip()

    def wait(self, test):
        """Wait until a test of what Slurm and the log say holds."""
        deadline = time.monotonic() + SECONDS
        while not test():
            assert time.monotonic() < deadline, f"{self.queue()}\n{self.text()}"
            time.sleep(0.3)

    def text(self):
        return self.log.read_text() if self.log.exists() else ""

    def queue(self, *options):
        return run("squeue", "--noheader", *options, env=self.env).stdout.split()

    def state(self, job):
        shown = run("scontrol", "show", "job", job, env=self.env).stdout
        return dict(part.split("=", 1) for part in shown.split() if "=" in part)

    def run_to_the_end(self):
        job = self.submit()
        self.wait(lambda: job not in self.queue("--format=%i"))
        assert self.state(job)["JobState"] == "COMPLETED", self.text()
        return job


def test_a_fit_through_the_shipped_script_equals_a_local_one(slurm, source, tmp_path):
    path, labels = source
    driver = Driver(slurm, tmp_path, path, n_workers=2)
    job = driver.run_to_the_end()
    run_ = spore_dask.open_run(driver.output)
    np.testing.assert_array_equal(run_.labels[:], labels)
    logs = list((tmp_path / "logs").glob("dask-worker-*.err"))
    assert len(logs) == 2, "its workers were jobs of Slurm"
    assert {path.stem.rpartition("-")[2] for path in logs}.isdisjoint({job})
    driver.wait(lambda: not driver.queue())  # workers end with their driver


HOLDING = """#!{python}
import pathlib, sys, time
from pipelines.jobs import commands, records
consumer_of = records.consumer_of
def holding(progress, quiet):
    tell = consumer_of(progress, quiet)
    def hear(event):
        tell(event)
        if event.kind == "stage-start" and event.stage != "scan":
            pathlib.Path({held!r}).touch()
            time.sleep(600)
    return hear
records.consumer_of = holding
commands.commands(sys.argv[sys.argv.index("pipelines") + 1 :])
"""
"""A Python for the script whose job goes no further than its first stage."""


def test_a_cancelled_job_continues_when_it_is_submitted_again(slurm, source, tmp_path):
    path, labels = source
    driver = Driver(slurm, tmp_path, path)
    held, holding = tmp_path / "held", tmp_path / "holding"
    holding.write_text(HOLDING.format(python=sys.executable, held=str(held)))
    holding.chmod(0o755)
    plain, driver.env["PYTHON"] = driver.env["PYTHON"], str(holding)
    job = driver.submit()
    driver.wait(held.exists)
    assert "scan: done" in driver.text()
    assert run("scancel", job, env=driver.env).returncode == 0
    driver.wait(lambda: not driver.queue())  # nor are its workers left
    assert driver.state(job)["JobState"] == "CANCELLED"
    assert "SIGTERM" in driver.text()
    with pytest.raises(spore_dask.InputError):
        spore_dask.open_run(driver.output)
    before = len(driver.text())
    driver.env["PYTHON"] = plain
    driver.run_to_the_end()
    np.testing.assert_array_equal(spore_dask.open_run(driver.output).labels[:], labels)
    assert "scan: done" not in driver.text()[before:], "what was done was not done again"


def test_a_job_that_cannot_be_read_says_so(slurm, source, tmp_path):
    driver = Driver(slurm, tmp_path, source[0])
    driver.env["JOB"] = str(tmp_path / "absent.yaml")
    job = driver.submit()
    driver.wait(lambda: job not in driver.queue("--format=%i"))
    assert driver.state(job)["ExitCode"] == "2:0"
    assert "absent.yaml" in driver.text()
