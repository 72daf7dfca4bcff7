"""Which kernel computes an attention call: the conditions of each, and what a named one refuses.

Dimensions: T queries, S keys, D width.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

import jax.numpy as jnp

from dew.nn.attention.config import AttentionImpl
from dew.nn.attention.pallas import SHORTEST, splash_obstacle
from dew.nn.attention.tiled import TILE

type Kernel = Literal["reference", "xla", "tiled", "cudnn", "splash", "flash"]

CUDNN_DTYPES = (jnp.bfloat16, jnp.float16)
CUDNN_MAX_WIDTH = 128
SPLASH_DTYPES = (jnp.bfloat16, jnp.float32)


@dataclass(frozen=True)
class Call:
    """What the choice of a kernel depends on; known while a function is traced.

    Attributes:
        backend: JAX's default backend.
        dtype: of the query.
        queries: T.
        width: D, the larger of a key's and a value's.
        in_order: causal or windowed, and the i-th query stands at the i-th key.
        softcap: whether scores are capped.
        precision: whether a precision of the products was asked for.
        keys: S.
        described: whether causality or a window of queries at the keys of their number, and segment ids, are
            all that restricts it.
        sinks: whether heads have sinks.
        split: whether the mesh in use splits positions.
    """

    backend: str
    dtype: jnp.dtype
    queries: int
    width: int
    in_order: bool
    softcap: bool
    precision: bool
    keys: int
    described: bool
    sinks: bool = False
    split: bool = False


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
    if call.precision:
        raise ValueError(
            f"implementation={implementation!r} reads no precision; use 'reference', or leave precision None"
        )
    if implementation == "cudnn" and (obstacle := _cudnn_obstacle(call)) is not None:
        raise ValueError(f"implementation='cudnn' {obstacle}; use 'auto'")
    return _tpu_kernel(call) if implementation == "tpu" else implementation


def _tpu_kernel(call: Call) -> Kernel:
    if call.backend != "tpu":
        raise ValueError(f"implementation='tpu' needs a TPU, and the backend is {call.backend}; use 'auto'")
    if call.dtype not in SPLASH_DTYPES:
        raise ValueError(
            f"implementation='tpu' computes in bfloat16 and float32, and the query is {call.dtype}; "
            "use 'auto'"
        )
    obstacle = splash_obstacle(call.queries, call.keys, described=call.described)
    if obstacle is None:
        return "splash"
    if call.softcap or call.sinks:
        what = "a softcap" if call.softcap else "sinks"
        raise ValueError(f"implementation='tpu' with {what} {obstacle}; use 'auto'")
    return "flash"


def _splash_pays(call: Call) -> bool:
    if call.backend != "tpu" or call.dtype not in SPLASH_DTYPES or call.split:
        return False
    long = min(call.queries, call.keys) >= SHORTEST
    return long and splash_obstacle(call.queries, call.keys, described=call.described) is None


def _automatic(call: Call) -> Kernel:
    if call.precision:
        return "reference"
    if _cudnn_obstacle(call) is None:
        return "cudnn"
    if _splash_pays(call):
        return "splash"
    return "tiled" if _tiling_pays(call) else "xla"


def _tiling_pays(call: Call) -> bool:
    plain = call.in_order and not (call.softcap or call.sinks) and call.dtype == jnp.float32
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
    if call.sinks:
        return "has no sinks"
    if "xla_gpu_deterministic_ops=true" in os.environ.get("XLA_FLAGS", ""):
        return "is not deterministic, and XLA_FLAGS asks for deterministic operations"
    return None
