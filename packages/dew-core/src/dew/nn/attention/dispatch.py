"""The attention that models call, and the choice of the kernel that computes it.

Dimensions: B rows, T queries, S keys, H query heads, K key heads, D width.
"""

from __future__ import annotations

import jax
from jaxtyping import Array, Bool, Float, Int

from dew.nn.attention.config import AttentionImpl
from dew.nn.attention.masks import allowed_keys
from dew.nn.attention.reference import reference_attention


def scaled_dot_product_attention(
    query: Float[Array, "B T H D"],
    key: Float[Array, "B S K D"],
    value: Float[Array, "B S K D"],
    *,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
    query_segment_ids: Int[Array, "B T"] | None = None,
    key_segment_ids: Int[Array, "B S"] | None = None,
    query_positions: Int[Array, "B T"] | None = None,
    key_positions: Int[Array, "B S"] | None = None,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    implementation: AttentionImpl | None = "auto",
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "B T H D"]:
    allowed = allowed_keys(
        query.shape[1],
        key.shape[1],
        causal=causal,
        window=window,
        mask=mask,
        query_segment_ids=query_segment_ids,
        key_segment_ids=key_segment_ids,
        query_positions=query_positions,
        key_positions=key_positions,
    )
    if scale is None:
        scale = query.shape[-1] ** -0.5
    if implementation not in ("auto", "reference", "xla", None):
        raise ValueError(f"implementation={implementation!r} is not available on this backend; use 'auto'")
    return reference_attention(
        query, key, value, allowed=allowed, scale=scale, softcap=softcap, precision=precision
    )
