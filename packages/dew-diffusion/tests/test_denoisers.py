"""The denoising networks: cost, embeddings, geometry and what they start as."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from dew.nn.backbones.dit import SimpleDiT
from dew.nn.backbones.unet import UNet
from dew.nn.backbones.unet.model import folded, unfolded
from dew.nn.denoising import sinusoid
from dew.nn.sharding import unboxed

SIZES = {"S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16), "XL": (1152, 28, 16)}
"""Width, depth and heads of the published models."""


def dit(**fields):
    return SimpleDiT(**{"hidden_size": 16, "num_layers": 2, "num_heads": 2, "output_channels": 1} | fields)


def unet(**fields):
    sizes = {"channels": (4, 6), "blocks": 1, "num_heads": 2, "condition_size": 16, "norm_groups": 2}
    return UNet(**sizes | {"output_channels": 1} | fields)


def multiply_accumulates(jaxpr):
    """Of all matrix products in a jaxpr and in the jaxprs it calls."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            depth = np.prod([equation.invars[0].aval.shape[axis] for axis in contracted])
            total += int(depth * np.prod(equation.outvars[0].aval.shape))
        for parameter in equation.params.values():
            if isinstance(parameter, core.ClosedJaxpr):
                total += multiply_accumulates(parameter.jaxpr)
    return total


def cost(name, patch, side=32):
    width, depth, heads = SIZES[name]
    model = SimpleDiT(patch, width, depth, heads, output_channels=8, attention_impl="reference")
    sample = jax.ShapeDtypeStruct((1, side, side, 4), jnp.float32)
    level = jax.ShapeDtypeStruct((1,), jnp.float32)
    variables = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)), sample, level)
    return multiply_accumulates(jax.make_jaxpr(model.apply)(unboxed(variables), sample, level).jaxpr)


@pytest.mark.parametrize(
    ("patch", "published"),
    [
        (2, {"S": 6.06, "B": 23.01, "L": 80.70, "XL": 118.62}),
        (4, {"S": 1.41, "B": 5.57, "L": 19.70, "XL": 29.04}),
        (8, {"S": 0.36, "B": 1.42, "L": 5.01, "XL": 7.39}),
    ],
)
def test_published_sizes_cost_the_published_multiply_accumulates(patch, published):
    counted = {name: round(cost(name, patch) / 1e9, 2) for name in published}
    assert counted == published


def test_cost_grows_with_the_square_of_the_tokens_and_two_operations_are_one_multiply_accumulate():
    assert round(cost("XL", 2, side=64) / 1e9, 2) == 524.54
    assert round(2 * cost("XL", 2) / 1e9, 1) == 237.2


def test_sinusoid_tells_levels_of_a_thousand_apart():
    near, far = sinusoid(jnp.asarray([100.0, 900.0]))
    assert float(jnp.sqrt(jnp.mean((near - far) ** 2))) == pytest.approx(0.90, abs=0.005)


def test_sinusoid_of_a_level_is_float32_whatever_the_model_computes_in():
    level = np.asarray([937.0])
    rates = 10000.0 ** (-np.arange(128) / 128)
    expected = np.concatenate([np.cos(level * rates), np.sin(level * rates)])
    np.testing.assert_allclose(sinusoid(jnp.asarray(level, jnp.float32))[0], expected, atol=1e-4)
    model = dit(dtype=jnp.bfloat16)
    seen = jax.make_jaxpr(lambda level: model.init(jax.random.key(0), jnp.ones((1, 4, 4, 1)), level))(
        jnp.asarray([937.0])
    )
    cosines = [equation for equation in seen.jaxpr.eqns if equation.primitive.name == "cos"]
    assert [equation.invars[0].aval.dtype for equation in cosines] == [jnp.float32]


def test_pixel_blocks_come_back_where_they_were():
    image = jnp.arange(2 * 4 * 6 * 3.0).reshape(2, 4, 6, 3)
    cut = folded(image, 2)
    np.testing.assert_array_equal(cut[0, 0, 1], image[0, :2, 2:4].reshape(-1))
    np.testing.assert_array_equal(unfolded(cut, 2), image)


def started(model, image, condition=None):
    level = jnp.linspace(0, 900, image.shape[0])
    variables = jax.jit(model.init)(jax.random.key(0), image, level, condition)
    return unboxed(variables), level


@pytest.mark.parametrize("build", [dit, unet])
def test_a_fresh_model_predicts_zero(build):
    image = jax.random.normal(jax.random.key(1), (2, 4, 4, 1))
    variables, level = started(build(), image)
    assert not np.asarray(jax.jit(build().apply)(variables, image, level)).any()


def moved(variables):
    """The variables with noise on every leaf, so that nothing is zero that starts so."""
    draw = np.random.default_rng(5)
    return jax.tree.map(lambda leaf: leaf + 0.1 * draw.normal(size=leaf.shape).astype(leaf.dtype), variables)


@pytest.mark.parametrize("build", [dit, unet])
def test_prediction_reads_sample_level_and_condition_of_its_own_row(build):
    image = jax.random.normal(jax.random.key(1), (2, 4, 4, 1))
    condition = jax.nn.one_hot(jnp.asarray([0, 1]), 3)
    variables, level = started(build(), image, condition)
    variables = moved(variables)
    apply = jax.jit(build().apply)
    base = apply(variables, image, level, condition)
    for changed in (
        apply(variables, image.at[1].add(1), level, condition),
        apply(variables, image, level.at[1].add(1), condition),
        apply(variables, image, level, condition[::-1].at[0].set(condition[0])),
    ):
        np.testing.assert_allclose(changed[0], base[0], atol=1e-6)
        assert float(jnp.abs(changed[1] - base[1]).max()) > 1e-4


@pytest.mark.parametrize("build", [dit, unet])
def test_low_precision_computes_inside_and_the_prediction_is_float32(build):
    image = jax.random.normal(jax.random.key(1), (1, 4, 4, 1))
    variables, level = started(build(), image)
    variables = moved(variables)
    exact = jax.jit(build().apply)(variables, image, level)
    coarse = jax.jit(build(dtype=jnp.bfloat16).apply)(variables, image, level)
    assert coarse.dtype == jnp.float32
    gap = float(jnp.abs(coarse - exact).max() / jnp.abs(exact).max())
    assert 1e-4 < gap < 0.1


@pytest.mark.parametrize("build", [dit, unet])
def test_dropout_acts_in_training_alone(build):
    image = jax.random.normal(jax.random.key(1), (1, 4, 4, 1))
    model = build(dropout=0.5)
    variables, level = started(model, image)
    variables = moved(variables)

    def run(train):
        return model.apply(variables, image, level, train=train, rngs={"dropout": jax.random.key(3)})

    still, shaken = jax.jit(run, static_argnums=0)(False), jax.jit(run, static_argnums=0)(True)
    assert float(jnp.abs(still - shaken).max()) > 1e-3
    np.testing.assert_allclose(still, jax.jit(build().apply)(variables, image, level), atol=1e-6)


def test_recomputed_activations_change_no_value():
    image = jax.random.normal(jax.random.key(1), (2, 4, 4, 1))
    variables, level = started(dit(), image)
    variables = moved(variables)
    gradients = [
        jax.jit(jax.grad(lambda tree, model=model: jnp.sum(model.apply(tree, image, level) ** 2)))(variables)
        for model in (dit(), dit(remat=True))
    ]
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5), *gradients)


def test_unet_keeps_odd_sides():
    image = jnp.ones((1, 7, 5, 1))
    model = unet(channels=(4, 4, 8))
    assert jax.eval_shape(model.init_with_output, jax.random.key(0), image, jnp.ones(1))[0].shape == (
        1,
        7,
        5,
        1,
    )


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: dit(num_heads=3), "num_heads=3"),
        (lambda: dit(hidden_size=6, num_heads=1), "hidden_size=6"),
        (lambda: dit(dropout=1.0), "dropout=1.0"),
        (lambda: dit(patch_size=0), "patch_size=0"),
        (lambda: unet(channels=()), "channels"),
        (lambda: unet(num_heads=3), "num_heads=3"),
        (lambda: unet(attention=(True,)), "attention"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(build, named):
    with pytest.raises(ValueError, match=named):
        build()


@pytest.mark.parametrize("build", [lambda: dit(patch_size=3), lambda: unet(pixel_block=3)])
def test_sides_that_patches_do_not_fill_are_refused(build):
    with pytest.raises(ValueError, match="=3 must divide the sample's sides, 4 and 4"):
        jax.eval_shape(build().init, jax.random.key(0), jnp.ones((1, 4, 4, 1)), jnp.ones(1))


def test_condition_of_another_rank_is_refused():
    with pytest.raises(ValueError, match="one vector a row"):
        jax.eval_shape(
            dit().init, jax.random.key(0), jnp.ones((1, 4, 4, 1)), jnp.ones(1), jnp.ones((1, 2, 3))
        )
