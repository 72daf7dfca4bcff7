"""The keys and values a decoder keeps while it generates.

A real token of a row stands in the slot of its position, so a row's history is the slots up to its cursor,
whatever its neighbours hold.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax.typing import Dtype
from jaxtyping import Array, Bool, Float, Int

type LayerCache = dict[str, jax.Array]
"""`key` and `value` of one layer, each [B, C, K, D]: rows, slots, key heads, width."""

type Cache = dict[str, LayerCache]
"""One `LayerCache` a layer, under the layer's name."""


def empty_layer(rows: int, capacity: int, kv_heads: int, width: int, dtype: Dtype) -> LayerCache:
    """Return a layer's cache without tokens."""
    shape = (rows, capacity, kv_heads, width)
    return {"key": jnp.zeros(shape, dtype), "value": jnp.zeros(shape, dtype)}


def write(
    layer: LayerCache,
    *,
    key: Float[Array, "B T K D"],
    value: Float[Array, "B T K D"],
    positions: Int[Array, "B T"],
    valid: Bool[Array, "B T"],
) -> LayerCache:
    """Return `layer` with the valid tokens in the slots of their positions; the others write nothing."""
    rows = jnp.arange(positions.shape[0])[:, None]
    # A slot past the end is out of bounds, and such writes are dropped.
    slots = jnp.where(valid, positions, layer["key"].shape[1])

    def put(stored: jax.Array, new: jax.Array) -> jax.Array:
        return stored.at[rows, slots].set(new.astype(stored.dtype), mode="drop")

    return {"key": put(layer["key"], key), "value": put(layer["value"], value)}
