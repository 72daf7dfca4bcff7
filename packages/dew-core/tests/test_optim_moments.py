"""Moments in bfloat16: stochastic rounding without bias, and Adam over it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.config import OptimConfig
from dew.training.optim import bf16_moments, build_optimizer
from dew.training.optim.moments import stochastic_round


def rounded(value, count=200_000, seed=0):
    return stochastic_round(jnp.full(count, value, jnp.float32), key=jax.random.key(seed)).astype(jnp.float32)


@pytest.mark.parametrize("eighths", [1, 4, 7])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_value_between_neighbours_goes_up_by_its_fraction(eighths, sign):
    low, step = 1.0, 2.0**-7
    draws = rounded(sign * (low + eighths / 8 * step))
    assert set(np.unique(draws)) == {sign * low, sign * (low + step)}
    up = float(jnp.mean(jnp.abs(draws) > low))
    # Four standard deviations of a frequency over 200,000 draws.
    assert abs(up - eighths / 8) < 4 * np.sqrt(0.25 / 200_000)


@pytest.mark.parametrize("value", [0.0, 1.5, -3.0, np.inf, -np.inf])
def test_values_bfloat16_can_hold_stay(value):
    np.testing.assert_array_equal(rounded(value, count=64), np.full(64, value, np.float32))


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF])
def test_nan_stays_nan_whatever_its_bits(bits):
    nan = jnp.full(64, np.array(bits, np.uint32).view(np.float32))
    assert jnp.isnan(stochastic_round(nan, key=jax.random.key(0))).all()


def test_a_second_moment_that_nearest_rounding_would_freeze_follows_its_mean():
    transform = bf16_moments(b2=0.999)
    params = {"w": jnp.zeros(4096)}
    update = jax.jit(transform.update)
    state = transform.init(params)
    for _ in range(1000):
        _, state = update({"w": jnp.ones(4096)}, state)
    mean = float(jnp.mean(state.nu["w"].astype(jnp.float32)))
    # Nearest rounding stops at 0.25, where one step of 0.001 * (1 - nu) is below half an ulp.
    assert mean == pytest.approx(1 - 0.999**1000, abs=0.003)


def test_first_update_equals_adam_since_it_uses_the_moments_before_rounding():
    gradient = {"w": jnp.linspace(-1.0, 1.0, 7)}
    ours, reference = bf16_moments(), optax.scale_by_adam()
    expected, _ = reference.update(gradient, reference.init(gradient))
    updates, state = ours.update(gradient, ours.init(gradient))
    np.testing.assert_allclose(updates["w"], expected["w"], rtol=1e-6)
    assert {leaf.dtype for leaf in (state.mu["w"], state.nu["w"])} == {jnp.dtype("bfloat16")}


def test_draws_repeat_with_the_count_and_differ_between_updates_leaves_and_moments():
    gradient = {"a": jnp.full(512, 1.003), "b": jnp.full(512, 1.003)}
    transform = bf16_moments(b1=0.0, b2=0.0)
    _, first = transform.update(gradient, transform.init(gradient))
    _, again = transform.update(gradient, transform.init(gradient))
    _, second = transform.update(gradient, first)
    np.testing.assert_array_equal(first.mu["a"], again.mu["a"])
    for one, other in ((first.mu["a"], second.mu["a"]), (first.mu["a"], first.mu["b"])):
        assert not np.array_equal(one, other)
    # The second moment, 1.006, is rounded up more often: with one draw for both, always where the first is.
    assert np.any((first.mu["a"] > 1) & (first.nu["a"] == 1))


def test_configuration_stores_both_moments_in_bfloat16():
    optimizer = build_optimizer(OptimConfig(state_dtype="bfloat16"), total_updates=2)
    state = optimizer.init({"w": jnp.zeros(3)})
    assert {leaf.dtype for leaf in jax.tree.leaves(state) if leaf.ndim} == {jnp.dtype("bfloat16")}
