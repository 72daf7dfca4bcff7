"""The two Pallas kernels that compute attention on TPUs, and which calls each of them can describe.

Splash attention is handed a mask as a description, made while the function is traced, and skips the blocks
that a causal or windowed sequence leaves empty; it applies softcap and sinks itself and reads packed
documents as segment ids. Flash attention takes any mask, as an additive bias, and has neither softcap nor
sinks.

A Pallas call is opaque to the compiler's partitioning, so on a mesh each device is handed its own rows and
heads.

Dimensions: B rows, T queries, S keys, H query heads, K key heads, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float

from dew.nn.attention.reference import FORBIDDEN
from dew.nn.sharding import automatic, axis_size, row_axes

BLOCK = 128
"""Queries and keys of the smallest block; what splash's lengths must be multiples of."""
SHORTEST = 512
"""Queries or keys below which `auto` leaves a sequence to XLA."""
MAX_CELLS = 1 << 16
"""Blocks of queries times blocks of keys that a mask's description may have: it lies in scalar memory."""
TENSOR_AXIS = "tensor"
type Operands = Mapping[str, jax.Array]


def block_size(length: int) -> int:
    """The largest of 512, 256 and 128 that divides `length`, or 128."""
    return next((size for size in (512, 256) if length % size == 0), BLOCK)


def splash_obstacle(queries: int, keys: int, *, described: bool) -> str | None:
    """Why splash attention cannot compute a call, or None.

    Args:
        queries: T.
        keys: S.
        described: whether causality, a window and segment ids are all that restricts it, queries standing at
            the keys of their number where order matters.
    """
    if not described:
        return "is described to splash by causality, a window and segment ids, and this mask is an array"
    if queries % BLOCK or keys % BLOCK:
        return f"needs lengths that are multiples of {BLOCK}, not {queries} queries and {keys} keys"
    cells = (queries // block_size(queries)) * (keys // block_size(keys))
    if cells > MAX_CELLS:
        return f"describes at most {MAX_CELLS} blocks, and {queries} queries by {keys} keys have {cells}"
    return None


def splash_attention(
    operands: Operands,
    *,
    causal: bool,
    window: int | None,
    scale: float,
    softcap: float | None,
    interpret: bool = False,
) -> Float[Array, "B T H D"]:
    """Return `softmax(cap(scale * q k^T)) v`, with sinks and documents as `operands` has them.

    Args:
        operands: query [B, T, H, D], key and value [B, S, K, D], and perhaps query_segment_ids [B, T] or
            [1, T], key_segment_ids [B, S] or [1, S] and sinks [H].
        causal: a query sees no later key.
        window: a query sees itself and the `window - 1` positions before it.
        scale: multiplies the scores.
        softcap: bounds the scores.
        interpret: run the kernel on any backend, slowly.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    batch, queries, heads = operands["query"].shape[:3]
    keys = operands["key"].shape[1]
    operands = {
        # The kernel takes one row at a time.
        name: jnp.broadcast_to(each, (batch, each.shape[1])) if name.endswith("ids") else each
        for name, each in operands.items()
    }
    local_heads = heads // (axis_size(TENSOR_AXIS) if _split_heads(operands) else 1)
    shape = queries, keys
    if window is not None:
        mask = splash.LocalMask(shape, (window - 1, 0), 0)
    else:
        mask = splash.CausalMask(shape) if causal else splash.FullMask(shape)
    rows, columns = block_size(queries), block_size(keys)
    kernel = splash.make_splash_mha(
        splash.MultiHeadMask([mask] * local_heads),
        block_sizes=splash.BlockSizes(
            block_q=rows,
            block_kv=columns,
            block_kv_compute=columns,
            block_q_dkv=rows,
            block_kv_dkv=columns,
            block_kv_dkv_compute=columns,
            block_q_dq=rows,
            block_kv_dq=columns,
        ),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=softcap,
        interpret=interpret,
    )

    def device(held: Operands) -> jax.Array:
        query, key, value = (jnp.swapaxes(held[name], 1, 2) for name in ("query", "key", "value"))
        # The product with the scale is rounded to the query's dtype once, as the kernel reads it.
        query = (query.astype(jnp.float32) * scale).astype(query.dtype)
        sinks = held.get("sinks")
        documents = held.get("query_segment_ids"), held.get("key_segment_ids")
        if documents[0] is None:
            mixed = jax.vmap(lambda q, k, v: kernel(q, k, v, sinks=sinks))(query, key, value)
        else:
            mixed = jax.vmap(lambda q, k, v, ids: kernel(q, k, v, splash.SegmentIds(*ids), sinks=sinks))(
                query, key, value, documents
            )
        return jnp.swapaxes(cast("jax.Array", mixed), 1, 2)

    mixed = on_own_rows(device, operands)
    if causal or window is not None or "query_segment_ids" not in operands:
        return mixed
    shared = operands["query_segment_ids"][:, :, None] == operands["key_segment_ids"][:, None]
    return jnp.where(jnp.any(shared, axis=-1)[..., None, None], mixed, jnp.zeros((), mixed.dtype))


def flash_attention(
    operands: Operands, *, allowed: Bool[Array, "..."] | None, scale: float
) -> Float[Array, "B T H D"]:
    """Return `softmax(scale * q k^T) v` over the allowed keys; a query without any gives zeros.

    Args:
        operands: query [B, T, H, D], key [B, S, K, D] and value [B, S, K, E] of any lengths.
        allowed: broadcastable to [B, H, T, S], of four dimensions; None allows all.
        scale: multiplies the scores.
    """
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention as flash

    queries, keys = operands["query"].shape[1], operands["key"].shape[1]
    if allowed is None:
        allowed = jnp.ones((1, 1, queries, keys), bool)
    more_queries, more_keys = -queries % BLOCK, -keys % BLOCK

    def device(held: Operands) -> jax.Array:
        query = _padded(held["query"], more_queries)
        groups = query.shape[2] // held["key"].shape[2]
        # The kernel knows no groups of heads: each query head is given its keys.
        key, value = (jnp.repeat(_padded(held[name], more_keys), groups, axis=2) for name in ("key", "value"))
        # It also wants keys and values of one width: columns of zeros change no score and no sum.
        width = max(query.shape[-1], value.shape[-1])
        query, key, value = (
            jnp.swapaxes(_padded(each, width - each.shape[-1], axis=3), 1, 2) for each in (query, key, value)
        )
        shape = (*query.shape[:2], queries, keys)
        bias = jnp.where(jnp.broadcast_to(held["mask"], shape), 0.0, FORBIDDEN).astype(jnp.float32)
        bias = jnp.pad(bias, ((0, 0), (0, 0), (0, more_queries), (0, more_keys)), constant_values=FORBIDDEN)
        rows, heads, length, _ = query.shape
        sizes = BlockSizes.get_default(rows, heads, length, key.shape[2], width)
        mixed = flash(query, key, value, bias, sm_scale=scale, block_sizes=sizes)
        return jnp.swapaxes(mixed, 1, 2)[:, :queries, :, : held["value"].shape[-1]]

    given = {name: operands[name] for name in ("query", "key", "value")} | {"mask": allowed}
    mixed = on_own_rows(device, given)
    seen = jnp.any(allowed, axis=-1).swapaxes(1, 2)[..., None]
    return jnp.where(seen, mixed, jnp.zeros((), mixed.dtype))


def on_own_rows(device: Callable[[Operands], jax.Array], operands: Operands) -> jax.Array:
    """Return `device(operands)`, each device of the mesh in use computing its own rows and heads.

    No axis is left to the compiler, since it cannot partition what it cannot look into; along those that
    split neither rows nor heads, devices compute the same.
    """
    names = {name for name in jax.sharding.get_abstract_mesh().axis_names if automatic(name)}
    if not names:
        return device(operands)
    rows = operands["query"].shape[0]
    axes: tuple[str, ...] | None = row_axes(rows) or None
    heads = TENSOR_AXIS if _split_heads(operands) else None

    def spec(name: str, shape: tuple[int, ...]) -> PartitionSpec:
        if name == "sinks":
            return PartitionSpec(heads)
        by_row = axes if shape[0] == rows else None
        if name == "mask":
            return PartitionSpec(by_row, heads if shape[1] > 1 else None)
        return PartitionSpec(by_row, None, heads) if len(shape) == 4 else PartitionSpec(by_row)

    return jax.shard_map(
        device,
        in_specs=({name: spec(name, value.shape) for name, value in operands.items()},),
        out_specs=PartitionSpec(axes, None, heads),
        axis_names=names,
        check_vma=False,  # a Pallas call does not say how its results vary over the mesh
    )(dict(operands))


def _split_heads(operands: Operands) -> bool:
    shards = axis_size(TENSOR_AXIS) if automatic(TENSOR_AXIS) else 1
    return shards > 1 and all(operands[name].shape[2] % shards == 0 for name in ("query", "key"))


def _padded(x: jax.Array, more: int, axis: int = 1) -> jax.Array:
    width: list[Any] = [(0, 0)] * x.ndim
    width[axis] = (0, more)
    return jnp.pad(x, width)
