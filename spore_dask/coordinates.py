"""Working coordinates: what the algorithm sees of the input.

Input, then scaling, then L2-normalisation for cosine, all in float64, rounded once to the working
dtype. Works on an array in memory, or on one part of the rows at a time: first the `Columns` of the
parts are measured and added up, then `Transform.apply` makes the coordinates of any part.
Memory is the result and a float64 block of bounded size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spore_dask.errors import InputError
from spore_dask.kernels.columns import column_limits
from spore_dask.kernels.lengths import divide_by_length
from spore_dask.kernels.sums import exact_mean, exact_squared_deviations, exact_sum
from spore_dask.params import one_of

CLIP_DEVIATIONS = 6.0
BLOCK_NBYTES = 16 << 20
LARGEST_FLOAT32_INTEGER = 1 << 24
LARGEST_SCALED = 1e150

SCALE = one_of("clip-minmax", "standard", optional=True)
METRIC = one_of("euclidean", "cosine")


def as_points(x: ArrayLike) -> NDArray[np.floating]:
    """Return `x` in its working dtype, checked: two dimensions, numbers, finite, not too large."""
    return working_coordinates(x, scale=None, metric="euclidean")


def working_coordinates(
    x: ArrayLike, scale: str | None = None, metric: str = "euclidean"
) -> NDArray[np.floating]:
    """Return the coordinates that SPORE measures distances in.

    Parameters
    ----------
    x : array (N, D) of numbers
    scale : None, "clip-minmax" or "standard"
        "clip-minmax" clips each column to its mean +- 6 deviations and maps it to [0, 1];
        "standard" subtracts the mean and divides by the deviation. A constant column becomes 0.
    metric : "euclidean" or "cosine"
        "cosine" divides each row by its length.

    Returns
    -------
    float32 or float64 array (N, D), C-contiguous
        float64 for float64 input and for integers beyond 2**24, else float32.
    """
    return learn_coordinates(x, scale, metric)[0]


def learn_coordinates(
    x: ArrayLike, scale: str | None, metric: str
) -> tuple[NDArray[np.floating], Learned]:
    """Return working coordinates, and what makes those of other points of the same kind."""
    check_options(scale, metric)
    refuse_masked(x)
    data = np.asarray(x)
    check_array(data.shape, data.dtype)
    columns = measure_columns(data, with_sums=scale is not None)
    deviations = None
    if scale is not None:
        check_magnitude(columns, scale)
        deviations = column_deviations(data, columns.means())
    transform = fit_transform(data.dtype, columns, deviations, scale, metric)
    result = transform.apply(data)
    low, high = column_limits(result)
    check_extent(low, high, result.dtype)
    return result, Learned(transform, low, high)


def check_options(scale: Any, metric: Any) -> None:
    """Raise `ParameterError` unless both are among the allowed words."""
    SCALE.check("scale", scale)
    METRIC.check("metric", metric)


def working_dtype(dtype: np.dtype[Any], low: NDArray[Any], high: NDArray[Any]) -> np.dtype[Any]:
    """Return float64 for float64 and for integers beyond 2**24 in magnitude, else float32."""
    if dtype.kind in "iu":
        largest = max(-int(low.min()), int(high.max()))
        wide = largest > LARGEST_FLOAT32_INTEGER
    else:
        wide = dtype.kind == "f" and dtype.itemsize >= 8
    return np.dtype(np.float64 if wide else np.float32)


@dataclasses.dataclass(frozen=True)
class Columns:
    """What a part of the rows says of the columns; parts add up exactly, in any order."""

    n_rows: int
    low: NDArray[Any]
    """Least value of each column."""
    high: NDArray[Any]
    """Largest value of each column."""
    sums: list[int] | None = None
    """Exact sums, in units of 2**-1074, where scaling needs them."""

    def __add__(self, other: Columns) -> Columns:
        sums = None
        if self.sums is not None and other.sums is not None:
            sums = [a + b for a, b in zip(self.sums, other.sums, strict=True)]
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Columns(self.n_rows + other.n_rows, low, high, sums)

    def means(self) -> NDArray[np.float64]:
        """Return the mean of each column."""
        return exact_means(self.sums or [], self.n_rows)


def measure_columns(data: NDArray[Any], first_row: int = 0, with_sums: bool = False) -> Columns:
    """Measure a part of the rows, which begins at `first_row`; every value must be finite."""
    low, high = _finite_limits(data, first_row)
    return Columns(len(data), low, high, _column_sums(data, None) if with_sums else None)


def column_deviations(data: NDArray[Any], means: NDArray[np.float64]) -> list[int]:
    """Return the exact sum of each column's squared deviations, to be added over parts."""
    return _column_sums(data, means)


def exact_means(sums: list[int], n_rows: int) -> NDArray[np.float64]:
    """Return sums over the number of rows, rounded once."""
    return np.array([exact_mean(total, n_rows) for total in sums])


def check_magnitude(columns: Columns, scale: str) -> None:
    """Refuse values whose squared deviations would overflow."""
    largest = max(abs(float(columns.low.min())), abs(float(columns.high.max())))
    if largest > LARGEST_SCALED:
        raise InputError(
            f"The data has the magnitude {largest:.3g}, but scale={scale!r} can take at most "
            f"{LARGEST_SCALED:g}: use smaller units."
        )


@dataclasses.dataclass(frozen=True)
class Transform:
    """What makes working coordinates of input rows: clip, shift, divide, normalise, round."""

    dtype: np.dtype[Any]
    """The working dtype."""
    metric: str = "euclidean"
    clip_low: NDArray[np.float64] | None = None
    clip_high: NDArray[np.float64] | None = None
    shift: NDArray[np.float64] | None = None
    divisor: NDArray[np.float64] | None = None

    def apply(
        self, data: NDArray[Any], first_row: int | NDArray[np.int64] = 0
    ) -> NDArray[np.floating]:
        """Return the working coordinates of rows from `first_row` on, or of those it lists."""
        result = np.empty(data.shape, self.dtype)
        if self.shift is None and self.metric == "euclidean":
            np.copyto(result, data, casting="unsafe")  # the same as by way of float64
        else:
            for rows, block in _blocks(data):
                block = self.scale(block)
                if self.metric == "cosine":
                    _normalise(block, rows.start, first_row)
                result[rows] = block
        result += 0.0  # -0.0 becomes 0.0
        return result

    def scale(self, block: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scale a block of rows in place and return it."""
        if self.clip_low is not None:
            np.clip(block, self.clip_low, self.clip_high, out=block)
        if self.shift is not None and self.divisor is not None:
            constant = self.divisor == 0
            block -= self.shift
            block /= np.where(constant, 1.0, self.divisor)
            block[:, constant] = 0.0
        return block

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` makes the same transform of."""
        fields = dataclasses.asdict(self) | {"dtype": self.dtype.str}
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in fields.items()}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Transform:
        """Undo `to_json`."""
        values: dict[str, Any] = {
            name: np.array(value) if isinstance(value, list) else value
            for name, value in fields.items()
        }
        return cls(**values | {"dtype": np.dtype(fields["dtype"])})


@dataclasses.dataclass(frozen=True)
class Learned:
    """What new points are compared with fitted ones by."""

    transform: Transform
    low: NDArray[np.floating]
    """Least working coordinate of the fitted points in each column."""
    high: NDArray[np.floating]

    def apply(self, data: NDArray[Any]) -> NDArray[np.floating]:
        """Return the working coordinates of new points in memory, checked."""
        self.refuse_far(measure_columns(data))
        return self.transform.apply(data)

    def refuse_far(self, columns: Columns) -> None:
        """Refuse new points whose squared distances from the fitted ones would overflow."""
        given = np.array([columns.low, columns.high]).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            corners = self.transform.scale(given.copy())
            if self.transform.metric == "cosine":
                reach = np.where(np.isfinite(corners), 0.0, np.inf)
            else:
                low, high = self.low.astype(np.float64), self.high.astype(np.float64)
                reach = np.maximum(abs(corners - low), abs(high - corners))
        limit = math.sqrt(np.finfo(self.transform.dtype).max / (2 * given.shape[1]))
        far = np.argwhere(~(reach <= limit))
        if len(far):
            side, column = far[0]
            raise InputError(
                f"Column {column} of the data has {given[side, column]:.3g}, but squared "
                f"distances from the fitted points in {self.transform.dtype} need everything "
                f"within {limit:.3g} of them: leave out such rows."
            )


def fit_transform(
    dtype: np.dtype[Any],
    columns: Columns,
    deviations: list[int] | None,
    scale: str | None,
    metric: str,
) -> Transform:
    """Return the transform of input of type `dtype`, given what was measured of its columns."""
    working = working_dtype(dtype, columns.low, columns.high)
    if scale is None or deviations is None:
        return Transform(working, metric)
    mean, std = columns.means(), np.sqrt(exact_means(deviations, columns.n_rows))
    if scale == "standard":
        return Transform(working, metric, shift=mean, divisor=std)
    clip_low, clip_high = mean - CLIP_DEVIATIONS * std, mean + CLIP_DEVIATIONS * std
    least = np.clip(columns.low.astype(np.float64), clip_low, clip_high)
    most = np.clip(columns.high.astype(np.float64), clip_low, clip_high)
    return Transform(working, metric, clip_low, clip_high, shift=least, divisor=most - least)


def _column_sums(data: NDArray[Any], center: NDArray[np.float64] | None) -> list[int]:
    """Return the exact sum of each column, or of its squared deviations from `center`."""
    totals = [0] * data.shape[1]
    for _, block in _blocks(data):
        for j in range(data.shape[1]):
            column = block[:, j : j + 1]
            if center is None:
                totals[j] += exact_sum(column)
            else:
                totals[j] += exact_squared_deviations(column, center[j])
    return totals


def check_array(shape: tuple[int, ...], dtype: np.dtype[Any], least_rows: int = 2) -> None:
    """Refuse what is not a two-dimensional array of real numbers with at least some rows."""
    if len(shape) != 2 or shape[1] == 0:
        raise InputError(
            f"The data has shape {shape}, but it must be (points, columns) with at least one "
            "column: reshape a single column with x.reshape(-1, 1)."
        )
    if shape[0] < least_rows:
        what = "clustering" if least_rows == 2 else "a prediction"
        raise InputError(
            f"The data has n_samples={shape[0]}, but {what} needs at least {least_rows}."
        )
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise InputError(
            f"The data has dtype {dtype}, but it must be a float of at most 64 bits, an "
            "integer or bool: convert it with x.astype('float32')."
        )


def refuse_masked(x: Any) -> None:
    """Refuse an array with masked entries, which would be read as numbers."""
    n_masked = int(np.ma.getmaskarray(x).sum()) if np.ma.isMaskedArray(x) else 0
    if n_masked:
        raise InputError(
            f"The data has {n_masked} masked entries, but every value must be there: remove or "
            "fill such rows first."
        )


def _finite_limits(data: NDArray[Any], first_row: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the least and the largest value of each column; all must be finite."""
    low, high = column_limits(data)
    if data.dtype.kind == "f" and not (np.isfinite(low).all() and np.isfinite(high).all()):
        bad = int(np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))[0])
        row = int(np.flatnonzero(~np.isfinite(data[:, bad]))[0])
        raise InputError(
            f"Row {first_row + row}, column {bad} of the data is {data[row, bad]} (NaN or "
            "infinity), but every value must be finite: remove or fill such rows first."
        )
    return low, high


def check_extent(low: NDArray[Any], high: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Refuse coordinates whose squared distances overflow, or all vanish, in the working dtype."""
    ranges = high.astype(np.float64) - low.astype(np.float64)
    limits = np.finfo(dtype)
    smallest, largest = math.sqrt(limits.tiny), math.sqrt(limits.max / (2 * len(ranges)))
    if not ranges.max() <= largest or 0 < ranges.max() < smallest:
        raise InputError(
            f"The columns range over {ranges.max():.3g} at most, but squared distances in "
            f"{dtype} need {smallest:.3g} to {largest:.3g}: use scale='clip-minmax', or "
            "other units."
        )


def _blocks(data: NDArray[Any]) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Go through the rows in float64 copies of bounded size."""
    height = max(1, BLOCK_NBYTES // (8 * data.shape[1]))
    for first in range(0, len(data), height):
        rows = slice(first, min(first + height, len(data)))
        yield rows, data[rows].astype(np.float64, order="C", copy=True)


def _normalise(block: NDArray[np.float64], place: int, first_row: int | NDArray[np.int64]) -> None:
    """Divide each row by its length, in place."""
    zero = divide_by_length(block)
    if zero >= 0:
        zero += place
        _refuse_zero(first_row + zero if isinstance(first_row, int) else int(first_row[zero]))


def refuse_zero_rows(data: NDArray[Any], first_row: int) -> None:
    """Refuse rows without a direction; they begin at `first_row`."""
    zero = np.flatnonzero(~data.any(axis=1))
    if len(zero):
        _refuse_zero(first_row + int(zero[0]))


def _refuse_zero(row: int) -> None:
    raise InputError(
        f"Row {row} of the data is a zero vector, which has no direction: remove such rows, or use "
        "metric='euclidean'."
    )
