"""Files in object stores: large ones come and go in parts, small parts in one request.

Memory: what is read or written, and `PART_NBYTES` more, a few times.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
from collections.abc import Iterable, Iterator
from typing import Any

from spore_dask.patience import patiently
from spore_dask.store.files import Part, ends_early

PART_NBYTES = 16 << 20
"""What is asked of an object store, or given to it, at a time."""
GAP_NBYTES = 64 << 10
"""Bytes between two wanted ranges that are read along, because another request takes longer."""
RANGES_AT_ONCE = 64


def put_file(files: Any, target: str, content: Iterable[bytes | memoryview], nbytes: int) -> None:
    """Write a file to an object store: a large one in parts, which appear when all are there."""
    if nbytes <= 2 * PART_NBYTES:
        whole = io.BytesIO()
        whole.writelines(content)
        files.pipe_file(target, whole.getvalue())
        return
    file = files.open(target, "wb", block_size=PART_NBYTES)
    try:
        for part in content:
            for first in range(0, len(part), PART_NBYTES):
                file.write(part[first : first + PART_NBYTES])
        file.close()
    except BaseException:
        file.closed = True  # else what was written so far would appear
        with contextlib.suppress(Exception):
            file.discard()
        raise


def cat_some(files: Any, path: str, first: int, last: int) -> bytes:
    """Read those of the bytes [first, last) of a file that there are."""
    if first >= last:  # which HTTP has no words for
        return b""
    try:
        return bytes(files.cat_file(path, start=first, end=last))
    except OSError as error:  # so S3 tells of a file that ends before
        if error.errno != errno.EINVAL:
            raise
        return b""


def cat_begin(files: Any, path: str) -> bytes:
    """Read of a file what goes into one request."""
    return cat_some(files, path, 0, PART_NBYTES)


def cat_range(files: Any, path: str, first: int, last: int) -> bytes:
    """Read the bytes [first, last) of a file, all of them."""
    content = cat_some(files, path, first, last)
    if len(content) == last - first:
        return content
    n_missing = last - max(first, int(files.info(path)["size"]))
    if n_missing > 0:
        raise ends_early(path, n_missing)
    raise ConnectionError(f"{len(content)} of {last - first} bytes have come")


def fetch_parts(files: Any, parts: list[Part], content: memoryview, url: str) -> None:
    """Fill `content` with parts (path, first byte, bytes) of files in an object store."""
    place = 0
    for batch in _batches(_merged(_cut(parts))):
        for group, part in zip(batch, _fetch(files, batch, url), strict=True):
            begin, view = group[0][1], memoryview(part)
            for _, start, nbytes in group:
                content[place : place + nbytes] = view[start - begin : start - begin + nbytes]
                place += nbytes


def _cut(parts: list[Part]) -> Iterator[Part]:
    """Cut what is too large for one request."""
    for path, start, nbytes in parts:
        for first in range(0, nbytes, PART_NBYTES):
            yield path, start + first, min(PART_NBYTES, nbytes - first)


def _merged(parts: Iterator[Part]) -> Iterator[list[Part]]:
    """Put parts together that follow each other closely in a file, and go into one request."""
    group: list[Part] = []
    end = 0
    for path, start, nbytes in parts:
        if group:
            before, begin, _ = group[0]
            fits = max(end, start + nbytes) - begin <= PART_NBYTES
            if not (path == before and begin <= start <= end + GAP_NBYTES and fits):
                yield group
                group = []
        end = max(end, start + nbytes) if group else start + nbytes
        group.append((path, start, nbytes))
    if group:
        yield group


def _end_of(group: list[Part]) -> int:
    """Return where parts that go into one request end."""
    return max(start + nbytes for _, start, nbytes in group)


def _batches(groups: Iterator[list[Part]]) -> Iterator[list[list[Part]]]:
    """Share out requests: those of a batch are under way at the same time."""
    batch: list[list[Part]] = []
    nbytes = 0
    for group in groups:
        more = _end_of(group) - group[0][1]
        if batch and (nbytes + more > PART_NBYTES or len(batch) == RANGES_AT_ONCE):
            yield batch
            batch, nbytes = [], 0
        batch.append(group)
        nbytes += more
    if batch:
        yield batch


def _fetch(files: Any, groups: list[list[Part]], url: str) -> list[bytes]:
    """Ask for some ranges at once; for those that fail again, one by one."""
    paths = [group[0][0] for group in groups]
    firsts = [group[0][1] for group in groups]
    lasts = [_end_of(group) for group in groups]
    found = patiently(lambda: files.cat_ranges(paths, firsts, lasts, on_error="return"), url)
    for i, part in enumerate(found):
        if isinstance(part, Exception) or len(part) != lasts[i] - firsts[i]:
            read = functools.partial(cat_range, files, paths[i], firsts[i], lasts[i])
            found[i] = patiently(read, url)
    return list(found)
