"""The choice among trials without labels."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spore_dask import Params, cluster_graph
from spore_dask.choosing import (
    LARGE,
    Votes,
    choose,
    decide,
    degenerate,
    find_levels,
    similarity,
)
from spore_dask.datasets import blobs_and_shapes
from spore_dask.errors import InputError
from spore_dask.kernels.overlaps import expected
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


def weights(n_trials):
    values = st.sampled_from([0.0, 1.0]) | st.floats(0.01, 1)
    return st.lists(values, min_size=n_trials, max_size=n_trials).map(np.array)


@st.composite
def elections(draw):
    """Trials with weights, and further results on some of the rows with theirs."""
    labels = draw(trials(n_rows=12))
    votes = []
    for _ in range(draw(st.integers(0, 2))):
        columns = draw(st.lists(st.integers(0, 11), min_size=1, unique=True))
        voters = draw(trials(n_rows=len(columns)))
        votes.append(Votes(np.array(sorted(columns)), voters, draw(weights(len(voters)))))
    return labels, draw(weights(len(labels))), votes


def alike(first, second):
    return [[naive.similarity(a, b) for b in second] for a in first]


@given(trials(n_rows=12), trials(n_rows=12))
def test_similarity_of_two_sets_of_trials(labels, others):
    expected = alike(labels, others)
    np.testing.assert_allclose(similarity(labels, others), expected, atol=1e-12)
    np.testing.assert_allclose(similarity(others, labels), np.transpose(expected), atol=1e-12)


@given(trials())
def test_similarity_of_few_rows(labels):
    np.testing.assert_allclose(similarity(labels), alike(labels, labels), atol=1e-12)


def test_similarity_with_labels_that_skip_numbers():
    labels = np.array([[7, 7, 900, 12], [0, 0, 1, 2]])
    np.testing.assert_array_equal(similarity(labels), np.ones((2, 2)))


SIZES = st.lists(st.integers(1, 9), max_size=9)


def expected_overlap(first, second, n_rows):
    """Return what S is expected to be, given the sizes of clusters."""
    return (
        expected(*(np.sort(np.array(sizes, np.int64)) for sizes in (first, second)), n_rows)
        / n_rows
    )


@given(SIZES, SIZES, st.integers(0, 20))
def test_expected_overlap(first, second, n_noise):
    n_rows = max(sum(first), sum(second)) + n_noise
    assume(n_rows > 0)
    found = expected_overlap(first, second, n_rows)
    assert found == pytest.approx(float(naive.expected_overlap(first, second, n_rows)), abs=1e-12)


@given(trials(n_rows=6))
@settings(max_examples=15)
def test_expected_overlap_is_the_mean_over_all_shuffles(labels):
    first, second = labels[0], labels[-1]
    found = [
        naive.overlap(first, second[list(order)]) for order in itertools.permutations(range(6))
    ]
    sizes = [np.unique(row[row >= 0], return_counts=True)[1] for row in (first, second)]
    assert expected_overlap(*sizes, 6) == pytest.approx(float(sum(found) / len(found)), abs=1e-12)


@given(elections())
def test_scores_are_weighted_means(election):
    labels, counts, votes = election
    factors = 1 - np.arange(len(labels)) / 100
    choice = choose(labels, counts, votes=votes, factors=factors)
    plain = [(v.columns.tolist(), v.labels, v.weights.tolist()) for v in votes]
    expected = naive.scores(labels, counts.tolist(), plain) * factors
    useless = np.array([naive.is_degenerate(row) for row in labels])
    np.testing.assert_array_equal(choice.scores == -np.inf, useless & ~useless.all())
    finite = np.isfinite(choice.scores)
    np.testing.assert_allclose(choice.scores[finite], expected[finite], atol=1e-8)
    assert choice.best == naive.best(labels, choice.scores.tolist())
    assert np.argmax(choice.scores) in [level.trial for level in choice.levels]


@given(trials(), st.data())
def test_levels_go_from_coarse_to_fine(labels, data):
    scores = data.draw(weights(len(labels)))
    found = find_levels(labels, scores)
    entropies = [level.entropy for level in found]
    assert entropies == sorted(set(entropies))
    for level in found:
        sizes = [len(cluster) for cluster in naive.clusters_of(labels[level.trial])]
        assert level.score == scores[level.trial]
        assert level.entropy == pytest.approx(naive.entropy(sizes), abs=1e-12)
        assert level.largest == max(sizes, default=0) / labels.shape[1]
    good = labels[scores >= scores.max() / 2]
    every = np.array([naive.entropy(list(map(len, naive.clusters_of(row)))) for row in good])
    quarters = 4 * (every - every.min()) / max(np.ptp(every), 1e-9)
    at_border = np.abs(quarters[:, None] - [1, 2, 3]) < 1e-9  # it may be in either
    assume(not at_border.any())
    assert [level.trial for level in found] == naive.levels(labels, scores.tolist())


def test_detail_takes_the_first_or_the_last_level():
    four = np.arange(64) // 16
    three, five = np.maximum(four, 1), np.where(np.arange(64) < 8, 4, four)
    choice = choose(np.array([three, four, four, five]))
    assert [level.trial for level in choice.levels] == [0, 1, 3]
    assert [choice.at(detail) for detail in ("auto", "coarse", "fine")] == [1, 0, 3]


def with_giant(*parts):
    """Return a trial of 100 rows: 60 in parts of a giant, and the others in small clusters."""
    small = len(parts) + np.arange(40) // 2
    return np.concatenate([np.repeat(np.arange(len(parts)), parts), small])


SILENT = np.full((20, 100), -1)
"""Trials that agree with none, so that the others have low scores."""


@pytest.mark.parametrize(
    ("parts", "weight", "others", "best"),
    [
        ([30, 30], 1.0, [], 2),
        ([20, 20, 20], 0.6, [], 0),
        ([20, 20, 20], 0.6, SILENT, 2),  # in doubt less is enough
        ([20, 20, 20], 0.1, SILENT, 0),
        ([58, 2], 1.0, SILENT, 0),  # the giant is only trimmed
    ],
)
def test_giants_are_divided_by_levels_about_as_good(parts, weight, others, best):
    whole, divided = with_giant(60), with_giant(*parts)
    labels = np.array([whole, whole, divided, divided, *others])
    choice = choose(labels, [1, 1, weight, weight] + [1] * len(others))
    assert np.argmax(choice.scores) == 0
    assert choice.best == best == naive.best(labels, choice.scores.tolist())
    assert choice.at("coarse") == 0


@given(trials(), st.randoms(use_true_random=False))
def test_permuted_trials_have_permuted_scores(labels, random):
    order = list(range(len(labels)))
    random.shuffle(order)
    counts = np.linspace(1, 0.1, len(labels))
    permuted = choose(labels[order], counts[order])
    np.testing.assert_allclose(permuted.scores, choose(labels, counts).scores[order])


@given(trials())
def test_degenerate_trials_win_only_where_all_are(labels):
    useless = degenerate(labels)
    choice = choose(labels)
    np.testing.assert_array_equal(useless, [naive.is_degenerate(row) for row in labels])
    assert useless.all() or not useless[choice.best]
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
    """Two results, each found by two trials."""
    halves, thirds = np.arange(12) // 6, np.arange(12) % 3
    return np.array([halves, thirds, thirds, halves])


def votes_of(labels, weights, columns=range(12)):
    return [Votes(np.array(columns), labels, np.array(weights))]


def test_trials_of_little_weight_have_less_to_say():
    assert choose(two_camps()).best == 0
    assert choose(two_camps(), [0.4, 0.9, 0.9, 0.4]).best == 1
    assert choose(two_camps(), [0, 0, 0, 0]).best == 0


def test_votes_decide_but_are_not_chosen():
    labels = two_camps()
    choice = choose(labels, votes=votes_of(labels[[1, 1, 1]], [1, 1, 1]))
    assert choice.best == 1
    assert len(choice.scores) == len(labels)
    assert choose(labels, votes=votes_of(labels[[1, 1, 1]], [0, 0, 0])).best == 0
    some = [2, 3, 4, 7, 8, 9]
    assert choose(labels, votes=votes_of(labels[[1], 2:10][:, [0, 1, 2, 5, 6, 7]], [1], some)).best


def test_what_is_not_usable_is_not_chosen():
    choice = choose(two_camps(), usable=[False, True, True, False])
    assert choice.best == 1
    assert choice.scores[[0, 3]].tolist() == [-math.inf] * 2
    assert choose(two_camps(), usable=[False] * 4).best == 0


@pytest.mark.parametrize(
    ("n_points", "n_clusters", "n_silent", "asked"),
    [
        (LARGE, 400, 0, True),
        (LARGE + 1, 400, 2, False),
        (LARGE + 1, 400, 6, True),  # the best trial has a score of 1 / 7
        (LARGE + 1, 40, 2, True),  # of 1 / 3, and large clusters
        (LARGE + 1, 40, 0, False),
    ],
)
def test_where_small_samples_are_asked(n_points, n_clusters, n_silent, asked):
    labels = np.arange(4000) % n_clusters
    trials = np.array([labels, labels, *[np.full(4000, -1)] * n_silent])
    usable, calls = np.arange(len(trials)) < 2, []

    def ask():
        calls.append(1)
        return votes_of((labels % 4)[None, :100], [1], range(100))

    choice = decide(trials, [1] * len(trials), usable, n_points, ask)
    assert choice.best == 0
    assert bool(calls) == asked
    assert (choice.scores != choose(trials, usable=usable).scores).any() == asked


@pytest.mark.parametrize("labels", [np.zeros(3, int), np.zeros((0, 3), int), np.zeros((2, 3))])
def test_what_is_not_labels_is_refused(labels):
    with pytest.raises(InputError, match=r"\(n_trials, n_rows\)"):
        choose(labels)


def test_others_of_other_rows_are_refused():
    with pytest.raises(InputError, match=r"others has shape \(1, 3\).*\(n_trials, 12\)"):
        similarity(two_camps(), np.zeros((1, 3), int))


@pytest.mark.parametrize("counts", [[0.5], [0, 0, 0, 1.5], [0, 0, 0, float("nan")]])
def test_what_are_no_weights_is_refused(counts):
    with pytest.raises(InputError, match=r"4 numbers in \[0, 1\]"):
        choose(two_camps(), counts)


def test_voters_are_results_of_the_sample():
    x, _ = blobs_and_shapes(400, 2)
    configs = [{}, {"expansion_neighbors": 20, "retention_rate": 0.3}, {"z_percentile": 90}]
    found = voter_labels(x, [Params(**config) for config in configs])
    rows = neighbor_rows(x, 100, "exact")
    for labels, config in zip(found, configs, strict=True):
        expected = cluster_graph(rows.neighbors, rows.distances, x, **config)
        np.testing.assert_array_equal(labels, expected)
