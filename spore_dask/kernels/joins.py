"""Refinement of neighbour lists: reverse edges, and the neighbours of neighbours.

An edge that is found from one end is offered to the other. The neighbours of the neighbours of all
the points of a home cell meet these points in one product: a pair costs far less than by itself,
so that each point can be offered many more.

Lists are those of one home shard, and points of others are met one partition at a time.
Memory: the lists, their buffers, and the candidates of the home cells, 4 bytes each.
"""

from __future__ import annotations

import numpy as np

from spore_dask.kernels.compiling import kernel, part
from spore_dask.kernels.machine import prefetch_row
from spore_dask.kernels.probes import cut, insert, largest_run, multiply, offset, screen

POINTS_PER_PRODUCT = 256
PREFETCHED = 4


@kernel
def reverse_edges(lists, first, limits, first_target):
    """List the edges of a shard, turned round, that may matter to the points of another.

    Parameters
    ----------
    lists : Lists
        Of the points from number `first` on.
    first : int
    limits : array
        Last square in the list of each target, from number `first_target` on.
    first_target : int

    Returns
    -------
    targets, sources : integer arrays
        Numbers. Sorted by source.
    squares : array
    """
    numbers, near, _ = lists
    n_edges = 0
    for i in range(numbers.shape[0]):
        for j in range(numbers.shape[1]):
            target = np.int64(numbers[i, j]) - first_target
            if 0 <= target < limits.size:
                n_edges += near[i, j] < limits[target]
    targets = np.empty(n_edges, numbers.dtype)
    sources = np.empty(n_edges, numbers.dtype)
    squares = np.empty(n_edges, near.dtype)
    edge = 0
    for i in range(numbers.shape[0]):
        for j in range(numbers.shape[1]):
            target = np.int64(numbers[i, j]) - first_target
            if 0 <= target < limits.size and near[i, j] < limits[target]:
                targets[edge], sources[edge], squares[edge] = numbers[i, j], first + i, near[i, j]
                edge += 1
    return targets, sources, squares


@kernel
def merge_edges(lists, first, targets, sources, squares):
    """Offer edges, in any order, to the lists of their targets; return how many are taken.

    `lists`, those of the points from number `first` on, are changed; all targets are among them.
    """
    numbers, near, fresh = lists
    width = numbers.shape[1]
    n_taken = 0
    for edge in range(targets.size):
        row, source, squared = targets[edge] - first, sources[edge], squares[edge]
        if squared < near[row, width - 1] and not _in_list(numbers, row, source):
            insert(near, numbers, fresh, row, width - 1, squared, source, True)
            n_taken += 1
    return n_taken


@part
def _in_list(numbers, row, number):
    found = False
    for j in range(numbers.shape[1]):
        found |= numbers[row, j] == number
    return found


@kernel
def cell_candidates(fresh, starts, middles, heads, fresh_heads, most):
    """Collect the neighbours of neighbours of the points of each home cell.

    Parameters
    ----------
    fresh : bool array (R, at least a)
        For the neighbours of each point of the home shard, whether they were not followed before.
    starts : integer array
        Where each home cell starts among its points, and the end.
    middles : integer array (R, a)
        For these neighbours, the row of `heads` with their own lists.
    heads : integer array (any, b)
        First entries of lists.
    fresh_heads : bool array (any, b)
    most : int
        Candidates of a cell; those that are met first are kept.

    Returns
    -------
    candidates : integer array
        Numbers, cell by cell, each once in a cell.
    candidate_starts : int64 array

    Notes
    -----
    Two entries that are both not fresh have been followed before, and are passed over.
    """
    table = np.empty(_table_size(most), heads.dtype)
    candidates = np.empty((starts.size - 1) * most, heads.dtype)
    candidate_starts = np.zeros(starts.size, np.int64)
    count = 0
    for cell in range(starts.size - 1):
        for slot in range(table.size):
            table[slot] = -1
        limit = count + most
        for row in range(starts[cell], starts[cell + 1]):
            for j in range(middles.shape[1]):
                middle = middles[row, j]
                for head in range(heads.shape[1]):
                    number = heads[middle, head]
                    if count == limit or not (fresh[row, j] | fresh_heads[middle, head]):
                        continue
                    slot = _slot(table, number)
                    if table[slot] < 0:
                        table[slot] = number
                        candidates[count] = number
                        count += 1
        candidate_starts[cell + 1] = count
    return candidates[:count], candidate_starts


@part
def _table_size(n_numbers):
    """Return a power of two at which a hash table of so many numbers is at most half full."""
    size = 16
    while size < 2 * n_numbers:
        size *= 2
    return size


@part
def _slot(table, number):
    """Return the place of a number in a hash table, or the empty place where it belongs."""
    slot = (np.int64(number) * 0x9E3779B1 >> 7) & (table.size - 1)
    while table[slot] >= 0 and table[slot] != number:
        slot = (slot + 1) & (table.size - 1)
    return slot


@kernel
def open_lists(lists, buffers):
    """Fill the buffers with lists, and set their limits."""
    capacity, squares, numbers, counts, limits = buffers
    list_numbers, list_squares, _ = lists
    width = list_numbers.shape[1]
    for i in range(list_numbers.shape[0]):
        counts[i] = 0
        for j in range(width):
            squares[i * capacity + j] = list_squares[i, j]
            numbers[i * capacity + j] = list_numbers[i, j]
            counts[i] += list_numbers[i, j] >= 0
        limits[i] = list_squares[i, width - 1]


@kernel
def join_part(home, candidates, candidate_starts, points, first_point, known, buffers, width):
    """Offer to the points of each home cell its candidates among the points of one partition.

    Parameters
    ----------
    home : Part
        The home shard.
    candidates, candidate_starts : integer arrays
        From `cell_candidates`.
    points : array (n, D)
        Points of the partition, numbered from `first_point` on.
    first_point : int
    known : integer array (R, any)
        Numbers that are not offered, among them those in the lists of the home shard.
    buffers : Buffers
        Filled by `open_lists`.
    width : int
        Length of the lists.
    """
    first, home_points, starts, centers = home
    n_columns = points.shape[1]
    largest = largest_run(starts)
    left = np.empty((largest, n_columns + 1), points.dtype)
    right = np.empty((POINTS_PER_PRODUCT, n_columns + 1), points.dtype)
    products = np.empty(POINTS_PER_PRODUCT * largest, points.dtype)
    squares = np.empty(largest, points.dtype)
    queries = np.empty(largest, np.int32)
    here = np.empty(largest_run(candidate_starts) + 1, candidates.dtype)
    for cell in range(starts.size - 1):
        n_here = 0
        for i in range(candidate_starts[cell], candidate_starts[cell + 1]):
            here[n_here] = candidates[i]
            place = np.int64(candidates[i]) - first_point
            n_here += (place >= 0) & (place < points.shape[0])
        start, size = starts[cell], starts[cell + 1] - starts[cell]
        for i in range(size if n_here > 0 else 0):
            offset(home_points, start + i, centers, cell, left, i)
            squares[i] = left[i, n_columns]
            left[i, n_columns] = 1
            queries[i] = start + i
        for begin in range(0, n_here, POINTS_PER_PRODUCT):
            end = min(begin + POINTS_PER_PRODUCT, n_here)
            for j in range(begin, end):
                if j + PREFETCHED < n_here:
                    prefetch_row(points, here[j + PREFETCHED] - first_point, n_columns)
                offset(points, np.int64(here[j]) - first_point, centers, cell, right, j - begin)
                right[j - begin, n_columns] *= -0.5
            multiply(left, size, right, end - begin, products)
            numbers = here[begin:end]
            screen(
                products,
                left,
                right,
                squares,
                queries[:size],
                numbers,
                first,
                known,
                width,
                buffers,
            )


@kernel
def close_lists(buffers, lists):
    """Write the nearest of the buffers to the lists; return how many entries are new.

    New entries are fresh, those that were there are not any more.
    """
    capacity, squares, numbers, counts, _ = buffers
    list_numbers, list_squares, fresh = lists
    width = list_numbers.shape[1]
    old = np.empty((1, width), list_numbers.dtype)
    n_new = 0
    for i in range(list_numbers.shape[0]):
        cut(buffers, i, width)
        for j in range(width):
            old[0, j] = list_numbers[i, j]
        for j in range(counts[i]):
            entry = i * capacity + j
            is_new = not _in_list(old, 0, numbers[entry])
            insert(list_squares, list_numbers, fresh, i, j, squares[entry], numbers[entry], is_new)
            n_new += is_new
    return n_new
