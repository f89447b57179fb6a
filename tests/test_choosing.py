"""The choice among trials without labels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from spore_dask import Params, choosing, cluster_graph
from spore_dask.choosing import agreement, choose, degenerate
from spore_dask.datasets import blobs_and_shapes
from spore_dask.errors import InputError
from spore_dask.search import neighbor_rows
from spore_dask.voters import voter_labels
from tests import naive


@st.composite
def trials(draw, n_rows=None):
    """Labels of up to six trials of up to 30 rows, with noise."""
    n_trials, n_rows = draw(st.integers(1, 6)), n_rows or draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_names = rng.integers(0, 5, (n_trials, 1))
    return (rng.random((n_trials, n_rows)) * (n_names + 1)).astype(np.int32) - 1


@st.composite
def elections(draw):
    """Trials with retention rates, and voters with theirs."""
    labels, voters = draw(trials(n_rows=12)), draw(trials(n_rows=12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rates = [
        np.round(rng.random(len(some)) * draw(st.sampled_from([0, 1])), 2)
        for some in (labels, voters)
    ]
    return labels, rates[0], voters, rates[1]


def expected_agreement(first, second):
    return [[adjusted_rand_score(a, b) for b in second] for a in first]


@given(trials(n_rows=12), trials(n_rows=12), st.sampled_from([0, 64]))
def test_agreement_is_the_adjusted_rand_index(labels, others, cells_per_row):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "CELLS_PER_ROW", cells_per_row)
        both = expected_agreement(labels, others)
        np.testing.assert_allclose(agreement(labels, others), both, atol=1e-12)


@given(trials())
def test_agreement_of_few_rows(labels):
    own = expected_agreement(labels, labels)
    np.testing.assert_allclose(agreement(labels), own, atol=1e-12)


def test_agreement_with_labels_that_skip_numbers():
    labels = np.array([[7, 7, 900, -1], [0, 0, 1, 2]])
    np.testing.assert_array_equal(agreement(labels), np.ones((2, 2)))


@given(elections())
def test_scores_are_the_weighted_means_of_the_others(election):
    labels, rates, voters, voter_rates = election
    choice = choose(labels, rates, voters=voters, voter_retention=voter_rates)
    results = np.concatenate([labels, voters])
    expected = naive.scores(results, [*rates, *voter_rates], len(labels))
    usable = choice.scores > -np.inf
    np.testing.assert_allclose(choice.scores[usable], np.array(expected)[usable], atol=1e-8)
    assert choice.best == np.argmax(choice.scores)


@given(trials(), st.randoms(use_true_random=False))
def test_permuted_trials_have_permuted_scores(labels, random):
    order = list(range(len(labels)))
    random.shuffle(order)
    rates = np.linspace(0, 0.9, len(labels))
    permuted = choose(labels[order], rates[order])
    np.testing.assert_allclose(permuted.scores, choose(labels, rates).scores[order])


@given(trials())
def test_degenerate_trials_win_only_where_all_are(labels):
    useless = degenerate(labels)
    choice = choose(labels)
    assert useless.all() or not useless[choice.best]
    assert useless.all() or (choice.scores[useless] == -np.inf).all()
    assert np.isfinite(choice.scores).any()


def test_degenerate():
    labels = np.array([[0, 0, 0, -1], [0, 1, -1, -1], [0, -1, -1, -1], [-1] * 4, [0, 1, 2, 3]])
    np.testing.assert_array_equal(degenerate(labels), [True, False, True, True, False])


@given(trials())
def test_ties_go_to_the_first(labels):
    twice = np.concatenate([labels, labels])
    assert choose(twice).best < len(labels)


def test_one_trial_is_chosen():
    choice = choose(np.array([[0, 0, 1, -1]]))
    assert (choice.best, choice.scores.tolist()) == (0, [0.0])


def two_camps():
    """Two results, each found by two trials; those of the second camp retain more."""
    halves, thirds = np.arange(12) // 6, np.arange(12) % 3
    return np.array([halves, thirds, thirds, halves])


def test_trials_that_retain_much_have_less_to_say():
    assert choose(two_camps()).best == 0
    assert choose(two_camps(), [0.6, 0.1, 0.1, 0.6]).best == 1
    assert choose(two_camps(), [1, 1, 1, 1]).best == 0


def test_voters_decide_but_are_not_chosen():
    labels = two_camps()
    choice = choose(labels, voters=labels[[1, 1, 1]], voter_retention=[0, 0, 0])
    assert choice.best == 1
    assert len(choice.scores) == len(labels)
    assert choose(labels, voters=labels[[1, 1, 1]], voter_retention=[1, 1, 1]).best == 0


@pytest.mark.parametrize("labels", [np.zeros(3, int), np.zeros((0, 3), int), np.zeros((2, 3))])
def test_what_is_not_labels_is_refused(labels):
    with pytest.raises(InputError, match=r"\(n_trials, n_rows\)"):
        choose(labels)


def test_voters_of_other_rows_are_refused():
    with pytest.raises(InputError, match=r"voters has shape \(1, 3\).*\(n_trials, 12\)"):
        choose(two_camps(), voters=np.zeros((1, 3), int))


@pytest.mark.parametrize("rates", [[0.5], [0, 0, 0, 1.5], [0, 0, 0, float("nan")]])
def test_what_is_no_retention_is_refused(rates):
    with pytest.raises(InputError, match=r"4 numbers in \[0, 1\]"):
        choose(two_camps(), rates)


def test_voters_are_results_of_the_sample():
    x, _ = blobs_and_shapes(400, 2)
    configs = [{}, {"expansion_neighbors": 20, "retention_rate": 0.3}, {"z_percentile": 90}]
    found = voter_labels(x, [Params(**config) for config in configs])
    rows = neighbor_rows(x, 100, "exact")
    for labels, config in zip(found, configs, strict=True):
        expected = cluster_graph(rows.neighbors, rows.distances, x, **config)
        np.testing.assert_array_equal(labels, expected)
