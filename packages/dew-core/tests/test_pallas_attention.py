"""The TPU kernels against the formula, interpreted on this machine, and when they are chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.attention import allowed_keys
from dew.nn.attention.choice import Call, resolve_kernel
from dew.nn.attention.pallas import flash_attention, splash_attention
from dew.nn.attention.reference import reference_attention
from dew.testing.devices import result_on_devices

JOBS = Path(__file__).with_name("pallas_jobs.py")
ROWS, LENGTH, WIDTH = 2, 256, 24
TPU = Call(
    "tpu",
    jnp.dtype("bfloat16"),
    512,
    64,
    in_order=True,
    softcap=False,
    precision=False,
    keys=512,
    described=True,
)


def operands(queries=LENGTH, keys=LENGTH, *, heads=4, key_heads=2, value_width=WIDTH):
    draw = iter(jax.random.split(jax.random.key(1), 3))
    shapes = {
        "query": (ROWS, queries, heads, WIDTH),
        "key": (ROWS, keys, key_heads, WIDTH),
        "value": (ROWS, keys, key_heads, value_width),
    }
    return {name: jax.random.normal(next(draw), shape) for name, shape in shapes.items()}


def documents(length=LENGTH):
    ids = jnp.stack([jnp.arange(length) // 100, (jnp.arange(length) > 130).astype(int)])
    return {"query_segment_ids": ids, "key_segment_ids": ids}


def chunks(size, length=LENGTH):
    """One numbering for all rows."""
    ids = jnp.arange(length)[None] // size
    return {"query_segment_ids": ids, "key_segment_ids": ids}


SINKS = jnp.asarray([0.5, -1.0, 2.0, 4.0])
CASES = {
    "causal, sinks": ({"causal": True}, {"sinks": SINKS}),
    "window in documents, softcap": ({"causal": True, "window": 5, "softcap": 2.0}, documents()),
    "documents alone": ({}, documents()),
    "chunks of all rows": ({"causal": True, "window": 50}, chunks(50)),
}


def formula(given, *, causal=False, window=None, scale, softcap=None):
    restricted = {name: value for name, value in given.items() if name.endswith("ids")}
    allowed = allowed_keys(
        given["query"].shape[1], given["key"].shape[1], causal=causal, window=window, **restricted
    )
    return reference_attention(
        given["query"],
        given["key"],
        given["value"],
        allowed=allowed,
        scale=scale,
        softcap=softcap,
        sinks=given.get("sinks"),
        precision="highest",
    )


def values_and_gradients(attend, given):
    floats = {name: value for name, value in given.items() if jnp.issubdtype(value.dtype, jnp.floating)}
    weights = jax.random.normal(jax.random.key(9), given["query"].shape)

    def total(floats):
        out = attend({**given, **floats})
        return jnp.sum(weights * out), out

    (_, out), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(floats)
    return {"out": out, **gradients}


@pytest.mark.parametrize("case", CASES)
def test_splash_gives_the_formula_and_its_gradients(case):
    rules, more = CASES[case]
    given = operands() | more
    rules = {"causal": False, "window": None, "softcap": None, "scale": 0.3} | rules
    found = values_and_gradients(lambda held: splash_attention(held, interpret=True, **rules), given)
    expected = values_and_gradients(lambda held: formula(held, **rules), given)
    for name, right in expected.items():
        np.testing.assert_allclose(found[name], right, atol=2e-5 * float(jnp.abs(right).max()), err_msg=name)


def test_a_sink_takes_its_share_of_the_softmax():
    given = operands(3, 3, heads=2, key_heads=2) | {"sinks": jnp.asarray([0.3, -0.7])}
    query, key, value, sinks = (
        np.asarray(given[name], np.float64) for name in ("query", "key", "value", "sinks")
    )
    powers = np.exp(np.einsum("bthd,bshd->bhts", query, key) * 0.2)
    shares = powers / (powers.sum(-1, keepdims=True) + np.exp(sinks)[:, None, None])
    np.testing.assert_allclose(
        formula(given, scale=0.2), np.einsum("bhts,bshd->bthd", shares, value), atol=1e-6
    )


def test_flash_takes_any_mask_and_any_length():
    from jax.experimental.pallas import tpu

    given = operands(70, 150, value_width=16)
    allowed = jax.random.bernoulli(jax.random.key(4), 0.4, (ROWS, 4, 70, 150)).at[0, 1, 7].set(False)
    with tpu.force_tpu_interpret_mode():
        found = flash_attention(given, allowed=allowed, scale=0.3)
    expected = reference_attention(*given.values(), allowed=allowed, scale=0.3, precision="highest")
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not np.asarray(found[0, 7, 1]).any()


@pytest.mark.parametrize(
    ("changes", "kernel"),
    [
        ({}, "splash"),
        ({"dtype": jnp.dtype("float32"), "softcap": True, "sinks": True, "width": 20}, "splash"),
        ({"queries": 1024, "in_order": False}, "splash"),
        ({"dtype": jnp.dtype("float16")}, "xla"),
        ({"keys": 640, "queries": 520}, "xla"),
        ({"keys": 384}, "xla"),
        ({"described": False}, "xla"),
        ({"split": True}, "xla"),
        ({"queries": 512 * 512, "keys": 512 * 512}, "xla"),
        ({"precision": True}, "reference"),
        ({"backend": "gpu"}, "cudnn"),
        ({"backend": "gpu", "sinks": True}, "xla"),
    ],
)
def test_auto_takes_splash_on_a_tpu_for_what_it_can_describe(changes, kernel):
    assert resolve_kernel("auto", replace(TPU, **changes)) == kernel


@pytest.mark.parametrize(
    ("changes", "kernel"),
    [
        ({}, "splash"),
        ({"keys": 128, "queries": 128}, "splash"),
        ({"keys": 100}, "flash"),
        ({"described": False}, "flash"),
    ],
)
def test_the_named_tpu_kernel_takes_what_splash_cannot_describe_to_flash(changes, kernel):
    assert resolve_kernel("tpu", replace(TPU, **changes)) == kernel


@pytest.mark.parametrize(
    ("implementation", "changes", "message"),
    [
        ("tpu", {"backend": "cpu"}, "needs a TPU, and the backend is cpu"),
        ("tpu", {"dtype": jnp.dtype("float16")}, "computes in bfloat16 and float32"),
        ("tpu", {"sinks": True, "described": False}, "with sinks is described to splash by"),
        ("tpu", {"softcap": True, "keys": 100}, "with a softcap needs lengths that are multiples of 128"),
        ("tpu", {"precision": True}, "reads no precision"),
        ("cudnn", {"backend": "gpu", "sinks": True}, "has no sinks"),
    ],
)
def test_a_named_kernel_refuses_what_it_cannot_compute(implementation, changes, message):
    with pytest.raises(ValueError, match=message):
        resolve_kernel(implementation, replace(TPU, **changes))


@pytest.mark.slow
def test_each_device_of_a_mesh_computes_its_own_rows_and_heads():
    deviations = result_on_devices(str(JOBS))
    assert deviations == {name: pytest.approx(0, abs=2e-6) for name in ("splash", "flash")}
