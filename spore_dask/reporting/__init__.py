"""`report`: what a run has found and what it took, in one HTML file.

Reads a run's folder, and the source if the run's points were not kept; writes the file. Memory: a
few numbers for each of at most a million drawn rows, one partition, and one record a cluster.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from spore_dask.errors import InputError
from spore_dask.reporting.colors import spread_colors
from spore_dask.reporting.distances import count_reach, gates_of, marks_of
from spore_dask.reporting.facts import (
    headline,
    largest,
    legend,
    memory_bars,
    provenance_bars,
    stage_bars,
)
from spore_dask.reporting.figures import draw_points, draw_reach, draw_sizes, figure_items
from spore_dask.reporting.levels import levels
from spore_dask.reporting.maps import Map, draw_map
from spore_dask.reporting.page import render
from spore_dask.reporting.recipes import command_line, parameters, python_call, thresholds, versions
from spore_dask.reporting.samples import Missing, count_provenance
from spore_dask.reporting.sentences import (
    finished_text,
    map_text,
    memory_text,
    reach_text,
    removed_text,
    title,
    versions_title,
)
from spore_dask.runs import Run, as_run
from spore_dask.store import Folder, address
from spore_dask.telling import choice_sentence

__all__ = ["report"]

LOGGER = logging.getLogger(__name__)
GENERATOR, HEAD_NBYTES = b'content="spore-dask"', 1024
"""By what the beginning of a report is known."""


def report(run: Run | str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> str:
    """Write what a run has found and what it took as one HTML file.

    The file needs no network and no other file. The same run gives the same bytes.

    Parameters
    ----------
    run : Run, path or URL
    out : path or URL, optional
        The file. Default: `report-ID.html` in the run's folder.

    Returns
    -------
    str
        Where the file is.
    """
    run = as_run(run)
    folder, name = _place(run, out)
    folder.write_bytes(name, _page(run).encode())
    return f"{folder.url}/{name}"


def _place(run: Run, out: str | os.PathLike[str] | None) -> tuple[Folder, str]:
    """Return the folder and the name of the file."""
    if out is None:
        return run.folder, f"report-{run.id}.html"
    url, _, name = address(out).rpartition("/")
    folder = Folder(url)
    if not name or (folder.is_local and os.path.isdir(f"{url}/{name}")):
        raise InputError(
            f"out is {os.fspath(out)!r}, which is a folder: give the name of a file in it, such "
            f"as {os.path.join(os.fspath(out), 'report.html')!r}."
        )
    if folder.exists(name) and GENERATOR not in folder.read_bytes(name)[:HEAD_NBYTES]:
        raise InputError(
            f"out is {os.fspath(out)!r}, and there is a file already that is not a report of "
            "spore_dask: give another out=, or remove it."
        )
    return folder, name


def _page(run: Run) -> str:
    """Return the page of a run."""
    drawn, no_map = _map(run)
    clusters = run.clusters
    colors = spread_colors(None, clusters["size"]) if drawn is None else drawn.colors
    reach, marks = count_reach(run), marks_of(run)
    provenance = count_provenance(run)
    figures: dict[str, Any] = {} if drawn is None else {"map": draw_points(drawn)}
    if len(clusters):
        figures["sizes"] = draw_sizes(clusters["size"], colors)
    if reach is not None:
        rank = run.summary["params"]["expansion_neighbors"]
        figures["reach"] = draw_reach(reach, marks, rank)
    facts, top = headline(run), largest(run, colors)
    return render(
        {"summary": run.summary, "id": run.id, "provenance": provenance},
        figure_items(figures),
        run=run,
        summary=run.summary,
        title=title(run),
        finished=finished_text(run),
        facts=facts,
        removed=removed_text(run),
        choice=choice_sentence(run.choice) if run.choice else "",
        levels=levels(run),
        drawn=drawn,
        no_map=no_map,
        map_note="" if drawn is None else map_text(drawn, run),
        legend=legend(run, top),
        reach=reach,
        no_reach=reach_text(run),
        marks=marks,
        provenance=provenance_bars(provenance),
        stages=stage_bars(run),
        memory=memory_bars(run),
        memory_note=memory_text(run),
        clusters=top,
        parameters=parameters(run),
        thresholds=thresholds(run, gates_of(clusters, run.thresholds)),
        python_call=python_call(run),
        command_line=command_line(run),
        versions=versions(run),
        versions_title=versions_title(run),
    )


def _map(run: Run) -> tuple[Map | None, str]:
    """Return the map, or None and why there is none: a report without it is still one."""
    try:
        return draw_map(run), ""
    except Missing as reason:
        return None, f"There is no map: {reason}."
    except Exception as error:  # whatever a store or a decoder makes of what it cannot read
        LOGGER.info("There is no map of %s.", run.path, exc_info=True)
        return None, f"There is no map: the data could not be read ({error})."
