"""Calls that are killed at any of their operations on files: the same call again ends as it should.

`make test` takes a sample of the operations, `make test-all` (SPORE_CRASHES=all) takes all of them.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from pipelines.jobs import publishing
from pipelines.jobs.places import Place
from spore_dask import Folder, InputError, Prediction, open_run, open_tuning
from spore_dask import verify as verify_run
from spore_dask.runs import run_ids
from spore_dask.store import PARTIAL
from tests import crashing

N_SAMPLED = 8
"""Kills of each call in a sample."""
VARYING = "crc32", "finished", "host", "pid", "published", "seconds", "started", "nbytes"
"""What documents say of how a result was come to ends with one of these: no two calls agree."""
LEFT = re.compile(
    r"(labels\.\w+|imported\.zarr)\.[0-9a-f]{32}\.partial|\w+/lock-[0-9a-f]{32}\.json"
)
AWAY = {"fit afresh": {"run", "result"}, "import": {"imported"}}
"""What is away for a while, because it is replaced."""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    crashing.write_data(folder)
    return folder


@pytest.fixture(scope="module")
def make(base):
    """Make a call in a process of its own; return its exit code and its number of operations."""
    command = [sys.executable, "-m", "tests.crashing", str(base)]
    root = Path(__file__).parents[1]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=root, **pipes) as server:

        def ask(name, case, number=0, place=-1):
            server.stdin.write(json.dumps([name, place, str(case), number]) + "\n")
            server.stdin.flush()
            return json.loads(server.stdout.readline())

        yield ask
        server.stdin.close()


def claims(case):
    """Return a checksum of whatever calls itself done in a folder, all of which must be whole."""
    found = {}
    for folder in {summary.parents[1] for summary in case.rglob("result-*/summary.json")}:
        for id in run_ids(Folder(str(folder))):
            found["result", folder.name, id] = _sum_of_run(open_run(folder, id))
    for pointer in case.rglob("run.json"):
        with contextlib.suppress(InputError):
            found["run", pointer.parent.name] = open_run(pointer.parent).id
    for pointer in case.rglob("prediction.json"):
        with contextlib.suppress(InputError):
            found["prediction", pointer.parent.name] = _sum_of_prediction(pointer.parent)
    if (case / "out" / "tuning.json").exists():
        tuning = open_tuning(case / "out")
        trials = tuning.trials[[name for name in tuning.trials.dtype.names if name != "seconds"]]
        found["tuning",] = _sum_of(tuning.run.labels[...], np.array(str(trials)))
    if (case / "out" / "latest.json").exists():
        published = publishing.latest(Place(str(case / "out")))
        published.verify()
        found["latest",] = _sum_of(published.labels[...], published.numbers)
    for file in case.glob("labels.*"):
        if file.suffix != PARTIAL:
            found[file.name,] = _sum_of(file.read_bytes())
    if (case / "imported.zarr").exists():
        found["imported",] = _sum_of(zarr.open_array(case / "imported.zarr", mode="r")[...])
    return found


def _sum_of_run(run):
    verify_run(run)
    return _sum_of(run.labels[...], run.provenance[...], run.clusters)


def _sum_of_prediction(path):
    prediction = Prediction(path)
    return _sum_of(prediction.labels[...], prediction.confidence[...])


def _sum_of(*values):
    return [hashlib.sha256(np.ascontiguousarray(value).data).hexdigest() for value in values]


def contents(case):
    """Return what is in a folder by its name: all of it, but for how it was come to.

    A pilot is left out: whether there is one depends on whether a graph was there. So are halves of
    files that were written beside those of users, in a folder that is not ours to sweep, and the
    lock of a killed job, which goes with the next job that is not done already.
    """
    files = {str(path.relative_to(case)): path for path in case.rglob("*")}
    passing = [name for name in files if "/pilot-" in name or LEFT.match(name)]
    return {name: _content(path) for name, path in files.items() if name not in passing}


def _content(path):
    if path.is_dir():
        return None
    return _lasting(json.loads(path.read_text())) if path.suffix == ".json" else path.read_bytes()


def _lasting(value):
    if isinstance(value, dict):
        lasting = {name: each for name, each in value.items() if not name.endswith(VARYING)}
        return {name: _lasting(each) for name, each in lasting.items()}
    return [_lasting(each) for each in value] if isinstance(value, list) else value


def kills_of(name, n_operations):
    """Return the numbers of the operations at which each case is killed, one after another."""
    rng, numbers = random.Random(name), range(1, n_operations + 1)
    if os.environ.get("SPORE_CRASHES") == "all":
        once, n_twice = list(numbers), n_operations // 20
    else:  # evenly spread, and the last
        step, n_twice = max(1, n_operations // N_SAMPLED), 1
        once = [rng.choice(numbers[i : i + step]) for i in range(0, n_operations - step, step)]
        once.append(n_operations)
    twice = [(rng.choice(numbers), rng.choice(numbers)) for _ in range(n_twice)]
    return [*((number,) for number in once), *twice]


@pytest.mark.parametrize("name", crashing.CALLS)
def test_a_kill_at_any_operation_is_survived(tmp_path, base, make, name):
    start, case = tmp_path / "start", tmp_path / "case"
    crashing.prepare(base, case)
    for place in range(len(crashing.CALLS[name]) - 1):
        assert make(name, case, place=place)[0] == 0
    before = claims(case)
    shutil.copytree(case, start, symlinks=True)
    code, n_operations = make(name, case)
    assert code == 0
    after, passing, expected = claims(case), {}, contents(case)
    assert before != after or name in ("fit afresh", "clean")
    for kills in kills_of(name, n_operations):
        shutil.rmtree(case)
        shutil.copytree(start, case, symlinks=True)
        for number in kills:
            code, n_begun = make(name, case, number)
            assert code == -signal.SIGKILL or (code == 0 and n_begun < number), kills
            found = claims(case)
            for key, value in found.items():
                known = [each[key] for each in (before, after) if key in each]
                assert value in (known or [passing.setdefault(key, value)]), (kills, key)
            gone = (before.keys() & after.keys()) - found.keys()
            assert not [key for key in gone if key[0] not in AWAY.get(name, ())], kills
        code, _ = make(name, case)
        assert code == 0, kills
        assert claims(case) == after, kills
        assert contents(case) == expected, kills
