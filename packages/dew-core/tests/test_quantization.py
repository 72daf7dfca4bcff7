"""Quantized products against their formula in NumPy, and objectives that train through them."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
import qwix
from flax import linen as nn

from dew.lora import LoRA, adapted
from dew.nn.dense import Dense
from dew.objectives.base import Aux, Mean, Objective, Step
from dew.testing import in_memory
from dew.training import Checkpoints, Trainer
from dew.training.quantization import Quantization, quantized
from dew.training.quantization.products import PLAIN, narrow_grouped_product, narrow_product

INT8, FP8, WEIGHTS = (
    Quantization(),
    Quantization("float8_e4m3fn", "float8_e4m3fn"),
    Quantization("int8", None),
)
KEY = jax.random.key(0)


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("f4")


def rounded(x, axis, dtype):
    """`s q` by hand: the largest magnitude along `axis` at the type's, the rest rounded to the type."""
    x = x.astype(np.float64)
    largest = np.abs(x).max(axis, keepdims=True)
    if dtype == "int8":
        scale = largest / 127
        return scale * np.round(x / scale)
    scale = (largest / 448).astype(np.float32)
    return scale * (x.astype(np.float32) / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


@pytest.mark.parametrize("spec", [INT8, FP8, WEIGHTS], ids=["int8", "fp8", "weights"])
def test_product_equals_the_formula(spec):
    x, kernel = drawn(5, 16), drawn(16, 7, seed=1)
    left = x if spec.activations is None else rounded(x, 1, spec.activations)
    expected = left @ rounded(kernel, 0, spec.weights)
    found = jax.jit(narrow_product, static_argnums=2)(x, kernel, spec)
    assert np.abs(expected - x @ kernel).max() > 1e-3
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", [INT8, FP8], ids=["int8", "fp8"])
def test_grouped_product_equals_each_groups_own(spec):
    x, kernels, sizes = drawn(6, 8), drawn(3, 8, 4, seed=1), np.array([2, 0, 4], np.int32)
    parts = [(x[:2], kernels[0]), (x[2:], kernels[2])]
    expected = [rounded(rows, 1, spec.weights) @ rounded(kernel, 0, spec.weights) for rows, kernel in parts]
    found = narrow_grouped_product(x, kernels, sizes, spec)
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-5, atol=1e-5)


def test_product_is_that_of_qwixs_own_training_provider():
    x, kernel = jnp.asarray(drawn(5, 16)), jnp.asarray(drawn(16, 7, seed=1))
    method = f"absmax,{127.5 / 127}"
    rule = qwix.QtRule(
        weight_qtype="int8", act_qtype="int8", weight_calibration_method=method, act_calibration_method=method
    )

    class Provided(nn.Module):
        @nn.compact
        def __call__(self, x):
            weight = self.param("kernel", lambda key: kernel)
            return qwix.QtProvider([rule]).dot_general(x, weight, PLAIN)

    def of(product):
        return jax.value_and_grad(lambda x, kernel: jnp.sum(jnp.sin(product(x, kernel))), (0, 1))(x, kernel)

    theirs = of(lambda x, kernel: Provided().apply({"params": {"kernel": kernel}}, x))
    ours = of(lambda x, kernel: narrow_product(x, kernel, INT8))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, theirs)


def test_the_product_is_one_of_int8_arrays():
    text = str(jax.make_jaxpr(lambda x, k: narrow_product(x, k, INT8))(drawn(5, 16), drawn(16, 7)))
    assert "i8[5,16]" in text and "i8[16,7]" in text and "preferred_element_type=int32" in text


@pytest.mark.parametrize("spec", [INT8, FP8, WEIGHTS], ids=["int8", "fp8", "weights"])
def test_gradients_are_those_of_the_product_without_rounding(spec):
    x, kernel, weight = drawn(5, 16), drawn(16, 7, seed=1), drawn(5, 7, seed=2)
    gradient = jax.grad(lambda x, k: jnp.sum(weight * narrow_product(x, k, spec)), (0, 1))(x, kernel)
    np.testing.assert_allclose(gradient[0], weight @ kernel.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient[1], x.T @ weight, rtol=1e-5, atol=1e-5)


def test_grouped_gradients_are_those_of_the_product_without_rounding():
    x, kernels, sizes = drawn(6, 8), drawn(3, 8, 4, seed=1), np.array([2, 1, 3], np.int32)

    def gradient(product):
        return jax.grad(lambda x, k: jnp.sum(jnp.asarray(drawn(6, 4)) * product(x, k)), (0, 1))(x, kernels)

    narrow = gradient(lambda x, k: narrow_grouped_product(x, k, sizes, INT8))
    plain = gradient(lambda x, k: jax.lax.ragged_dot(x, k, sizes))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), narrow, plain)


class Net(nn.Module):
    """One layer of each kind, and a head with a side over the vocabulary."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x):
        x = Dense(16, ("embed", "mlp"), dtype=self.dtype, name="up")(x)
        x = nn.Dense(12, dtype=self.dtype, name="down", bias_init=nn.initializers.ones)(jnp.tanh(x))
        return Dense(3, ("embed", "vocab"), dtype=self.dtype, name="head")(x)


class Fit(Objective[Any, Any]):
    """Least squares of a net's outputs to y."""

    def __init__(self, net=None):
        self.net = net or Net()

    def init(self, key, variables=None):
        return nn.meta.unbox(self.net.init(key, jnp.zeros((1, 8)))) if variables is None else variables

    def loss(self, params, batch, step):
        error = self.net.apply(params, batch["x"]).astype(jnp.float32) - batch["y"]
        return Mean(jnp.sum(error**2), jnp.asarray(error.size, jnp.float32)), Aux()

    def evaluate(self, params, batch, step):
        return self.net.apply(params, batch["x"])

    def preview(self, params, batch, step, *, scored=None):
        return self.net.apply(params, batch["x"])


def batch(rows=6):
    return {"x": drawn(rows, 8, seed=3), "y": drawn(rows, 3, seed=4)}


STEP = Step(step=0, key=KEY)


def outputs(params, x, narrow):
    """The net by hand, with the products of the modules in `narrow` in int8."""

    def product(name, x, kernel):
        kernel = np.asarray(kernel)
        return rounded(x, 1, "int8") @ rounded(kernel, 0, "int8") if name in narrow else x @ kernel

    params = params["params"]
    x = np.tanh(product("up", x, params["up"]["kernel"]))
    x = product("down", x, params["down"]["kernel"]) + np.asarray(params["down"]["bias"])
    return product("head", x, params["head"]["kernel"])


@pytest.mark.parametrize(("modules", "narrow"), [("*", {"up", "down"}), ("up", {"up"}), ("d*n", {"down"})])
def test_the_products_that_the_glob_names_are_narrow_and_the_head_is_not(modules, narrow):
    of = quantized(Fit(), Quantization(modules=modules))
    params = of.init(KEY)
    expected = outputs(params, batch()["x"], narrow)
    np.testing.assert_allclose(of.evaluate(params, batch(), STEP), expected, rtol=1e-4, atol=1e-5)
    total = np.sum((expected - batch()["y"]) ** 2)
    np.testing.assert_allclose(of.loss(params, batch(), STEP)[0].total, total, rtol=1e-4)


def test_what_is_drawn_shown_and_handed_on_is_in_full_width():
    plain, of = Fit(), quantized(Fit(), INT8)
    params = plain.init(KEY)
    jax.tree.map(np.testing.assert_array_equal, of.init(KEY), params)
    shown = of.preview(params, batch(), STEP)
    np.testing.assert_allclose(shown, outputs(params, batch()["x"], set()), rtol=1e-4, atol=1e-5)
    assert isinstance(of, Fit)


def test_a_glob_that_names_no_product_is_refused_when_the_variables_are_drawn():
    of = quantized(Fit(), Quantization(modules="layers_*"))
    with pytest.raises(ValueError, match=r"modules='layers_\*' names no dense product .* are in down, up"):
        jax.eval_shape(of.init, KEY)


def test_a_model_without_dense_products_is_refused_at_its_loss():
    class Scale(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Conv(3, (1,))(x[:, None])[:, 0]

    of = quantized(Fit(Scale()), INT8)
    params = of.init(KEY)
    with pytest.raises(ValueError, match=r"names no dense product of this model; .* are in none"):
        of.loss(params, batch(), STEP)


def test_an_adapter_trains_in_full_width_beside_a_narrow_base():
    lora = LoRA(("up",), rank=2)
    of = quantized(adapted(Fit(), lora), Quantization(modules="up"))
    variables = jax.tree.map(lambda leaf: leaf + 0.1, of.init(KEY))
    factors, kernel = variables["params"]["up"], np.asarray(variables["frozen"]["up"]["kernel"])
    x = batch()["x"]
    delta = lora.scale * (x @ np.asarray(factors["lora_a"])) @ np.asarray(factors["lora_b"])
    hidden = np.tanh(rounded(x, 1, "int8") @ rounded(kernel, 0, "int8") + delta)
    rest = variables["frozen"]
    out = (hidden @ rest["down"]["kernel"] + rest["down"]["bias"]) @ rest["head"]["kernel"]
    found = of.loss(variables, batch(), STEP)[0].total
    np.testing.assert_allclose(found, np.sum((out - batch()["y"]) ** 2), rtol=1e-4)


def test_a_run_in_bfloat16_keeps_float32_masters_and_goes_on_bit_for_bit(tmp_path):
    def fit(steps, checkpoints=None):
        trainer = Trainer(
            quantized(Fit(Net(jnp.bfloat16)), INT8), optax.adam(1e-2), key=KEY, checkpoints=checkpoints
        )
        return trainer.fit(in_memory(batch(12), batch=4), steps=steps, checkpoint_every=2)

    whole = fit(5)
    for steps in (2, 5):
        resumed = fit(steps, Checkpoints(tmp_path / "checkpoints"))
    assert {leaf.dtype for leaf in jax.tree.leaves(whole.params)} == {jnp.dtype("float32")}
    jax.tree.map(np.testing.assert_array_equal, whole.params, resumed.params)


def test_quantizing_twice_is_refused():
    with pytest.raises(ValueError, match="Fit is quantized already"):
        quantized(quantized(Fit(), INT8), INT8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weights": "int4"}, r"quantization\.weights='int4' must be one of int8, float8_e4m3fn"),
        ({"activations": "bf16"}, r"quantization\.activations='bf16' must be one of"),
        ({"modules": ""}, r"quantization\.modules='' must be a glob"),
    ],
)
def test_a_wrong_specification_is_refused_by_field(fields, message):
    with pytest.raises(ValueError, match=message):
        Quantization(**fields)


def test_without_qwix_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "qwix", None)
    with pytest.raises(ImportError, match=r"pip install 'dew-core\[quantization\]'"):
        quantized(Fit(), INT8)
