"""The attention that models call.

Dimensions: B rows, T queries, S keys, H query heads, K key heads, D a key's and E a value's width.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dew.nn.attention.choice import Call, resolve_kernel
from dew.nn.attention.config import AttentionImpl
from dew.nn.attention.masks import allowed_keys, four_dimensional
from dew.nn.attention.pallas import flash_attention, splash_attention
from dew.nn.attention.reference import reference_attention
from dew.nn.attention.sequence import Operands, over_sequence
from dew.nn.attention.tiled import tiled_attention
from dew.nn.sharding import axis_size
from dew.training.mesh import SEQUENCE_AXIS

RESTRICTIONS = ("mask", "query_segment_ids", "key_segment_ids", "query_positions", "key_positions")
"""The arrays of a call that restrict which keys a query sees."""
OWN_WIDTHS = ("reference", "tiled")
"""Kernels that take values of another width than the keys'; for the others the narrower ones are padded."""


def scaled_dot_product_attention(
    query: Float[Array, "B T H D"],
    key: Float[Array, "B S K D"],
    value: Float[Array, "B S K E"],
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
    sinks: Float[Array, " H"] | None = None,
    implementation: AttentionImpl | None = "auto",
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "B T H E"]:
    """Return `softmax(cap(scale * q k^T)) v` over the keys that each query may see.

    Softmax is float32 or wider. A query that may see nothing gives zeros. Queries see keys as `allowed_keys`
    says; leave positions out where query i stands at key i, which lets kernels skip what causality forbids.
    On a mesh with a sequence axis each of its devices computes a share (`dew.nn.attention.sequence`).

    Args:
        query: [B, T, H, D].
        key: [B, S, K, D] with K dividing H; a key head serves H / K query heads in a row.
        value: [B, S, K, E].
        causal: a query sees no later key.
        mask: boolean, broadcastable to [B, H, T, S]; True allows.
        query_segment_ids: [B, T], the document of each query; [1, T] where rows are alike.
        key_segment_ids: [B, S] or [1, S], the document of each key.
        query_positions: [B, T], for a sequence that continues a cache, or whose entries are out of order.
        key_positions: [B, S].
        window: a query sees itself and the `window - 1` positions before it; implies `causal`.
        scale: multiplies the scores; None is `D ** -0.5`.
        softcap: bounds the scores by `softcap * tanh(scores / softcap)`.
        sinks: [H], a score of each head that takes its share of the softmax and has no value.
        implementation: `auto`, or a kernel by name; None is `reference`. All give the same values up to
            rounding. On a CPU `auto` takes a kernel for causal float32 sequences that forward-mode
            differentiation does not reach; name `xla` for that.
        precision: of the products; only `reference` reads it.

    Returns:
        [B, T, H, E] in the dtype of `value`.

    Raises:
        ValueError: shapes, masks or positions do not fit, or the named kernel cannot compute this call here.
    """
    _check_shapes(query, key, value, softcap, sinks)
    given = {
        "query": query,
        "key": key,
        "value": value,
        "mask": None if mask is None else four_dimensional(mask),
        "query_segment_ids": query_segment_ids,
        "key_segment_ids": key_segment_ids,
        "query_positions": query_positions,
        "key_positions": key_positions,
        "sinks": sinks,
    }
    rules = _Rules(
        causal,
        window,
        query.shape[-1] ** -0.5 if scale is None else scale,
        softcap,
        implementation,
        precision,
    )
    return over_sequence(
        partial(_attend, rules),
        {name: value for name, value in given.items() if value is not None},
        ordered=causal or window is not None,
    )


class _Rules(NamedTuple):
    """What a call says besides its arrays; `scaled_dot_product_attention` documents the fields."""

    causal: bool
    window: int | None
    scale: float
    softcap: float | None
    implementation: AttentionImpl | None
    precision: jax.lax.PrecisionLike


def _attend(rules: _Rules, operands: Operands) -> jax.Array:
    """The call on one device."""
    query, key, value = (operands[name] for name in ("query", "key", "value"))
    queries, keys = query.shape[1], key.shape[1]
    apart = "query_positions" in operands or "key_positions" in operands
    ordered = rules.causal or rules.window is not None
    sinks = operands.get("sinks")
    kernel = resolve_kernel(
        rules.implementation,
        Call(
            backend=jax.default_backend(),
            dtype=jnp.dtype(query.dtype),
            queries=queries,
            width=max(query.shape[-1], value.shape[-1]),
            in_order=ordered and not apart and queries == keys,
            softcap=rules.softcap is not None,
            precision=rules.precision is not None,
            keys=keys,
            described="mask" not in operands and not (ordered and (apart or queries != keys)),
            sinks=sinks is not None,
            split=axis_size(SEQUENCE_AXIS) > 1,
        ),
    )
    if kernel not in OWN_WIDTHS and query.shape[-1] != value.shape[-1]:
        return _attend(rules, _of_one_width(operands))[..., : value.shape[-1]]
    if kernel == "splash":
        return splash_attention(
            {name: value for name, value in operands.items() if not name.endswith("positions")},
            causal=rules.causal,
            window=rules.window,
            scale=rules.scale,
            softcap=rules.softcap,
        )
    tiled = kernel == "tiled"
    allowed = allowed_keys(
        queries,
        keys,
        causal=rules.causal and not tiled,
        window=None if tiled else rules.window,
        **{name: operands.get(name) for name in RESTRICTIONS},
    )
    if tiled:
        return tiled_attention(query, key, value, scale=rules.scale, window=rules.window, allowed=allowed)
    if kernel == "flash":
        return flash_attention(operands, allowed=allowed, scale=rules.scale)
    if kernel == "reference" or rules.softcap is not None or sinks is not None:
        return reference_attention(
            query,
            key,
            value,
            allowed=allowed,
            scale=rules.scale,
            softcap=rules.softcap,
            sinks=sinks,
            precision=rules.precision,
        )
    return _fused(query, key, value, allowed=allowed, scale=rules.scale, kernel=kernel)


def _fused(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    allowed: jax.Array | None,
    scale: float,
    kernel: Literal["xla", "cudnn"],
) -> jax.Array:
    mixed = jax.nn.dot_product_attention(query, key, value, mask=allowed, scale=scale, implementation=kernel)
    if allowed is None:
        return mixed
    seen = jnp.any(allowed, axis=-1).swapaxes(1, 2)[..., None]
    return jnp.where(seen, mixed, jnp.zeros((), mixed.dtype))


def _of_one_width(operands: Operands) -> Operands:
    """The operands with zeros behind the narrower ones, which no product of queries and keys counts."""
    named = {name: operands[name] for name in ("query", "key", "value")}
    width = max(each.shape[-1] for each in named.values())
    behind = {name: [(0, 0)] * 3 + [(0, width - each.shape[-1])] for name, each in named.items()}
    return {**operands, **{name: jnp.pad(each, behind[name]) for name, each in named.items()}}


def _check_shapes(
    query: jax.Array, key: jax.Array, value: jax.Array, softcap: float | None, sinks: jax.Array | None
) -> None:
    if query.ndim != 4 or key.ndim != 4 or value.shape[:3] != key.shape[:3]:
        raise ValueError(
            f"query {query.shape}, key {key.shape} and value {value.shape} must be [B, T, H, D], "
            "[B, S, K, D] and [B, S, K, E]"
        )
    if query.shape[0] != key.shape[0] or query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query {query.shape} and key {key.shape} must agree in rows and width")
    if query.shape[2] % key.shape[2]:
        raise ValueError(f"{key.shape[2]} key heads must divide {query.shape[2]} query heads")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap={softcap} must be positive; leave it None for no cap")
    if sinks is not None and sinks.shape != query.shape[2:3]:
        raise ValueError(
            f"sinks of shape {sinks.shape} must hold one score for each of {query.shape[2]} heads"
        )
