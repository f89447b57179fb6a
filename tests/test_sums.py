from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spore_dask.kernels.sums import (
    UNIT_EXPONENT,
    _sum_row,
    exact_mean,
    exact_squared_deviations,
    exact_sum,
    mean_and_std,
    moments,
)
from tests import naive

FLOATS = st.floats(-1e300, 1e300, allow_subnormal=True)


@given(values=hnp.arrays(np.float64, st.integers(1, 50), elements=FLOATS))
def test_sum_is_exact(values):
    assert Fraction(exact_sum(values), 1 << UNIT_EXPONENT) == sum(map(Fraction, values.tolist()))


@given(values=hnp.arrays(np.float32, st.integers(1, 50)))
def test_float32_sum_is_exact(values):
    values = np.nan_to_num(values)
    assert Fraction(exact_sum(values), 1 << UNIT_EXPONENT) == sum(map(Fraction, values.tolist()))


@given(
    values=hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(0, 1e100)),
    pieces=st.integers(1, 5),
)
def test_any_order_and_pieces_give_the_same(values, pieces):
    mean, std = naive.mean_and_std(values)
    parts = np.array_split(values, pieces)
    assert exact_mean(sum(map(exact_sum, parts)), len(values)) == mean
    squares = sum(exact_squared_deviations(part, mean) for part in parts)
    assert exact_mean(squares, len(values)) ** 0.5 == std


@given(values=hnp.arrays(np.float64, st.integers(1, 60), elements=FLOATS), cut=st.integers(0, 60))
def test_moments_are_exact(values, cut):
    assert_moments(values)
    parts = moments(values[:cut]), moments(values[cut:])
    assert tuple(map(sum, zip(*parts, strict=True))) == moments(values[::-1])


def assert_moments(values):
    """Compare sums of values and of their squares with those of fractions."""
    exact = list(map(Fraction, values.ravel().tolist()))
    total, squares = moments(values)
    assert Fraction(total, 1 << UNIT_EXPONENT) == sum(exact)
    assert Fraction(squares, 1 << 2 * UNIT_EXPONENT) == sum(value * value for value in exact)


SHORT_ROWS = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12)


@given(rows=hnp.arrays(np.float32, SHORT_ROWS), ascends=st.booleans())
def test_moments_of_any_rows_of_float32_are_exact(rows, ascends):
    rows = np.nan_to_num(rows)
    assert_moments(np.sort(np.abs(rows), axis=1) if ascends else rows)


@pytest.mark.parametrize("width", [1, 2, 39, 128, 129])
@pytest.mark.parametrize(
    "exponents", [(0, 0), (-20, 0), (-19, 3), (-40, 0), (-149, -120), (90, 127)]
)
def test_moments_of_long_mantissas_are_exact(width, exponents):
    rng = np.random.default_rng(width)
    mantissas = rng.integers(2**23, 2**24, (50, width)) | 1
    values = np.ldexp(
        mantissas.astype(np.float64), rng.integers(*exponents, (50, width), endpoint=True) - 23
    )
    rows = np.sort(values.astype(np.float32), axis=1)
    rows[::3, 0] = 0
    assert_moments(rows)
    assert_moments(rows[:, ::-1])
    assert mean_and_std(rows) == mean_and_std(rows.astype(np.float64))
    assert mean_and_std(rows) == naive.distance_statistics(rows)


def test_two_dimensions_and_strides():
    values = np.random.default_rng(0).random((30, 8)).astype(np.float32)
    assert exact_sum(values[:, :3]) == exact_sum(values[:, :3].copy().ravel())


@pytest.mark.parametrize("count", [3, 7, 49, 1000])
def test_the_mean_of_equal_values_is_that_value(count):
    value = np.full(count, 0.1)
    assert mean_and_std(value) == (0.1, 0.0)


def test_rows_within_the_bounds_are_added_up_at_once():
    """The widest row, of the longest mantissas that fit, and the same with one value too small."""
    rng = np.random.default_rng(0)
    rows = np.ldexp((rng.integers(2**23, 2**24, (200, 128)) | 1).astype(np.float64), -23)
    rows *= 2.0 ** rng.integers(-19, 1, rows.shape)
    rows = np.sort(rows.astype(np.float32), axis=1)
    rows[:, -1] = np.nextafter(np.float32(2), np.float32(0))
    rows[:, 0] = rows[:, -1] * np.float32(2**-20)
    rows[::2, 1] = 0
    parts = rows.astype(np.float64), rows.astype(np.float64), rows.astype(np.float64)
    fits = [_sum_row(*(part[i] for part in parts), parts[0][i, -1])[0] for i in range(len(rows))]
    assert fits == [128] * len(rows)
    assert_moments(rows)
    rows[:, 0] = np.nextafter(rows[:, 0], np.float32(0))
    assert _sum_row(*(part[0] for part in parts), 3.0)[0] < 128
    assert_moments(rows)
