"""Divergence estimates, off-policy weights and the records they read."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.rl import check_log_probs, kl_estimates, off_policy_rows, off_policy_weights

NAMES = ("k1", "k2", "k3", "k1+", "k3+")
FULL = np.ones((1, 4), bool)
WEIGHTS = jnp.log(jnp.asarray([[0.3, 0.9, 1.5, 6.0]]))
NONE = jnp.zeros((1, 4))


def estimate(gap, estimator, **options):
    """Value and slope of one token's estimate, `current - reference` being `gap`."""

    def value(current):
        return kl_estimates(
            current, jnp.zeros((1, 1)), np.ones((1, 1), bool), estimator=estimator, **options
        ).values.sum()

    found, slope = jax.value_and_grad(value)(jnp.full((1, 1), gap))
    return float(found), float(slope[0, 0])


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k1", 0.5, 1.0),
        ("k2", 0.125, 0.5),
        ("k3", 0.1065307, 0.3934693),
        ("k1+", 0.5, 0.5),
        ("k3+", 0.1065307, 0.5),
    ],
)
def test_values_and_slopes_at_half_a_nat(estimator, value, slope):
    assert estimate(0.5, estimator) == pytest.approx((value, slope), abs=1e-6)


@pytest.mark.parametrize("estimator", NAMES)
def test_policy_beside_itself_is_exactly_at_zero(estimator):
    logs = jnp.asarray([[-0.1, -7.3, -1e-3, -20.0]])
    assert kl_estimates(logs, logs, FULL, estimator=estimator).values.tolist() == [[0.0] * 4]


@pytest.mark.parametrize("estimator", NAMES)
@pytest.mark.parametrize("gap", [200.0, -200.0])
def test_far_apart_policies_give_finite_counted_estimates_without_a_slope(estimator, gap):
    value, slope = estimate(gap, estimator)
    assert np.isfinite(value) and slope == 0
    found = kl_estimates(jnp.full((1, 1), gap), jnp.zeros((1, 1)), np.ones((1, 1), bool), estimator=estimator)
    assert float(found.clamped) == 1


def test_cap_switches_k3_off_beyond_it_and_nothing_does_without():
    assert estimate(-2.62, "k3", cap=10.0) == (10.0, 0.0)
    assert estimate(-2.60, "k3", cap=10.0)[1] < -10
    value, slope = estimate(-2.62, "k3")
    assert value == pytest.approx(np.exp(2.62) - 3.62, rel=1e-6) and slope == pytest.approx(
        1 - np.exp(2.62), rel=1e-6
    )


def test_slots_that_are_not_read_give_nothing():
    mask = np.asarray([[1, 0]], bool)
    logs = jnp.asarray([[-1.0, jnp.nan]])
    value, slope = jax.value_and_grad(
        lambda current: kl_estimates(current, jnp.zeros((1, 2)), mask).values.sum()
    )(logs)
    assert np.isfinite(value) and slope[0, 1] == 0


def test_capped_weights_and_their_effective_sample_size():
    found = off_policy_weights(WEIGHTS, NONE, FULL)
    np.testing.assert_allclose(found.weights, [[0.3, 0.9, 1.5, 2.0]], rtol=1e-6)
    assert float(found.effective) == pytest.approx(0.7723776, abs=1e-6)
    assert float(found.mean_weight) == pytest.approx(1.175, abs=1e-6)
    assert float(found.kl) == pytest.approx(-np.log(0.3 * 0.9 * 1.5 * 6) / 4, abs=1e-6)


def test_weights_outside_a_band_are_left_out_and_counted():
    found = off_policy_weights(WEIGHTS, NONE, FULL, mode="mask", low=0.5, high=5.0)
    np.testing.assert_allclose(found.weights, [[0.0, 0.9, 1.5, 0.0]], rtol=1e-6)
    assert float(found.masked) == 0.5


def test_row_weight_is_the_product_over_trained_tokens():
    mask = np.asarray([[1, 1, 1, 0]], bool)
    found = off_policy_weights(WEIGHTS, NONE, mask, level="sequence")
    np.testing.assert_allclose(found.weights, [[0.405] * 3 + [0.0]], rtol=1e-5)


def test_token_without_a_record_counts_as_one_and_is_reported():
    behavior = jnp.asarray([[0.0, jnp.nan, 0.0, 0.0]])
    found = off_policy_weights(WEIGHTS, behavior, FULL)
    np.testing.assert_allclose(found.weights, [[0.3, 1.0, 1.5, 2.0]], rtol=1e-6)
    assert float(found.unknown) == 1 and np.isfinite(found.kl)


def test_no_gradient_flows_through_the_weights():
    gradient = jax.grad(lambda old: off_policy_weights(old, NONE, FULL).weights.sum())(WEIGHTS)
    assert not np.asarray(gradient).any()


def test_kept_rows_equal_trl(trl):
    inputs = {name: jnp.asarray(value) for name, value in trl["policy"]["inputs"].items()}
    for threshold, expected in trl["kept_rows"].items():
        kept = off_policy_rows(
            inputs["current"],
            inputs["old"],
            inputs["mask"],
            -jnp.abs(inputs["advantages"]),
            threshold=float(threshold),
        )
        assert kept.tolist() == [bool(value) for value in expected], threshold


def test_good_rows_are_kept_however_far_the_policy_has_gone():
    gone = jnp.full((2, 3), -9.0)
    kept = off_policy_rows(
        gone, jnp.zeros((2, 3)), np.ones((2, 3), bool), jnp.asarray([0.0, -1.0]), threshold=1
    )
    assert kept.tolist() == [True, False]


@pytest.mark.parametrize("value", [-np.inf, 0.1])
def test_impossible_record_of_a_drawn_token_is_refused_by_place(value):
    logs = np.asarray([[-1.0, -2.0], [-0.5, value]])
    with pytest.raises(ValueError, match=r"behavior\[1, 1\]="):
        check_log_probs("behavior", logs, np.ones((2, 2)))
    check_log_probs("behavior", logs, np.asarray([[1, 1], [1, 0]]))
    check_log_probs("behavior", np.asarray([[np.nan, 0.0]]), np.ones((1, 2)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kl_estimates(NONE, NONE, FULL, estimator="k4"), "estimator='k4'"),
        (lambda: kl_estimates(NONE, NONE, FULL, cap=0.0), "cap=0.0"),
        (lambda: off_policy_weights(NONE, NONE, FULL, level="row"), "level='row'"),
        (lambda: off_policy_weights(NONE, NONE, FULL, mode="drop"), "mode='drop'"),
        (lambda: off_policy_weights(NONE, NONE, FULL, high=0.5), "high=0.5"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
