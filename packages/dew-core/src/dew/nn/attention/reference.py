"""Attention as its formula says it: scores, softmax, weighted sum.

Dimensions: B rows, T queries, S keys, H query heads, K key heads, G = H / K, D a key's and E a value's width.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

#: Stands for a forbidden score; finite, so that a row without any allowed key stays free of NaN.
FORBIDDEN = -1e30


def reference_attention(
    query: Float[Array, "B T H D"],
    key: Float[Array, "B S K D"],
    value: Float[Array, "B S K E"],
    *,
    allowed: Bool[Array, "..."] | None,
    scale: float,
    softcap: float | None = None,
    sinks: Float[Array, " H"] | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "B T H E"]:
    """Return `softmax(cap(scale * q k^T)) v` over the allowed keys, `cap(x) = softcap * tanh(x / softcap)`.

    Scores and softmax are float32 or wider; the weights are cast to the values' dtype. A query that is
    allowed no key gives zeros, and passes no gradient.

    Args:
        query: [B, T, H, D].
        key: [B, S, K, D] with K dividing H; a key head serves H / K query heads in a row.
        value: [B, S, K, E].
        allowed: broadcastable to [B, H, T, S], of four dimensions.
        scale: multiplies the scores.
        softcap: bounds the scores' magnitude.
        sinks: a score of each head that takes its share of the softmax and has no value (arXiv 2508.10925,
            section 2.3).
        precision: of both products.
    """
    rows, queries, heads, _ = query.shape
    keys, key_heads = key.shape[1:3]
    groups = heads // key_heads
    grouped = query.reshape(rows, queries, key_heads, groups, query.shape[-1])
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.einsum(
        "btkgd,bskd->bkgts", grouped, key, precision=precision, preferred_element_type=wide
    ).reshape(rows, heads, queries, keys)
    scores = scores * scale
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    weights = masked_softmax(scores, allowed, sinks).astype(value.dtype)
    weights = weights.reshape(rows, key_heads, groups, queries, keys)
    mixed = jnp.einsum("bkgts,bske->btkge", weights, value, precision=precision)
    return mixed.reshape(rows, queries, heads, value.shape[-1])


def masked_softmax(
    scores: Float[Array, "B H T S"],
    allowed: Bool[Array, "..."] | None,
    sinks: Float[Array, " H"] | None = None,
) -> Float[Array, "B H T S"]:
    """Return the softmax over the last axis among allowed entries; a row with none is all zeros.

    A sink's share is left out, so rows then sum to less than 1.
    """
    seen = scores if allowed is None else jnp.where(allowed, scores, FORBIDDEN)
    if sinks is not None:
        column = jnp.broadcast_to(sinks[:, None, None].astype(scores.dtype), (*scores.shape[:3], 1))
        seen = jnp.concatenate([seen, column], axis=-1)
    weights = jax.nn.softmax(seen, axis=-1)[..., : scores.shape[-1]]
    return weights if allowed is None else jnp.where(allowed, weights, 0.0)
