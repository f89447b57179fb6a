import numpy as np
import pytest

from spore_dask import ParameterError
from spore_dask.datasets import blobs_and_shapes


@pytest.mark.parametrize("n_columns", [1, 2, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shape_and_repetition(n_columns, dtype):
    x, y = blobs_and_shapes(1000, n_columns, seed=3, dtype=dtype)
    assert x.shape == (1000, n_columns)
    assert x.dtype == dtype
    assert np.isfinite(x).all()
    assert (y == -1).sum() == 50
    again, labels = blobs_and_shapes(1000, n_columns, seed=3, dtype=dtype)
    np.testing.assert_array_equal(again, x)
    np.testing.assert_array_equal(labels, y)
    assert (blobs_and_shapes(1000, n_columns, seed=4, dtype=dtype)[0] != x).any()


@pytest.mark.parametrize(("n_points", "n_columns"), [(0, 2), (10, 0)])
def test_nothing_to_generate(n_points, n_columns):
    with pytest.raises(ParameterError, match="must be a whole number >= 1"):
        blobs_and_shapes(n_points, n_columns)
