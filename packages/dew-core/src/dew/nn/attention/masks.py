"""Which keys a query may look at: causality, windows, packed segments and explicit masks in one place.

Dimensions: B rows, H query heads, T queries, S keys.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def allowed_keys(
    queries: int,
    keys: int,
    *,
    causal: bool = False,
    window: int | None = None,
    mask: Bool[Array, "..."] | None = None,
    query_segment_ids: Int[Array, "B T"] | None = None,
    key_segment_ids: Int[Array, "B S"] | None = None,
    query_positions: Int[Array, "B T"] | None = None,
    key_positions: Int[Array, "B S"] | None = None,
) -> Bool[Array, "..."] | None:
    """Return the mask of allowed (query, key) pairs, or None where every pair is allowed.

    A pair is allowed where all of these hold, with p the query's and k the key's position:
    `k <= p` if `causal`; `p - window < k <= p` if `window` is set; equal segment ids; `mask`.
    Without positions the i-th query and the i-th key stand at position i.

    Args:
        queries: T, the number of queries in a row.
        keys: S, the number of keys in a row.
        causal: a query sees no later key.
        window: a query sees itself and the `window - 1` positions before it; implies `causal`.
        mask: boolean, broadcastable to [B, H, T, S]; True allows.
        query_segment_ids: [B, T], the document of each query; [1, T] where rows are alike.
        key_segment_ids: [B, S] or [1, S], the document of each key.
        query_positions: [B, T], needed for `causal` and `window` if T is not S.
        key_positions: [B, S], needed for `causal` and `window` if T is not S.

    Returns:
        A boolean array of four dimensions, broadcastable to [B, H, T, S], or None.

    Raises:
        ValueError: only one of a pair of arguments is given, `window` is below 1, or positions are missing.
    """
    parts: list[Bool[Array, "..."]] = []
    if causal or window is not None:
        parts.append(_ordered(queries, keys, window, query_positions, key_positions))
    if query_segment_ids is not None and key_segment_ids is not None:
        parts.append((query_segment_ids[:, :, None] == key_segment_ids[:, None, :])[:, None])
    elif query_segment_ids is not None or key_segment_ids is not None:
        raise ValueError("query_segment_ids and key_segment_ids go together; only one of them was given")
    if mask is not None:
        parts.append(four_dimensional(mask))
    if not parts:
        return None
    allowed = parts[0]
    for part in parts[1:]:
        allowed = allowed & part
    return allowed


def four_dimensional(mask: Bool[Array, "..."]) -> Bool[Array, "..."]:
    """Return a mask that is broadcastable to [B, H, T, S] with dimensions of 1 in front.

    Raises:
        ValueError: it is not boolean, or has more than four dimensions.
    """
    if mask.dtype != jnp.bool_:
        raise ValueError(f"mask has dtype {mask.dtype}; it must be boolean, True where a key may be seen")
    if mask.ndim > 4:
        raise ValueError(f"mask has shape {mask.shape}; it must be broadcastable to [B, H, T, S]")
    return jax.lax.expand_dims(mask, range(4 - mask.ndim))


def _ordered(
    queries: int,
    keys: int,
    window: int | None,
    query_positions: Int[Array, "B T"] | None,
    key_positions: Int[Array, "B S"] | None,
) -> Bool[Array, "..."]:
    if window is not None and window < 1:
        raise ValueError(f"window={window} must be at least 1: a query always sees itself")
    if (query_positions is None) != (key_positions is None):
        raise ValueError("query_positions and key_positions go together; only one of them was given")
    if query_positions is None or key_positions is None:
        if queries != keys:
            raise ValueError(
                f"{queries} queries and {keys} keys have no common positions; "
                "give query_positions and key_positions to order them"
            )
        query_positions = key_positions = jnp.arange(queries)[None]
    distance = query_positions[:, :, None] - key_positions[:, None, :]
    allowed = distance >= 0
    if window is not None:
        allowed = allowed & (distance < window)
    return allowed[:, None]
