"""The keys and values a decoder keeps while it generates.

A real token of a row stands in the slot of its position, so a row's history is the slots up to its cursor,
whatever its neighbours hold.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax.typing import Dtype
from jaxtyping import Array, Bool, Int

from dew.nn.backbones.causal_transformer.mixers import MLA

type LayerCache = dict[str, jax.Array]
"""What one layer keeps, [B, C, ...] each, rows and slots first.

Plain attention keeps `key` and `value`, [B, C, K, D] with key heads and their width; latent attention
`latent` [B, C, R] and `turned` [B, C, D], and with an indexer `index` [B, C, D].
"""

type Cache = dict[str, LayerCache]
"""One `LayerCache` a layer, under the layer's name."""


def empty_layer(rows: int, capacity: int, kv_heads: int, width: int, dtype: Dtype) -> LayerCache:
    """Return the cache of a layer of plain attention, without tokens."""
    shape = (rows, capacity, kv_heads, width)
    return {"key": jnp.zeros(shape, dtype), "value": jnp.zeros(shape, dtype)}


def empty_latent_layer(rows: int, capacity: int, mixer: MLA, dtype: Dtype) -> LayerCache:
    """Return the cache of a layer of latent attention, without tokens."""
    widths = {"latent": mixer.kv_lora_rank, "turned": mixer.qk_rope_head_dim}
    if mixer.index_topk is not None and mixer.index_head_dim is not None:
        widths["index"] = mixer.index_head_dim
    return {name: jnp.zeros((rows, capacity, width), dtype) for name, width in widths.items()}


def write(
    layer: LayerCache,
    new: LayerCache,
    *,
    positions: Int[Array, "B T"],
    valid: Bool[Array, "B T"],
) -> LayerCache:
    """Return `layer` with the valid tokens in the slots of their positions; the others write nothing.

    Args:
        layer: [B, C, ...] arrays.
        new: their [B, T, ...] values for the tokens.
        positions: of the tokens.
        valid: which of them are written.
    """
    rows = jnp.arange(positions.shape[0])[:, None]
    # A slot past the end is out of bounds, and such writes are dropped.
    slots = jnp.where(valid, positions, capacity_of(layer))

    def put(stored: jax.Array, value: jax.Array) -> jax.Array:
        return stored.at[rows, slots].set(value.astype(stored.dtype), mode="drop")

    return {name: put(stored, new[name]) for name, stored in layer.items()}


def capacity_of(layer: LayerCache) -> int:
    """The slots of a layer's cache."""
    return next(iter(layer.values())).shape[1]
