"""The machine's limits as control groups set them: file trees like those of real machines."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from spore_dask import cgroups
from spore_dask.plan import as_memory_limit

MIB = 1 << 20
TOTAL = psutil.virtual_memory().total
V2 = "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory"
V1_CPU = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:8 - cgroup cgroup rw,cpu,cpuacct"
DOCKER = "35 31 0:32 /docker/7 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"


def write_tree(root, own, mounts, files):
    """Write what a process sees of its groups; limits are texts by the paths of files."""
    about = {"proc/self/cgroup": "\n".join(own), "proc/self/mountinfo": "\n".join(mounts)}
    for name, text in (about | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


MEMORY = {
    "container": (["0::/"], [V2], {"memory.max": str(300 * MIB)}, 300),
    "of the parent": (
        ["0::/system.slice/job.scope/step"],
        [V2],
        {
            "system.slice/job.scope/step/memory.max": "max",
            "system.slice/job.scope/memory.max": str(400 * MIB),
            "system.slice/memory.max": str(500 * MIB),
        },
        400,
    ),
    "high": (["0::/a"], [V2], {"a/memory.max": "max", "a/memory.high": str(200 * MIB)}, 200),
    "version 1, nested": (
        ["4:memory:/slurm/uid_1/job_2/step_0", "3:cpu,cpuacct:/", "0::/"],
        ["31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw", V1_CPU, V1_MEMORY],
        {
            "memory/slurm/uid_1/job_2/step_0/memory.limit_in_bytes": str(2**63 - 4096),
            "memory/slurm/uid_1/job_2/memory.limit_in_bytes": str(600 * MIB),
        },
        600,
    ),
    "version 1, a part is mounted": (
        ["4:memory:/docker/7/inner"],
        [DOCKER],
        {"memory/inner/memory.limit_in_bytes": str(100 * MIB), "memory/memory.max": "max"},
        100,
    ),
    "outside of what is mounted": (
        ["4:memory:/elsewhere"],
        [DOCKER],
        {"memory/memory.limit_in_bytes": str(700 * MIB)},
        700,
    ),
    "none": (["0::/a"], [V2], {"a/memory.max": "max"}, TOTAL / MIB),
    "more than there is": (["0::/a"], [V2], {"a/memory.max": str(2 * TOTAL)}, TOTAL / MIB),
}


@pytest.mark.parametrize("case", MEMORY.values(), ids=MEMORY.keys())
def test_memory_is_the_least_that_binds(tmp_path, case):
    own, mounts, limits, expected = case
    files = {f"sys/fs/cgroup/{name}": text for name, text in limits.items()}
    root = write_tree(tmp_path, own, mounts, files)
    assert cgroups.usable_nbytes(root) == expected * MIB


PROCESSORS = {
    "whole": (["0::/a"], [V2], {"a/cpu.max": "300000 100000"}, 3),
    "rounded up": (["0::/a"], [V2], {"a/cpu.max": "150000 100000"}, 2),
    "of the parent": (
        ["0::/a/b"],
        [V2],
        {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"},
        1,
    ),
    "none": (["0::/a"], [V2], {"a/cpu.max": "max 100000"}, None),
    "version 1": (
        ["4:cpuacct,cpu:/job/step"],
        [V1_CPU],
        {
            "cpu,cpuacct/job/step/cpu.cfs_quota_us": "-1",
            "cpu,cpuacct/job/step/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/job/cpu.cfs_quota_us": "250000",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
        },
        3,
    ),
}


@pytest.mark.parametrize("case", PROCESSORS.values(), ids=PROCESSORS.keys())
def test_processors_are_the_least_that_binds(tmp_path, case):
    own, mounts, limits, expected = case
    files = {f"sys/fs/cgroup/{name}": text for name, text in limits.items()}
    assert cgroups.cpu_quota(write_tree(tmp_path, own, mounts, files)) == expected


def test_where_there_are_no_groups(tmp_path):
    assert cgroups.usable_nbytes(tmp_path) == TOTAL
    assert cgroups.cpu_quota(tmp_path) is None


def test_the_default_limit_is_a_share_of_what_may_be_used():
    assert as_memory_limit(None, 0) == cgroups.usable_nbytes()
    assert as_memory_limit(None, 3) == cgroups.usable_nbytes() // 4


def own_cpu_group():
    """Return the folder of this process's group that can limit processors, if there is one."""
    return next((place for place in cgroups._groups("cpu", cgroups.ROOT) if place.is_dir()), None)


@pytest.fixture
def group():
    """A group of half a processor below this process's own."""
    own = own_cpu_group()
    if own is None or not (own / "cpu.cfs_quota_us").exists() or not os.access(own, os.W_OK):
        pytest.skip("this process may not make control groups")
    place = own / f"spore_dask-test-{os.getpid()}"
    try:
        place.mkdir()
        (place / "cpu.cfs_quota_us").write_text("50000")
    except OSError as error:
        pytest.skip(f"this process may not make control groups ({error})")
    yield place
    place.rmdir()


def test_local_workers_are_as_many_as_the_quota_pays_for(group):
    code = f"""
import os, pathlib
pathlib.Path({str(group / "cgroup.procs")!r}).write_text(str(os.getpid()))
os.sched_setaffinity(0, range(os.cpu_count()))
import spore_dask
with spore_dask.connect() as client:
    print(len(client.scheduler_info()["workers"]), spore_dask.threads.n_threads())
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "1"]
