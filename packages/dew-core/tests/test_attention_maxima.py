"""The largest attention logits against the whole square of scores in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.attention import allowed_keys, logit_maxima
from dew.nn.attention.maxima import EDGE, tile_pairs


def drawn(length, heads=4, key_heads=2, rows=2, width=8):
    query = jax.random.normal(jax.random.key(1), (rows, length, heads, width))
    return query, jax.random.normal(jax.random.key(2), (rows, length, key_heads, width))


def whole(query, key, *, scale=None, **mask):
    """Maxima over every allowed pair, from all scores at once in float64."""
    query, key = np.asarray(query, np.float64), np.asarray(key, np.float64)
    key = np.repeat(key, query.shape[2] // key.shape[2], axis=2)
    scores = np.einsum("bthd,bshd->bhts", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    allowed = allowed_keys(query.shape[1], key.shape[1], **mask)
    return np.where(True if allowed is None else allowed, scores, -np.inf).max((2, 3))


@pytest.mark.parametrize("length", [1, 7, EDGE, EDGE + 1, 2 * EDGE + 77])
@pytest.mark.parametrize(
    "mask", [{"causal": True}, {"causal": False}, {"window": 5}, {"window": 300}], ids=str
)
def test_maxima_equal_those_of_all_scores(length, mask):
    query, key = drawn(length)
    found = logit_maxima(query, key, **{"causal": False, **mask})
    assert found.shape == (2, 4) and found.dtype == jnp.float32
    np.testing.assert_allclose(found, whole(query, key, **mask), rtol=1e-5, atol=1e-6)


def test_a_packed_documents_queries_see_their_own_keys_alone():
    query, key = drawn(EDGE + 40)
    ids = jnp.broadcast_to(jnp.arange(EDGE + 40) // 37, query.shape[:2])
    mask = {"causal": True, "query_segment_ids": ids, "key_segment_ids": ids}
    np.testing.assert_allclose(
        logit_maxima(query, key, segment_ids=ids), whole(query, key, **mask), rtol=1e-5, atol=1e-6
    )


def test_a_later_key_that_would_be_largest_does_not_count():
    query = jnp.ones((1, 4, 1, 2))
    key = jnp.array([1.0, 2.0, 3.0, 50.0])[None, :, None, None] * jnp.ones((1, 4, 1, 2))
    segments = jnp.array([[0, 0, 0, 1]])
    np.testing.assert_allclose(logit_maxima(query, key, segment_ids=segments, scale=1.0), [[100.0]])
    np.testing.assert_allclose(logit_maxima(query[:, :3], key[:, :3], scale=0.5), [[3.0]])


def test_maxima_of_negative_logits_are_negative():
    query, key = jnp.ones((1, 3, 1, 2)), -jnp.ones((1, 3, 1, 2))
    np.testing.assert_allclose(logit_maxima(query, key, scale=1.0), [[-2.0]])


def test_no_array_is_larger_than_a_tile_of_scores():
    query, key = drawn(4 * EDGE)
    text = str(jax.make_jaxpr(lambda q, k: logit_maxima(q, k))(query, key))
    assert f"{4 * EDGE},{4 * EDGE}" not in text and f"{EDGE},{EDGE}]" in text


@pytest.mark.parametrize(("window", "tiles"), [(None, 10), (1, 4), (EDGE, 7)])
def test_tiles_that_nothing_sees_are_left_out(window, tiles):
    assert len(tile_pairs(4 * EDGE, EDGE, causal=True, window=window)) == tiles


def test_no_gradient_passes():
    query, key = drawn(5)
    gradient = jax.grad(lambda q: logit_maxima(q, key).sum())(query)
    np.testing.assert_array_equal(gradient, 0)
