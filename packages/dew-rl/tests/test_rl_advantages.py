"""Advantages of groups: constants of the field, abstentions, equal rewards and groups of one."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from dew.rl import gdpo_advantages, group_advantages, mean_advantages, rloo_advantages, summed_rewards
from dew.rl.advantages import ESTIMATORS

NAN = np.nan


def values(found):
    return np.asarray(found.values)


@pytest.mark.parametrize(
    ("constants", "expected"),
    [({}, 0.8660239), ({"epsilon": 1e-4}, 0.8658754), ({"ddof": 0, "epsilon": 1e-4}, 0.9998000)],
)
def test_standardised_rewards_at_the_constants_of_three_libraries(constants, expected):
    found = group_advantages(jnp.asarray([[1.0, 0.0, 0.0, 1.0]]), **constants)
    np.testing.assert_allclose(values(found), expected * np.asarray([[1, -1, -1, 1]]), atol=2e-7)


def test_one_bad_response_among_good_ones_stays_bounded():
    rewards = jnp.asarray([[0.7] * 7 + [0.1]])
    np.testing.assert_allclose(values(group_advantages(rewards))[0, [0, 7]], [0.35355, -2.47486], atol=2e-5)
    np.testing.assert_allclose(values(rloo_advantages(rewards))[0, [0, 7]], [0.6 / 7, -0.6], atol=1e-6)


def test_each_reward_is_measured_against_the_others():
    rewards = jnp.asarray([[1.0, 2.0, 6.0]])
    np.testing.assert_allclose(values(mean_advantages(rewards)), [[-2, -1, 3]], atol=1e-6)
    np.testing.assert_allclose(values(rloo_advantages(rewards)), [[-3, -1.5, 4.5]], atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize("reward", [0.35, 0.1, 1 / 3, 1e6])
def test_equal_rewards_are_worth_exactly_nothing(estimator, reward):
    found = estimator(jnp.full((1, 8), reward))
    assert values(found).tolist() == [[0.0] * 8]
    assert found.no_spread.tolist() == [True] and found.singleton.tolist() == [False]


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_group_of_one_and_a_group_with_one_reward_left_are_worth_nothing(estimator):
    alone = estimator(jnp.asarray([[3.0], [-1.0]]))
    assert values(alone).tolist() == [[0.0], [0.0]] and alone.singleton.all()
    left = estimator(jnp.asarray([[NAN, 2.0, NAN]]))
    assert values(left).tolist() == [[0.0] * 3] and left.singleton.all() and not left.no_spread.any()
    assert left.counted.tolist() == [[False, True, False]]


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_group_without_any_reward_has_no_mass_and_no_nan(estimator):
    found = estimator(jnp.asarray([[NAN, NAN], [0.0, 1.0]]))
    assert found.counted.tolist() == [[False, False], [True, True]]
    assert values(found)[0].tolist() == [0.0, 0.0] and np.isfinite(values(found)).all()


def test_missing_reward_enters_no_statistic():
    found = group_advantages(jnp.asarray([[1.0, NAN, 0.0]]))
    np.testing.assert_allclose(values(found), [[0.7071058, 0, -0.7071058]], atol=2e-6)
    assert found.counted.tolist() == [[True, False, True]]


def test_equal_groups_keep_their_mass_or_lose_it():
    rewards = jnp.asarray([[1.0, 0.0], [1.0, 1.0]])
    masses = {
        name: int(group_advantages(rewards, no_spread=name).counted.sum()) * 2 for name in ("keep", "drop")
    }
    assert masses == {"keep": 8, "drop": 4}


def test_standardised_rewards_equal_trl(trl):
    first = jnp.asarray(
        [[NAN if value is None else value for value in row] for row in trl["rewards"]["first"]]
    )
    second = jnp.asarray(
        [[NAN if value is None else value for value in row] for row in trl["rewards"]["second"]]
    )
    rewards, weights = jnp.stack([first, second]), jnp.asarray(trl["rewards"]["weights"])
    epsilon = trl["rewards"]["epsilon"]
    summed = summed_rewards(rewards, weights)
    expected = trl["advantages"]
    np.testing.assert_allclose(
        values(group_advantages(summed, epsilon=epsilon)), expected["sum_then_normalize/group"], atol=1e-6
    )
    np.testing.assert_allclose(
        values(mean_advantages(summed)), expected["sum_then_normalize/none"], atol=1e-6
    )
    np.testing.assert_allclose(values(rloo_advantages(first)), expected["leave_one_out"], atol=1e-6)
    np.testing.assert_allclose(
        values(gdpo_advantages(rewards, weights, epsilon=epsilon)),
        expected["normalize_then_sum/group"],
        atol=2e-6,
    )


def test_reward_that_is_constant_in_a_group_adds_exactly_nothing():
    useful = [[1.0, 0.0, 0.5], [0.2, 0.9, 0.4]]
    rewards = jnp.asarray([useful, [[0.1] * 3, [0.35] * 3]])
    with_it = gdpo_advantages(rewards, jnp.asarray([1.0, 1.0]))
    without = gdpo_advantages(rewards[:1], jnp.asarray([1.0]))
    assert values(with_it).tolist() == values(without).tolist()


def test_rewards_sum_by_weight_over_those_that_do_not_abstain():
    rewards = jnp.asarray([[[1.0, NAN, NAN]], [[2.0, 4.0, NAN]]])
    summed = np.asarray(summed_rewards(rewards, jnp.asarray([1.0, 0.5])))
    assert summed[0, :2].tolist() == [2.0, 2.0] and np.isnan(summed[0, 2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: group_advantages(jnp.zeros(4)), r"rewards of shape \(4,\)"),
        (lambda: group_advantages(jnp.zeros((1, 4)), ddof=2), "ddof=2"),
        (lambda: mean_advantages(jnp.zeros((1, 4)), no_spread="skip"), "no_spread='skip'"),
        (lambda: summed_rewards(jnp.zeros((2, 1, 4)), jnp.zeros(3)), r"weights of shape \(3,\)"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
