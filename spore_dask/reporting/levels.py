"""The levels that a choice of parameters found, as small maps beside each other.

Reads the labels of the rows that were compared, and their coordinates.
"""

from __future__ import annotations

import base64
import dataclasses
import logging
from typing import Any

from spore_dask.reporting.maps import draw_levels
from spore_dask.reporting.samples import in_memory
from spore_dask.runs import Run
from spore_dask.telling import one_pass

LOGGER = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ShownLevel:
    """One of the levels."""

    title: str
    facts: str
    is_taken: bool
    picture: str
    """A PNG as a data address; empty where there is none."""
    call: str
    """The call that takes this level: over the same graph, if all levels share one."""


def levels(run: Run) -> list[ShownLevel]:
    """Return the levels of a run from coarse to fine; none if its parameters were given."""
    found: list[dict[str, Any]] = run.choice["levels"] if run.choice else []
    if not found or run.choice is None:
        return []
    try:
        pictures = [
            f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in draw_levels(run)
        ]
    except Exception:  # the page is still one without them
        LOGGER.info("There are no maps of the levels of %s.", run.path, exc_info=True)
        pictures = [""] * len(found)
    source = "x" if in_memory(run) else repr(run.summary["source"])
    excerpt = run.choice.get("excerpt")
    graph = "" if excerpt else f"graph={run.path!r}, "
    where = " on the excerpt" if excerpt else ""
    return [
        ShownLevel(
            title=f"{level['n_clusters']:,} clusters{where}",
            facts=f"{level['noise']:.1%} noise, largest {level['largest']:.1%}, "
            f"agreement {level['score']:.2f}",
            is_taken=level["trial"] == run.choice["trial"],
            picture=picture,
            call=f"fit({source}, {run.path!r}, {graph}{one_pass(level)})",
        )
        for level, picture in zip(found, pictures, strict=True)
    ]
