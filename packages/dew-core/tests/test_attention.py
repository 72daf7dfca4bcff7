"""Attention against sums written out by hand, and each kernel against the formula."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.attention import scaled_dot_product_attention as attend


def rows(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def by_hand(query, key, value, visible, *, scale=None, softcap=None) -> np.ndarray:
    """The formula in float64 loops; `visible(b, h, t, s)` says what a query may see."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    batch, queries, heads, width = query.shape
    scale = width**-0.5 if scale is None else scale
    out = np.zeros((batch, queries, heads, value.shape[-1]))
    for b, h, t in np.ndindex(batch, heads, queries):
        k = h // (heads // key.shape[2])
        seen = [s for s in range(key.shape[1]) if visible(b, h, t, s)]
        scores = [scale * query[b, t, h] @ key[b, s, k] for s in seen]
        if softcap is not None:
            scores = [softcap * math.tanh(score / softcap) for score in scores]
        powers = [math.exp(score) for score in scores]
        for s, power in zip(seen, powers, strict=True):
            out[b, t, h] += power / sum(powers) * value[b, s, k]
    return out


@pytest.fixture
def heads() -> tuple[jax.Array, jax.Array, jax.Array]:
    return rows(2, 7, 4, 8), rows(2, 7, 2, 8, seed=1), rows(2, 7, 2, 8, seed=2)


@pytest.mark.parametrize("implementation", ["reference", "xla", "auto", None])
def test_every_key_is_seen_without_a_restriction(heads, implementation):
    got = attend(*heads, implementation=implementation)
    np.testing.assert_allclose(got, by_hand(*heads, lambda b, h, t, s: True), atol=2e-6)


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_a_causal_query_sees_itself_and_what_came_before(heads, implementation):
    got = attend(*heads, causal=True, implementation=implementation)
    np.testing.assert_allclose(got, by_hand(*heads, lambda b, h, t, s: s <= t), atol=2e-6)


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_a_window_of_three_is_a_query_and_two_keys_before_it(heads, implementation):
    got = attend(*heads, window=3, implementation=implementation)
    np.testing.assert_allclose(got, by_hand(*heads, lambda b, h, t, s: t - 3 < s <= t), atol=2e-6)


def test_scale_and_softcap_follow_the_formula(heads):
    got = attend(*heads, scale=0.9, softcap=1.5)
    expected = by_hand(*heads, lambda b, h, t, s: True, scale=0.9, softcap=1.5)
    np.testing.assert_allclose(got, expected, atol=2e-6)


def test_a_mask_may_differ_between_heads(heads):
    mask = jax.random.bernoulli(jax.random.key(5), 0.6, (2, 4, 7, 7)) | jnp.eye(7, dtype=bool)
    held = np.asarray(mask)
    got = attend(*heads, mask=mask)
    np.testing.assert_allclose(got, by_hand(*heads, lambda b, h, t, s: held[b, h, t, s]), atol=2e-6)


def test_positions_order_queries_that_continue_a_cache(heads):
    query, key, value = heads
    positions, slots = jnp.array([[4, 5], [2, 3]]), jnp.broadcast_to(jnp.arange(7), (2, 7))
    got = attend(query[:, :2], key, value, causal=True, query_positions=positions, key_positions=slots)
    held = np.asarray(positions)
    np.testing.assert_allclose(
        got, by_hand(query[:, :2], key, value, lambda b, h, t, s: s <= held[b, t]), atol=2e-6
    )


@pytest.mark.parametrize("implementation", ["reference", "xla"])
@pytest.mark.parametrize("masked_row", [0, 6])
def test_a_query_that_sees_nothing_gives_zeros_and_no_gradient(heads, implementation, masked_row):
    mask = jnp.ones((7, 7), bool).at[masked_row].set(False)

    def total(query):
        return jnp.sum(attend(query, *heads[1:], mask=mask, implementation=implementation) ** 2)

    assert not np.any(attend(*heads, mask=mask, implementation=implementation)[:, masked_row])
    gradient = jax.grad(total)(heads[0])
    assert np.all(np.isfinite(gradient)) and not np.any(gradient[:, masked_row])


def test_bfloat16_softmax_is_computed_in_float32():
    query, key, value = (
        x.astype(jnp.bfloat16) for x in (rows(1, 40, 2, 16), rows(1, 40, 2, 16), rows(1, 40, 2, 16))
    )
    exact = by_hand(query, key, value, lambda b, h, t, s: True)
    got = attend(query, key, value, implementation="reference")
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.astype(np.float32), exact, rtol=2**-7, atol=2**-8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"implementation": "tpu"}, "needs a TPU"),
        ({"implementation": "cudnn"}, "needs a GPU"),
        ({"implementation": "flash"}, "one of auto, reference, xla, cudnn, tpu"),
        ({"implementation": "xla", "precision": "highest"}, "reads no precision"),
        ({"window": 0}, "window=0"),
        ({"softcap": 0.0}, "softcap=0.0"),
        ({"sinks": np.zeros(3)}, "one score for each of 4 heads"),
        ({"query_segment_ids": np.zeros((2, 7), int)}, "go together"),
        ({"causal": True, "key_positions": np.zeros((2, 7), int)}, "go together"),
        ({"mask": np.zeros((7, 7))}, "must be boolean"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(heads, options, message):
    with pytest.raises(ValueError, match=message):
        attend(*heads, **options)


def test_causal_queries_and_keys_of_different_number_need_positions(heads):
    query, key, value = heads
    with pytest.raises(ValueError, match="query_positions and key_positions"):
        attend(query[:, :2], key, value, causal=True)


def test_heads_that_do_not_divide_are_refused(heads):
    query, key, value = heads
    with pytest.raises(ValueError, match="2 key heads must divide 3"):
        attend(query[:, :, :3], key, value)
