"""The keys and values a decoder keeps while it generates.

A real token of a row stands in the slot of its position, so a row's history is the slots up to its cursor,
whatever its neighbours hold.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax.typing import Dtype
from jaxtyping import Array, Bool, Float, Int

from dew.nn.backbones.causal_transformer.mixers import MLA

type LayerCache = dict[str, jax.Array]
"""What one layer keeps.

Plain attention keeps `key` and `value`, [B, K, D, C] with key heads and their width: slots last, as the
products of a decoding step read them, which else would copy the whole cache at every step. Latent attention
keeps `latent` [B, C, R] and `turned` [B, C, D], and with an indexer `index` [B, C, D].
"""

SLOTS_LAST = ("key", "value")
"""The arrays whose slots are their last axis; of the others they are the second."""

type Cache = dict[str, LayerCache]
"""One `LayerCache` a layer, under the layer's name."""


def empty_layer(rows: int, capacity: int, kv_heads: int, width: int, dtype: Dtype) -> LayerCache:
    """Return the cache of a layer of plain attention, without tokens."""
    shape = (rows, kv_heads, width, capacity)
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
        layer: what is kept.
        new: their [B, T, ...] values for the tokens.
        positions: of the tokens.
        valid: which of them are written.
    """
    rows = jnp.arange(positions.shape[0])[:, None]
    # A slot past the end is out of bounds, and such writes are dropped.
    slots = jnp.where(valid, positions, capacity_of(layer))

    def put(name: str, stored: jax.Array) -> jax.Array:
        value = new[name].astype(stored.dtype)
        if name in SLOTS_LAST:
            return stored.at[rows, :, :, slots].set(value, mode="drop")
        return stored.at[rows, slots].set(value, mode="drop")

    # Without the barrier XLA on a CPU writes once for the next step and once for attention, and copies the
    # whole cache for both.
    return jax.lax.optimization_barrier({name: put(name, stored) for name, stored in layer.items()})


def by_slot(stored: Float[Array, "B K D C"]) -> Float[Array, "B C K D"]:
    """A kept `key` or `value` as attention takes it; compiled code moves nothing."""
    return jnp.moveaxis(stored, -1, 1)


def capacity_of(layer: LayerCache) -> int:
    """The slots of a layer's cache."""
    name, stored = next(iter(layer.items()))
    return stored.shape[-1 if name in SLOTS_LAST else 1]
