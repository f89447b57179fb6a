"""The oracle: SPORE in plain Python, slow and obvious, for every fast path to be compared with.

Distances are computed in the dtype of the points; all arithmetic after them is on Python floats
(float64), one rounding per operation, in the order written here.
"""

import math
from collections import Counter, deque
from fractions import Fraction
from typing import Any

import numpy as np

Params = dict[str, Any]
Stats = tuple[float, float]


# Parameters

DEFAULTS: Params = {  # None: derived from the others in resolve
    "min_cluster_size": 0.45,
    "density_neighbors": None,
    "expansion_neighbors": None,
    "reassignment_neighbors": None,
    "max_connectivity": None,
    "min_connectivity": 1,
    "retention_rate": None,
    "min_retained": 1,
    "z": None,
    "z_percentile": 50,
    "max_z": None,
    "max_z_percentile": 100,
    "max_scr_rounds": 10,
    "seeding_order": "density",
    "post_reassignment_policy": "noise",
    "seed": 42,
}


def resolve(params: Params, n_points: int) -> Params:
    """Return the parameters as the algorithm uses them: defaults filled in, counts clamped."""
    unknown = params.keys() - DEFAULTS.keys()
    if unknown:
        raise TypeError(f"unknown parameters {sorted(unknown)}")
    p = DEFAULTS | {name: value for name, value in params.items() if value is not None}

    min_connectivity, max_connectivity = p.pop("min_connectivity"), p.pop("max_connectivity")
    limit = n_points - 1 if max_connectivity is None else min(max_connectivity, n_points - 1)
    size = p["min_cluster_size"]
    m = max(1, math.floor(n_points**size if size < 1 else size))

    kd, ke, kr = (p[f"{phase}_neighbors"] for phase in ("density", "expansion", "reassignment"))
    if kd is None:
        kd = min(m, max(1, math.floor(math.log2(n_points)))) if ke is None else max(1, ke // 2)
    kd = min(kd, limit)
    ke = min(min(m, 2 * kd) if ke is None else ke, limit)
    kr = min(min(m, 2 * ke) if kr is None else kr, limit)

    retention_rate = p.pop("retention_rate")
    if retention_rate is not None:
        p["min_retained"] = max(math.floor(retention_rate * ke), 1)
    return p | {
        "min_cluster_size": m,
        "density_neighbors": kd,
        "expansion_neighbors": ke,
        "reassignment_neighbors": kr,
        "k": min(limit, max(kd, ke, kr, min_connectivity)),
    }


# Working coordinates


def working_coordinates(
    x: np.ndarray, scale: str | None = None, metric: str = "euclidean"
) -> np.ndarray:
    """Scale and normalise in float64, round once to the working dtype, turn -0.0 into 0.0."""
    points = np.column_stack([scaled(column, scale) for column in x.astype(np.float64).T])
    if metric == "cosine":
        points = np.array([unit_vector(row, vector) for row, vector in enumerate(points.tolist())])
    return points.astype(working_dtype(x)) + 0.0  # -0.0 + 0.0 is 0.0


def working_dtype(x: np.ndarray) -> type:
    """Return float64 for float64 and for integers beyond 2**24 in magnitude, else float32."""
    is_float64 = x.dtype.newbyteorder("=") == np.float64
    is_integer = x.dtype.kind in "iu"
    is_large = is_integer and max(abs(int(x.min())), abs(int(x.max()))) > 2**24
    return np.float64 if is_float64 or is_large else np.float32


def scaled(column: np.ndarray, scale: str | None) -> np.ndarray:
    """Scale one float64 column; a column without spread becomes 0."""
    if scale is None:
        return column
    mean, std = mean_and_std(column)
    if scale == "standard":
        return (column - mean) / std if std > 0 else np.zeros_like(column)
    clipped = np.clip(column, mean - 6 * std, mean + 6 * std)  # "clip-minmax"
    low, high = clipped.min(), clipped.max()
    return (clipped - low) / (high - low) if high > low else np.zeros_like(column)


def unit_vector(row: int, vector: list[float]) -> list[float]:
    """Divide a vector by its L2 norm."""
    norm = norm_in_order(vector)
    if norm == 0:
        raise ValueError(f"row {row} is a zero vector, which has no cosine distance")
    return [value / norm for value in vector]


def norm_in_order(values: list[float]) -> float:
    """Return the Euclidean norm, squares summed from the first to the last."""
    total = 0.0
    for value in values:
        total += value * value
    return math.sqrt(total)


def mean_and_std(values: np.ndarray) -> Stats:
    """Return mean and population std, each mean exact and rounded once."""
    flat = np.asarray(values, dtype=np.float64).ravel().tolist()
    mean = exact_mean(flat)
    return mean, math.sqrt(exact_mean([(value - mean) * (value - mean) for value in flat]))


def distance_statistics(distances: np.ndarray) -> Stats:
    """Return mean and population std, mean and variance exact and each rounded once."""
    exact = [Fraction(value) for value in distances.astype(np.float64).ravel().tolist()]
    mean = sum(exact) / len(exact)
    variance = sum(value * value for value in exact) / len(exact) - mean * mean
    return float(mean), math.sqrt(float(variance))


def exact_mean(values: list[float]) -> float:
    """Return the exact mean, correctly rounded: every float is a multiple of 2**-1074."""
    total = 0
    for value in values:
        numerator, denominator = value.as_integer_ratio()
        total += numerator * (2**1074 // denominator)
    return total / (len(values) * 2**1074)  # int / int is correctly rounded


# Neighbour rows


def neighbor_rows(points: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and distances of each point and its k nearest others, by (distance, id)."""
    n_points = len(points)
    neighbors = np.empty((n_points, k + 1), dtype=np.int32)
    distances = np.empty((n_points, k + 1), dtype=points.dtype)
    for i in range(n_points):
        from_i = distances_from(points, i)
        others = [j for j in np.argsort(from_i, kind="stable").tolist() if j != i]
        neighbors[i] = [i, *others[:k]]
        distances[i] = from_i[neighbors[i]]
    return neighbors, distances


def behind_row(points: np.ndarray, head: list[int]) -> tuple[list[int], list[np.floating]]:
    """Return what a row that may have missed some goes on with: nothing nearer than its last."""
    last = distances_from(points, head[0])[head[-1]]
    behind = [pair for pair in zip(*others_of_row(points, head), strict=True) if pair[1] >= last]
    return [j for j, _ in behind], [distance for _, distance in behind]


def others_of_row(points: np.ndarray, head: list[int]) -> tuple[list[int], list[np.floating]]:
    """Return what is not in a row, and how far away, by (distance, id)."""
    near = distances_from(points, head[0])
    others = sorted((near[j], j) for j in range(len(points)) if j not in head)
    return [j for _, j in others], [distance for distance, _ in others]


def distances_from(points: np.ndarray, i: int) -> np.ndarray:
    """Return the distance of every point from point i, each step rounded in the points' dtype."""
    total = np.zeros(len(points), dtype=points.dtype)
    for column in points.T:
        difference = column - column[i]
        total = total + difference * difference
    return np.sqrt(total)


def copies(distances_row: np.ndarray) -> int:
    """Count the entries of a row at distance 0, the point itself included."""
    return max(1, sum(1 for distance in distances_row if distance <= 0))


# Order and thresholds


def extent(points: np.ndarray) -> float:
    """Return the Euclidean norm of the per-column ranges, in float64."""
    wide = points.astype(np.float64)
    return norm_in_order((wide.max(axis=0) - wide.min(axis=0)).tolist())


def density(distances: np.ndarray, density_neighbors: int, extent: float) -> list[float]:
    """Return the density of every point; a row of nothing but copies counts as the least dense."""
    densities = []
    for row in distances.tolist():
        c = copies(row)
        u = min(density_neighbors, len(row) - c)
        delta = row[c + u - 1] if u > 0 else extent
        densities.append((u + 1) / (delta / extent))
    return densities


def total_order(densities: list[float], points: np.ndarray) -> list[int]:
    """Return all points by density descending, then coordinates, then row."""
    coordinates = points.tolist()
    return sorted(range(len(points)), key=lambda i: (-densities[i], coordinates[i], i))


def find_members(known: list[int], wanted: list[int]) -> list[int]:
    """Return where in `known`, which ascends, those of `wanted` are that are there."""
    return [known.index(number) for number in wanted if number in known]


def seeding(order: list[int], p: Params) -> list[int]:
    """Return the order in which points are tried as seeds; p holds the resolved parameters."""
    if p["seeding_order"] == "density":
        return order
    if p["seeding_order"] == "random":
        return list(np.random.default_rng(p["seed"]).permutation(len(order)).tolist())
    return list(range(len(order)))  # "none"


def thresholds(distances: np.ndarray, p: Params) -> tuple[float, float]:
    """Return z and max_z: as given, or from percentiles of the upper tail of distances to ke."""
    d = distances[:, p["expansion_neighbors"]].astype(np.float64)
    mean, std = distance_statistics(d)
    upper = d[d >= mean]

    def from_percentile(q: float) -> float:
        return (float(np.percentile(upper, q)) - mean) / std if std > 0 else 0.0

    z = from_percentile(p["z_percentile"]) if p["z"] is None else p["z"]
    max_z = from_percentile(p["max_z_percentile"]) if p["max_z"] is None else p["max_z"]
    return z, max_z


def starting_statistics(distances: np.ndarray, expansion_neighbors: int) -> Stats:
    """Return mean and std of the first ke+1 columns, the zeros of column 0 included."""
    return distance_statistics(distances[:, : expansion_neighbors + 1])


# Expansion


def expand(
    neighbors: np.ndarray,
    distances: np.ndarray,
    seeds: list[int],
    start: Stats,
    z: float,
    p: Params,
) -> tuple[np.ndarray, list[Stats]]:
    """Grow a skeleton from each unassigned seed; clusters are numbered in seed order."""
    ids, rows = neighbors.tolist(), distances.tolist()
    labels = [-1] * len(ids)  # set when a point is queued: it is popped before its cluster ends
    stats: list[Stats] = []
    for seed in seeds:
        if labels[seed] >= 0:
            continue
        cluster_number = len(stats)
        mu, sigma = start
        n_s = 1
        labels[seed] = cluster_number
        queue = deque([seed])
        while queue:
            i = queue.popleft()
            end = copies(rows[i]) + p["expansion_neighbors"]
            survivors = [
                (j, dist)
                for j, dist in zip(ids[i][:end], rows[i][:end], strict=True)
                if labels[j] < 0 and dist - mu <= z * sigma
            ]
            if len(survivors) < p["min_retained"]:
                continue
            mu, sigma = updated(mu, sigma, n_s, [dist for _, dist in survivors])
            n_s += len(survivors)
            for j, _ in survivors:
                labels[j] = cluster_number
                queue.append(j)
        stats.append((mu, sigma))
    return np.array(labels, dtype=np.int32), stats


def updated(mu: float, sigma: float, n_s: int, dists: list[float]) -> Stats:
    """Return a cluster's statistics after it took in these distances."""
    squares = 0.0
    total = 0.0
    for dist in dists:
        squares += (dist - mu) * (dist - mu)
        total += dist
    n_new = n_s + len(dists)
    return (mu * n_s + total) / n_new, math.sqrt((sigma * sigma * n_s + squares) / n_new)


# Small-cluster reassignment


def reassign(
    neighbors: np.ndarray,
    distances: np.ndarray,
    labels: np.ndarray,
    stats: list[Stats],
    order: list[int],
    max_z: float,
    p: Params,
) -> tuple[np.ndarray, np.ndarray]:
    """Vote fragments into skeletons and drop the rest; return labels and provenance.

    Provenance is 0 for a point that kept its label, r for one reassigned in round r, and -1 for
    noise, whose label is -1 too.
    """
    new_labels, provenance = labels.copy(), np.zeros_like(labels)
    if p["min_cluster_size"] <= 1:
        return new_labels, provenance

    sizes = Counter(labels.tolist())
    smallest = smallest_skeleton(sizes, p)
    gates = {
        label: (mu, max_z * sigma)
        for label, (mu, sigma) in enumerate(stats)
        if sizes[label] >= smallest
    }
    fragments = [x for x in order if labels[x] not in gates]
    for scr_round in range(1, p["max_scr_rounds"] + 1):
        left = []
        for x in fragments:
            begin = copies(distances[x])
            end = begin + p["reassignment_neighbors"]
            winner = vote(new_labels[neighbors[x, begin:end]], distances[x, begin:end], gates)
            if winner is None:
                left.append(x)
            else:
                new_labels[x] = winner
                provenance[x] = scr_round
        if len(left) == len(fragments):
            break
        fragments = left

    if p["post_reassignment_policy"] == "noise":
        sizes = Counter(new_labels.tolist())
        is_noise = [sizes[label] < smallest for label in new_labels.tolist()]
        new_labels[is_noise] = -1
        provenance[is_noise] = -1
    return new_labels, provenance


def smallest_skeleton(sizes: Counter[int], p: Params) -> int:
    """Return M, lowered where SCR runs to the size of the second largest cluster."""
    smallest: int = p["min_cluster_size"]
    if p["max_scr_rounds"] > 0 and len(sizes) >= 2:
        smallest = min(smallest, sorted(sizes.values())[-2])
    return smallest


def vote(labels: np.ndarray, dists: np.ndarray, gates: dict[int, Stats]) -> int | None:
    """Return the label of most entries within their skeleton's gate, the first met of equals.

    Only skeletons have a gate, so a fragment's own cluster gets no votes.
    """
    votes: Counter[int] = Counter()
    for label, dist in zip(labels.tolist(), dists.tolist(), strict=True):
        if label in gates:
            mu, reach = gates[label]
            if dist - mu <= reach:
                votes[label] += 1
    return max(votes, key=lambda label: votes[label]) if votes else None  # max keeps the first


def renumber(labels: np.ndarray) -> np.ndarray:
    """Return labels numbered 0, 1, ... in their order, which is seed order; -1 stays."""
    in_use = sorted(set(labels.tolist()) - {-1})
    number = {-1: -1} | {label: i for i, label in enumerate(in_use)}
    return np.array([number[label] for label in labels.tolist()], dtype=np.int32)


# The whole algorithm


def cluster_graph(
    neighbors: np.ndarray, distances: np.ndarray, points: np.ndarray, **params: Any
) -> np.ndarray:
    """Cluster points, given their neighbour rows (at least K+1 columns); return int32 labels."""
    return cluster_graph_details(neighbors, distances, points, **params)[0]


def cluster_graph_details(
    neighbors: np.ndarray, distances: np.ndarray, points: np.ndarray, **params: Any
) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]:
    """Return labels, provenance and a description of each final cluster, in label order."""
    p = resolve(params, len(points))
    neighbors, distances = neighbors[:, : p["k"] + 1], distances[:, : p["k"] + 1]
    width = extent(points)
    if width <= 0:
        return one_cluster(len(points))

    order = total_order(density(distances, p["density_neighbors"], width), points)
    seeds = seeding(order, p)
    z, max_z = thresholds(distances, p)
    start = starting_statistics(distances, p["expansion_neighbors"])
    skeletons, stats = expand(neighbors, distances, seeds, start, z, p)
    labels, provenance = reassign(neighbors, distances, skeletons, stats, order, max_z, p)
    return renumber(labels), provenance, describe(labels, skeletons, stats, seeds)


def one_cluster(n_points: int) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]:
    """Return the details of a clustering of points that are all alike."""
    zeros = np.zeros(n_points, dtype=np.int32)
    only = {"size": n_points, "skeleton_size": n_points, "mean": 0.0, "std": 0.0, "seed": 0}
    return zeros, zeros.copy(), [only]


def describe(
    labels: np.ndarray, skeletons: np.ndarray, stats: list[Stats], seeds: list[int]
) -> list[dict[str, Any]]:
    """Describe every cluster that still has points, in seed order."""
    sizes, skeleton_sizes = Counter(labels.tolist()), Counter(skeletons.tolist())
    seed_of: dict[int, int] = {}
    for row in seeds:  # the first of its cluster to be tried is the one that founded it
        seed_of.setdefault(int(skeletons[row]), row)
    return [
        {
            "size": sizes[label],
            "skeleton_size": skeleton_sizes[label],
            "mean": mu,
            "std": sigma,
            "seed": seed_of[label],
        }
        for label, (mu, sigma) in enumerate(stats)
        if sizes[label] > 0
    ]


# New points


def predict(
    x: np.ndarray,
    new: np.ndarray,
    scale: str | None = None,
    metric: str = "euclidean",
    **params: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels that the nearest points of x vote for, and the winner's share of votes.

    New points are scaled with what was learned of x, and a copy of a point of x gets its label.
    """
    points = working_coordinates(x, scale, metric)
    p = resolve(params, len(points))
    neighbors, distances = neighbor_rows(points, p["k"])
    labels, _, clusters = cluster_graph_details(neighbors, distances, points, **params)
    max_z = thresholds(distances, p)[1] if extent(points) > 0 else 0.0
    stats = [(cluster["mean"], max_z * cluster["std"]) for cluster in clusters]
    new_points = new_coordinates(x, new, scale, metric)
    return predict_points(points, labels, stats, new_points, p["reassignment_neighbors"])


def predict_points(
    points: np.ndarray,
    labels: np.ndarray,
    stats: list[Stats],
    new_points: np.ndarray,
    reassignment_neighbors: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the same for working coordinates, and the mean and the reach of each cluster."""
    gates = dict(enumerate(stats))
    found, shares = [], []
    for point in new_points:
        from_point = distances_from(np.vstack([point, points]), 0)[1:]
        nearest = np.argsort(from_point, kind="stable")[:reassignment_neighbors]
        near_labels, near = labels[nearest], from_point[nearest]
        if near[0] <= 0:
            found.append(int(near_labels[0]))
            shares.append(1.0)
            continue
        winner = vote(near_labels, near, gates)
        found.append(-1 if winner is None else winner)
        admitted = [
            label
            for label, dist in zip(near_labels.tolist(), near.tolist(), strict=True)
            if label in gates and dist - gates[label][0] <= gates[label][1]
        ]
        shares.append(admitted.count(winner) / len(admitted) if admitted else 0.0)
    return np.array(found, np.int32), np.array(shares, np.float32)


def new_coordinates(x: np.ndarray, new: np.ndarray, scale: str | None, metric: str) -> np.ndarray:
    """Return the working coordinates of new points, as those of x are made."""
    columns = []
    for column, values in zip(x.astype(np.float64).T, new.astype(np.float64).T, strict=True):
        if scale is None:
            columns.append(values)
            continue
        mean, std = mean_and_std(column)
        if scale == "standard":
            columns.append((values - mean) / std if std > 0 else np.zeros_like(values))
            continue
        limits = mean - 6 * std, mean + 6 * std
        low, high = np.clip(column, *limits).min(), np.clip(column, *limits).max()
        clipped = np.clip(values, *limits)
        columns.append((clipped - low) / (high - low) if high > low else np.zeros_like(values))
    points = np.column_stack(columns)
    if metric == "cosine":
        points = np.array([unit_vector(row, vector) for row, vector in enumerate(points.tolist())])
    return points.astype(working_dtype(x)) + 0.0


def cluster(
    x: np.ndarray, scale: str | None = None, metric: str = "euclidean", **params: Any
) -> np.ndarray:
    """Cluster raw input, from working coordinates to labels."""
    points = working_coordinates(x, scale, metric)
    neighbors, distances = neighbor_rows(points, resolve(params, len(points))["k"])
    return cluster_graph(neighbors, distances, points, **params)


# The choice among trials


def overlap(first: np.ndarray, second: np.ndarray) -> Fraction:
    """Return S: what the clusters of two results have in common; noise adds nothing."""
    total = Fraction(0)
    for a in clusters_of(first):
        for b in clusters_of(second):
            total += Fraction(len(a & b) ** 2, max(len(a), len(b)))
    return total / len(first)


def clusters_of(labels: np.ndarray) -> list[set[int]]:
    """Return the rows of each cluster."""
    return [
        {row for row, other in enumerate(labels.tolist()) if other == label}
        for label in sorted(set(labels.tolist()) - {-1})
    ]


def expected_overlap(first: list[int], second: list[int], n: int) -> Fraction:
    """Return E: the mean of S over all shuffles, from the sizes of the clusters."""
    total = Fraction(0)
    for a in first:
        for b in second:
            both = Fraction(a * b, n)
            square = both * (1 + Fraction((a - 1) * (b - 1), max(n - 1, 1)))
            total += square / max(a, b)
    return total / n


def similarity(first: np.ndarray, second: np.ndarray) -> float:
    """Return how alike two results are, adjusted for chance."""
    sizes = [[len(cluster) for cluster in clusters_of(labels)] for labels in (first, second)]
    expected = expected_overlap(*sizes, len(first))
    if expected >= 1:
        return 0.0
    return float(min(max((overlap(first, second) - expected) / (1 - expected), 0), 1))


def scores(
    labels: np.ndarray, weights: list[float], votes: list[tuple[list[int], np.ndarray, list[float]]]
) -> list[float]:
    """Return the weighted mean of the similarity of each trial to all others, to the power 1.5.

    Where fewer than two trials weigh anything, all weigh the same. `votes` has the rows, labels and
    weights of further results.
    """
    if sum(weight > 0 for weight in weights) < 2:
        weights = [1.0] * len(weights)
    found = []
    for i, one in enumerate(labels):
        others = [(weights[j], similarity(one, labels[j])) for j in range(len(labels)) if j != i]
        for rows, results, counts in votes:
            others += [
                (count, similarity(one[rows], result))
                for count, result in zip(counts, results, strict=True)
            ]
        total = sum(weight for weight, _ in others)
        found.append(sum(weight * alike**1.5 for weight, alike in others) / total if total else 0.0)
    return found


def is_degenerate(labels: np.ndarray) -> bool:
    """Tell whether a result has fewer than two clusters or more than half noise."""
    clusters = clusters_of(labels)
    return len(clusters) < 2 or sum(map(len, clusters)) < len(labels) / 2


def entropy(sizes: list[int]) -> float:
    """Return the entropy of cluster sizes."""
    return -sum(size / sum(sizes) * math.log(size / sum(sizes)) for size in sizes)


def levels(labels: np.ndarray, scores: list[float]) -> list[int]:
    """Return the best trial of each quarter of the entropies of good trials, from coarse to fine.

    Good ones score at least half of the highest score.
    """
    good = [i for i, score in enumerate(scores) if score >= max(scores) / 2]
    fineness = {i: entropy([len(cluster) for cluster in clusters_of(labels[i])]) for i in good}
    low, high = min(fineness.values()), max(fineness.values())
    quarters: dict[int, list[int]] = {}
    for i in good:
        place = 4 * (fineness[i] - low) / (high - low) if high > low else 0.0
        quarters.setdefault(min(int(place), 3), []).append(i)
    return [max(quarters[number], key=lambda i: scores[i]) for number in sorted(quarters)]


def best(labels: np.ndarray, scores: list[float]) -> int:
    """Return the trial with the highest score, or a level about as good that divides its giant.

    A giant has more than half of the rows. A level must have at least 0.95 of the highest score;
    0.75 where that is below 0.25 and the other clusters amount to ten.
    """
    first = max(range(len(labels)), key=lambda i: scores[i])
    giant, others = largest_and_others(labels[first])
    if len(giant) <= 0.5 * len(labels[first]):
        return first
    is_doubtful = scores[first] < 0.25 and math.exp(entropy([len(one) for one in others])) >= 10
    enough = scores[first] * (0.75 if is_doubtful else 0.95)
    divided = []
    for i in levels(labels, scores):
        parts = sorted(len(one & giant) for one in clusters_of(labels[i]) if one & giant)
        is_giant = len(largest_and_others(labels[i])[0]) > 0.5 * len(labels[i])
        if not is_giant and scores[i] >= enough and len(parts) > 1 and parts[-2] >= parts[-1] / 4:
            divided.append(i)
    return max(divided, key=lambda i: scores[i]) if divided else first


def largest_and_others(labels: np.ndarray) -> tuple[set[int], list[set[int]]]:
    """Return the rows of the largest cluster, the first of equals, and of each other."""
    clusters = clusters_of(labels)
    giant = max(clusters, key=len, default=set())
    return giant, [one for one in clusters if one is not giant]


def block_checksums(content, piece_nbytes, block_nbytes):
    """Return the checksums of the blocks of pieces: bytes with odd weights, added up."""
    found, place = [], 0
    for nbytes in piece_nbytes:
        piece = content[place : place + nbytes]
        place += nbytes
        for first in range(0, nbytes, block_nbytes):
            block = piece[first : first + block_nbytes]
            weights = (1 + i * 0x9E3779B2 for i in range(len(block)))
            total = 0x85EBCA6B + sum(b * w for b, w in zip(block, weights, strict=True))
            found.append(total % 2**32)
    return found


def near_places(points: np.ndarray, places: list[list[float]], n_near: int) -> list[int]:
    """Return the rows nearest to any of some places, ascending; so many for each place."""
    found: set[int] = set()
    for place in places:
        squares = [sum((float(a) - b) ** 2 for a, b in zip(p, place, strict=True)) for p in points]
        found |= set(sorted(range(len(points)), key=lambda row: (squares[row], row))[:n_near])
    return sorted(found)
