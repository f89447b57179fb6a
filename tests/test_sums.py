from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spore_dask.kernels.sums import (
    UNIT_EXPONENT,
    exact_mean,
    exact_squared_deviations,
    exact_sum,
    mean_and_std,
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
    whole = mean_and_std(values)
    assert whole == naive.mean_and_std(values)
    assert whole == mean_and_std(values[::-1])
    total = sum(exact_sum(piece) for piece in np.array_split(values, pieces))
    assert exact_mean(total, len(values)) == whole[0]
    squares = sum(
        exact_squared_deviations(piece, whole[0]) for piece in np.array_split(values, pieces)
    )
    assert exact_mean(squares, len(values)) ** 0.5 == pytest.approx(whole[1], rel=1e-15)


def test_two_dimensions_and_strides():
    values = np.random.default_rng(0).random((30, 8)).astype(np.float32)
    assert exact_sum(values[:, :3]) == exact_sum(values[:, :3].copy().ravel())


@pytest.mark.parametrize("count", [3, 7, 49, 1000])
def test_the_mean_of_equal_values_is_that_value(count):
    value = np.full(count, 0.1)
    assert mean_and_std(value) == (0.1, 0.0)
