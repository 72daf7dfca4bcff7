"""Generalized advantage estimation over trained tokens."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from dew.rl import gae, terminal_rewards, whiten

REWARDS = jnp.asarray([[0.0, 0.0, 0.0, 1.0]])
VALUES = jnp.asarray([[0.5, 0.4, 0.3, 0.2]])
FULL = np.ones((1, 4), bool)


def test_four_tokens_by_hand():
    found = gae(REWARDS, VALUES, FULL, lam=0.95)
    np.testing.assert_allclose(found.advantages, [[0.40065, 0.527, 0.66, 0.8]], atol=1e-6)
    np.testing.assert_allclose(found.returns, [[0.90065, 0.927, 0.96, 1.0]], atol=1e-6)


@pytest.mark.parametrize("value", [9.0, np.nan])
def test_token_of_a_tool_is_stepped_over(value):
    found = gae(REWARDS, VALUES.at[0, 1].set(value), np.asarray([[1, 0, 1, 1]], bool), lam=0.95)
    np.testing.assert_allclose(found.advantages, [[0.427, 0, 0.66, 0.8]], atol=1e-6)
    assert found.returns[0, 1] == 0


def test_full_sum_is_the_discounted_return_less_the_value_and_no_sum_the_single_delta():
    rewards = jnp.asarray([[1.0, 2.0, 3.0, 4.0]])
    found = gae(rewards, VALUES, FULL, gamma=0.5, lam=1.0)
    returns = [1 + 1 + 0.75 + 0.5, 2 + 1.5 + 1, 3 + 2, 4]
    np.testing.assert_allclose(found.returns, [returns], atol=1e-6)
    single = gae(rewards, VALUES, FULL, gamma=0.5, lam=0.0)
    np.testing.assert_allclose(single.advantages, [[1 + 0.2 - 0.5, 2 + 0.15 - 0.4, 2.8, 3.8]], rtol=1e-6)


def test_truncated_row_goes_on_with_the_next_value_and_an_ended_one_does_not():
    rewards, values, mask = (jnp.tile(part, (2, 1)) for part in (REWARDS, VALUES, FULL))
    options = {"truncated": np.asarray([True, False]), "next_values": jnp.asarray([0.5, 7.0])}
    found = gae(rewards, values, mask, gamma=0.9, lam=0.0, **options)
    np.testing.assert_allclose(found.advantages[:, 3], [1 + 0.9 * 0.5 - 0.2, 0.8], rtol=1e-6)


def test_reward_lands_on_the_last_trained_token():
    mask = np.asarray([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
    found = terminal_rewards(jnp.asarray([2.0, 3.0, 4.0]), mask)
    assert found.tolist() == [[0, 0, 0, 2, 0], [3, 0, 0, 0, 0], [0] * 5]
    advantages = gae(found, jnp.zeros((3, 5)), mask, lam=0.9).advantages
    assert ((np.asarray(advantages) != 0) == mask).all()


def test_whitened_values_have_mean_0_and_unbiased_variance_1():
    values = jnp.asarray([[1.0, 2.0, np.nan], [6.0, 50.0, 3.0]])
    mask = np.asarray([[1, 1, 0], [1, 0, 1]], bool)
    found = np.asarray(whiten(values, mask))
    np.testing.assert_allclose(found[mask].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(found[mask].std(ddof=1), 1, rtol=1e-6)
    assert found[~mask].tolist() == [0, 0]


def test_one_value_alone_whitens_to_nothing():
    assert whiten(jnp.asarray([[3.0]]), np.ones((1, 1), bool)).tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 1.5}, "gamma=1.5"),
        ({"lam": -0.1}, "lam=-0.1"),
        ({"truncated": np.ones(1, bool)}, "truncated and next_values go together"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        gae(REWARDS, VALUES, FULL, **options)
