"""A process that makes calls in forks of itself, and kills them at one of their file operations.

It reads requests, one per line: a name and a place in `CALLS`, the folder to work in, and the
number of the operation at which to die (0 for none). It answers with the exit code and the number
of operations that were begun. Forks start with all modules imported and all kernels loaded.
"""

import functools
import json
import mmap
import os
import signal
import struct
import sys
import tempfile
import traceback
from pathlib import Path
from unittest import mock

import numpy as np
import zarr
from click.testing import CliRunner

from pipelines.jobs.commands import commands
from spore_dask import (
    checkpoints,
    clean,
    excerpts,
    export_labels,
    import_data,
    memory,
    pilot,
    predict,
    tune,
)
from spore_dask.stages import expand
from tests.paper import fit
from tests.test_ownership import LIKE_OURS

CHANGING = {
    *("os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir"),
    *("os.symlink", "os.truncate", "os.utime"),
}
"""Python's audit events before an operation that changes a folder; `os.replace` is a rename."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SMALL = {"n_workers": 0, "n_partitions": 2, "min_cluster_size": 20}
APPROXIMATE = {**SMALL, "knn": "approximate", "keep": "all"}
DAYS = "2026-11-01", "2026-11-02"


def write_data(base):
    """Write the data that calls read."""
    rng = np.random.default_rng(5)
    for day, name in enumerate(("x", "new", *DAYS)):
        centres = np.repeat(rng.permutation([(0, 0, 0), (4, 0, 0), (0, 5, 0)]), 150, axis=0)
        x = centres + rng.normal(size=centres.shape) * rng.uniform(0.2, 1, size=(len(centres), 1))
        x[::9], x[40::50] = x[0], x[40] + day
        array = zarr.create_array(base / f"{name}.zarr", shape=x.shape, dtype="f4", chunks=(200, 3))
        array[...] = rng.permutation(x)
    wide = rng.normal(size=(6, 24))[rng.integers(6, size=600)] + rng.normal(size=(600, 24)) / 3
    wide[:30] = wide[0]
    np.save(base / "wide.npy", wide.astype("f4"))
    np.savetxt(base / "x.csv", x, delimiter=",", header="a,b,c", comments="")


def prepare(base, case):
    """Write what is in the folder of a call before it: a job, and files of the user's own."""
    job = {"input": f"{base}/{{date}}.zarr", "output": f"{case}/out", "keep_runs": 1}
    files = {
        "movie.mkv.partial": "half of a movie",
        "lock-mine.json": "{}",
        "thesis.partial/ch1/text.tex": "Chapter 1",
        "labels.csv.mine.partial": "labels by hand",
        "labels.csv": "labels of old",
        "labels.npy": "labels of old",
        "labels.parquet": "labels of old",
        "job.yaml": json.dumps({**job, "parameters": {**SMALL, "params": "paper"}}),
        **{f"out/{name}": '"mine"' for name in LIKE_OURS},
    }
    for name, text in files.items():
        (case / name).parent.mkdir(parents=True, exist_ok=True)
        (case / name).write_text(text)
    zarr.create_array(case / "imported.zarr", data=np.arange(12.0).reshape(6, 2), chunks=(2, 2))


def _fit(base, case, **options):
    fit(base / "x.zarr", case / "out", **SMALL, **options)


def _fit_approximate(base, case):
    fit(np.load(base / "wide.npy"), case / "out", **APPROXIMATE)


def _predict(base, case):
    predict(case / "out", base / "new.zarr", case / "predicted", n_workers=0)


def _tune(base, case):
    tune(base / "x.zarr", case / "out", space={"z_percentile": [20, 40, 60, 80]}, **SMALL)


def _tune_on_excerpts(base, case):
    small = mock.patch.object(memory, "EXCERPT_POINTS", 100)
    with small, mock.patch.object(excerpts, "FINAL_RATIO", 1):
        _tune(base, case)


def _refresh(day, base, case):
    result = CliRunner().invoke(commands, ["refresh", str(case / "job.yaml"), "--date", day])
    assert result.exit_code == 0, result.output


def _export(suffix, base, case):
    export_labels(case / "out", case / f"labels{suffix}", overwrite=True)


def _clean(base, case):
    clean(case / "out", keep="labels")


def _import(base, case):
    import_data(base / "x.csv", case / "imported.zarr", overwrite=True)


CALLS = {
    "fit": (_fit,),
    "fit approximately": (_fit_approximate,),
    "fit afresh": (_fit, functools.partial(_fit, resume=False)),
    "predict": (_fit, _predict),
    "tune": (_tune,),
    "tune on excerpts": (_tune_on_excerpts,),
    "refresh": tuple(functools.partial(_refresh, day) for day in DAYS),
    "export to parquet": (_fit, functools.partial(_export, ".parquet")),
    "export to csv": (_fit, functools.partial(_export, ".csv")),
    "export to npy": (_fit, functools.partial(_export, ".npy")),
    "clean": (_fit, _clean),
    "import": (_import,),
}
"""What is killed, and before it what it needs to have been done."""


def kill_at(number, case, n_begun):
    """Let this process die before one of its operations in a folder, and count them.

    A file that was opened to be written just before is then half there.
    """
    opened = None

    def hear(event, values):
        nonlocal opened, number
        writes = event == "open" and isinstance(values[2], int) and values[2] & WRITING
        if number is None or not (writes or event in CHANGING) or isinstance(values[0], int):
            return
        path = os.fsdecode(values[0])
        if os.path.isabs(path) and not path.startswith(f"{case}/"):
            return
        if event == "os.mkdir" and os.path.isdir(path):  # which changes nothing
            return
        n = struct.unpack("q", n_begun[:8])[0] + 1
        n_begun[:8] = struct.pack("q", n)
        if n == number:
            number = None
            if opened and os.path.exists(opened):
                os.truncate(opened, os.path.getsize(opened) // 2)
            os.write(2, f"killed before operation {n}: {event} of {path}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
        opened = path if writes else None

    sys.addaudithook(hear)


def run(call, base, case, number):
    """Make a call in a fork; return its exit code and the number of operations begun."""
    n_begun = mmap.mmap(-1, 8)
    process = os.fork()
    if process == 0:
        code = 1
        try:
            signal.alarm(300)  # rather than hang
            kill_at(number, case, n_begun)
            call(base, case)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), struct.unpack("q", n_begun[:8])[0]


def warm_up(name, base):
    """Make a call, and those before it, in this process and in a folder that goes."""
    with tempfile.TemporaryDirectory() as folder:
        prepare(base, Path(folder))
        for call in CALLS[name]:
            call(base, Path(folder))


def main(base):
    """Answer requests."""
    checkpoints.EVERY_SECONDS, expand.STEPS_PER_CALL = 0, 200
    pilot.ALWAYS_EXACT_POINTS, pilot.EXACT_COORDINATES["approximate"] = 0, 0
    warm = set()
    for line in sys.stdin:
        name, place, case, number = json.loads(line)
        if name not in warm:
            warm_up(name, base)
            warm.add(name)
        print(json.dumps(run(CALLS[name][place], base, Path(case), number)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
