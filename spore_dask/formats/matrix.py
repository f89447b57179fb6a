"""What every kind of file is opened as, and what users may ask for.

Reads and writes nothing itself. Holds names of columns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spore_dask.errors import InputError, SporeError

NAMED = 8
"""Names that a message lists at most."""
UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    zlib.error,
    zipfile.BadZipFile,
)
"""What libraries raise about files that are damaged or not what their name says."""

Blocks = Callable[[int], Iterator[Any]]
"""Yields what is in a file, in blocks of about as many rows as it is called with."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a user wants of a file."""

    path: str
    component: str | None = None
    columns: Sequence[str] | None = None
    dtype: np.dtype[Any] | None = None
    header: bool = True
    memory_limit: int = 1 << 62
    scratch: str | None = None
    """A folder for temporary files."""


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Rows of numbers in a file, read from the first to the last."""

    n_rows: int | None
    """None where only reading tells."""
    n_columns: int
    dtype: np.dtype[Any]
    blocks: Blocks
    reading_nbytes: int = 0
    """What reading takes beside a block of as many rows as are asked for."""
    row_reading_nbytes: int = 0
    """What it takes for each row of a block, beside the row itself."""
    names: tuple[str, ...] | None = None
    """The names of the columns, where they have some."""
    left_out: tuple[str, ...] = ()
    """The names of columns of the file that are not read."""
    about_rows: int = 0
    """A guess of the number of rows, where it is not known."""

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row."""
        return self.n_columns * self.dtype.itemsize

    def column(self, number: int) -> str:
        """Return a column's name, or its number, for a message."""
        return str(number) if self.names is None else repr(self.names[number])


def require(module: str) -> Any:
    """Import a module of a package that only some kinds of files need."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise InputError(
            f"This kind of file is read and written with {package}, which is not installed: "
            "pip install 'spore-dask[formats]'."
        ) from None


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn what libraries raise about a bad file into one sentence."""
    try:
        yield
    except SporeError:
        raise
    except UNREADABLE as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(
            f"{path!r} cannot be read ({why}): check that it is whole and what its name says."
        ) from error


def check_numbers(what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse an array that is not a table of real numbers."""
    if dtype.kind not in "fiub":
        raise InputError(f"{what} has dtype {dtype}, but it must hold real numbers or bool.")
    if len(shape) != 2 or shape[1] == 0:
        raise InputError(
            f"{what} has shape {shape}, but it must be (points, columns) with at least one column."
        )


def refuse_columns(asked: Asked) -> None:
    """Refuse names of columns where columns have no names."""
    if asked.columns is not None:
        raise InputError(
            f"columns is {list(asked.columns)}, but the columns of {asked.path!r} have no names: "
            "leave it out."
        )


def refuse_component(asked: Asked) -> None:
    """Refuse the name of an array where a file holds only one table."""
    if asked.component is not None:
        raise InputError(
            f"component is {asked.component!r}, but {asked.path!r} holds one table: leave it out."
        )


def only_one(asked: Asked, found: dict[str, tuple[int, ...]]) -> str:
    """Return the name of the array that is meant: the one asked for, or the only table.

    Parameters
    ----------
    asked : Asked
    found : dict
        The shape of each array in the file.
    """
    if asked.component is not None:
        if asked.component not in found:
            raise InputError(
                f"There is no {asked.component!r} in {asked.path!r}: give component= one of "
                f"{listed(found)}."
            )
        return asked.component
    tables = [name for name, shape in found.items() if len(shape) == 2]
    if len(tables) != 1:
        count = f"{len(tables)} two-dimensional arrays" if tables else "no two-dimensional array"
        raise InputError(
            f"{asked.path!r} holds {count}: give component= the name of one "
            f"({listed(tables or found)})."
        )
    return tables[0]


def listed(names: Any) -> str:
    """Return the first of some names, for a message."""
    names = list(names)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (", ".join(map(repr, names[:NAMED])) or "none") + more


def ranges(n_rows: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the first row, and that after the last, of each block."""
    for first in range(0, n_rows, step):
        yield first, min(first + step, n_rows)


def native(block: NDArray[Any]) -> NDArray[Any]:
    """Return numbers in this machine's order of bytes."""
    return block.astype(block.dtype.newbyteorder("="), copy=False)
