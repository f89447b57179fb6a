"""Write what the runs have left as a section of a page: tables, plots, and what they say.

Reads OUT/machine.json and OUT/cells; writes a section of FOLDER/results.md ("scale", or
"scale_tails" for another family of data), and pictures beside it. Every sentence with a figure is
computed from the results.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipelines.scale.cells import ABSENT, NOT_TRIED, OVER_MEMORY, Result, read_results
from pipelines.scale.contestants import CONTESTANTS, N_SAMPLED, OURS, PAPER
from pipelines.scale.plots import draw_memory, draw_time
from pipelines.scale.running import LEAST_JACCARD, SIZE_CLASSES, SMALL
from pipelines.sections import listed, picture, replace_section
from spore_dask import InputError

TITLES = {
    "shapes": "Beside its peers, at scale",
    "tails": "Beside its peers, with many small clusters",
    "clouds": "Beside its peers, with clouds that overlap",
}
CELL_SEPARATOR = " · "


def write_page(out: Path, folder: Path) -> None:
    """Write tables and plots of the results in `out` into `folder`/results.md."""
    results = [r for r in read_results(out) if r.contestant in CONTESTANTS]
    if not any(result.contestant == OURS for result in results):
        raise InputError("There is no result of ours to write about: run `pipelines.scale run`.")
    machine = json.loads((out / "machine.json").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    family = results[0].family
    section = "scale" if family == "shapes" else f"scale_{family}"
    time, memory = draw_time(folder, section, results), draw_memory(folder, section, results)
    parts = [
        f"## {TITLES[family]}",
        introduction(machine, results),
        "\n".join(f"- {sentence}" for sentence in findings(results)),
        picture(time, "Seconds against points, for each number of columns"),
        picture(memory, "Memory of a process against points, and the cap"),
        *(table(results, n_columns) for n_columns in sorted({r.n_columns for r in results})),
        *found_table(results),
    ]
    replace_section(folder / "results.md", section, "\n\n".join(parts))


def introduction(machine: dict[str, Any], results: list[Result]) -> str:
    """Say what was run, on what, and how it was measured."""
    versions = {r.contestant: f"{CONTESTANTS[r.contestant].package} {r.version}"
                for r in results if r.version}  # fmt: skip
    packages = ", ".join(sorted({*versions.values(), *spelled(machine["versions"])}))
    commands = listed([f"`{command}`" for command in machine["commands"]])
    cap = max(result.memory_limit or 0 for result in results)
    return (
        f"{commands} ({machine['date']}; {machine['processor']}, "
        f"{machine['n_cores']} cores, {size(machine['memory_nbytes'])}; Python "
        f"{machine['python']}; {packages}).\n\n"
        f"Each contestant has a process of its own, two threads or two worker processes, and "
        f"{size(cap)} of private memory for each process: pages that no file backs, asked for "
        "every 50 ms; who has more is ended. Ours reads Zarr and writes a run to disk, the others "
        "read a .npy file through a memory map. Time counts from the first byte that is loaded to "
        "the labels; imports, and compilation on a few other rows, come before. Ours runs first, "
        f"with its defaults; {time_limits(results)}; who runs over time or memory is not tried "
        "with more points. "
        f"K-means is told the true number of clusters; HDBSCAN gets {minimum(results)}, and "
        "the paper's density neighbours as `min_samples`. The adjusted Rand index leaves out the "
        f"{100 * results[0].background:g} % of rows that are background, counts what is labelled "
        "as noise as one cluster, "
        f"and takes a sample where there are more than a million. {N_SAMPLED:,} rows of a sample "
        "are clustered by fast_hdbscan; all others take the label of the nearest of them."
    )


def minimum(results: list[Result]) -> str:
    """Say what HDBSCAN has as minimum cluster size."""
    if results[0].family == "tails":
        return f"a minimum cluster size of {SMALL}"
    return "the minimum cluster size of the paper's defaults"


def time_limits(results: list[Result]) -> str:
    """Say how long the others may take: it follows ours, up to the limit that all have."""
    factors = span([result.factor or 0 for result in results], "g")
    caps = [result.limit_seconds for result in results if result.ours and result.limit_seconds]
    least = f"the others then have {factors} times as long, a minute at least"
    if not caps:
        return least
    return (
        f"{least}, but like ours never more than {span(caps, 'g')} s, which is what they have "
        "where ours did not finish"
    )


def spelled(versions: dict[str, str]) -> Iterable[str]:
    """Yield packages with their versions."""
    return (f"{name} {version}" for name, version in versions.items())


def size(nbytes: float) -> str:
    """Spell a size."""
    return f"{nbytes / 2**20:.0f} MiB" if nbytes < 2**30 else f"{nbytes / 2**30:.3g} GiB"


def count(n_points: int) -> str:
    """Spell a number of points, powers of ten as such."""
    power = round(math.log10(n_points))
    return f"10^{power}" if 10**power == n_points else f"{n_points:,}"


def seconds(value: float | None) -> str:
    """Spell a time."""
    return f"{value or 0:.1f} s" if (value or 0) < 100 else f"{value:.0f} s"


def span(values: Iterable[float], form: str) -> str:
    """Spell the least and the greatest, once if they are the same."""
    ends = list(values)
    low, high = format(min(ends), form), format(max(ends), form)
    return low if low == high else f"{low} to {high}"


def cells_of(results: list[Result]) -> dict[tuple[int, int], list[Result]]:
    """Return the results of each cell, by columns and points."""
    cells: dict[tuple[int, int], list[Result]] = {}
    for result in results:
        cells.setdefault((result.n_columns, result.n_points), []).append(result)
    return cells


def places(cells: Iterable[tuple[int, int]]) -> str:
    """Spell cells: in 2 columns at 10^5 and 10^6 points, in 8 columns at 10^5 points."""
    points: dict[int, list[str]] = {}
    for n_columns, n_points in sorted(cells):
        points.setdefault(n_columns, []).append(count(n_points))
    return ", ".join(f"in {c} columns at {listed(n)} points" for c, n in points.items())


def findings(results: list[Result]) -> list[str]:
    """Return sentences on who finished, who was the fastest, and who clustered best."""
    cells = cells_of(results)
    return [
        *finished(cells),
        *fastest(cells),
        *losses(cells),
        *sampled(cells),
        *centres(cells),
        *better(cells),
        *unfinished(results),
    ]


def ours_of(cell: list[Result]) -> Result | None:
    """Return our result in a cell, if it is done."""
    return next((result for result in cell if result.contestant == OURS and result.done), None)


def rivals(cell: list[Result], kind: str) -> list[Result]:
    """Return the others of a kind that are done, the fastest first."""
    found = [r for r in cell if r.done and not r.ours and r.kind == kind]
    return sorted(found, key=lambda r: r.seconds or 0)


def finished(cells: dict[tuple[int, int], list[Result]]) -> list[str]:
    """Say how many cells ours has finished, and in how much memory, finished or not."""
    tried = [r for cell in cells.values() for r in cell if r.contestant == OURS]
    peaks = [result.peak_nbytes for result in tried if result.peak_nbytes]
    had = f"; its largest process had {size(max(peaks))} of private memory" if peaks else ""
    return [f"Ours finished {sum(r.done for r in tried)} of {len(tried)} cells{had}."]


def is_contested(cell: list[Result]) -> bool:
    """Say whether a density-based peer had a chance in a cell: it was there to be tried."""
    return any(not r.ours and r.kind == "density" and r.outcome != ABSENT for r in cell)


def fastest(cells: dict[tuple[int, int], list[Result]]) -> list[str]:
    """Say where ours is the fastest density-based method on all points."""
    won = {}
    for at, cell in cells.items():
        ours, others = ours_of(cell), rivals(cell, "density")
        if not ours or not is_contested(cell):
            continue
        if not others or (ours.seconds or 0) <= (others[0].seconds or 0):
            won[at] = others[0].seconds / ours.seconds if others else None
    ratios = [ratio for ratio in won.values() if ratio]
    alone = [at for at, ratio in won.items() if ratio is None]
    lines = []
    if won:
        by = f", {span(ratios, '.1f')} times as fast as the next" if ratios else ""
        lines.append(
            f"Among density-based methods that cluster all points, ours is the fastest "
            f"{places(won)}{by}."
        )
    if alone:
        lines.append(
            f"It is the only one of them that finished within these limits {places(alone)}."
        )
    return lines


def losses(cells: dict[tuple[int, int], list[Result]]) -> list[str]:
    """Say where ours is not the fastest, who is, and what took ours its time."""
    lines = []
    for (n_columns, n_points), cell in sorted(cells.items()):
        ours, others = ours_of(cell), rivals(cell, "density")
        if not ours or not others or (others[0].seconds or 0) >= (ours.seconds or 0):
            continue
        ahead = [r for r in others if (r.seconds or 0) < (ours.seconds or 0)]
        names = ", ".join(f"{r.title} ({seconds(r.seconds)}, ARI {r.ari:.3f})" for r in ahead)
        lines.append(
            f"{n_columns} columns, {count(n_points)} points: ours ({seconds(ours.seconds)}, ARI "
            f"{ours.ari:.3f}) is slower than {names}: {spent(ours)}."
        )
    return lines


def spent(ours: Result) -> str:
    """Say what our longest stage took, and what no stage did."""
    if not ours.stage_seconds:
        return "it names no stages"
    name, longest = max(ours.stage_seconds.items(), key=lambda item: item[1])
    rest = (ours.seconds or 0) - sum(ours.stage_seconds.values())
    return (
        f"its stage {name!r} took {seconds(longest)}, and starting workers, pilots and the way "
        f"between stages {seconds(rest)}"
    )


def sampled(cells: dict[tuple[int, int], list[Result]]) -> list[str]:
    """Say where a sample with nearest neighbours is faster, and how well it clusters."""
    ahead, compared = {}, False
    for at, cell in cells.items():
        ours, others = ours_of(cell), rivals(cell, "sample")
        if not ours or not others:
            continue
        compared = True
        if (others[0].seconds or 0) < (ours.seconds or 0):
            ahead[at] = (others[0].ari or 0) - (ours.ari or 0)
    if not compared:
        return []
    if not ahead:
        return ["HDBSCAN on a sample, with nearest neighbours, is nowhere faster than ours."]
    return [
        f"HDBSCAN on a sample, with nearest neighbours, is faster than ours {places(ahead)}; its "
        f"ARI less ours is {span(ahead.values(), '+.3f')} there."
    ]


def centres(cells: dict[tuple[int, int], list[Result]]) -> list[str]:
    """Say where K-means is faster, and how well it clusters."""
    ahead, scores, own, compared = set(), [], [], False
    for at, cell in cells.items():
        ours = ours_of(cell)
        for result in rivals(cell, "centres") if ours else []:
            compared = True
            if ours and (result.seconds or 0) < (ours.seconds or 0):
                ahead.add(at)
                scores.append(result.ari or 0)
                own.append(ours.ari or 0)
    if not compared:
        return []
    if not ahead:
        return ["K-means is nowhere faster than ours."]
    return [
        f"K-means, in one of its variants, is faster than ours {places(ahead)}; its ARI is "
        f"{span(scores, '.3f')}, ours {span(own, '.3f')}."
    ]


def better(cells: dict[tuple[int, int], list[Result]]) -> list[str]:
    """Say who clustered better than ours, where."""
    lines = []
    for (n_columns, n_points), cell in sorted(cells.items()):
        ours = ours_of(cell)
        done = [r for r in cell if r.done and not r.ours]
        best = max(done, key=lambda r: r.ari or 0, default=None)
        if ours and best and (best.ari or 0) > (ours.ari or 0) + 0.005:
            lines.append(
                f"{n_columns} columns, {count(n_points)} points: {best.title} has the highest ARI, "
                f"{best.ari:.3f}, ours {ours.ari:.3f}: {parted(ours, best)}{by_paper(cell)}."
            )
    return lines


def parted(ours: Result, best: Result) -> str:
    """Say how many clusters ours and a better result have, and how many there are."""
    text = (
        f"it has {ours.n_clusters or 0} clusters and {ours.noise or 0:.1%} noise where "
        f"{best.title} has {best.n_clusters or 0} and {best.noise or 0:.1%}"
    )
    if ours.n_true is None:
        return text
    return f"{text}, and the data {ours.n_true} and {ours.background:.1%}"


def by_paper(cell: list[Result]) -> str:
    """Say what the paper's parameters do instead."""
    return "".join(
        f"; with the paper's parameters it has {r.ari:.3f} with {r.n_clusters} clusters, in "
        f"{seconds(r.seconds)}"
        for r in cell
        if r.contestant == PAPER and r.done
    )


def unfinished(results: list[Result]) -> list[str]:
    """Say who did not finish, where, and why."""
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for result in results:
        if not result.done and result.outcome not in (ABSENT, NOT_TRIED):
            key = result.title, result.outcome
            groups.setdefault(key, []).append((result.n_columns, result.n_points))
    return [f"{title}: {outcome} {places(at)}." for (title, outcome), at in groups.items()]


def table(results: list[Result], n_columns: int) -> str:
    """Return the table of one number of columns: a row for each contestant."""
    here = [result for result in results if result.n_columns == n_columns]
    points = sorted({result.n_points for result in here})
    lines = [
        f"### {n_columns} columns",
        "Seconds and the processors in use meanwhile, of two (fewer where others had to wait for "
        "them), peak private memory of the largest process, adjusted Rand index; the fastest that "
        "is density-based and takes all points is in bold.",
        "| | " + " | ".join(f"{count(n)} points" for n in points) + " |",
        "|---|" + "---|" * len(points),
    ]
    names = {result.contestant for result in results}
    for contestant in (each for each in CONTESTANTS.values() if each.name in names):
        row = [cell_text([r for r in here if r.n_points == n], contestant.name) for n in points]
        lines.append(f"| {contestant.title} | " + " | ".join(row) + " |")
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:])


def found_table(results: list[Result]) -> list[str]:
    """Return a table of the true clusters that were found, a row for each contestant and cell."""
    lines = [
        f"| {r.n_columns} columns, {count(r.n_points)} points | {r.title} | "
        + " | ".join(map(functools.partial(share_text, r), SIZE_CLASSES))
        + (f" | {r.choice['score'] or 0:.3f} |" if r.choice else " | |")
        for r in results
        if r.found
    ]
    if not lines:
        return []
    head = (
        "### True clusters that were found\n\nA true cluster is found if it and some cluster have "
        f"{LEAST_JACCARD:.0%} of the rows of both in common; background counts. The share of them, "
        "by their number of rows. The last column is the score of the parameters that were chosen."
    )
    names = " | ".join(SIZE_CLASSES)
    rule = "|---|---|" + "---|" * (len(SIZE_CLASSES) + 1)
    return [head, "\n".join((f"| | | {names} | score |", rule, *lines))]


def share_text(result: Result, name: str) -> str:
    """Say what share of the true clusters of a class was found, if there are any."""
    n_found, n_true = result.found.get(name, (0, 0))
    return f"{n_found / n_true:.3f} of {n_true}" if n_true else ""


def cell_text(cell: list[Result], name: str) -> str:
    """Say what a contestant did in a cell."""
    result = next((r for r in cell if r.contestant == name), None)
    if result is None:
        return ""
    if not result.done:
        return lost_text(result)
    best = min((r.seconds or 0 for r in cell if r.done and r.kind == "density"), default=math.inf)
    time = seconds(result.seconds)
    if result.kind == "density" and result.seconds == best:
        time = f"**{time}**"
    if result.cpu_seconds is not None and result.seconds:
        time += f" x {result.cpu_seconds / result.seconds:.1f}"
    return CELL_SEPARATOR.join((time, size(result.peak_nbytes or 0), f"{result.ari:.3f}"))


def lost_text(result: Result) -> str:
    """Say why a contestant did not finish."""
    if result.outcome == OVER_MEMORY:
        return f"over memory after {seconds(result.stopped_seconds)}"
    reason = result.reason.replace("|", "/")
    separator = " " if reason.startswith("after") else ": "
    return f"{result.outcome}{separator}{reason}" if reason else result.outcome
