"""Laws of expectations, by enumerating every response of length 2 over a vocabulary of 3."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.rl import (
    aggregate,
    clipped_surrogate,
    kl_estimates,
    mean_advantages,
    off_policy_weights,
    policy_ratio,
    rloo_advantages,
)

RESPONSES = np.asarray(list(itertools.product(range(3), repeat=2)))
FULL = np.ones((9, 2), bool)
REWARDS = np.asarray([0.0, 1.0, 0.3, -0.5, 0.2, 2.0, 0.7, 0.0, 1.1], np.float32)
POLICY = np.asarray([[0.3, -0.4, 0.9], [0.1, 0.8, -0.2], [1.0, 0.0, 0.4], [-0.6, 0.2, 0.5]], np.float32)
OTHER = np.asarray([[0.1, 0.5, -0.3], [0.4, 0.0, 0.3], [-0.2, 0.9, 0.1], [0.6, -0.1, 0.2]], np.float32)


def token_log_probs(logits):
    """[9, 2]: row 0 of the logits draws the first token, row 1 + first the second."""
    shares = jax.nn.log_softmax(logits)
    first, second = RESPONSES.T
    return jnp.stack([shares[0, first], shares[1 + first, second]], 1)


def probabilities(logits):
    return np.exp(np.asarray(token_log_probs(logits), np.float64).sum(1))


def expected_reward(logits):
    return jnp.sum(jnp.exp(token_log_probs(logits).sum(1)) * REWARDS)


GRADIENT = jax.grad(expected_reward)(POLICY)


def surrogate_sums(logits, level):
    """The surrogate of each response at advantage 1, summed over its tokens; [9]."""
    ratio = policy_ratio(token_log_probs(logits), token_log_probs(POLICY), FULL, level=level)
    return clipped_surrogate(ratio.values, np.ones((9, 1))).losses.sum(1)


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
def test_expected_surrogate_gradient_is_that_of_the_expected_reward(level):
    weights = probabilities(POLICY) * REWARDS
    found = jax.grad(lambda logits: jnp.sum(surrogate_sums(logits, level) * weights))(POLICY)
    np.testing.assert_allclose(-found, GRADIENT, atol=1e-6)


@pytest.mark.parametrize(("estimator", "share"), [(rloo_advantages, 1.0), (mean_advantages, 0.5)])
def test_group_baseline_leaves_the_expected_gradient_or_its_known_share(estimator, share):
    """Over all 81 groups of two responses; with its own reward in the mean, (n - 1) / n of it is left."""
    pairs = np.asarray(list(itertools.product(range(9), repeat=2)))
    advantages = np.asarray(estimator(REWARDS[pairs]).values)
    weights = np.prod(probabilities(POLICY)[pairs], 1)

    def loss(logits):
        sums = surrogate_sums(logits, "token")
        return jnp.sum(weights * jnp.sum(sums[pairs] * advantages, 1)) / 2

    np.testing.assert_allclose(-jax.grad(loss)(POLICY), share * GRADIENT, atol=1e-6)


def test_sequence_weights_without_a_cap_are_unbiased():
    found = off_policy_weights(
        token_log_probs(POLICY), token_log_probs(OTHER), FULL, level="sequence", high=1e6
    )
    estimate = np.sum(probabilities(OTHER) * np.asarray(found.weights)[:, 0] * REWARDS)
    assert estimate == pytest.approx(np.sum(probabilities(POLICY) * REWARDS), abs=1e-6)


def test_cap_on_sequence_weights_takes_the_mass_above_it():
    found = off_policy_weights(
        token_log_probs(POLICY), token_log_probs(OTHER), FULL, level="sequence", high=1.5
    )
    bias = np.sum(
        probabilities(OTHER) * np.asarray(found.weights)[:, 0] * REWARDS - probabilities(POLICY) * REWARDS
    )
    missing = np.maximum(probabilities(POLICY) - 1.5 * probabilities(OTHER), 0)
    assert missing.sum() > 0.05
    assert bias == pytest.approx(-np.sum(missing * REWARDS), abs=1e-6)


def expected_divergence(estimator):
    """Value and gradient of the expected estimate over one token, draws held fixed."""
    shares = np.asarray(jax.nn.softmax(POLICY[0]))

    def value(logits):
        current = jax.nn.log_softmax(logits)[None]
        found = kl_estimates(
            current, jax.nn.log_softmax(OTHER[0])[None], np.ones((1, 3), bool), estimator=estimator
        )
        return jnp.sum(found.values[0] * shares)

    return jax.value_and_grad(value)(POLICY[0])


def divergence(logits, others):
    first, second = jax.nn.log_softmax(logits), jax.nn.log_softmax(others)
    return jnp.sum(jnp.exp(first) * (first - second))


@pytest.mark.parametrize("estimator", ["k1", "k3", "k1+", "k3+"])
def test_expected_estimate_is_the_divergence(estimator):
    value, _ = expected_divergence(estimator)
    assert float(value) == pytest.approx(float(divergence(POLICY[0], OTHER[0])), abs=1e-6)


@pytest.mark.parametrize("estimator", ["k2", "k1+", "k3+"])
def test_expected_gradient_is_that_of_the_divergence(estimator):
    _, gradient = expected_divergence(estimator)
    np.testing.assert_allclose(gradient, jax.grad(divergence)(POLICY[0], OTHER[0]), atol=1e-6)


def test_plain_estimators_have_the_gradients_of_nothing_and_of_the_reverse_divergence():
    np.testing.assert_allclose(expected_divergence("k1")[1], np.zeros(3), atol=1e-6)
    reverse = jax.nn.softmax(POLICY[0]) - jax.nn.softmax(OTHER[0])
    np.testing.assert_allclose(expected_divergence("k3")[1], reverse, atol=1e-6)


def test_four_microbatches_and_one_batch_give_one_loss():
    losses = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    mask = np.arange(5) < np.asarray([5, 1, 3, 2, 4, 0, 5, 1])[:, None]
    for mode in ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum"):
        whole = aggregate(losses, mask, mode=mode)
        parts = [aggregate(losses[at : at + 2], mask[at : at + 2], mode=mode) for at in range(0, 8, 2)]
        added = sum(float(part.total) for part in parts) / sum(float(part.mass) for part in parts)
        assert added == pytest.approx(float(whole.total) / float(whole.mass), rel=1e-6)
