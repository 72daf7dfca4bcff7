"""Ratios, surrogates and their sums: TRL's values and gradients, and the edges."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.objectives.base import mean_loss
from dew.rl import aggregate, clipped_surrogate, kl_estimates, policy_ratio

ONE = np.ones((1, 1), bool)
MODES = {
    "kl": "token_mean",
    "asymmetric": "token_mean",
    "dual": "token_mean",
    "token_mean_microbatch": "token_mean",
    "kl_alone": "seq_mean_token_mean",
}


def loss_of(current, trl, case, level):
    """The policy loss of a golden case, composed from this package's parts."""
    inputs, settings = trl["policy"]["inputs"], trl["policy"]["cases"][case]
    mask = np.asarray(inputs["mask"], bool)
    mode = MODES.get(case, case)
    ratio = policy_ratio(current, jnp.asarray(inputs["old"]), mask, level=level)
    advantages = np.asarray(inputs["advantages"], np.float32)[:, None] * settings.get("scale", 1.0)
    losses = clipped_surrogate(
        ratio.values,
        advantages,
        low=settings.get("epsilon_low", 0.2),
        high=settings.get("epsilon_high", 0.28),
        dual_clip=settings.get("delta"),
    ).losses
    divergence = kl_estimates(current, jnp.asarray(inputs["reference"]), mask).values
    budget = trl["budget"] if mode == "seq_mean_token_sum_norm" else None
    total = losses + settings.get("beta", 0.0) * divergence
    return mean_loss(aggregate(total, mask, mode=mode, budget=budget))[0]


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    "case",
    [
        "token_mean",
        "token_mean_microbatch",
        "seq_mean_token_mean",
        "seq_mean_token_sum",
        "seq_mean_token_sum_norm",
        "kl",
        "kl_alone",
        "asymmetric",
        "dual",
    ],
)
def test_losses_and_gradients_equal_trl(trl, case, level):
    expected = trl["policy_losses"][f"{case}/{level}"]
    current = jnp.asarray(trl["policy"]["inputs"]["current"])
    value, gradient = jax.value_and_grad(loss_of)(current, trl, case, level)
    assert float(value) == pytest.approx(expected["loss"], abs=1e-6)
    np.testing.assert_allclose(gradient, expected["gradient"], atol=1e-6)


# Two rows of probabilities; the published losses of one window of them.
CURRENT = np.log(np.asarray([[0.5, 0.4, 0.3, 0.2, 0.1], [0.25, 0.5, 0.5, 0.5, 0.5]], np.float32))
OLD = np.log(np.asarray([[0.4, 0.4, 0.3, 0.4, 0.1], [0.5, 0.5, 0.25, 0.5, 0.5]], np.float32))
MASK = np.asarray([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], bool)


@pytest.mark.parametrize(
    ("mode", "token", "sequence"),
    [
        ("seq_mean_token_mean", 0.177042, 0.067888),
        ("token_mean", 0.019000, -0.067651),
        ("seq_mean_token_sum_norm", 0.013300, -0.047356),
        ("seq_mean_token_sum", 0.066500, -0.236780),
    ],
)
def test_two_rows_under_every_sum(mode, token, sequence):
    for level, expected in (("token", token), ("sequence", sequence)):
        ratio = policy_ratio(CURRENT, OLD, MASK, level=level)
        losses = clipped_surrogate(ratio.values, np.asarray([[1.0], [-1.0]]), low=0.2, high=0.28).losses
        losses = losses + 0.1 * kl_estimates(CURRENT, OLD, MASK).values
        budget = 5 if mode.endswith("norm") else None
        value, _ = mean_loss(aggregate(losses, MASK, mode=mode, budget=budget))
        assert float(value) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("level", ["sequence", "sequence_token"])
def test_row_ratio_is_the_geometric_mean_over_trained_tokens(level):
    logs = jnp.asarray([[0.1, -0.1, 0.2, 5.0]])
    mask = np.asarray([[1, 1, 1, 0]], bool)

    def ratios(current):
        return policy_ratio(current, jnp.zeros((1, 4)), mask, level=level).values

    np.testing.assert_allclose(ratios(logs), [[1.0689391] * 3 + [1.0]], rtol=1e-6)
    gradient = jax.grad(lambda current: ratios(current)[0, :3].sum())(logs)
    # The row's form spreads each of three gradients over three tokens; the token's form keeps its own.
    np.testing.assert_allclose(gradient, [[1.0689391] * 3 + [0.0]], rtol=1e-6)


def test_token_form_of_a_row_ratio_follows_one_token_alone():
    logs = jnp.asarray([[0.3, -0.6]])
    for level, expected in (("sequence", [0.5, 0.5]), ("sequence_token", [1.0, 0.0])):
        gradient = jax.grad(
            lambda current, level=level: policy_ratio(
                current, jnp.zeros((1, 2)), np.ones((1, 2), bool), level=level
            ).values[0, 0]
        )(logs)
        np.testing.assert_allclose(gradient, [np.exp(-0.15) * np.asarray(expected)], rtol=1e-6)


def test_ratio_beyond_every_bound_is_finite_counted_and_without_gradient():
    for gap in (200.0, -200.0, float(np.log(1e9))):
        ratio, pull = jax.value_and_grad(lambda x: policy_ratio(x, jnp.zeros((1, 1)), ONE).values.sum())(
            jnp.full((1, 1), gap)
        )
        assert float(ratio) == pytest.approx(float(np.exp(np.sign(gap) * 20.0)), rel=1e-5)
        assert pull.tolist() == [[0.0]]
        assert float(policy_ratio(jnp.full((1, 1), gap), jnp.zeros((1, 1)), ONE).clamped) == 1


def test_unchanged_policy_has_ratio_exactly_one_whatever_stands_in_padding():
    current = jnp.asarray([[-0.3, -2.0, jnp.nan, -jnp.inf]])
    mask = np.asarray([[1, 1, 0, 0]], bool)
    for level in ("token", "sequence", "sequence_token"):
        value, gradient = jax.value_and_grad(
            lambda x, level=level: policy_ratio(x, current, mask, level=level).values.sum()
        )(current)
        assert float(value) == 4.0
        assert np.isfinite(gradient).all() and gradient[0, 2:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.2, 1.0, -1.2, -1.0),  # on the upper bound
        (1.3, 1.0, -1.2, 0.0),
        (0.5, 1.0, -0.5, -1.0),
        (0.8, -1.0, 0.8, 1.0),  # on the lower bound
        (0.7, -1.0, 0.8, 0.0),
        (3.0, -1.0, 3.0, 1.0),
        (4.0, -1.0, 3.0, 0.0),  # beyond the dual clip
        (5.0, 0.0, 0.0, 0.0),
    ],
)
def test_surrogate_and_its_slope_on_both_sides_of_every_bound(ratio, advantage, loss, slope):
    def value(r):
        return clipped_surrogate(r, jnp.full((1, 1), advantage), dual_clip=3.0).losses.sum()

    found, gradient = jax.value_and_grad(value)(jnp.full((1, 1), ratio))
    assert float(found) == pytest.approx(loss, abs=1e-6) and float(gradient[0, 0]) == slope


def test_clipped_tokens_are_those_without_a_slope():
    ratio = jnp.asarray([[1.3, 1.3, 0.7, 0.7, 9.0]])
    found = clipped_surrogate(ratio, jnp.asarray([[1.0, -1.0, 1.0, -1.0, -1.0]]), dual_clip=3.0)
    assert found.clipped.tolist() == [[True, False, False, True, True]]


def test_advantages_are_constants_of_the_loss():
    gradient = jax.grad(lambda a: clipped_surrogate(jnp.ones((1, 1)), a).losses.sum())(jnp.ones((1, 1)))
    assert gradient.tolist() == [[0.0]]


# Token losses of two rows, of one, and of none.
LOSSES = np.asarray([[1.0, 1.0, 1.0], [2.0, 7.0, 7.0], [7.0, 7.0, np.nan]])
LENGTHS = np.arange(3) < np.asarray([3, 1, 0])[:, None]


@pytest.mark.parametrize(
    ("mode", "extra", "total", "mass"),
    [
        ("token_mean", {}, 5, 4),
        ("token_sum", {"window_parts": 4}, 5, 0.25),
        ("seq_mean_token_mean", {}, 3, 2),
        ("seq_mean_token_sum", {}, 5, 2),
        ("seq_mean_token_sum_norm", {"budget": 10}, 5, 20),
    ],
)
def test_total_and_mass_with_a_row_that_trains_nothing(mode, extra, total, mass):
    found = aggregate(jnp.asarray(LOSSES), LENGTHS, mode=mode, **extra)
    assert (float(found.total), float(found.mass)) == (total, mass)


@pytest.mark.parametrize(
    ("mode", "short", "long"),
    [
        ("token_mean", 1 / 6, 1 / 6),
        ("seq_mean_token_mean", 1 / 4, 1 / 8),
        ("seq_mean_token_sum", 1 / 2, 1 / 2),
        ("seq_mean_token_sum_norm", 1 / 8, 1 / 8),
    ],
)
def test_weight_of_one_token_in_a_short_and_in_a_long_row(mode, short, long):
    mask = np.arange(4) < np.asarray([2, 4])[:, None]
    budget = 4 if mode.endswith("norm") else None
    weights = jax.grad(lambda losses: mean_loss(aggregate(losses, mask, mode=mode, budget=budget))[0])(
        jnp.ones((2, 4))
    )
    np.testing.assert_allclose(weights, [[short, short, 0, 0], [long] * 4], rtol=1e-6)


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum"])
def test_rows_without_any_trained_token_have_no_mass_and_no_gradient(mode):
    def value(losses):
        return mean_loss(aggregate(losses, np.zeros((2, 3), bool), mode=mode))[0]

    found, gradient = jax.value_and_grad(value)(jnp.full((2, 3), jnp.inf))
    assert float(found) == 0 and not np.asarray(gradient).any()


def test_rows_of_1_and_of_512_tokens_weigh_alike_by_rows_and_by_tokens_by_their_length():
    mask = np.arange(512) < np.asarray([1, 512])[:, None]
    losses = jnp.asarray([[2.0], [1.0]]) * jnp.ones((2, 512))
    by_rows = mean_loss(aggregate(losses, mask, mode="seq_mean_token_mean"))[0]
    assert float(by_rows) == pytest.approx(1.5)
    assert float(mean_loss(aggregate(losses, mask))[0]) == pytest.approx(514 / 513)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: policy_ratio(jnp.zeros((1, 1)), jnp.zeros((1, 1)), ONE, level="row"), "level='row'"),
        (lambda: clipped_surrogate(jnp.ones((1, 1)), jnp.ones((1, 1)), low=1.5), "low=1.5"),
        (lambda: clipped_surrogate(jnp.ones((1, 1)), jnp.ones((1, 1)), high=-0.1), "high=-0.1"),
        (lambda: clipped_surrogate(jnp.ones((1, 1)), jnp.ones((1, 1)), dual_clip=1.2), "dual_clip=1.2"),
        (lambda: aggregate(jnp.ones((1, 1)), ONE, mode="mean"), "mode='mean'"),
        (lambda: aggregate(jnp.ones((1, 1)), ONE, mode="seq_mean_token_sum_norm"), "budget=None"),
        (lambda: aggregate(jnp.ones((1, 1)), ONE, budget=4), "budget=4 is not read by token_mean"),
        (lambda: aggregate(jnp.ones((1, 1)), ONE, window_parts=2), "window_parts=2"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
