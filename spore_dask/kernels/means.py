"""Groups of near points in many dimensions: a tree of hyperplanes, and k-means cells below it.

The tree is built from a sample and says where any point belongs, from its coordinates alone. The
cells are made of the points of one part of the tree, by themselves. Everything runs in one thread.
Memory: the sample, or one part and the products of `POINTS_PER_PRODUCT` of its points.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spore_dask.kernels.compiling import kernel

POINTS_PER_CELL = 70
LARGEST_CELL = 2.5
"""A cell with more than this many times the mean is split."""
CELL_ROUNDS = 3
"""Rounds of k-means that make the cells of a part."""
SPLIT_ROUNDS = 5
SPLIT_SAMPLE = 1024
"""Points that a direction is found from."""
SAMPLE_PER_CELL = 16
"""Points a cell that its first center is found from."""
POINTS_PER_PRODUCT = 4096


class Tree(NamedTuple):
    """Hyperplanes that divide space into parts, the root first."""

    directions: NDArray[np.float64]
    """(nodes, D)."""
    thresholds: NDArray[np.float64]
    """A point whose product with the direction is above the threshold goes to the right."""
    children: NDArray[np.int64]
    """(nodes, 2): the node to the left and to the right, or -1 - part."""


class Cells(NamedTuple):
    """The points of one part, sorted into cells."""

    order: NDArray[np.int64]
    """Place of each point before it was sorted."""
    starts: NDArray[np.int64]
    """Where each cell starts among the sorted points, and where the last one ends."""
    centers: NDArray[Any]
    """(cells, D): the mean of each cell, in the dtype of the points."""


def build_tree(sample: NDArray[np.floating], n_parts: int, seed: int) -> Tree:
    """Divide space into parts that hold about equal shares of a sample.

    Parameters
    ----------
    sample : float array (n, D), n at least 1
    n_parts : int, at least 1
    seed : int

    Returns
    -------
    Tree
        With n_parts - 1 nodes. Copies of one point are all in the same part, so that parts can be
        uneven, or empty, where there are many of them.
    """
    n_columns = sample.shape[1]
    tree = Tree(
        directions=np.zeros((n_parts - 1, n_columns)),
        thresholds=np.zeros(n_parts - 1),
        children=np.zeros((n_parts - 1, 2), np.int64),
    )
    rng = np.random.default_rng(seed)
    stack = [(np.arange(len(sample)), 0, n_parts, -1, 0)] if n_parts > 1 else []
    n_nodes = 0
    while stack:
        members, first, last, parent, side = stack.pop()
        if last - first == 1:
            tree.children[parent, side] = -1 - first
            continue
        node, n_nodes = n_nodes, n_nodes + 1
        if parent >= 0:
            tree.children[parent, side] = node
        middle = (first + last) // 2
        n_left = len(members) * (middle - first) // (last - first)
        tree.directions[node] = _direction(sample, members, rng)
        products = project(sample[members], tree.directions[node])
        if n_left > 0:
            tree.thresholds[node] = np.partition(products, n_left - 1)[n_left - 1]
        right = products > tree.thresholds[node]
        stack.append((members[right], middle, last, node, 1))
        stack.append((members[~right], first, middle, node, 0))
    return tree


def cluster_cells(points: NDArray[np.floating], seed: int) -> Cells:
    """Sort the points of a part into cells of about `POINTS_PER_CELL`, by k-means.

    Parameters
    ----------
    points : float array (n, D), n at least 1
    seed : int

    Returns
    -------
    Cells
        None is empty, or has more than `LARGEST_CELL` times the mean. Near cells are mostly near
        each other in the order. Depends on the points, in their order, and the seed only.
    """
    rng = np.random.default_rng(seed)
    n_cells = max(1, round(len(points) / POINTS_PER_CELL))
    n_sampled = min(len(points), n_cells * SAMPLE_PER_CELL)
    sample = points[np.sort(rng.choice(len(points), n_sampled, replace=False))]
    order, starts = _halve(sample, n_cells, rng)
    centers = _means(sample, order, starts)
    for _ in range(CELL_ROUNDS):
        labels = nearest_center(points, centers)
        order, starts = _sort_by(labels, len(centers))
        full = np.diff(starts) > 0
        centers = np.where(full[:, None], _means(points, order, starts), centers)
    order, starts = _sort_by(nearest_center(points, centers), len(centers))
    order, starts = _bounded(points, order, starts, int(LARGEST_CELL * POINTS_PER_CELL), rng)
    return Cells(order, starts, _means(points, order, starts))


def nearest_center(points: NDArray[Any], centers: NDArray[Any]) -> NDArray[np.int64]:
    """Return the nearest center of each point, up to the rounding of products."""
    middle = centers.mean(axis=0)
    centered = centers - middle
    squares = np.einsum("ij,ij->i", centered, centered) / 2
    labels = np.empty(len(points), np.int64)
    for first in range(0, len(points), POINTS_PER_PRODUCT):
        block = slice(first, first + POINTS_PER_PRODUCT)
        products = (points[block] - middle) @ centered.T
        products -= squares
        labels[block] = products.argmax(axis=1)
    return labels


def _direction(
    points: NDArray[Any], members: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[Any]:
    """Return the difference of two means of some of the points; 0 where all are alike."""
    if len(members) < 2:
        return np.zeros(points.shape[1], points.dtype)
    chosen = rng.choice(members, min(SPLIT_SAMPLE, len(members)), replace=False)
    sample = points[chosen] - points[chosen[0]]
    left, right = sample[0], sample[1]
    for _ in range(SPLIT_ROUNDS):
        at_right = sample @ (right - left) > (right @ right - left @ left) / 2
        n_right = np.count_nonzero(at_right)
        if not 0 < n_right < len(sample):
            break
        weights = at_right.astype(sample.dtype)
        right = weights @ sample / n_right
        left = (1 - weights) @ sample / (len(sample) - n_right)
    return np.asarray(right - left)


def _halve(
    points: NDArray[Any], n_cells: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Order points so that n_cells equal runs of them are the leaves of a balanced tree."""
    order = np.arange(len(points))
    starts = np.arange(n_cells + 1) * len(points) // n_cells
    stack = [(0, n_cells)]
    while stack:
        first, last = stack.pop()
        if last - first == 1:
            continue
        middle = (first + last) // 2
        run = slice(starts[first], starts[last])
        members = order[run]
        products = points[members] @ _direction(points, members, rng)
        order[run] = members[np.argpartition(products, starts[middle] - starts[first])]
        stack += [(middle, last), (first, middle)]
    return order, starts


def _bounded(
    points: NDArray[Any],
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    largest: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split the cells of more than `largest` points evenly, and drop those without any."""
    bounds = [0]
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if stop - start > largest:
            members = order[start:stop].copy()
            inner, inner_starts = _halve(points[members], -(-len(members) // largest) + 1, rng)
            order[start:stop] = members[inner]
            bounds += (start + inner_starts[1:]).tolist()
        elif stop > start:
            bounds.append(stop)
    return order, np.array(bounds, np.int64)


@kernel
def project(points, direction):
    """Return the product of each point with a direction, summed in order, in float64."""
    products = np.empty(points.shape[0])
    for i in range(products.size):
        total = 0.0
        for column in range(points.shape[1]):
            total += points[i, column] * direction[column]
        products[i] = total
    return products


@kernel
def assign(tree, points):
    """Return the part of each point, which depends on its coordinates alone."""
    directions, thresholds, children = tree
    parts = np.zeros(points.shape[0], np.int64)
    if thresholds.size == 0:
        return parts
    for i in range(parts.size):
        node = 0
        while node >= 0:
            total = 0.0
            for column in range(points.shape[1]):
                total += points[i, column] * directions[node, column]
            node = children[node, 1 if total > thresholds[node] else 0]
        parts[i] = -1 - node
    return parts


@kernel
def _sort_by(labels, n_labels):
    """Return the places of the labels in ascending order, and where each label starts."""
    starts = np.zeros(n_labels + 1, np.int64)
    for label in labels:
        starts[label + 1] += 1
    for label in range(n_labels):
        starts[label + 1] += starts[label]
    ends = starts[:-1].copy()
    order = np.empty(labels.size, np.int64)
    for i in range(labels.size):
        order[ends[labels[i]]] = i
        ends[labels[i]] += 1
    return order, starts


@kernel
def _means(points, order, starts):
    """Return the mean of each run of the order; of an empty one, zeros."""
    means = np.zeros((starts.size - 1, points.shape[1]), points.dtype)
    totals = np.empty(points.shape[1])
    for cell in range(starts.size - 1):
        for column in range(totals.size):
            totals[column] = 0
        for i in range(starts[cell], starts[cell + 1]):
            row = order[i]
            for column in range(points.shape[1]):
                totals[column] += points[row, column]
        size = starts[cell + 1] - starts[cell]
        if size > 0:
            for column in range(points.shape[1]):
                means[cell, column] = totals[column] / size
    return means
