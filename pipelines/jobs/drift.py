"""How far today's clusters are from those published last: a document, and a page for people.

Pure: knows counts, no files. All shares are of today's points, so that a cluster that only grew
does not drift.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from pipelines.jobs.matching import NOISE, NONE, Integers, Overlaps

PART = 0.2
"""Share of a cluster from which on it counts as a part, in splits and merges."""
MOST_SHOWN = 50
"""Clusters that the page lists."""
PAGE = Path(__file__).with_name("drift.html")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Today's clusters, and what they are compared with."""

    overlaps: Overlaps
    matched: Integers
    """For each cluster of today the one of before, or `NONE`."""
    numbers: Integers
    """Of today's clusters."""
    numbers_before: Integers


def measure(comparison: Comparison) -> dict[str, Any]:
    """Return what has changed, in plain values.

    `stay` is the share of points that have the same number in both, or in both are noise; `drift`
    is the rest.
    """
    overlaps, matched = comparison.overlaps, comparison.matched
    same = np.append(matched, NOISE)[overlaps.today] == overlaps.before
    same &= (overlaps.today == NOISE) | (overlaps.before != NOISE)
    stay = float(overlaps.counts[same].sum() / overlaps.n_points)
    gone = np.setdiff1d(np.arange(overlaps.n_before), matched[matched != NONE])
    return {
        "stay": stay,
        "drift": 1 - stay,
        "n_kept": int((matched != NONE).sum()),
        "born": comparison.numbers[matched == NONE].tolist(),
        "gone": comparison.numbers_before[gone].tolist(),
        "splits": _parts(comparison, of_before=True),
        "merges": _parts(comparison, of_before=False),
        "clusters": _clusters(comparison),
    }


def _parts(comparison: Comparison, of_before: bool) -> list[dict[str, Any]]:
    """Return clusters of one side with several clusters of the other that hold a part of them."""
    overlaps = comparison.overlaps
    whole, part = overlaps.before, overlaps.today
    sizes, names, others = (
        overlaps.sizes_before(),
        comparison.numbers_before,
        comparison.numbers,
    )
    if not of_before:
        whole, part, names, others = part, whole, others, names
        sizes = overlaps.sizes_today()
    is_part = (whole != NOISE) & (part != NOISE) & (overlaps.counts >= PART * sizes[whole])
    found: dict[int, list[int]] = {}
    for one, other in zip(whole[is_part].tolist(), part[is_part].tolist(), strict=True):
        found.setdefault(int(names[one]), []).append(int(others[other]))
    word = "into" if of_before else "from"
    return [
        {"number": name, word: sorted(parts)}
        for name, parts in sorted(found.items())
        if len(parts) > 1
    ]


def _clusters(comparison: Comparison) -> list[dict[str, Any]]:
    """Return for each cluster of today its size, and what the last run would have given it."""
    sizes, before = comparison.overlaps.sizes_today(), comparison.overlaps.sizes_before()
    n_points = comparison.overlaps.n_points
    return [
        {
            "number": int(comparison.numbers[label]),
            "size": int(sizes[label]),
            "share": float(sizes[label] / n_points),
            "share_by_last_run": None if other == NONE else float(before[other] / n_points),
        }
        for label, other in enumerate(comparison.matched.tolist())
    ]


def page(document: dict[str, Any]) -> str:
    """Return the document as a page; whatever it shows is escaped."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(PAGE.read_text(encoding="utf-8"))
    ranked = sorted(document.get("clusters", []), key=lambda one: -one["size"])
    return template.render(found=document, clusters=ranked[:MOST_SHOWN], n_shown=MOST_SHOWN)
