"""Norms, rotary positions, dense layers, feed-forward blocks and stacks against their formulas in NumPy."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dew.nn.dense import Dense
from dew.nn.mlp import GATES, PLAIN, FeedForward
from dew.nn.norms import LayerNorm, RMSNorm, norm_of
from dew.nn.rotary import rotary_table, rotate
from dew.nn.sharding import boxed_like, named_axes, unboxed
from dew.nn.stack import StackView

RNG = np.random.default_rng(0)


def test_rms_norm_divides_by_the_root_mean_square_with_epsilon_inside():
    x = RNG.standard_normal((3, 8))
    scale = RNG.standard_normal(8)
    got = RMSNorm(epsilon=0.1).apply({"params": {"scale": scale}}, jnp.asarray(x, jnp.float32))
    expected = scale * x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.1)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_rms_norm_of_bfloat16_keeps_its_statistics_in_float32():
    # 1 + 512 small squares: a bfloat16 sum loses every one of them.
    x = jnp.concatenate([jnp.ones(1), jnp.full(511, 0.03125)]).astype(jnp.bfloat16)
    got = RMSNorm(epsilon=0.0, dtype=jnp.float32).apply({"params": {"scale": jnp.ones(512)}}, x)
    assert got[0] == pytest.approx(1 / np.sqrt((1 + 511 * 0.03125**2) / 512), rel=1e-6)


def test_a_scale_that_counts_from_one_is_added_in_float32():
    # In bfloat16, 1 + 0.05 would be 1.046875.
    small = jnp.asarray(0.05, jnp.bfloat16)
    got = RMSNorm(epsilon=0.0, offset=1.0).apply({"params": {"scale": small[None]}}, jnp.ones((1, 1)))
    assert float(got[0, 0]) == 1 + float(small) and float(got[0, 0]) == pytest.approx(1.05005, abs=1e-5)
    assert RMSNorm(offset=1.0).init(jax.random.key(0), jnp.ones((1, 2)))["params"]["scale"].unbox().sum() == 0


@pytest.mark.parametrize("kind", ["layer", "layer_scale"])
def test_layer_norm_divides_the_centred_row_by_its_deviation_with_epsilon_inside(kind):
    x, scale, bias = RNG.standard_normal((3, 8)), RNG.standard_normal(8), RNG.standard_normal(8)
    params = {"scale": scale, **({"bias": bias} if kind == "layer" else {})}
    got = norm_of(kind)(epsilon=0.1).apply({"params": params}, jnp.asarray(x, jnp.float32))
    centred = x - x.mean(-1, keepdims=True)
    expected = scale * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.1)
    np.testing.assert_allclose(got, expected + params.get("bias", 0), rtol=1e-5, atol=1e-6)


def test_layer_norm_of_bfloat16_keeps_its_statistics_in_float32():
    x = jnp.concatenate([jnp.ones(1), jnp.full(511, 0.03125)]).astype(jnp.bfloat16)
    wide = np.asarray(x, np.float64)
    got = LayerNorm(epsilon=0.0).apply({"params": {"scale": jnp.ones(512), "bias": jnp.zeros(512)}}, x)
    assert got[0] == pytest.approx((wide[0] - wide.mean()) / wide.std(), rel=1e-5)


ERF = np.vectorize(math.erf)
NONLINEAR = {
    "swiglu": lambda x: x / (1 + np.exp(-x)),
    "geglu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "geglu_erf": lambda x: 0.5 * x * (1 + ERF(x / np.sqrt(2))),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}


@pytest.mark.parametrize("name", [*GATES, *PLAIN])
def test_nonlinearities_are_told_apart_by_more_than_rounding(name):
    x = np.linspace(-4, 4, 81)
    expected = NONLINEAR[{"gelu": "geglu", "gelu_erf": "geglu_erf"}.get(name, name)](x)
    np.testing.assert_allclose({**GATES, **PLAIN}[name](jnp.asarray(x, jnp.float32)), expected, atol=2e-6)


def test_dense_adds_its_bias():
    x, kernel, bias = (RNG.standard_normal(shape) for shape in ((2, 3, 4), (4, 5), (5,)))
    dense = Dense(5, ("embed", "mlp"), precision="highest", bias=True)
    got = dense.apply({"params": {"kernel": kernel, "bias": bias}}, jnp.asarray(x))
    np.testing.assert_allclose(got, x @ kernel + bias, rtol=1e-5, atol=1e-6)


def test_rotary_turns_coordinate_pairs_of_the_two_halves_by_position_times_frequency():
    x = RNG.standard_normal((1, 5, 2, 6))
    positions = np.array([[0, 3, 1, 100, 7]])
    frequencies = 50.0 ** -(np.arange(0, 6, 2) / 6)
    turn = np.exp(1j * positions[0][:, None] * frequencies)[None, :, None]
    pairs = (x[..., :3] + 1j * x[..., 3:]) * turn
    got = rotate(jnp.asarray(x, jnp.float32), *rotary_table(jnp.asarray(positions), 6, 50.0))
    np.testing.assert_allclose(got, np.concatenate([pairs.real, pairs.imag], -1), atol=2e-5)


def test_rotary_refuses_an_odd_width():
    with pytest.raises(ValueError, match="head_dim=5 must be even"):
        rotary_table(jnp.zeros((1, 1), jnp.int32), 5, 1e4)


def test_dense_multiplies_the_last_axis_and_keeps_the_leading_ones():
    x, kernel = RNG.standard_normal((2, 3, 4)), RNG.standard_normal((4, 5))
    got = Dense(5, ("embed", "mlp"), precision="highest").apply(
        {"params": {"kernel": kernel}}, jnp.asarray(x)
    )
    np.testing.assert_allclose(got, x @ kernel, rtol=1e-5, atol=1e-6)


def feed_forward(activation: str, x: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    up = x @ weights["up_proj"]
    if activation == "relu2":
        return np.maximum(up, 0) ** 2 @ weights["down_proj"]
    gate = x @ weights["gate_proj"]
    if activation == "swiglu":
        gated = gate / (1 + np.exp(-gate))
    else:
        gated = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    return (gated * up) @ weights["down_proj"]


@pytest.mark.parametrize("activation", ["swiglu", "geglu", "relu2"])
def test_feed_forward_follows_its_formula(activation):
    x = RNG.standard_normal((2, 4))
    names = {"up_proj": (4, 6), "down_proj": (6, 4)} | (
        {} if activation == "relu2" else {"gate_proj": (4, 6)}
    )
    weights = {name: RNG.standard_normal(shape) for name, shape in names.items()}
    module = FeedForward(6, activation, precision="highest")
    params = {name: {"kernel": jnp.asarray(weight, jnp.float32)} for name, weight in weights.items()}
    assert jax.tree.structure(unboxed(module.init(jax.random.key(0), jnp.zeros((1, 4))))["params"]) == (
        jax.tree.structure(params)
    )
    got = module.apply({"params": params}, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(got, feed_forward(activation, x, weights), rtol=1e-4, atol=1e-4)


def test_a_parameter_carries_its_axis_names_until_it_is_unboxed():
    boxed = named_axes(nn.initializers.ones, "embed", None)(jax.random.key(0), (2, 3))
    assert boxed.names == ("embed", None)
    assert unboxed({"kernel": boxed})["kernel"].shape == (2, 3)


def test_values_take_the_axis_names_of_a_template():
    template = {"w": named_axes(nn.initializers.ones, "embed")(jax.random.key(0), (2,))}
    boxed = boxed_like(template, {"w": jnp.array([3.0, 4.0])})
    assert boxed["w"].names == ("embed",)
    np.testing.assert_array_equal(unboxed(boxed)["w"], [3.0, 4.0])


def layers() -> dict[str, dict[str, jax.Array]]:
    return {f"layers_{i}": {"w": jnp.full(3, float(i)), "b": jnp.array(float(-i))} for i in range(11)}


def test_a_stack_orders_layers_by_number_and_unstacking_restores_the_tree():
    tree = {**layers(), "norm": {"scale": jnp.ones(3)}}
    view = StackView(11)
    bank, rest = view.stack(tree)
    np.testing.assert_array_equal(bank["b"], -np.arange(11.0))
    assert bank["w"].shape == (11, 3) and list(rest) == ["norm"]
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), view.unstack(bank, rest), tree))


def test_a_stack_refuses_a_missing_layer_and_layers_that_differ():
    with pytest.raises(ValueError, match="no 'layers_11'"):
        StackView(12).stack(layers())
    with pytest.raises(ValueError, match="'layers_3' differs"):
        StackView(11).stack({**layers(), "layers_3": {"w": jnp.zeros(4), "b": jnp.array(0.0)}})
