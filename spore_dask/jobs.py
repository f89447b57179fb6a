"""What a fit is asked for: where its data, its graph and its result are, and what it will need.

Reads metadata only; writes a pointer when it finds a finished result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import zarr
from dask.utils import parse_bytes

from spore_dask.errors import ParameterError
from spore_dask.graph import FORMAT, Graph, room_for_plan
from spore_dask.inputs import Input, check_unchanged, find_input
from spore_dask.params import Params, ResolvedParams
from spore_dask.pilot import EXACT
from spore_dask.plan import FitPlan, Options, make_plan
from spore_dask.runs import (
    KEEP,
    POINTER,
    RESULT,
    SUMMARY,
    Run,
    as_run,
    keep_at_most,
    point_to,
    run_ids,
)
from spore_dask.store import Folder, address, address_of, hash_of


@dataclasses.dataclass(frozen=True)
class Job:
    """What a fit is asked for."""

    folder: Folder
    data: Input
    options: Options
    params: Params
    graph: Graph | None
    keep: str
    cache_limit: int | str | None = None

    @functools.cached_property
    def resolved(self) -> ResolvedParams:
        """The counts that the parameters come to."""
        return self.params.resolve(self.data.source.shape[0])

    @property
    def head_k(self) -> int:
        """Neighbours that every point needs; only fragments and copies need K."""
        return max(self.resolved.density_neighbors, self.resolved.expansion_neighbors)

    @property
    def longest_k(self) -> int:
        """Neighbours that those points need."""
        return self.resolved.k

    @property
    def id(self) -> str:
        """A name for the result: a hash of all that it depends on."""
        source = dataclasses.asdict(self.data.source)
        graph = self.graph and (self.graph.path, self.graph.name)
        params = dataclasses.asdict(self.params)
        return hash_of(FORMAT, source, dataclasses.asdict(self.options), params, graph)

    @property
    def result(self) -> Folder:
        """Where the result goes."""
        return self.folder.child(RESULT + self.id)

    @property
    def reads(self) -> list[str]:
        """The addresses of folders that workers read, beside the source."""
        return [] if self.graph is None else [self.graph.path]

    def finished(self, is_latest: bool = True) -> Run | None:
        """Return the run if it is complete; refuse it if the source has changed since.

        `is_latest` says whether it becomes the one that `open_run` takes by default. What is no
        longer to be kept is removed, but nothing is done again for what was not kept.
        """
        check_unchanged(self.folder, self.data.source)
        if not self.result.exists(SUMMARY):
            return None
        self.data.source.confirm()
        if is_latest:
            point_to(self.folder, POINTER, self.id)
        run = Run(self.folder.url, self.id)
        keep_at_most(run, self.keep)
        return run

    def plan(self, memory_limit: Any, n_workers: int | None) -> FitPlan:
        """Plan the run; raise a sentence where it cannot work."""
        options = dataclasses.replace(self.options, k=self.head_k, longest_k=self.longest_k)
        known = None
        if self.graph is not None:
            is_exact = self.graph.summary["search"] in EXACT
            known, options = self.graph.shape, _as_searched(options, is_exact)
        make = functools.partial(FitPlan, cache_limit=self.cache_nbytes, known=known)
        plan = make_plan(self.data, self.folder, options, memory_limit, n_workers, make)
        is_there = self.graph is not None or self.result.exists(SUMMARY)
        return plan if is_there else room_for_plan(self.folder, plan)

    @property
    def cache_nbytes(self) -> int | None:
        """The coordinator's cache in bytes, if it is limited."""
        if self.cache_limit is None:
            return None
        try:
            nbytes = int(parse_bytes(self.cache_limit))
        except (ValueError, AttributeError, TypeError):
            nbytes = -1
        if nbytes < 0:
            raise ParameterError(
                f"cache_limit is {self.cache_limit!r}, but it must be a number of bytes or a text "
                "such as '100MB'."
            )
        return nbytes


def _as_searched(options: Options, is_exact: bool) -> Options:
    """Return options by which a graph that is given could have been built, in any dimension."""
    if is_exact:
        return dataclasses.replace(options, knn="exact", knn_index="cells")
    return dataclasses.replace(options, knn="approximate", knn_index="pynndescent")


def find_job(
    source: Any,
    out: str | os.PathLike[str],
    *,
    graph: Any = None,
    component: str | None = None,
    keep: str = "predict",
    cache_limit: int | str | None = None,
    seed: int = 42,
    **options: Any,
) -> Job:
    """Return what the arguments of `fit` ask for, or raise a sentence."""
    KEEP.check("keep", keep)
    names = {field.name for field in dataclasses.fields(Options)} & options.keys()
    params = {name: value for name, value in options.items() if name not in names}
    asked = Params.from_keywords({**params, "seed": seed})
    chosen = Options(seed=seed, **{name: options[name] for name in names})
    folder = Folder(address(out))
    data = find_input(source, component, folder)
    chosen = chosen.check(data.source.shape[0])
    known = None if graph is None else _as_graph(graph)
    return Job(folder, data, chosen, asked, known, keep, cache_limit)


@contextlib.contextmanager
def place_of_run(
    source: Any, out: str | os.PathLike[str] | None, suffix: str = ".spore"
) -> Iterator[tuple[str | os.PathLike[str], Callable[[Any], None]]]:
    """Yield where a result goes by default, and what is to be called with it when it is finished.

    That of data in memory has a temporary folder, which goes with the result, or with an error.
    """
    out = place_beside(source, suffix) if out is None else out
    if out is not None:
        yield out, lambda result: None
        return
    temporary = tempfile.mkdtemp(prefix="spore_dask-")
    remove = functools.partial(shutil.rmtree, temporary, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        stack.callback(remove)

        def keep(result: Any) -> None:
            stack.pop_all()
            weakref.finalize(result, remove)

        yield temporary, keep


def place_beside(source: Any, suffix: str = ".spore") -> str | None:
    """Return where the run of a source goes by default; None for data in memory."""
    if isinstance(source, zarr.Array):
        source = address_of(source)
    if not isinstance(source, str | os.PathLike):
        return None
    store, _, _ = (address(source).rstrip("/") + "/").partition(".zarr/")
    return store.rstrip("/") + suffix


def _as_graph(graph: Any) -> Graph:
    """Return the graph that a user means."""
    if isinstance(graph, Graph):
        return graph
    if isinstance(graph, Run) or run_ids(Folder(address(graph))):
        return Graph(*as_run(graph).graph)
    return Graph(graph)
