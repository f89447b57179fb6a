"""The kinds of clusters that a `cluster` section can ask for, and how each is made or reached.

Each kind has a function that checks a section and returns another one, which starts what the
section asks for: so that a section can be checked and nothing started. What is started here listens
on this machine only, unless the section says otherwise. Security and clusters are those of
dask.distributed, dask-jobqueue and dask-kubernetes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import inspect
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from spore_dask.cgroups import usable_nbytes
from spore_dask.engine import settings
from spore_dask.engine.securing import new_certificate, security_of
from spore_dask.engine.settings import LOCAL_CONFIG, OUTSIDE_ENVIRON, SCHEDULER_CONFIG
from spore_dask.engine.workers import LocalWorkers
from spore_dask.errors import ClusterError, ParameterError, SporeError
from spore_dask.params import Range, count
from spore_dask.threads import n_threads

LOOPBACK = "127.0.0.1:0"
"""Where dashboards are: a free port that only this machine sees."""
QUEUE_TIMEOUT = 600.0
"""Seconds that the first worker of a queue may take."""
SLURM_SCHEDULER = "jobqueue.slurm.scheduler-options"
TLS = ("ca", "cert", "key")
ENCRYPTED = ("tls://", "wss://")

N_WORKERS = count(optional=True)
TEXT = Range("a text", lambda v: isinstance(v, str) and bool(v.strip()))
IMPORT_PATH = Range(
    "an import path such as 'distributed.LocalCluster'",
    lambda v: isinstance(v, str) and "." in v and all(map(str.isidentifier, v.split("."))),
)
SECONDS = Range(
    "a number of seconds above 0",
    lambda v: isinstance(v, int | float) and not isinstance(v, bool) and v > 0,
    float,
)


def _is_size(value: Any) -> bool:
    from dask.utils import parse_bytes

    try:
        return isinstance(value, str) and int(parse_bytes(value)) > 0
    except ValueError:
        return False


SLURM_VALUES = {
    "memory": Range("a text with a unit, such as '4GiB'", _is_size),
    "walltime": Range(
        "a text such as '12:00:00': put it in quotes, else YAML makes a number of it",
        lambda v: isinstance(v, str) and bool(v.strip()),
    ),
    "cores": count(),
    "processes": count(),
}
"""Keywords of `SLURMCluster` that are checked here, because it would take anything."""


@dataclasses.dataclass
class Cluster:
    """What there is to connect to."""

    place: Any
    """The address of a scheduler, or a cluster of dask's."""
    wait: float
    """Seconds to wait for workers."""
    n_workers: int = 1
    """Workers that there must be."""
    workers: LocalWorkers | None = None
    """The worker processes, where they are our own."""
    security: Any = None
    """The TLS files of dask's, if there are some."""
    scheduler_wait: float = 0.0
    """Seconds for which to try again if no scheduler answers."""


Start = Callable[[contextlib.ExitStack], Cluster]
"""Makes or reaches a cluster, and leaves to the stack how to close it."""


def nearest(name: Any, names: Iterable[str]) -> str:
    """Return a question after the name that was meant."""
    found = difflib.get_close_matches(str(name), list(names), 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def _check_keys(kind: str, section: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse keys that a kind does not have."""
    known = {*names, "wait"}
    for name in section:
        if name not in known:
            raise ParameterError(
                f"cluster has the key {name!r}, which the kind {kind!r} does not know"
                f"{nearest(name, known)}: it knows {', '.join(sorted(known))}."
            )


def _wait_of(section: dict[str, Any], default: float | None = None) -> float:
    """Take the seconds to wait for workers out of a section."""
    wait = section.pop("wait", None)
    if wait is None:
        return settings.START_TIMEOUT if default is None else default
    return float(SECONDS.check("wait", wait))


def _local(section: dict[str, Any]) -> Start:
    """Start our own worker processes."""
    from dask.utils import parse_bytes

    _check_keys("local", section, ("n_workers", "memory_limit"))
    wait = _wait_of(section)
    n_workers = N_WORKERS.check("n_workers", section.get("n_workers")) or n_threads()
    limit = section.get("memory_limit")
    try:
        nbytes = _fair_share(n_workers) if limit is None else int(parse_bytes(limit))
    except (ValueError, AttributeError, TypeError):
        nbytes = 0
    if nbytes <= 0:
        raise ParameterError(
            f"memory_limit is {limit!r}, but it must be a number of bytes or a text such as '1GiB'."
        )
    return lambda stack: dataclasses.replace(start_local(stack, n_workers, nbytes), wait=wait)


def _fair_share(n_workers: int) -> int:
    """Return this machine's memory, shared by the workers and this process."""
    return usable_nbytes() // (1 + n_workers)


def start_local(stack: contextlib.ExitStack, n_workers: int, memory_limit: int | None) -> Cluster:
    """Start a scheduler in this process and workers in others, closed to other users."""
    workers = LocalWorkers(n_workers, memory_limit)
    stack.callback(workers.close)
    import dask
    import distributed

    start: Any = distributed.SpecCluster
    certificate = new_certificate()
    security = security_of(**certificate)
    options = {"port": 0, "dashboard_address": LOOPBACK, "dashboard": False, "security": security}
    # Workers connect with certificates; this process needs no connection to talk to itself.
    options |= {"protocol": ["inproc://", "tls://"], "host": [None, "127.0.0.1"]}
    scheduler = {"cls": distributed.Scheduler, "options": options}
    # Workers end before their scheduler has sent them all: no news to anyone.
    logging.getLogger("distributed.batched").setLevel(logging.WARNING)
    with dask.config.set(LOCAL_CONFIG):
        cluster = stack.enter_context(
            start(scheduler=scheduler, security=security, silence_logs=logging.CRITICAL)
        )
    stack.callback(workers.close)  # before the cluster is
    workers.invite(cluster.scheduler.listeners[1].contact_address, certificate)
    return Cluster(cluster, settings.START_TIMEOUT, n_workers, workers)


def _address(section: dict[str, Any]) -> Start:
    """Return a scheduler that runs already, or will soon."""
    _check_keys("address", section, ("address", "tls"))
    scheduler_wait = _wait_of(dict(section), 0.0)
    wait = _wait_of(section)
    address = TEXT.check("address", section.get("address"))
    security = _security(section.get("tls"))
    if security is not None and not address.startswith(ENCRYPTED):
        raise ParameterError(
            f"address is {address!r}, but tls is given too: give one that begins with tls://, or "
            "leave tls out."
        )
    return lambda stack: Cluster(address, wait, security=security, scheduler_wait=scheduler_wait)


def _security(tls: Any) -> Any:
    """Return what dask calls the security that some files give; None without files."""
    if tls is None:
        return None
    if not isinstance(tls, Mapping) or set(tls) != set(TLS):
        raise ParameterError(f"tls is {tls!r}, but it must name three PEM files: {', '.join(TLS)}.")
    for name in TLS:
        try:
            with open(tls[name], "rb"):
                pass
        except (OSError, TypeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ParameterError(
                f"tls has {name} {tls[name]!r}, but that file cannot be read ({reason}): give the "
                "path of a PEM file that this user may read."
            ) from None
    security = security_of(**{name: str(tls[name]) for name in TLS})
    try:
        security.get_connection_args("client")
    except OSError as error:  # ssl's errors are such
        raise ParameterError(
            f"The files of tls ({', '.join(str(tls[name]) for name in TLS)}) are no certificate of "
            f"an authority, a certificate and its key ({error}): give PEM files that belong "
            "together."
        ) from None
    return security


def _slurm(section: dict[str, Any]) -> Start:
    """Submit Slurm jobs that are workers."""
    make: Any = _import("dask_jobqueue.SLURMCluster", "slurm")
    wait = _wait_of(section, QUEUE_TIMEOUT)
    jobs = count(optional=False).check("jobs", section.pop("jobs", 1))
    options = slurm_options(section)
    return lambda stack: Cluster(_submit(stack, make, options, jobs), wait)


def _submit(stack: contextlib.ExitStack, make: Any, options: dict[str, Any], jobs: int) -> Any:
    """Submit jobs to Slurm; return the cluster that they become."""
    if shutil.which("sbatch") is None:
        raise ClusterError(
            "The kind of the cluster is 'slurm', but there is no command sbatch here: start the "
            "job on a machine of the Slurm cluster, or choose another kind."
        )
    cluster = _start(stack, make, {"job_cls": _slurm_job(), **options})

    async def submit() -> None:
        cluster.scale(jobs=jobs)
        await cluster  # so that a refusal is raised here, not only logged

    try:
        cluster.sync(submit)
    except RuntimeError as error:
        raise ClusterError(
            f"Slurm refused a job ({one_line(error)}): change what the cluster section asks for."
        ) from error
    return cluster


def _slurm_job() -> Any:
    """Return the class of jobs that say so when Slurm refuses them, so that all can be closed."""
    from dask_jobqueue.slurm import SLURMJob
    from distributed.core import Status

    class Job(SLURMJob):
        async def start(self) -> None:
            start: Any = super().start
            try:
                await start()
            except BaseException:
                self.status = Status.failed
                raise

    return Job


def slurm_options(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of `SLURMCluster` for what a section says: one thread a process.

    Workers get what our own have: no further threads, no measures of dask's against memory that
    is no data of dask's, and dashboards that only their machine sees.
    """
    import dask
    from dask_jobqueue.core import Job, JobQueueCluster
    from dask_jobqueue.slurm import SLURMJob

    names = {name for cls in (JobQueueCluster, Job, SLURMJob) for name in _keywords(cls)}
    hidden = {"n_workers", "job_cls", "loop", "asynchronous", "scheduler", "scheduler_cls"}
    hidden |= {"dashboard_address"}  # which it takes in scheduler_options only
    _check_keys("slurm", section, {*(names - hidden), "jobs", "tls"})
    for name, allowed in SLURM_VALUES.items():
        if section.get(name) is not None:
            allowed.check(name, section[name])
    options = dict(section)
    security = _security(options.pop("tls", None))
    if security is not None:
        options |= {"security": security, "protocol": "tls://"}
    if options.get("memory") is None and dask.config.get("jobqueue.slurm.memory", None) is None:
        raise ParameterError(
            "cluster has no memory, but Slurm must know what each job may use: give it, such as "
            "memory: 4GiB."
        )
    options.setdefault("cores", 1)
    options.setdefault("processes", options["cores"])
    chosen = options.get("scheduler_options") or dask.config.get(SLURM_SCHEDULER, None) or {}
    options["scheduler_options"] = {"dashboard_address": LOOPBACK, **chosen}
    if "host" in options:  # which it takes there only
        options["scheduler_options"]["host"] = options.pop("host")
    exports = [f"export {name}={value}" for name, value in OUTSIDE_ENVIRON.items()]
    options["job_script_prologue"] = [*exports, *(options.get("job_script_prologue") or [])]
    alone = ["--no-dashboard", "--dashboard-address", LOOPBACK]
    options["worker_extra_args"] = [*alone, *(options.get("worker_extra_args") or [])]
    return options


def _kubernetes(section: dict[str, Any]) -> Start:
    """Have the Dask operator start a scheduler and workers."""
    make: Any = _import("dask_kubernetes.operator.KubeCluster", "kubernetes")
    wait = _wait_of(section, QUEUE_TIMEOUT)
    options = kubernetes_options(section)
    return lambda stack: Cluster(_start(stack, make, options), wait)


def kubernetes_options(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of `KubeCluster` for what a section says: one thread a worker."""
    from dask_kubernetes.operator import KubeCluster

    names = _keywords(KubeCluster)
    _check_keys("kubernetes", section, names - {"loop", "asynchronous"})
    options = {"quiet": True, **section}
    if "custom_cluster_spec" not in options:  # which says it all
        options.setdefault("worker_command", ["dask", "worker", "--nthreads", "1"])
        env = options.get("env") or {}
        ours = OUTSIDE_ENVIRON
        if isinstance(env, Mapping):
            options["env"] = {**ours, **env}
        else:
            options["env"] = [*({"name": n, "value": v} for n, v in ours.items()), *env]
    return options


def _class(section: dict[str, Any]) -> Start:
    """Start a cluster of any class."""
    asked = check_class(section)
    make = _cluster_class(asked.path)
    options = {**_private(make, asked.options), **asked.options}
    for name in {"dashboard_address", "worker_dashboard_address"} & _keywords(make):
        options.setdefault(name, LOOPBACK)
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise _not_liked(make, error) from None

    def start(stack: contextlib.ExitStack) -> Cluster:
        cluster = _start(stack, make, options)
        if asked.scale is not None:
            cluster.scale(asked.scale)
        return Cluster(cluster, asked.wait)

    return start


@dataclasses.dataclass
class ClassSection:
    """What a section of the kind `class` says."""

    path: str
    options: dict[str, Any]
    scale: int | None
    wait: float


def check_class(section: dict[str, Any]) -> ClassSection:
    """Check a section of the kind `class`, and import nothing that it names."""
    _check_keys("class", section, ("class", "options", "scale", "tls"))
    wait = _wait_of(section, QUEUE_TIMEOUT)
    path = IMPORT_PATH.check("class", section.get("class"))
    options = section.get("options") or {}
    if not isinstance(options, Mapping):
        raise ParameterError(f"options is {options!r}, but it must be a mapping of keywords.")
    options = {str(name): value for name, value in options.items()}
    scale = count(0).check("scale", section.get("scale"))
    security = _security(section.get("tls"))
    if security is not None:
        options["security"] = security
    return ClassSection(path, options, scale, wait)


def _cluster_class(path: str) -> Any:
    """Return the class of clusters that has an import path; refuse anything else."""
    from distributed.deploy.cluster import Cluster as AnyCluster

    found = _import(path)
    if not (isinstance(found, type) and issubclass(found, AnyCluster)):
        raise ParameterError(
            f"The cluster's class {path!r} is no subclass of distributed.deploy.Cluster: give the "
            "path of one that is, such as 'distributed.LocalCluster'."
        )
    return found


def _private(make: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that keep other users of this machine away from a cluster of its own."""
    from distributed import LocalCluster

    chosen = {"security", "protocol"} & options.keys()
    return {"security": True} if issubclass(make, LocalCluster) and not chosen else {}


def _keywords(make: Any) -> set[str]:
    """Return the names of the keywords that something callable takes."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(make).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind in kinds}


def _import(path: str, extra: str | None = None) -> Any:
    """Return what has an import path, or say how to get it."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        remedy = (
            f"pip install 'spore-dask[{extra}]'"
            if extra
            else "install what it is part of, or give a path such as 'distributed.LocalCluster'"
        )
        raise ParameterError(
            f"The cluster's class {path!r} cannot be imported ({error}): {remedy}."
        ) from None


def _start(stack: contextlib.ExitStack, make: Any, options: Mapping[str, Any]) -> Any:
    """Start a cluster that is closed with the stack; say what it does not like."""
    import dask

    try:
        with dask.config.set(SCHEDULER_CONFIG):
            cluster = make(**options)
    except SporeError:
        raise
    except (TypeError, ValueError) as error:
        raise _not_liked(make, error) from error
    except Exception as error:
        raise ClusterError(
            f"{_name_of(make)} could not be started ({type(error).__name__}: {one_line(error)}): "
            "look at its scheduler, and call again."
        ) from error
    stack.callback(cluster.close)
    return cluster


def _name_of(make: Any) -> str:
    """Return the name of a class of clusters."""
    return str(getattr(make, "__qualname__", repr(make)))


def _not_liked(make: Any, error: Exception) -> ParameterError:
    """Return what to raise about options that a class of clusters does not take."""
    return ParameterError(
        f"{_name_of(make)} cannot start with what the cluster section says ({one_line(error)}): "
        "change it, or what it leads to."
    )


def one_line(error: BaseException) -> str:
    """Return what an error says, without its full stop."""
    return " ".join(str(error).split()).rstrip(".")


KINDS: dict[str, Callable[[dict[str, Any]], Start]] = {
    "local": _local,
    "address": _address,
    "slurm": _slurm,
    "kubernetes": _kubernetes,
    "class": _class,
}
