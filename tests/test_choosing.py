"""The choice among trials without labels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from spore_dask.choosing import agreement, choose, degenerate
from spore_dask.errors import InputError


@st.composite
def trials(draw):
    """Labels of up to six trials of up to 30 rows, with noise."""
    n_trials, n_rows = draw(st.integers(1, 6)), draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_names = rng.integers(0, 5, (n_trials, 1))
    return (rng.random((n_trials, n_rows)) * (n_names + 1)).astype(np.int32) - 1


@given(trials())
def test_agreement_is_the_adjusted_rand_index(labels):
    expected = [[adjusted_rand_score(a, b) for b in labels] for a in labels]
    np.testing.assert_allclose(agreement(labels), expected, atol=1e-12)


def test_agreement_with_labels_that_skip_numbers():
    labels = np.array([[7, 7, 900, -1], [0, 0, 1, 2]])
    np.testing.assert_array_equal(agreement(labels), np.ones((2, 2)))


@given(trials(), st.randoms(use_true_random=False))
def test_permuted_trials_have_permuted_scores(labels, random):
    order = list(range(len(labels)))
    random.shuffle(order)
    np.testing.assert_allclose(choose(labels[order]).scores, choose(labels).scores[order])


@given(trials())
def test_degenerate_trials_win_only_where_all_are(labels):
    useless = degenerate(labels)
    choice = choose(labels)
    assert useless.all() or not useless[choice.best]
    assert useless.all() or (choice.scores[useless] == -np.inf).all()


def test_degenerate():
    labels = np.array([[0, 0, 0, -1], [0, 1, -1, -1], [0, -1, -1, -1], [-1] * 4, [0, 1, 2, 3]])
    np.testing.assert_array_equal(degenerate(labels), [True, False, True, True, False])


@given(trials())
def test_ties_go_to_the_first(labels):
    twice = np.concatenate([labels, labels])
    assert choose(twice).best < len(labels)


def test_one_trial_is_chosen():
    assert choose(np.array([[0, 0, 1, -1]])).best == 0


@pytest.mark.parametrize("labels", [np.zeros(3, int), np.zeros((0, 3), int), np.zeros((2, 3))])
def test_what_is_not_labels_is_refused(labels):
    with pytest.raises(InputError, match=r"\(n_trials, n_rows\)"):
        choose(labels)
