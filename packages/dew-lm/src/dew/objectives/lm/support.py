"""Likelihoods under a policy that drew from a part of the vocabulary.

A sampler that filters (top-k, nucleus, masks) draws token y from the kept ids K with
`p(y) = exp(l_y) / sum of exp(l_k) over k in K`, l the capped logits over the temperature. Recording K makes
the ratio of a policy to itself exactly one, whatever filter drew the token.

Dimensions: B rows, S targets a row, C kept ids a row over all of its targets, D model width, V vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dew.objectives.lm.chunked import capped

BLOCK = 256
"""Kept ids a row whose states and vocabulary columns are held at a time."""


def support_log_probs(
    target_logits: Float[Array, "B S"],
    hidden: Float[Array, "B S D"],
    weight: Float[Array, "D V"],
    tokens: Int[Array, "B S1"],
    support: tuple[Int[Array, "B C"], Int[Array, "B C"]],
    *,
    unfiltered: Float[Array, "B S"],
    softcap: float | None = None,
    temperature: float = 1.0,
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "B S"]:
    """Each target's log likelihood among the ids that were kept for it.

    Args:
        target_logits: l of each target: capped and divided by `temperature`.
        hidden: the states the head reads.
        weight: the vocabulary matrix.
        tokens: [B, S + 1] ids.
        support: kept ids, and for each the column of `tokens`, from 1, it was kept for. Entries in any other
            column are padding.
        unfiltered: what a target without entries gets.
        softcap: bounds logits.
        temperature: divides the capped logits.
        precision: of the products.

    Returns:
        Nats; minus infinity for a target that is not among its own kept ids.

    Raises:
        ValueError: ids and columns of different shapes, or of another number of rows.
    """
    ids, columns = support
    rows, width = tokens.shape
    if ids.shape != columns.shape or ids.ndim != 2 or ids.shape[0] != rows:
        raise ValueError(
            f"support holds ids of shape {ids.shape} and columns of shape {columns.shape}; both must be "
            f"[{rows}, C], a kept id and its column for every entry"
        )
    columns = jnp.where((columns >= 1) & (columns < width), columns, width)
    logits = _entry_logits(hidden, weight, ids, columns, softcap, precision) / temperature
    line = jnp.arange(rows)[:, None]
    floor = jnp.full((rows, width), -jnp.inf, logits.dtype)
    top = jax.lax.stop_gradient(floor.at[line, columns].max(logits, mode="drop"))
    top = jnp.where(jnp.isfinite(top), top, 0)
    shifted = jnp.exp(logits - jnp.take_along_axis(top, jnp.minimum(columns, width - 1), axis=1))
    total = jnp.zeros((rows, width), logits.dtype).at[line, columns].add(shifted, mode="drop")[:, 1:]
    same = ids == jnp.take_along_axis(tokens, jnp.minimum(columns, width - 1), axis=1)
    kept = jnp.zeros((rows, width), bool).at[line, columns].max(same, mode="drop")[:, 1:]
    filtered = total > 0
    # The inner `where` keeps log 0 out of the backward pass of targets without entries.
    log_partition = jnp.log(jnp.where(filtered, total, 1)) + top[:, 1:]
    among = jnp.where(kept, target_logits - log_partition, -jnp.inf)
    return jnp.where(filtered, among, unfiltered)


def _entry_logits(
    hidden: jax.Array,
    weight: jax.Array,
    ids: jax.Array,
    columns: jax.Array,
    softcap: float | None,
    precision: jax.lax.PrecisionLike,
) -> jax.Array:
    """[B, C] capped logits of the kept ids, a block of entries at a time."""
    rows, entries = ids.shape
    blocks = -(-entries // BLOCK)
    padding = ((0, 0), (0, blocks * BLOCK - entries))
    wide = jnp.promote_types(hidden.dtype, jnp.float32)

    @jax.checkpoint
    def block(entry: tuple[jax.Array, jax.Array]) -> jax.Array:
        kept, column = entry
        source = jnp.clip(column - 1, 0, hidden.shape[1] - 1)
        states = jnp.take_along_axis(hidden, source[..., None], axis=1)
        vectors = jnp.take(weight.astype(hidden.dtype), kept, axis=1)
        logits = jnp.einsum("bcd,dbc->bc", states, vectors, precision=precision, preferred_element_type=wide)
        return capped(logits, softcap)

    cut = [jnp.moveaxis(jnp.pad(each, padding).reshape(rows, blocks, BLOCK), 1, 0) for each in (ids, columns)]
    logits = jax.lax.map(block, (cut[0], cut[1]))
    return jnp.moveaxis(logits, 0, 1).reshape(rows, -1)[:, :entries]
