"""The log-partition kernel: its own steps, interpreted, against the whole logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.kernels import log_partition
from dew.nn.kernels.vocabulary import COLUMNS, ROWS

SIZES = [(3, 8, 11), (ROWS + 5, 16, 2 * COLUMNS + 37), (ROWS, 8, COLUMNS)]


def drawn(tokens, width, vocabulary, dtype=jnp.float32):
    draw = np.random.default_rng(0)
    hidden = 3 * draw.normal(size=(tokens, width)).astype(np.float32)
    return jnp.asarray(hidden, dtype), jnp.asarray(draw.normal(size=(width, vocabulary)), dtype)


def whole(hidden, weight, softcap=None):
    logits = np.asarray(hidden, np.float64) @ np.asarray(weight, np.float64)
    logits = logits if softcap is None else softcap * np.tanh(logits / softcap)
    highest = logits.max(1)
    return highest + np.log(np.exp(logits - highest[:, None]).sum(1))


@pytest.mark.parametrize("interpret", [True, None])
@pytest.mark.parametrize("sizes", SIZES)
def test_it_is_the_logsumexp_of_the_whole_logits(sizes, interpret):
    hidden, weight = drawn(*sizes)
    for softcap in (None, 4.0):
        found = log_partition(hidden, weight, softcap=softcap, interpret=interpret)
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, whole(hidden, weight, softcap), rtol=2e-6)


def test_large_logits_do_not_overflow():
    hidden, weight = drawn(4, 8, 40)
    np.testing.assert_allclose(
        log_partition(1e4 * hidden, weight, interpret=True), whole(1e4 * hidden, weight), rtol=2e-6
    )


def test_half_precision_sums_in_float32():
    hidden, weight = drawn(9, 16, 700, jnp.bfloat16)
    np.testing.assert_allclose(
        log_partition(hidden, weight, interpret=True), whole(hidden, weight), rtol=2e-6
    )


@pytest.mark.parametrize("interpret", [True, None])
def test_the_gradient_is_that_of_the_whole_logits(interpret):
    hidden, weight = drawn(7, 8, COLUMNS + 30)
    direction = jnp.arange(7.0)

    def by_tiles(hidden, weight):
        return direction @ log_partition(hidden, weight, softcap=5.0, interpret=interpret)

    def at_once(hidden, weight):
        return direction @ jax.nn.logsumexp(5 * jnp.tanh(hidden @ weight / 5), axis=1)

    found, expected = (jax.grad(f, (0, 1))(hidden, weight) for f in (by_tiles, at_once))
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_the_kernel_lowers_for_a_tpu():
    hidden, weight = drawn(2 * ROWS, 128, 4 * COLUMNS, jnp.bfloat16)
    kernel = jax.jit(lambda hidden, weight: log_partition(hidden, weight, interpret=False))
    exported = jax.export.export(kernel, platforms=["tpu"])(hidden, weight)
    assert "tpu_custom_call" in exported.mlir_module()


def test_shapes_that_do_not_fit_are_refused():
    hidden, weight = drawn(3, 8, 11)
    with pytest.raises(ValueError, match=r"\(3, 8\) and weight of shape \(11, 8\)"):
        log_partition(hidden, weight.T)
