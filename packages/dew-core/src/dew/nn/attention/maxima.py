"""The largest attention logit of every head, for QK-Clip (arXiv 2507.20534, section 2.1).

No attention kernel returns its scores, so they are formed a second time, one tile of queries and keys after
another, of which only the maxima are kept.

Dimensions: B rows, T positions, H query heads, K key heads, G = H / K, D width; t is a tile's edge.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from dew.nn.attention.reference import FORBIDDEN

EDGE = 256
"""Queries, and keys, of a tile."""


def logit_maxima(
    query: Float[Array, "B T H D"],
    key: Float[Array, "B T K D"],
    *,
    causal: bool = True,
    window: int | None = None,
    segment_ids: Int[Array, "B T"] | None = None,
    scale: float | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "B H"]:
    """Return `max over allowed (i, j) of scale * q_i k_j` for each row and head, before any softcap.

    Pairs are allowed as `dew.nn.attention.allowed_keys` says for a sequence with itself. No gradient passes,
    and no array of scores larger than one tile is held.

    Args:
        query: [B, T, H, D].
        key: [B, T, K, D] with K dividing H; a key head serves H / K query heads in a row.
        causal: a query sees no later key.
        window: a query sees itself and the `window - 1` positions before it; implies `causal`.
        segment_ids: [B, T] or [1, T]; a query sees the keys of its own segment.
        scale: multiplies the scores; None is `D ** -0.5`.
        precision: of the products.

    Returns:
        [B, H], float32 or wider.
    """
    rows, length, heads, width = query.shape
    key_heads = key.shape[2]
    edge = min(EDGE, length)
    grouped = lax.stop_gradient(query).reshape(rows, length, key_heads, heads // key_heads, width)
    key = lax.stop_gradient(key)
    wide = jnp.promote_types(query.dtype, jnp.float32)
    factor: float = width**-0.5 if scale is None else scale

    def meet(largest: jax.Array, starts: jax.Array) -> tuple[jax.Array, None]:
        first, seen = (
            lax.dynamic_slice_in_dim(x, at, edge, 1) for x, at in zip((grouped, key), starts, strict=True)
        )
        scores = factor * jnp.einsum(
            "btkgd,bskd->bkgts", first, seen, precision=precision, preferred_element_type=wide
        )
        allowed = _allowed(starts, edge, causal=causal or window is not None, window=window)
        if segment_ids is not None:
            own, other = (lax.dynamic_slice_in_dim(segment_ids, at, edge, 1) for at in starts)
            allowed = allowed & (own[:, :, None] == other[:, None, :])
        scores = jnp.where(allowed[:, None, None], scores, FORBIDDEN)
        return jnp.maximum(largest, jnp.max(scores, axis=(-2, -1))), None

    start = jnp.full((rows, *grouped.shape[2:4]), FORBIDDEN, wide)
    pairs = tile_pairs(length, edge, causal=causal or window is not None, window=window)
    largest, _ = lax.scan(meet, start, jnp.asarray(pairs))
    return largest.reshape(rows, heads)


def tile_pairs(length: int, edge: int, *, causal: bool, window: int | None) -> np.ndarray:
    """The starts [N, 2] of tiles of queries and keys that together hold every allowed pair.

    The last tile ends with the sequence and may overlap the one before it, which changes no maximum.
    """
    starts = [min(start, length - edge) for start in range(0, length, edge)]
    return np.array(
        [
            (first, seen)
            for first in starts
            for seen in starts
            if not (causal and seen > first)
            and not (window is not None and seen + edge - 1 <= first - window)
        ],
        np.int32,
    )


def _allowed(starts: jax.Array, edge: int, *, causal: bool, window: int | None) -> jax.Array:
    distance = starts[0] - starts[1] + jnp.arange(edge)[:, None] - jnp.arange(edge)
    allowed = jnp.ones((edge, edge), bool) if not causal else distance >= 0
    if window is not None:
        allowed = allowed & (distance < window)
    return allowed[None]
