import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spore_dask import InputError, ParameterError
from spore_dask import coordinates as module
from spore_dask.coordinates import working_coordinates
from tests import naive
from tests.strategies import point_sets

SCALES = st.sampled_from([None, "clip-minmax", "standard"])


@given(x=point_sets(), scale=SCALES, negate=st.booleans())
def test_scaled_coordinates_equal_the_oracle(x, scale, negate):
    x = -x if negate else x
    result = working_coordinates(x, scale)
    expected = naive.working_coordinates(x, scale)
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == expected.dtype
    assert not np.signbit(result[result == 0]).any()


@given(x=point_sets(), scale=SCALES)
def test_cosine_equals_the_oracle(x, scale):
    try:
        expected = naive.working_coordinates(x, scale, "cosine")
    except ValueError:
        with pytest.raises(InputError, match="zero vector"):
            working_coordinates(x, scale, "cosine")
    else:
        np.testing.assert_array_equal(working_coordinates(x, scale, "cosine"), expected)


@given(x=point_sets(), scale=SCALES, rows=st.integers(1, 9))
def test_blocks_do_not_matter(x, scale, rows):
    whole = working_coordinates(x, scale)
    block_nbytes = module.BLOCK_NBYTES
    try:
        module.BLOCK_NBYTES = rows * 8 * x.shape[1]
        np.testing.assert_array_equal(working_coordinates(x, scale), whole)
    finally:
        module.BLOCK_NBYTES = block_nbytes


@pytest.mark.parametrize(
    ("dtype", "largest", "expected"),
    [
        ("float16", 1, "float32"),
        ("float32", 1, "float32"),
        ("float64", 1, "float64"),
        ("bool", 1, "float32"),
        ("int8", -128, "float32"),
        ("uint32", 2**24, "float32"),
        ("int64", 2**24 + 1, "float64"),
        ("int64", -(2**24) - 1, "float64"),
        ("uint64", 2**40, "float64"),
        (">f4", 1, "float32"),
    ],
)
def test_working_dtype(dtype, largest, expected):
    x = np.zeros((3, 2), dtype)
    x[1, 1] = largest
    result = working_coordinates(x)
    assert result.dtype == np.dtype(expected)
    assert result[1, 1] == largest
    assert result.flags.c_contiguous


def test_a_constant_column_becomes_zero():
    x = np.array([[0.1, 1.0], [0.1, 2.0], [0.1, 4.0]])
    for scale in ("clip-minmax", "standard"):
        assert (working_coordinates(x, scale)[:, 0] == 0).all()


def test_outliers_are_clipped():
    x = np.append(np.random.default_rng(0).normal(size=1000), 1e6).reshape(-1, 1)
    scaled = working_coordinates(x, "clip-minmax")
    limit = x.mean() + 6 * x.std()
    assert scaled.min() == 0
    assert scaled.max() == 1
    np.testing.assert_allclose(scaled[:5], (x[:5] - x.min()) / (limit - x.min()))


def test_input_is_left_alone():
    x = np.random.default_rng(0).normal(size=(20, 3))
    before = x.copy()
    working_coordinates(x, "standard", "cosine")
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([1.0, 2.0, 3.0], r"shape \(3,\).*reshape"),
        (np.zeros((3, 0)), r"shape \(3, 0\)"),
        (np.zeros((2, 2, 2)), r"shape \(2, 2, 2\)"),
        (np.zeros((1, 2)), "n_samples=1"),
        (np.zeros((0, 2)), "n_samples=0"),
        ([["a", "b"], ["c", "d"]], "dtype <U1"),
        (np.zeros((3, 2), complex), "dtype complex128"),
        ([[0.0, 1.0], [np.nan, 1.0]], "Row 1, column 0 of the data is nan"),
        ([[0.0, 1.0], [0.0, -np.inf]], "Row 1, column 1 of the data is -inf"),
        (np.array([[0], [1e30]], np.float32), "range over 1e.30.*clip-minmax"),
        ([[-1e200], [1e200]], "range over 2e.200"),
        ([[0.0], [1e-170]], "range over 1e-170.*other units"),
    ],
)
def test_bad_data_gets_one_sentence(x, words):
    with pytest.raises(InputError, match=words):
        working_coordinates(x)


def test_masked_entries_are_refused():
    x = np.ma.masked_greater(np.arange(6.0).reshape(3, 2), 4)
    with pytest.raises(InputError, match="1 masked entries"):
        working_coordinates(x)
    assert working_coordinates(np.ma.array(x.data)).shape == (3, 2)


@pytest.mark.parametrize("scale", ["clip-minmax", "standard"])
def test_scaling_has_a_limit(scale):
    with pytest.raises(InputError, match="smaller units"):
        working_coordinates([[0.0], [1e160]], scale)
    assert np.isfinite(working_coordinates([[-1e149], [1e149]], scale)).all()


@pytest.mark.parametrize("exponent", [-700, -300, 300, 700])
def test_cosine_of_extreme_lengths(exponent):
    x = np.random.default_rng(0).normal(size=(50, 3))
    expected = working_coordinates(x, metric="cosine")
    np.testing.assert_array_equal(
        working_coordinates(np.ldexp(x, exponent), metric="cosine"), expected
    )


def test_a_zero_vector_is_named():
    with pytest.raises(InputError, match="Row 1 of the data is a zero vector"):
        working_coordinates([[1.0, 0.0], [0.0, 0.0]], metric="cosine")


def test_unknown_scale_and_metric():
    with pytest.raises(ParameterError, match="scale is 'minmax'"):
        working_coordinates([[1.0], [2.0]], scale="minmax")
    with pytest.raises(ParameterError, match="metric is 'l1'"):
        working_coordinates([[1.0], [2.0]], metric="l1")
