"""Preference losses: TRL's values and gradients, and what one mask means for sums and averages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.rl import LogRatios, preference_losses, response_log_ratios


def ratios(total, tokens=1.0):
    return LogRatios(jnp.asarray([float(total)]), jnp.asarray([float(tokens)]))


def mean_of_law(current, trl, law, beta):
    inputs = {name: jnp.asarray(value) for name, value in trl["preference"].items()}
    found = response_log_ratios(current, inputs["reference"], inputs["mask"])
    pairs = len(inputs["mask"]) // 2
    chosen = LogRatios(found.total[:pairs], found.tokens[:pairs])
    rejected = LogRatios(found.total[pairs:], found.tokens[pairs:])
    return preference_losses(chosen, rejected, loss=law, beta=beta).mean()


@pytest.mark.parametrize("beta", [0.1, 0.5])
@pytest.mark.parametrize("law", ["sigmoid", "hinge", "ipo"])
def test_losses_and_gradients_equal_trl(trl, law, beta):
    expected = trl["preference_losses"][f"{law}/{beta}"]
    current = jnp.asarray(trl["preference"]["current"])
    value, gradient = jax.value_and_grad(mean_of_law)(current, trl, law, beta)
    assert float(value) == pytest.approx(expected["loss"], rel=1e-6)
    # The reference's gradient at slots outside its mask is of log probabilities it holds to be 0.
    inside = np.asarray(trl["preference"]["mask"], bool)
    np.testing.assert_allclose(
        np.asarray(gradient)[inside], np.asarray(expected["gradient"])[inside], rtol=2e-6, atol=1e-6
    )
    assert not np.asarray(gradient)[~inside].any()


def test_identity_loss_compares_averages():
    assert preference_losses(ratios(2, 4), ratios(-1, 2), loss="ipo", beta=0.1).tolist() == [16.0]


def test_pair_that_the_reference_ranks_alike_costs_log_2_and_a_margin_of_one_is_enough_for_hinge():
    assert preference_losses(ratios(1), ratios(1)).tolist() == pytest.approx([np.log(2)])
    assert preference_losses(ratios(12), ratios(1), loss="hinge").tolist() == [0.0]
    assert preference_losses(ratios(1), ratios(1), loss="hinge").tolist() == [1.0]


def test_hopeless_pair_has_a_finite_loss_and_the_full_slope():
    value, slope = jax.value_and_grad(
        lambda total: preference_losses(LogRatios(total, jnp.ones(1)), ratios(0), beta=1.0).sum()
    )(jnp.asarray([-1e4]))
    assert float(value) == pytest.approx(1e4) and slope.tolist() == [-1.0]


@pytest.mark.parametrize(("end_counts", "chosen", "rejected"), [(False, -1.5, -4.0), (True, -1.1, -3.15)])
def test_sum_and_length_read_one_mask(end_counts, chosen, rejected):
    """Chosen [-1, -2, end], rejected [-3, -4, -5, end]; the end enters both or neither."""
    current = jnp.asarray([[-1.0, -2.0, -0.3, -99.0], [-3.0, -4.0, -5.0, -0.6]])
    mask = np.asarray([[1, 1, end_counts, 0], [1, 1, 1, end_counts]], bool)
    found = response_log_ratios(current, jnp.zeros((2, 4)), mask)
    np.testing.assert_allclose(found.average, [chosen, rejected], rtol=1e-6)


def test_reference_gets_no_gradient_and_padding_is_not_read():
    current = jnp.asarray([[-1.0, jnp.nan]])
    mask = np.asarray([[1, 0]], bool)

    def total(now, before):
        return response_log_ratios(now, before, mask).total.sum()

    now, before = jax.grad(total, (0, 1))(current, current)
    assert now.tolist() == [[1.0, 0.0]] and before.tolist() == [[0.0, 0.0]]


def test_response_without_tokens_has_average_0():
    found = response_log_ratios(jnp.ones((1, 2)), jnp.zeros((1, 2)), np.zeros((1, 2), bool))
    assert (found.total.tolist(), found.tokens.tolist(), found.average.tolist()) == ([0.0], [0.0], [0.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"loss": "kto"}, "loss='kto'"), ({"beta": 0.0}, "beta=0.0"), ({"beta": np.inf}, "beta=inf")],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        preference_losses(ratios(1), ratios(1), **options)
