"""The tiled vocabulary head against the softmax written out in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.objectives.lm.chunked import MIN_TILE, chunked_cross_entropy, head_logits, sensible_chunks

ROWS, WIDTH, VOCAB = 6, 8, 97
RNG = np.random.default_rng(3)
HIDDEN = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
WEIGHT = RNG.standard_normal((WIDTH, VOCAB)).astype(np.float32)
# The first and last columns of a tile, and the last of all.
TARGETS = np.array([0, 24, 25, 49, 95, 96])
LOSS_BAR = RNG.standard_normal(ROWS).astype(np.float32)
PARTITION_BAR = RNG.standard_normal(ROWS).astype(np.float32)


def closed_form(softcap, temperature):
    """Losses, log partitions, and the gradients of LOSS_BAR . losses + PARTITION_BAR . log_partition^2."""
    hidden, weight = HIDDEN.astype(np.float64), WEIGHT.astype(np.float64)
    raw = hidden @ weight
    capped = raw if softcap is None else softcap * np.tanh(raw / softcap)
    logits = capped / temperature
    partition = np.log(np.exp(logits).sum(1))
    losses = partition - logits[np.arange(ROWS), TARGETS]
    share = np.exp(logits - partition[:, None])
    bar = share * (LOSS_BAR + 2 * PARTITION_BAR * partition)[:, None]
    bar[np.arange(ROWS), TARGETS] -= LOSS_BAR
    slope = 1.0 if softcap is None else 1 - (capped / softcap) ** 2
    bar = bar * slope / temperature
    return losses, partition, bar @ weight.T, hidden.T @ bar


@pytest.mark.parametrize("chunks", [1, 3, 4, 97])
@pytest.mark.parametrize(("softcap", "temperature"), [(None, 1.0), (2.0, 1.0), (2.0, 0.7), (None, 1.7)])
def test_values_and_gradients_equal_the_closed_form(chunks, softcap, temperature):
    def objective(hidden, weight):
        scored = chunked_cross_entropy(
            hidden,
            weight,
            jnp.asarray(TARGETS),
            chunks=chunks,
            softcap=softcap,
            temperature=temperature,
            precision="highest",
        )
        return LOSS_BAR @ scored.losses + PARTITION_BAR @ scored.log_partition**2, scored

    (_, scored), bars = jax.value_and_grad(objective, (0, 1), has_aux=True)(HIDDEN, WEIGHT)
    losses, partition, hidden_bar, weight_bar = closed_form(softcap, temperature)
    np.testing.assert_allclose(scored.losses, losses, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(scored.log_partition, partition, rtol=2e-5)
    np.testing.assert_allclose(bars[0], hidden_bar, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(bars[1], weight_bar, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunks", [1, 3])
def test_correct_means_the_first_of_the_best_columns(chunks):
    weight = np.zeros((1, 7), np.float32)
    weight[0, [2, 5]] = 1.0
    scored = chunked_cross_entropy(jnp.ones((3, 1)), jnp.asarray(weight), jnp.array([2, 5, 0]), chunks=chunks)
    assert scored.correct.tolist() == [True, False, False]


def test_logits_far_apart_and_large_stay_finite():
    weight = jnp.array([[-1e4, 1e4, 0.0, 9e3]])
    scored = chunked_cross_entropy(jnp.ones((1, 1)), weight, jnp.array([0]), chunks=2)
    assert float(scored.losses[0]) == pytest.approx(2e4)


def program(chunks):
    def loss(hidden, weight):
        return chunked_cross_entropy(hidden, weight, jnp.asarray(TARGETS), chunks=chunks).losses.sum()

    return str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(HIDDEN, WEIGHT))


def test_tiles_never_make_the_whole_matrix_of_logits():
    assert f"f32[{ROWS},{VOCAB}]" in program(1)
    assert f"f32[{ROWS},{VOCAB}]" not in program(4)


def test_one_tile_keeps_its_logits_and_several_compute_theirs_again():
    assert program(1).count("dot_general[") == 3
    assert program(4).count("dot_general[") == 4 * 4


def test_a_small_vocabulary_is_not_cut():
    assert sensible_chunks(256, 4) == 1
    assert sensible_chunks(3 * MIN_TILE, 4) == 3
    assert sensible_chunks(128_000, 4) == 4


def test_bfloat16_states_are_scored_in_float32():
    scored = chunked_cross_entropy(
        HIDDEN.astype(jnp.bfloat16), WEIGHT.astype(jnp.bfloat16), jnp.asarray(TARGETS), chunks=3
    )
    assert scored.losses.dtype == jnp.float32
    exact = HIDDEN.astype(jnp.bfloat16).astype(np.float64) @ WEIGHT.astype(jnp.bfloat16).astype(np.float64)
    np.testing.assert_allclose(scored.log_partition, np.log(np.exp(exact).sum(1)), rtol=1e-5)


def test_head_logits_are_capped():
    raw = HIDDEN.astype(np.float64) @ WEIGHT
    got = head_logits(jnp.asarray(HIDDEN), jnp.asarray(WEIGHT), softcap=2.0, precision="highest")
    np.testing.assert_allclose(got, 2 * np.tanh(raw / 2), rtol=1e-4, atol=1e-5)


def test_impossible_tiles_and_temperatures_are_refused():
    with pytest.raises(ValueError, match="chunks=98"):
        chunked_cross_entropy(HIDDEN, WEIGHT, TARGETS, chunks=98)
    with pytest.raises(ValueError, match=r"temperature=0\.0"):
        chunked_cross_entropy(HIDDEN, WEIGHT, TARGETS, temperature=0.0)
