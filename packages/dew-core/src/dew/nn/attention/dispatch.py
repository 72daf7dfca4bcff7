"""The attention that models call, and the choice of the kernel that computes it.

Dimensions: B rows, T queries, S keys, H query heads, K key heads, D a key's and E a value's width.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dew.nn.attention.config import AttentionImpl
from dew.nn.attention.masks import allowed_keys, four_dimensional
from dew.nn.attention.reference import reference_attention
from dew.nn.attention.sequence import Operands, over_sequence
from dew.nn.attention.tiled import TILE, tiled_attention

type Kernel = Literal["reference", "xla", "tiled", "cudnn"]

CUDNN_DTYPES = (jnp.bfloat16, jnp.float16)
CUDNN_MAX_WIDTH = 128
RESTRICTIONS = ("mask", "query_segment_ids", "key_segment_ids", "query_positions", "key_positions")
"""The arrays of a call that restrict which keys a query sees."""


@dataclass(frozen=True)
class Call:
    """What the choice of a kernel depends on; known while a function is traced.

    Attributes:
        backend: JAX's default backend.
        dtype: of the query.
        queries: T.
        width: the larger of D and E.
        in_order: causal or windowed, and the i-th query stands at the i-th key.
        softcap: whether scores are capped.
        precision: whether a precision of the products was asked for.
    """

    backend: str
    dtype: jnp.dtype
    queries: int
    width: int
    in_order: bool
    softcap: bool
    precision: bool


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
        query_segment_ids: [B, T], the document of each query.
        key_segment_ids: [B, S], the document of each key.
        query_positions: [B, T], for a sequence that continues a cache, or whose entries are out of order.
        key_positions: [B, S].
        window: a query sees itself and the `window - 1` positions before it; implies `causal`.
        scale: multiplies the scores; None is `D ** -0.5`.
        softcap: bounds the scores by `softcap * tanh(scores / softcap)`.
        implementation: `auto`, or a kernel by name; None is `reference`. All give the same values up to
            rounding. On a CPU `auto` takes a kernel for causal float32 sequences that forward-mode
            differentiation does not reach; name `xla` for that.
        precision: of the products; only `reference` reads it.

    Returns:
        [B, T, H, E] in the dtype of `value`.

    Raises:
        ValueError: shapes, masks or positions do not fit, or the named kernel cannot compute this call here.
    """
    _check_shapes(query, key, value, softcap)
    given = {
        "query": query,
        "key": key,
        "value": value,
        "mask": None if mask is None else four_dimensional(mask),
        "query_segment_ids": query_segment_ids,
        "key_segment_ids": key_segment_ids,
        "query_positions": query_positions,
        "key_positions": key_positions,
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
    kernel = resolve_kernel(
        rules.implementation,
        Call(
            backend=jax.default_backend(),
            dtype=jnp.dtype(query.dtype),
            queries=queries,
            width=max(query.shape[-1], value.shape[-1]),
            in_order=(rules.causal or rules.window is not None) and not apart and queries == keys,
            softcap=rules.softcap is not None,
            precision=rules.precision is not None,
        ),
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
    if kernel == "reference" or rules.softcap is not None:
        return reference_attention(
            query,
            key,
            value,
            allowed=allowed,
            scale=rules.scale,
            softcap=rules.softcap,
            precision=rules.precision,
        )
    return _fused(query, key, value, allowed=allowed, scale=rules.scale, kernel=kernel)


def resolve_kernel(implementation: AttentionImpl | None, call: Call) -> Kernel:
    """Return the kernel that `implementation` stands for in `call`.

    Raises:
        ValueError: the named kernel cannot compute the call.
    """
    if implementation is None or implementation == "reference":
        return "reference"
    if implementation == "auto":
        return _automatic(call)
    if implementation not in get_args(AttentionImpl):
        names = ", ".join(get_args(AttentionImpl))
        raise ValueError(f"implementation={implementation!r} is no attention kernel; use one of {names}")
    if implementation == "tpu":
        raise ValueError("implementation='tpu': the TPU kernel is not built yet; use 'auto'")
    if call.precision:
        raise ValueError(
            f"implementation={implementation!r} reads no precision; use 'reference', or leave precision None"
        )
    if implementation == "cudnn" and (obstacle := _cudnn_obstacle(call)) is not None:
        raise ValueError(f"implementation='cudnn' {obstacle}; use 'auto'")
    return implementation


def _automatic(call: Call) -> Kernel:
    if call.precision:
        return "reference"
    if _cudnn_obstacle(call) is None:
        return "cudnn"
    return "tiled" if _tiling_pays(call) else "xla"


def _tiling_pays(call: Call) -> bool:
    plain = call.in_order and not call.softcap and call.dtype == jnp.float32
    return call.backend == "cpu" and plain and call.queries > TILE


def _cudnn_obstacle(call: Call) -> str | None:
    if call.backend not in ("gpu", "cuda"):
        return f"needs a GPU, and the backend is {call.backend}"
    if call.dtype not in CUDNN_DTYPES:
        return f"computes in bfloat16 and float16, and the query is {call.dtype}"
    if call.width % 8 or call.width > CUDNN_MAX_WIDTH:
        return f"needs a head width that is a multiple of 8 and at most {CUDNN_MAX_WIDTH}, not {call.width}"
    if call.softcap:
        return "has no softcap"
    if "xla_gpu_deterministic_ops=true" in os.environ.get("XLA_FLAGS", ""):
        return "is not deterministic, and XLA_FLAGS asks for deterministic operations"
    return None


def _fused(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    allowed: jax.Array | None,
    scale: float,
    kernel: Literal["xla", "cudnn"],
) -> jax.Array:
    width = value.shape[-1]
    query, key, value = _of_one_width(query, key, value)
    mixed = jax.nn.dot_product_attention(query, key, value, mask=allowed, scale=scale, implementation=kernel)
    mixed = mixed[..., :width]
    if allowed is None:
        return mixed
    seen = jnp.any(allowed, axis=-1).swapaxes(1, 2)[..., None]
    return jnp.where(seen, mixed, jnp.zeros((), mixed.dtype))


def _of_one_width(*arrays: jax.Array) -> list[jax.Array]:
    """The arrays with zeros behind the narrower ones, which no product of queries and keys counts."""
    width = max(each.shape[-1] for each in arrays)
    return [
        each if each.shape[-1] == width else jnp.pad(each, [(0, 0)] * 3 + [(0, width - each.shape[-1])])
        for each in arrays
    ]


def _check_shapes(query: jax.Array, key: jax.Array, value: jax.Array, softcap: float | None) -> None:
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
