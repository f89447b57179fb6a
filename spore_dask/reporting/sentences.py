"""Sentences of the page that depend on the run. Reads the summary."""

from __future__ import annotations

from dask.utils import format_bytes

from spore_dask.reporting.colors import PALETTE
from spore_dask.reporting.maps import Map
from spore_dask.reporting.samples import in_memory
from spore_dask.runs import Run
from spore_dask.tasks import MARKER


def title(run: Run) -> str:
    """Name what was clustered."""
    if in_memory(run):
        return "An array in memory"
    name: str = run.summary["source"].rstrip("/").rsplit("/", 1)[-1]
    return name


def finished_text(run: Run) -> str:
    """Say when the run was finished, if it is known."""
    finished: str = run.summary.get("finished", "")
    return finished.replace("T", " ").replace("+00:00", " UTC")


def removed_text(run: Run) -> str:
    """Say which stages were removed, where the page lacks something because of it."""
    wanted = [name for name in ("points", "density") if name in run.summary["stages"]]
    places = {name: run.folder.child(run.summary["stages"][name]["name"]) for name in wanted}
    gone = [name for name, folder in places.items() if not folder.exists(MARKER)]
    if not gone:
        return ""
    return (
        f"The stages {' and '.join(gone)} of this run were removed "
        f"(keep={run.summary['keep']!r}): what only they know is not on this page."
    )


def map_text(drawn: Map, run: Run) -> str:
    """Say what the map shows, and how to use it."""
    n_points = run.summary["n_points"]
    what = "All points" if drawn.n_drawn == n_points else f"{drawn.n_drawn:,} points drawn evenly"
    if drawn.picture is not None:
        what += (
            ", a pixel in the colour of most of its points and the more opaque the more it has; "
            f"{len(drawn.x):,} of them are dots to point at, small clusters with more than their "
            "share, which appear as you zoom in"
        )
    parts = [f"{what}{', ' + drawn.remark if drawn.remark else ''}."]
    if drawn.n_outside:
        parts.append(f"{drawn.n_outside:,} lie outside of the first view.")
    parts.append("Drag to move, Ctrl and the wheel to zoom.")
    if run.n_clusters > len(PALETTE):
        parts.append("Colours repeat, but not among neighbours.")
    return " ".join(parts)


def reach_text(run: Run) -> str:
    """Say why there are no distances."""
    if "density" not in run.summary["stages"]:
        return "There are no distances: all points are the same."
    return "There is no distribution of distances: the density stage was not kept."


def memory_text(run: Run) -> str:
    """Say what the limit is."""
    limit = format_bytes(run.summary["memory_limit"])
    return f"Peak resident memory of each process; the limit is {limit} each."


def versions_title(run: Run) -> str:
    """Say what versions are those of."""
    return "Versions" if run.summary.get("versions") else "Versions that made this page"
