"""How good the choice among trials without labels is, on data whose labels are known.

    python -m pipelines.choices --data FOLDER [sets] [cross] [fewer] [rows] [tuned]

FOLDER has .npz files with X and y. Each set is prepared as in the paper (columns clipped to six
deviations, then scaled to [0, 1], then some reduced by PCA) and clustered with the default
configuration and 50 drawn ones over one graph; so are the generated sets of `pipelines.shapes`.
`sets` prints the adjusted Rand index (ARI) of the default, of what the plain rule and ours choose,
and of the best trial; `cross` chooses the two constants of the rule on other sets than it is
measured on; `fewer` has fewer trials, alone or with 50 voters; `rows` compares only some rows;
`tuned` has `tune` choose.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from pipelines.benchmark.preparing import CLIP_MINMAX, Dataset, prepared, read_folder, scaled
from pipelines.benchmark.spores import drawn
from pipelines.shapes import generated
from spore_dask import Params, tune
from spore_dask.choosing import agreement, choose, degenerate
from spore_dask.voters import voter_labels

Floats = NDArray[np.float64]

HARD = {"har", "fashion", "pbmc3k"}
BEYOND = {"mnist"}
"""Sets that the paper does not have."""
LARGE = 20_000
"""Points from which on the working dtype is float32."""
N_ROWS = 5_000
N_VOTERS = 50
FEWER = (10, 20, 30, 51)
N_SUBSETS = 3
MADE_SEEDS = (1, 2, 3, 4)
"""Seeds of the generated sets, and of the configurations drawn for them."""
GRID = [(power, trust) for power in (1, 1.25, 1.5, 1.75, 2, 3) for trust in (0, 0.5, 1, 1.5, 2)]
"""Exponents of the agreement, and of the weight 1 - retention rate, to choose from."""


@dataclasses.dataclass(frozen=True)
class Trials:
    """What the trials of one set gave."""

    name: str
    x: Floats
    labels: NDArray[np.int32]
    """(n_trials, N)."""
    retention: Floats
    """(n_trials,)"""
    ari: Floats
    """(n_trials,), against the true labels."""

    def sample(self, n_rows: int = N_ROWS, seed: int = 0) -> NDArray[np.int64]:
        """Return rows to compare."""
        return np.random.default_rng(seed).permutation(len(self.x))[:n_rows]


def datasets(folder: Path) -> Iterator[Dataset]:
    """Read and prepare the sets that have labels."""
    for raw in read_folder(folder):
        yield from prepared(raw, CLIP_MINMAX)


def drawn_params(n_points: int, n_draws: int, seed: int) -> list[Params]:
    """Draw configurations from the space of the paper."""
    return [Params(**config) for config in drawn(n_points, n_draws, seed)]


def retention_of(trials: list[Params]) -> Floats:
    """Return the retention rates, 0 where there are none."""
    return np.array([params.retention_rate or 0.0 for params in trials])


def tried(name: str, x: Floats, y: NDArray[np.int64], seed: int) -> Trials:
    """Cluster with the default configuration and 50 others."""
    trials = [Params(), *drawn_params(len(x), 50, seed)]
    x = np.ascontiguousarray(x, np.float32 if len(x) > LARGE else np.float64)
    labels = voter_labels(x, trials)
    ari = np.array([adjusted_rand_score(y, row) for row in labels])
    return Trials(name, x, labels, retention_of(trials), ari)


def plain_choice(labels: NDArray[np.int32]) -> int:
    """Return the usable trial with the highest mean agreement with the other usable ones."""
    usable = ~degenerate(labels)
    voting = usable if usable.any() else np.ones(len(labels), bool)
    pairs = agreement(labels)
    np.fill_diagonal(pairs, 0)
    return int(np.argmax(np.where(voting, pairs[:, voting].sum(axis=1).round(9), -np.inf)))


def outcomes(one: Trials) -> Floats:
    """Return the ARI of the default, the plain choice, our choice, and the best trial."""
    labels = one.labels[:, one.sample()]
    ours = choose(labels, one.retention).best
    return one.ari[[0, plain_choice(labels), ours, int(np.argmax(one.ari))]]


def line(name: str, values: Floats) -> None:
    """Print the four outcomes."""
    print(f"{name:<36}" + "".join(f"{value:>9.3f}" for value in values))


def print_sets(real: list[Trials], made: list[Trials]) -> None:
    """Print the choice on each set, and means."""
    print(f"{'':<36}{'default':>9}{'plain':>9}{'ours':>9}{'best':>9}")
    found = {one.name: outcomes(one) for one in real}
    for name, values in found.items():
        line(name, values)
    paper = {name: values for name, values in found.items() if name not in BEYOND}
    easy = [values for name, values in paper.items() if name not in HARD]
    line(f"mean of {len(easy)}, without {len(HARD)} hard ones", np.mean(easy, axis=0))
    line(f"mean of {len(paper)}", np.mean(list(paper.values()), axis=0))
    shapes = np.array([outcomes(one) for one in made])
    names = np.array([one.name for one in made])
    for name in dict.fromkeys(names):
        line(f"{name} ({np.sum(names == name)})", shapes[names == name].mean(axis=0))
    line(f"mean of {len(made)} generated", shapes.mean(axis=0))
    for name, values in (("paper", np.array(list(paper.values()))), ("generated", shapes)):
        gain = values[:, 2] - values[:, 1]
        error = gain.std() / math.sqrt(len(gain))
        print(f"ours above plain, {name}: {gain.mean():+.3f} +- {error:.3f}")


def chosen_with(one: Trials) -> Floats:
    """Return the ARI of what each pair of constants chooses."""
    labels = one.labels[:, one.sample()]
    pairs, useless = np.clip(agreement(labels), 0, 1), degenerate(labels)
    found = []
    for power, trust in GRID:
        weights = (1 - one.retention) ** trust
        votes = pairs**power * weights
        np.fill_diagonal(votes, 0)
        scores = (votes.sum(axis=1) / (weights.sum() - weights)).round(9)
        scores[useless & ~useless.all()] = -np.inf
        found.append(one.ari[np.argmax(scores)])
    return np.array(found)


def family(name: str) -> str:
    """Return what similar sets of the paper have in common: they are held out together."""
    return name.split("_")[0].rstrip("34")


def print_cross(real: list[Trials], made: list[Trials]) -> None:
    """Choose the constants on some sets, and measure them on others."""
    real = [one for one in real if one.name not in BEYOND]
    on_real = np.array([chosen_with(one) for one in real])
    on_made = np.array([chosen_with(one) for one in made])
    families = np.array([family(one.name) for one in real])
    easy = np.array([one.name not in HARD for one in real])
    plain = np.array([outcomes(one)[1] for one in real])
    held = np.empty(len(real))
    for name in np.unique(families):
        out = families == name
        held[out] = on_real[out, np.argmax(on_real[~out].mean(axis=0))]
    best_made = int(np.argmax(on_made.mean(axis=0)))
    moved = on_real[:, best_made]
    for what, values in (
        ("chosen on the other families of the paper", held),
        (f"chosen on generated sets, {GRID[best_made]}", moved),
    ):
        gain = values - plain
        print(
            f"cross      {what}: {values[easy].mean():.3f} on {easy.sum()}, {values.mean():.3f} on "
            f"{len(values)}; above plain {gain.mean():+.3f} +- {gain.std() / len(gain) ** 0.5:.3f}"
        )
    best_real = int(np.argmax(on_real.mean(axis=0)))
    print(
        f"cross      chosen on the paper's sets, {GRID[best_real]}: "
        f"{on_made[:, best_real].mean():.3f} on {len(made)} generated, "
        f"plain {np.mean([outcomes(one)[1] for one in made]):.3f}"
    )


def print_fewer(real: list[Trials], made: list[Trials]) -> None:
    """Choose among some of the trials, with and without voters."""
    for what, sets in (("paper", real), ("generated", made)):
        found = np.mean([fewer(one) for one in sets if one.name not in BEYOND], axis=0)
        for n_trials, (plain, ours, voted, best) in zip(FEWER, found, strict=True):
            print(
                f"fewer      {what}, {n_trials} trials: plain {plain:.3f}, ours {ours:.3f}, "
                f"with {N_VOTERS} voters {voted:.3f}, best {best:.3f}"
            )


def fewer(one: Trials) -> Floats:
    """Return the ARI of the plain choice, ours, ours with voters, the best, a row each of FEWER."""
    rows = one.sample()
    voters = drawn_params(len(rows), N_VOTERS, seed=len(one.x))
    votes = voter_labels(np.ascontiguousarray(one.x[rows]), voters)
    rates = retention_of(voters)
    found = np.zeros((len(FEWER), N_SUBSETS, 4))
    for (i, n_trials), seed in itertools.product(enumerate(FEWER), range(N_SUBSETS)):
        order = 1 + np.random.default_rng(seed).permutation(len(one.ari) - 1)
        some = np.append(0, order[: n_trials - 1])
        labels, own = one.labels[np.ix_(some, rows)], one.retention[some]
        ours = choose(labels, own).best
        voted = choose(labels, own, voters=votes, voter_retention=rates).best
        best = int(np.argmax(one.ari[some]))
        found[i, seed] = one.ari[some[[plain_choice(labels), ours, voted, best]]]
    return found.mean(axis=1)


def print_rows(real: list[Trials], made: list[Trials]) -> None:
    """Compare samples of the rows of large sets."""
    for one in real:
        if len(one.x) > N_ROWS:
            means = []
            for n_rows in (20_000, 5_000, 2_000, 1_000):
                rows = [one.sample(n_rows, seed) for seed in range(3 if n_rows < len(one.x) else 1)]
                best = [choose(one.labels[:, some], one.retention).best for some in rows]
                means.append(f"{n_rows} {one.ari[best].mean():.3f}")
            print(f"rows       {one.name}, {len(one.x)} points: {', '.join(means)}")


def print_tuned(real: list[Trials], made: list[Trials]) -> None:
    """Have `tune` itself choose, voters included, among the same trials of the paper's sets."""
    chosen = {}
    for one in real:
        if one.name not in BEYOND:
            best = tune(one.x, n_trials=len(one.ari), n_workers=0).best
            chosen[one.name] = float(one.ari[best])
            print(f"tuned      {one.name:<28}{chosen[one.name]:.3f}", flush=True)
    easy = [ari for name, ari in chosen.items() if name not in HARD]
    print(f"tuned      mean of {len(easy)} {np.mean(easy):.3f} (aim 0.80), "
          f"of {len(chosen)} {np.mean([*chosen.values()]):.3f} (aim 0.76)")  # fmt: skip


PARTS: dict[str, Callable[[list[Trials], list[Trials]], None]] = {
    "sets": print_sets,
    "cross": print_cross,
    "fewer": print_fewer,
    "rows": print_rows,
    "tuned": print_tuned,
}


def main(arguments: list[str] | None = None) -> None:
    """Run the parts that the command line asks for."""
    parser = argparse.ArgumentParser(prog="choices", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which; all by default")
    parser.add_argument("--data", type=Path, required=True, help="a folder of .npz files")
    parser.add_argument("--seed", type=int, default=42, help="of what is drawn for the data")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    real = [tried(one.name, one.x, one.y, options.seed) for one in datasets(options.data)]
    needs_made = set(options.parts or PARTS) - {"rows", "tuned"}
    made = [
        tried(name, scaled(x, CLIP_MINMAX), y, seed)
        for seed in (MADE_SEEDS if needs_made else ())
        for name, x, y in generated(seed)
    ]
    print(f"           trials: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    for name in options.parts or PARTS:
        PARTS[name](real, made)


if __name__ == "__main__":
    main()
