"""Connects to the cluster that a job's `cluster` section describes, and closes what it started.

Starts processes or jobs; writes nothing itself.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spore_dask.engine.failures import NoSchedulerError
from spore_dask.engine.kinds import (
    KINDS,
    Cluster,
    Start,
    check_class,
    nearest,
    one_line,
    start_local,
)
from spore_dask.engine.watching import wait_for_workers
from spore_dask.engine.workers import LocalWorkers
from spore_dask.errors import ParameterError

if TYPE_CHECKING:
    from distributed import Client

RETRY_SECONDS = 1.0
"""Time between two tries to reach a scheduler that may still be starting."""


def connect(cluster: str | Mapping[str, Any] | None = None) -> Client:
    """Make or reach a Dask cluster.

    Use it as `with connect(...) as client: fit(..., client=client)`: leaving ends what was started
    for it, and leaves running what was not.

    Parameters
    ----------
    cluster : str or dict, optional
        The address of a scheduler, or the `cluster` section of a job: its `kind`, and what that
        takes. Every kind takes `wait`, the seconds that the first worker may take, and before it
        the scheduler at an `address`. Default: local processes, as `fit` starts them.

        - `local`: `n_workers` processes with a `memory_limit` each.
        - `address`: the `address` of a scheduler that runs.
        - `slurm`: as many `jobs`, and keywords of `dask_jobqueue.SLURMCluster`, such as `memory`.
        - `kubernetes`: keywords of `dask_kubernetes.operator.KubeCluster`, such as `n_workers`.
        - `class`: the import path of any `class` that is a subclass of
          `distributed.deploy.Cluster`, its `options`, and its `scale`.

        `address`, `slurm` and `class` take `tls`: the files `ca`, `cert` and `key`.

    Returns
    -------
    distributed.Client

    Raises
    ------
    ParameterError
        If the section is wrong, a file of `tls` cannot be used, or a library is missing.
    ClusterError
        If no scheduler answers, or no worker comes.
    """
    return _connected(_checked(cluster))


def check_cluster(
    cluster: str | Mapping[str, Any] | None = None, *, import_class: bool = True
) -> None:
    """Check what `connect` would be given, and start nothing.

    Parameters
    ----------
    cluster : str or dict, optional
        As `connect` takes it.
    import_class : bool, default True
        Whether to import the `class` that a section names, which runs code of its module. If not,
        only the spelling of its name is checked, and not what it takes.

    Raises
    ------
    ParameterError
        If the section is wrong, a file of `tls` cannot be used, or a library is missing.
    """
    section = _section_of(cluster)
    kind = section.pop("kind")
    check: Any = KINDS[kind] if import_class or kind != "class" else check_class
    check(section)


def _checked(cluster: Any) -> Start:
    """Check a section; return what makes or reaches the cluster that it describes."""
    section = _section_of(cluster)
    return KINDS[section.pop("kind")](section)


def connect_local(n_workers: int, memory_limit: int | None) -> Client:
    """Start our own worker processes, with any memory limit or none, and connect to them."""
    return _connected(lambda stack: start_local(stack, n_workers, memory_limit))


def _connected(make: Start) -> Client:
    """Make a cluster, and return a client of it as soon as there are workers."""
    with contextlib.ExitStack() as stack:
        made = make(stack)
        client = _open_client(made)
        try:
            wait_for_workers(client, made.n_workers, made.workers, made.wait)
        except BaseException:
            client.close()
            raise
        client.started = stack.pop_all()
    return client  # type: ignore[no-any-return]


def _section_of(cluster: Any) -> dict[str, Any]:
    """Return a section with a kind that there is."""
    if cluster is None:
        return {"kind": "local"}
    if isinstance(cluster, str):
        return {"kind": "address", "address": cluster}
    if not isinstance(cluster, Mapping):
        raise ParameterError(
            f"cluster is {cluster!r}, but it must be the address of a scheduler, or a mapping such "
            "as {'kind': 'local'}."
        )
    section = {str(name): value for name, value in cluster.items()}
    kind = section.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ParameterError(
            f"The kind of the cluster is {kind!r}, but it must be one of "
            f"{', '.join(map(repr, KINDS))}{nearest(kind, KINDS)}."
        )
    return section


def _open_client(made: Cluster) -> Any:
    """Return a client of a cluster; closing it closes what was started for it."""
    given = made.place if isinstance(made.place, str) else "its scheduler"
    security = {} if made.security is None else {"security": made.security}
    connection: Any = _connection_class()
    deadline = time.monotonic() + made.scheduler_wait
    try:
        while True:
            try:
                client = connection(made.place, set_as_default=False, **security)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_SECONDS)
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, TypeError) and "TLS" not in str(error):
            raise
        raise (NoSchedulerError if isinstance(error, OSError) else ParameterError)(
            f"client is {given!r}, but no Dask scheduler answers there ({one_line(error)}); start "
            "one, or give its address as it prints it, like 'tcp://10.0.0.1:8786', and for tls:// "
            "the files of tls."
        ) from error
    client.workers = made.workers
    return client


@functools.cache
def _connection_class() -> Any:
    """Return the class of our clients, made when distributed is first needed."""
    import distributed

    class Connection(distributed.Client):
        """A client that also closes what was started for it."""

        started: contextlib.ExitStack | None = None
        workers: LocalWorkers | None = None

        def start(self, **options: Any) -> None:
            start, close = super().start, super().close  # type: Any, Any
            # Its own limit does not hold where something listens, but never says a word.
            limit = 2 * options["timeout"]
            try:
                start(**options, callback_timeout=limit)
            except BaseException:
                close()  # left to the garbage collector, it could block the start of another
                raise

        def close(self, *args: Any, **options: Any) -> Any:
            close: Any = super().close
            started, self.started = self.started, None
            try:
                return close(*args, **options)
            finally:
                if started is not None:
                    started.close()

    return Connection
