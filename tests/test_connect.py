import functools
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
from multiprocessing import resource_tracker
from pathlib import Path

import distributed
import psutil
import pytest

import spore_dask
from spore_dask.cgroups import usable_nbytes
from spore_dask.engine import NoSchedulerError, WorkerLostError, open_engine
from spore_dask.engine.kinds import kubernetes_options, slurm_options
from spore_dask.errors import ClusterError, ParameterError
from tests.clusters import MIB, ROOT, Processes, wait_until


def square(item):
    return item * item


def children():
    return {child.pid for child in psutil.Process().children(recursive=True)}


def threads():
    return {thread.id for thread in psutil.Process().threads()}


def hosts_listened_on():
    process = psutil.Process()
    found = [each for one in (process, *process.children(True)) for each in one.net_connections()]
    return {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}


# Clusters that are started


@pytest.fixture(scope="module")
def local():
    with spore_dask.connect({"kind": "local", "n_workers": 1, "memory_limit": "300MiB"}) as client:
        yield client


def test_local_is_what_fit_starts(local):
    [worker] = local.scheduler_info()["workers"].values()
    assert (worker["nthreads"], worker["memory_limit"]) == (1, 300 * MIB)
    assert worker["host"] == "127.0.0.1"
    with open_engine(local) as engine:
        assert (engine.n_workers, engine.memory_limit) == (1, 300 * MIB)
        assert engine.run("squares", square, range(4), needs_nbytes=1) == [0, 1, 4, 9]
    assert local.status == "running"


def die_once(folder, item):
    if not (folder / "died").exists():
        (folder / "died").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def test_a_lost_local_worker_is_told_by_how_it_ended(local, tmp_path):
    events = []
    with open_engine(local, progress=events.append) as engine:
        task = functools.partial(die_once, tmp_path)
        assert engine.run("squares", task, [3], needs_nbytes=1) == [9]
    pid = (tmp_path / "died").read_text()
    assert [event.text for event in events if event.kind == "worker-lost"] == [
        f"Worker process {pid} was ended by signal 9."
    ]


@pytest.mark.parametrize("close", [True, False])
def test_leaving_ends_what_was_started(close):
    before = children()
    client = spore_dask.connect({"kind": "local", "n_workers": 1, "memory_limit": "300MiB"})
    assert len(children() - before) == 1
    if close:
        client.close()
    else:
        with client:
            pass
    assert client.status == "closed"
    assert children() == before
    client.close()


def test_default_is_local(monkeypatch):
    from spore_dask.engine import kinds

    monkeypatch.setattr(kinds, "n_threads", lambda: 1)
    with spore_dask.connect() as client:
        [worker] = client.scheduler_info()["workers"].values()
    assert worker["memory_limit"] == usable_nbytes() // 2


@pytest.mark.parametrize("processes", [False, True])
def test_any_class(processes):
    options = {"n_workers": 1, "processes": processes, "threads_per_worker": 1}
    section = {"kind": "class", "class": "distributed.LocalCluster", "options": options, "scale": 1}
    resource_tracker.ensure_running()  # which multiprocessing starts, and leaves running
    before = children()
    with spore_dask.connect(section) as client:
        cluster = client.cluster
        assert client.submit(square, 3).result() == 9
        assert hosts_listened_on() == {"127.0.0.1"}
        assert cluster.scheduler_address.startswith("tls://")
    assert cluster.status == distributed.core.Status.closed
    assert children() == before


def test_scale_asks_for_workers():
    options = {"n_workers": 0, "processes": False, "threads_per_worker": 1}
    section = {"kind": "class", "class": "distributed.LocalCluster", "options": options}
    with spore_dask.connect({**section, "scale": 2}) as client:
        wait_until(lambda: len(client.scheduler_info()["workers"]) == 2)
    with pytest.raises(WorkerLostError, match=r"^0 workers came up within 1 s, but at least 1"):
        spore_dask.connect({**section, "wait": 0.5 + 0.4})


# Clusters that run


def test_address_as_text_and_as_section(tmp_path):
    with Processes(tmp_path) as processes:
        _, address = processes.scheduler()
        processes.worker(address)
        for cluster in (address, {"kind": "address", "address": address}):
            with spore_dask.connect(cluster) as client:
                assert client.submit(square, 3).result() == 9
        with spore_dask.connect(address) as client:
            assert client.submit(square, 4).result() == 16


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tls://127.0.0.1:1", "nowhere at all"])
def test_nobody_there(address):
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "300ms"}),
        pytest.raises(ParameterError, match="no Dask scheduler answers there") as caught,
    ):
        spore_dask.connect(address)
    assert isinstance(caught.value, NoSchedulerError) == (address == "tcp://127.0.0.1:1")


def test_somebody_there_who_never_says_a_word():
    import socket

    import dask

    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        dask.config.set({"distributed.comm.timeouts.connect": "500ms"}),
        pytest.raises(NoSchedulerError, match="no Dask scheduler answers there"),
    ):
        spore_dask.connect(f"tcp://127.0.0.1:{silent.getsockname()[1]}")


def test_a_scheduler_that_comes_later_is_waited_for(tmp_path):
    import dask

    with Processes(tmp_path) as processes:
        scheduler, address = processes.scheduler()
        scheduler.terminate()
        scheduler.wait()
        port = address.rpartition(":")[2]
        timer = threading.Timer(2, lambda: processes.worker(processes.scheduler(port=port)[1]))
        timer.start()
        with (
            dask.config.set({"distributed.comm.timeouts.connect": "2s"}),
            spore_dask.connect({"kind": "address", "address": address, "wait": 120}) as client,
        ):
            assert client.submit(square, 3).result() == 9
        timer.join()


# Sections that are wrong

WRONG = [
    (3, r"^cluster is 3, but it must be the address of a scheduler"),
    ({}, r"kind of the cluster is None, but it must be one of 'local', 'address', 'slurm'"),
    ({"kind": "slrum"}, r"did you mean 'slurm'\?"),
    ({"kind": ["local"]}, r"kind of the cluster is \['local'\], but it must be one of"),
    ({"kind": "local", "workers": 2}, r"has the key 'workers', .* \(did you mean 'n_workers'\?\)"),
    ({"kind": "local", "n_workers": 0}, r"^n_workers is 0, but it must be"),
    ({"kind": "local", "memory_limit": "much"}, r"^memory_limit is 'much', but it must be"),
    ({"kind": "local", "wait": 0}, r"^wait is 0, but it must be a number of seconds above 0"),
    ({"kind": "address"}, r"^address is None, but it must be a text"),
    ({"kind": "address", "address": "tcp://x:1", "port": 1}, r"has the key 'port'"),
    ({"kind": "address", "address": "tls://x:1", "tls": {"ca": "a"}}, r"it must name three PEM"),
    ({"kind": "slurm", "memory": 8}, r"^memory is 8, but it must be a text with a unit"),
    ({"kind": "slurm", "memory": "much"}, r"^memory is 'much', but it must be"),
    ({"kind": "slurm", "memory": "1GiB", "walltime": 43200}, r"^walltime is 43200, .* in quotes"),
    ({"kind": "slurm", "memory": "1GiB", "cores": "two"}, r"^cores is 'two', but it must be"),
    ({"kind": "slurm", "memry": "1GiB"}, r"did you mean 'memory'\?"),
    ({"kind": "slurm"}, r"^cluster has no memory, but Slurm must know"),
    ({"kind": "slurm", "memory": "1GiB", "jobs": 0}, r"^jobs is 0, but it must be"),
    ({"kind": "kubernetes", "imge": "x"}, r"did you mean 'image'\?"),
    ({"kind": "class", "class": "nothing.Here"}, r"^The cluster's class 'nothing.Here' cannot be"),
    ({"kind": "class", "class": "Here"}, r"^class is 'Here', but it must be an import path such"),
    ({"kind": "class", "class": "a b.C"}, r"^class is 'a b.C', but it must be an import path such"),
    ({"kind": "class", "class": "os.system"}, r"'os.system' is no subclass of distributed.deploy"),
    ({"kind": "class", "class": "distributed.deploy.subprocess.SubprocessCluster"}, "no subclass"),
    ({"kind": "class", "class": "distributed.LocalCluster", "options": 3}, r"^options is 3, but"),
    ({"kind": "class", "class": "distributed.deploy.spec.SpecCluster", "options": {"a": 1}}, "'a'"),
]


@pytest.mark.parametrize(("section", "text"), WRONG)
def test_wrong_sections_are_refused(section, text):
    for call in (spore_dask.check_cluster, spore_dask.connect):
        with pytest.raises(ParameterError, match=text):
            call(section)


def test_a_class_that_is_no_cluster_is_not_called(tmp_path):
    options = {"args": ["touch", str(tmp_path / "called")]}
    section = {"kind": "class", "class": "subprocess.Popen", "options": options}
    for call in (spore_dask.check_cluster, spore_dask.connect):
        with pytest.raises(ParameterError, match=r"is no subclass of distributed\.deploy\.Cluster"):
            call(section)
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("section", [{"kind": "local", "n_workers": 1}, "tcp://127.0.0.1:1"])
def test_checking_starts_nothing(section):
    before = children() | threads()
    spore_dask.check_cluster(section)
    assert children() | threads() <= before


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [("slurm", "dask_jobqueue", "slurm"), ("kubernetes", "dask_kubernetes.operator", "kubernetes")],
)
def test_a_missing_library_is_named_with_its_remedy(kind, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ParameterError, match=rf"pip install 'spore-dask\[{extra}\]'"):
        spore_dask.connect({"kind": kind})


def test_tls_files_that_cannot_be_used(tmp_path):
    files = {name: str(tmp_path / name) for name in ("ca", "cert", "key")}
    section = {"kind": "address", "address": "tls://127.0.0.1:1", "tls": files}
    with pytest.raises(ParameterError, match=r"^tls has ca '.*ca', but that file cannot be read"):
        spore_dask.connect(section)
    for name in files:
        (tmp_path / name).write_text("no certificate")
    with pytest.raises(ParameterError, match="give PEM files that belong together"):
        spore_dask.connect(section)


def test_tls_goes_with_an_address_that_says_so(monkeypatch):
    from spore_dask.engine import kinds

    monkeypatch.setattr(kinds, "_security", lambda tls: tls)  # no files needed
    with pytest.raises(ParameterError, match=r"^address is 'tcp://x:1', but tls is given too"):
        spore_dask.check_cluster({"kind": "address", "address": "tcp://x:1", "tls": {}})


# Queues


def test_slurm_jobs_are_workers_of_one_thread_each():
    from dask_jobqueue import SLURMCluster

    section = {"cores": 4, "memory": "8GiB", "walltime": "01:00:00", "queue": "night"}
    section |= {"host": "127.0.0.1", "job_script_prologue": ["module load x"]}
    with SLURMCluster(**slurm_options(section)) as cluster:
        script = cluster.job_script()
        assert hosts_listened_on() == {"127.0.0.1"}
    assert "#SBATCH -p night" in script
    assert "#SBATCH --mem=8G" in script
    assert "--nthreads 1 --memory-limit 2.00GiB --nworkers 4" in script
    assert "--dashboard-address 127.0.0.1:0" in script
    before, _, _ = script.partition(sys.executable)
    assert "export NUMBA_NUM_THREADS=1\n" in before
    assert "export DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE=False\n" in before
    assert before.rstrip().endswith("module load x")


def test_slurm_without_its_commands(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="there is no command sbatch here"):
        spore_dask.connect({"kind": "slurm", "memory": "1GiB"})


def put_command(folder, name, text):
    path = folder / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


def test_slurm_that_refuses_says_why(monkeypatch, tmp_path):
    put_command(tmp_path, "sbatch", "echo 'sbatch: error: no such partition' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ClusterError, match=r"^Slurm refused a job .*no such partition"):
        spore_dask.connect({"kind": "slurm", "memory": "1GiB", "host": "127.0.0.1"})


def test_slurm_jobs_become_a_cluster_and_are_cancelled(monkeypatch, tmp_path):
    """The commands stand for Slurm's: the job script itself is run as it is."""
    put_command(
        tmp_path,
        "sbatch",
        f"cp $1 {tmp_path}/job.sh; setsid sh {tmp_path}/job.sh > {tmp_path}/log 2>&1 &\n"
        f"echo $! > {tmp_path}/pid; echo Submitted batch job 7",
    )
    put_command(
        tmp_path, "scancel", f"echo $1 > {tmp_path}/cancelled; kill -9 -$(cat {tmp_path}/pid)"
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    section = {"kind": "slurm", "memory": "1GiB", "host": "127.0.0.1", "wait": 120}
    with spore_dask.connect({**section, "local_directory": str(tmp_path)}) as client:
        [worker] = client.scheduler_info()["workers"].values()
        assert (worker["nthreads"], worker["memory_limit"]) == (1, 1024 * MIB)
        [threads] = client.run(os.getenv, "NUMBA_NUM_THREADS").values()
        assert threads == "1"
    assert (tmp_path / "cancelled").read_text().strip() == "7"


@pytest.mark.parametrize("env", [{"A": "b"}, [{"name": "A", "value": "b"}]])
def test_kubernetes_workers_have_one_thread_each(env):
    from dask_kubernetes.operator import KubeCluster
    from dask_kubernetes.operator.kubecluster.kubecluster import make_cluster_spec

    options = kubernetes_options({"n_workers": 3, "image": "x:1", "env": env})
    inspect.signature(KubeCluster).bind(**options)
    options.pop("quiet")
    spec = make_cluster_spec(name="x", **options)["spec"]["worker"]
    assert spec["replicas"] == 3
    [container] = spec["spec"]["containers"]
    assert container["args"][:4] == ["dask", "worker", "--nthreads", "1"]
    variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert variables["NUMBA_NUM_THREADS"] == "1"
    assert variables["A"] == "b"


def test_a_spec_of_the_user_is_left_alone():
    options = kubernetes_options({"custom_cluster_spec": "cluster.yaml"})
    assert "worker_command" not in options
    assert "env" not in options


# Scripts


def test_script_without_a_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import spore_dask
            print("started", flush=True)
            with spore_dask.connect({"kind": "local", "n_workers": 1}) as client:
                print(client.submit(pow, 2, 3).result())
            """
        )
    )
    found = subprocess.run(
        [sys.executable, "-W", "error", script],
        env={**os.environ, "PYTHONPATH": str(Path(ROOT))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (found.stdout, found.stderr) == ("started\n8\n", "")
