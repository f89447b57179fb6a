import dataclasses
import inspect
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spore_dask import SPORE, ParameterError, Params, SporeError
from tests import naive
from tests.strategies import configs


@given(config=configs(), n_points=st.integers(2, 10**7) | st.integers(2, 80))
def test_resolve_equals_the_oracle(config, n_points):
    resolved = dataclasses.asdict(Params(**config).resolve(n_points))
    expected = naive.resolve(config, n_points)
    assert {name: resolved[name] for name in expected} == expected


@pytest.mark.parametrize("exponent", [1, 2, 10, 16, 31, 32, 40])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_log2_is_exact_around_powers_of_two(exponent, offset):
    n_points = max(2, 2**exponent + offset)
    expected = max(1, len(bin(n_points)) - 3)
    assert Params(min_cluster_size=10**6).resolve(n_points).density_neighbors == min(
        expected, n_points - 1
    )


def test_defaults_for_a_million_points():
    resolved = Params().resolve(10**6)
    assert resolved.min_cluster_size == 501
    assert resolved.density_neighbors == 19
    assert resolved.expansion_neighbors == 38
    assert resolved.reassignment_neighbors == resolved.k == 76


BAD = [
    ("min_cluster_size", -0.1),
    ("min_cluster_size", 2.5),
    ("min_cluster_size", float("nan")),
    ("min_cluster_size", 10**400),
    ("density_neighbors", 0),
    ("expansion_neighbors", 3.0),
    ("reassignment_neighbors", -1),
    ("max_connectivity", 0),
    ("min_connectivity", 2**63),
    ("retention_rate", 1.01),
    ("min_retained", 0),
    ("min_retained", 10**30),
    ("z_percentile", 101),
    ("z_percentile", "50"),
    ("z", float("inf")),
    ("z", 10**400),
    ("max_z_percentile", -1),
    ("max_z", "high"),
    ("max_scr_rounds", -1),
    ("max_scr_rounds", True),
    ("seeding_order", "densest"),
    ("post_reassignment_policy", 3),
    ("seed", -1),
    ("seed", 0.5),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_named_with_what_is_allowed(name, value):
    with pytest.raises(ParameterError) as caught:
        Params(**{name: value})
    assert isinstance(caught.value, SporeError)
    assert isinstance(caught.value, ValueError)
    message = str(caught.value)
    assert message.startswith(f"{name} is {value!r}, but it must be ")
    assert message.endswith(".")


def test_every_parameter_has_a_bad_value_in_the_list():
    assert {name for name, _ in BAD} == {field.name for field in dataclasses.fields(Params)}


def test_unknown_names_are_named():
    with pytest.raises(ParameterError, match="no parameter 'shuffle_seed'"):
        Params.from_keywords({"shuffle_seed": 1})


@pytest.mark.parametrize("n_points", [1, 0, 2.0])
def test_too_few_points(n_points):
    with pytest.raises(ParameterError, match="n_points"):
        Params().resolve(n_points)


def test_numpy_numbers_are_numbers():
    params = Params(min_cluster_size=np.float32(0.5), expansion_neighbors=np.int64(5), z=np.int8(1))
    assert params.resolve(np.int64(100)).expansion_neighbors == 5


def test_values_become_plain_numbers():
    params = Params(
        z_percentile=Fraction(50), retention_rate=np.float32(0.7), min_retained=np.int8(2)
    )
    assert type(params.z_percentile) is type(params.retention_rate) is float
    assert type(params.min_retained) is int
    same = Params(retention_rate=float(np.float32(0.7)), expansion_neighbors=10)
    given = Params(retention_rate=np.float32(0.7), expansion_neighbors=10)
    assert given == same
    assert given.resolve(100) == same.resolve(100)


def test_none_means_the_default():
    assert Params(**{field.name: None for field in dataclasses.fields(Params)}) == Params()


def test_params_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Params().z = 1.0


def test_the_estimator_has_the_same_names_and_defaults():
    signature = inspect.signature(SPORE).parameters
    for field in dataclasses.fields(Params):
        expected = field.default if field.name == "seed" else None  # None: chosen, or the default
        assert signature[field.name].default == expected
