"""Tiled attention against the formula, with gradients, and the choice of a kernel."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.attention import scaled_dot_product_attention as attend
from dew.nn.attention import tiled
from dew.nn.attention.choice import Call, resolve_kernel


def operands(length: int, *, heads: int = 4, key_heads: int = 2, width: int = 8) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(3), 4)
    shapes = [heads, key_heads, key_heads, heads]
    return [
        jax.random.normal(key, (2, length, count, width)) for key, count in zip(keys, shapes, strict=True)
    ]


def value_and_gradients(implementation: str, inputs: list[jax.Array], **options: object) -> list[jax.Array]:
    def outputs(*arguments: jax.Array) -> list[jax.Array]:
        out, pull = jax.vjp(lambda *x: attend(*x, implementation=implementation, **options), *arguments[:3])
        return [out, *pull(arguments[3])]

    with jax.default_matmul_precision("highest"):
        return jax.jit(outputs)(*inputs)


def documents(length: int) -> dict[str, jax.Array]:
    ids = jnp.stack([jnp.arange(length) // 50, (jnp.arange(length) > 10).astype(int)])
    return {"query_segment_ids": ids, "key_segment_ids": ids}


CASES = {
    "causal": lambda length: {"causal": True},
    "window of 1": lambda length: {"window": 1},
    "window below a tile": lambda length: {"window": 40},
    "window above a tile": lambda length: {"window": 100},
    "documents": lambda length: {"causal": True, **documents(length)},
    "documents in a window": lambda length: {"window": 70, **documents(length)},
    "mask of a key": lambda length: {"causal": True, "mask": jnp.arange(length) != 3},
    "mask of a head": lambda length: {
        "causal": True,
        "mask": jax.random.bernoulli(jax.random.key(8), 0.7, (1, 4, length, length)),
    },
    "scale": lambda length: {"causal": True, "scale": 0.7},
}


@pytest.mark.parametrize("length", [65, 200])
@pytest.mark.parametrize("case", CASES)
def test_tiles_give_the_formula_and_its_gradients(case, length):
    options = CASES[case](length)
    expected = value_and_gradients("reference", operands(length), **options)
    for got, right in zip(value_and_gradients("auto", operands(length), **options), expected, strict=True):
        np.testing.assert_allclose(got, right, atol=2e-5)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_key_heads_serve_their_query_heads_in_order(key_heads):
    inputs = operands(96, key_heads=key_heads)
    expected = value_and_gradients("reference", inputs, causal=True)
    for got, right in zip(value_and_gradients("auto", inputs, causal=True), expected, strict=True):
        np.testing.assert_allclose(got, right, atol=2e-5)


def test_weights_that_are_computed_again_give_the_same_gradients(monkeypatch):
    kept = value_and_gradients("auto", operands(130), causal=True)
    monkeypatch.setattr(tiled, "KEPT_BYTES", 0)
    for got, right in zip(value_and_gradients("auto", operands(130), causal=True), kept, strict=True):
        np.testing.assert_array_equal(got, right)


def test_a_later_token_changes_nothing_before_it():
    query, key, value, _ = operands(128)
    before = attend(query, key, value, causal=True)
    after = attend(query, key.at[:, 100].add(9.0), value.at[:, 100].add(9.0), causal=True)
    np.testing.assert_array_equal(before[:, :100], after[:, :100])
    assert not np.array_equal(before[:, 100:], after[:, 100:])


def test_tiles_leave_out_the_keys_that_no_query_of_theirs_sees():
    cuts = [(tile.start, tile.stop, tile.first) for tile in tiled.tiles(300, window=100)]
    assert cuts == [(0, 64, 0), (64, 128, 0), (128, 192, 0), (192, 256, 64), (256, 300, 128)]


@pytest.mark.parametrize(("length", "size"), [(1, 64), (512, 64), (513, 128), (1024, 128), (4096, 512)])
def test_a_long_sequence_has_larger_tiles_and_no_more_of_them(length, size):
    assert tiled.tile_size(length) == size
    assert len(list(tiled.tiles(length, None))) <= tiled.MAX_TILES


def test_causal_scores_are_never_computed_as_a_full_square():
    query, key, value, _ = operands(256)
    compiled = jax.jit(lambda *x: attend(*x, causal=True)).lower(query, key, value).compile()
    assert "256,256]" not in compiled.as_text()


PLAIN = {"in_order": True, "softcap": False, "precision": False, "keys": 256, "described": True}
CPU = Call("cpu", jnp.dtype("float32"), 256, 32, **PLAIN)
GPU = Call("gpu", jnp.dtype("bfloat16"), 256, 64, **PLAIN)


@pytest.mark.parametrize(
    ("call", "changes", "kernel"),
    [
        (CPU, {}, "tiled"),
        (CPU, {"queries": 64}, "xla"),
        (CPU, {"in_order": False}, "xla"),
        (CPU, {"softcap": True}, "xla"),
        (CPU, {"dtype": jnp.dtype("bfloat16")}, "xla"),
        (CPU, {"precision": True}, "reference"),
        (GPU, {}, "cudnn"),
        (GPU, {"dtype": jnp.dtype("float32")}, "xla"),
        (GPU, {"width": 132}, "xla"),
        (GPU, {"width": 12}, "xla"),
        (GPU, {"softcap": True}, "xla"),
        (GPU, {"backend": "tpu"}, "xla"),
    ],
)
def test_auto_takes_the_fastest_kernel_that_computes_the_call(call, changes, kernel):
    assert resolve_kernel("auto", replace(call, **changes)) == kernel


def test_deterministic_operations_rule_out_cudnn(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    assert resolve_kernel("auto", GPU) == "xla"
    with pytest.raises(ValueError, match="deterministic"):
        resolve_kernel("cudnn", GPU)


LENGTHS = (70, 50, 20)
"""Two documents of a row and the padding behind them; the first spans two tiles."""


def packed(implementation: str, window: int | None, length: int = sum(LENGTHS)) -> dict[str, object]:
    segments = jnp.repeat(jnp.asarray([1, 2, 0]), jnp.asarray(LENGTHS))[None].repeat(2, 0)[:, :length]
    ids = {"query_segment_ids": segments, "key_segment_ids": segments}
    return {"implementation": implementation, "causal": True, "window": window, **ids}


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("implementation", ["reference", "xla", "auto"])
def test_a_document_in_a_packed_row_gets_what_it_gets_alone(implementation, window):
    inputs = operands(sum(LENGTHS))[:3]
    together = attend(*inputs, **packed(implementation, window))
    for start, stop in ((0, 70), (70, 120)):
        piece = [leaf[:, start:stop] for leaf in inputs]
        alone = attend(*piece, implementation="reference", causal=True, window=window)
        np.testing.assert_allclose(together[:, start:stop], alone, atol=2e-6)


@pytest.mark.parametrize("implementation", ["reference", "xla", "auto"])
def test_no_document_of_a_packed_row_reaches_another_by_exactly_nothing(implementation):
    query, key, value = operands(sum(LENGTHS))[:3]
    options = packed(implementation, None)

    def second(key: jax.Array, value: jax.Array) -> jax.Array:
        return attend(query, key, value, **options)[:, 70:120]

    output, pull = jax.vjp(second, key, value)
    for gradient in pull(jnp.ones_like(output)):
        assert not np.asarray(gradient[:, :70]).any() and not np.asarray(gradient[:, 120:]).any()
    edited = [leaf.at[:, :70].add(3.0) for leaf in (key, value)]
    np.testing.assert_array_equal(output, second(*edited))
