"""The log-partition of a vocabulary head without its logits.

XLA does not fuse a matrix product with a reduction over its result: `logsumexp(hidden @ weight)` writes and
reads all logits. The kernel holds one tile of them, with a running maximum m and a sum s of `exp(logit - m)`
(arXiv 1805.02867, algorithm 3).

Dimensions: T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

ROWS, COLUMNS = 256, 512
"""Tokens and vocabulary of a tile: with D of 4096 in bfloat16, 6 MB of a TPU core's vector memory."""


def log_partition(
    hidden: Float[Array, "T D"],
    weight: Float[Array, "D V"],
    *,
    softcap: float | None = None,
    interpret: bool | None = None,
) -> Float[Array, " T"]:
    """`log sum_v exp(logit_v)` of every token, float32, with `logit = hidden @ weight`.

    The kernel is written for a TPU, whose grid runs in order; elsewhere the same tiles are a loop of XLA.
    Differentiable once: the gradient recomputes each tile.

    Args:
        hidden: the states before the head.
        weight: the head.
        softcap: bounds the logits to `softcap tanh(logit / softcap)`.
        interpret: run the kernel's own steps without a TPU, to check them; None runs it on a TPU alone.

    Raises:
        ValueError: shapes that do not fit.
    """
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[0]:
        raise ValueError(
            f"hidden of shape {hidden.shape} and weight of shape {weight.shape} must be [T, D] and [D, V]"
        )
    if interpret is None and jax.default_backend() != "tpu":
        return looped(hidden, weight, softcap)
    return _kernel(hidden, weight, softcap, bool(interpret))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _kernel(hidden: jax.Array, weight: jax.Array, softcap: float | None, interpret: bool) -> jax.Array:
    tokens, width = hidden.shape
    vocabulary = weight.shape[1]
    rows, columns = min(ROWS, tokens), min(COLUMNS, vocabulary)
    running = jax.ShapeDtypeStruct((tokens, 1), jnp.float32)
    of_rows = pl.BlockSpec((rows, 1), lambda row, column: (row, 0))
    highest, total = pl.pallas_call(
        partial(_tile, vocabulary=vocabulary, softcap=softcap),
        grid=(pl.cdiv(tokens, rows), pl.cdiv(vocabulary, columns)),
        in_specs=[
            pl.BlockSpec((rows, width), lambda row, column: (row, 0)),
            pl.BlockSpec((width, columns), lambda row, column: (0, column)),
        ],
        out_specs=[of_rows, of_rows],
        out_shape=[running, running],
        interpret=interpret,
    )(hidden, weight)
    return (highest + jnp.log(total))[:, 0]


def _tile(
    hidden: Any, weight: Any, highest: Any, total: Any, *, vocabulary: int, softcap: float | None
) -> None:
    column = pl.program_id(1)

    @pl.when(column == 0)
    def _() -> None:  # pyright: ignore[reportUnusedFunction]
        highest[...] = jnp.full(highest.shape, -jnp.inf, jnp.float32)
        total[...] = jnp.zeros(total.shape, jnp.float32)

    logits = capped(jnp.dot(hidden[...], weight[...], preferred_element_type=jnp.float32), softcap)
    place = column * weight.shape[1] + lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    logits = jnp.where(place < vocabulary, logits, -jnp.inf)  # the last tile reaches past the vocabulary
    before = highest[...]
    now = jnp.maximum(before, jnp.max(logits, axis=1, keepdims=True))
    total[...] = total[...] * jnp.exp(before - now) + jnp.sum(jnp.exp(logits - now), axis=1, keepdims=True)
    highest[...] = now


def looped(
    hidden: Float[Array, "T D"], weight: Float[Array, "D V"], softcap: float | None
) -> Float[Array, " T"]:
    """The same by a loop over tiles of the vocabulary, of which the gradient recomputes each."""
    width, vocabulary = weight.shape
    columns = min(COLUMNS, vocabulary)
    count = -(-vocabulary // columns)
    padded = jnp.pad(weight, ((0, 0), (0, count * columns - vocabulary)))
    tiles = padded.reshape(width, count, columns).swapaxes(0, 1)

    @jax.checkpoint
    def step(running: tuple[jax.Array, jax.Array], tile: tuple[jax.Array, jax.Array]) -> Any:
        highest, total = running
        part, first = tile
        logits = capped(jnp.dot(hidden, part, preferred_element_type=jnp.float32), softcap)
        logits = jnp.where(first + jnp.arange(columns) < vocabulary, logits, -jnp.inf)
        now = lax.stop_gradient(jnp.maximum(highest, jnp.max(logits, axis=1)))
        return (now, total * jnp.exp(highest - now) + jnp.sum(jnp.exp(logits - now[:, None]), axis=1)), None

    start = jnp.full(hidden.shape[:1], -jnp.inf, jnp.float32), jnp.zeros(hidden.shape[:1], jnp.float32)
    (highest, total), _ = lax.scan(step, start, (tiles, columns * jnp.arange(count)))
    return highest + jnp.log(total)


def capped(logits: jax.Array, softcap: float | None) -> jax.Array:
    """The logits, bounded where `softcap` is set."""
    return logits if softcap is None else softcap * jnp.tanh(logits / softcap)


def _forward(hidden: jax.Array, weight: jax.Array, softcap: float | None, interpret: bool) -> Any:
    return _kernel(hidden, weight, softcap, interpret), (hidden, weight)


def _backward(softcap: float | None, interpret: bool, kept: Any, gradient: jax.Array) -> Any:
    return jax.vjp(partial(looped, softcap=softcap), *kept)[1](gradient)


_kernel.defvjp(_forward, _backward)
