"""The logits transforms of a `Sampling` policy against hand-computed sets and likelihoods."""

import jax.numpy as jnp
import numpy as np
import pytest

from dew.sampling.decoding import Greedy, MinP, Temperature, TopK, TopP


def kept(chain, scores):
    """The indices that survive `chain` on one row of scores. No transform here reads the state."""
    logits = jnp.asarray([scores], jnp.float32)
    for transform in chain:
        logits = transform(None, logits)
    return set(np.flatnonzero(np.isfinite(np.asarray(logits[0]))).tolist())


def logs(*chances):
    return np.log(np.asarray(chances)).tolist()


TIED = [2, 1, 1, 1, -1, 0.5]


@pytest.mark.parametrize(
    ("chain", "scores", "expected"),
    [
        ([TopK(2)], TIED, {0, 1, 2, 3}),
        ([TopK(1)], TIED, {0}),
        ([TopK(99)], [1, 2, 3], {0, 1, 2}),
        ([TopP(0.7)], logs(0.4, 0.3, 0.2, 0.1), {0, 1}),
        ([TopP(0.5)], logs(0.5, 0.25, 0.25), {0}),
        ([TopP(0.5)], [0, 0, 0, 0], {0, 2, 3}),
        ([TopP(0.3)], [0, 0, 0, 0], {0, 2, 3}),
        ([TopP(0.5)], TIED, {0, 3}),
        ([TopP(0.6)], TIED, {0, 2, 3}),
        ([TopP(0.0)], [1, 3, 2], {1}),
        ([TopP(1e-8)], [1, 3, 2], {1}),
        ([TopP(1e-2)], [1, 3, 2], {1}),
        ([TopP(1.0)], [0, -200, 3], {0, 1, 2}),
        ([MinP(0.5)], logs(0.5, 0.25, 0.125, 0.125), {0, 1}),
        ([MinP(0.25)], logs(0.5, 0.25, 0.125, 0.125), {0, 1, 2, 3}),
        ([MinP(1.0)], [1, 3, 2], {1}),
        ([MinP(0.0)], [1, 3, 2], {0, 1, 2}),
        ([Temperature(0.5), TopP(0.8)], [3, 2, 1], {0}),
        ([TopP(0.8), Temperature(0.5)], [3, 2, 1], {0, 1}),
        ([Greedy()], [1, 3, 3], {1}),
    ],
)
def test_a_filter_keeps_this_set(chain, scores, expected):
    assert kept(chain, scores) == expected


def test_kept_scores_are_unchanged_and_a_temperature_divides():
    logits = jnp.asarray([TIED], jnp.float32)
    np.testing.assert_array_equal(TopK(2)(None, logits)[0, :4], [2, 1, 1, 1])
    np.testing.assert_array_equal(Temperature(0.5)(None, logits), 2 * logits)


def test_greedy_gives_the_best_token_all_the_mass():
    assert Greedy()(None, jnp.asarray([[1.0, 3.0, 2.0]]))[0].tolist() == [-np.inf, 0.0, -np.inf]


def test_greedy_passes_on_a_row_without_a_distribution():
    row = Greedy()(None, jnp.asarray([[1.0, jnp.nan, 2.0], [1.0, 3.0, 2.0]]))
    assert np.isnan(row[0, 1])
    assert np.isfinite(row[1]).sum() == 1


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Temperature(0), "above 0"),
        (lambda: TopK(0), "at least 1"),
        (lambda: TopP(1.5), r"\[0, 1\]"),
        (lambda: MinP(-0.1), r"\[0, 1\]"),
    ],
)
def test_a_value_outside_its_range_is_refused(make, named):
    with pytest.raises(ValueError, match=named):
        make()
