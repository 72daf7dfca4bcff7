"""Cross entropy of a vocabulary head, tile by tile, so that no [N, V] matrix of logits is held.

Dimensions: N tokens, D model width, V vocabulary.

With l = cap(h W) / temperature and Z = sum_v exp(l_v), the loss of target y is log Z - l_y. The forward pass
visits the columns of W in tiles and keeps a running log Z; the backward pass computes every tile's logits
again. One tile keeps
its logits: with nothing to save there is nothing to recompute.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dew.nn.tokens import split_merged, split_tokens


@dataclass(frozen=True)
class HeadSpec:
    """How logits come from states.

    Attributes:
        chunks: tiles over the vocabulary.
        softcap: bounds logits by `c tanh(l / c)`, or None.
        temperature: divides the capped logits.
        precision: of the products.
        correct: whether to compare the best column with the target.
    """

    chunks: int = 1
    softcap: float | None = None
    temperature: float = 1.0
    precision: jax.lax.PrecisionLike = None
    correct: bool = True


class HeadScores(NamedTuple):
    """What a head says about each token's target.

    Attributes:
        losses: [N] cross entropy in nats, float32 or wider.
        log_partition: [N], log Z.
        correct: [N], whether the first of the best columns is the target; None if not asked for.
    """

    losses: jax.Array
    log_partition: jax.Array
    correct: jax.Array | None


MIN_TILE = 4096
"""Columns below which a tile saves no memory worth the second product."""


def sensible_chunks(vocab: int, chunks: int) -> int:
    """Return at most `chunks` tiles, each at least `MIN_TILE` columns wide unless there is one alone."""
    return max(1, min(chunks, vocab // MIN_TILE))


def chunked_cross_entropy(
    hidden: Float[Array, "N D"],
    weight: Float[Array, "D V"],
    targets: Int[Array, " N"],
    *,
    chunks: int = 1,
    softcap: float | None = None,
    temperature: float = 1.0,
    precision: jax.lax.PrecisionLike = None,
    correct: bool = True,
) -> HeadScores:
    """Score every target against the whole vocabulary.

    Args:
        hidden: states after the final norm.
        weight: the vocabulary matrix; V need not be a multiple of `chunks`.
        targets: ids below V.
        chunks: tiles over the vocabulary; 1 holds the logits for the backward pass.
        softcap: bounds logits.
        temperature: divides the capped logits.
        precision: of the products.
        correct: whether to report if the best column is the target.

    Raises:
        ValueError: `chunks` outside 1 to V, or a temperature that is not positive.
    """
    vocab = weight.shape[1]
    if not 1 <= chunks <= vocab:
        raise ValueError(f"chunks={chunks} must lie between 1 and the vocabulary's {vocab} columns")
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} must be above 0: it divides the logits")
    spec = HeadSpec(chunks, softcap, temperature, precision, correct)
    losses, log_partition, best = _score(spec, hidden, weight, targets)
    return HeadScores(losses, log_partition, best == targets if correct else None)


def head_logits(
    hidden: Float[Array, "... D"],
    weight: Float[Array, "D V"],
    *,
    softcap: float | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "... V"]:
    """Return the capped logits, float32 or wider."""
    return _capped(HeadSpec(softcap=softcap, precision=precision), hidden, weight)


def capped(logits: Float[Array, "..."], softcap: float | None) -> Float[Array, "..."]:
    """Return `softcap tanh(logits / softcap)`, or the logits themselves without a cap."""
    return logits if softcap is None else softcap * jnp.tanh(logits / softcap)


def _tiles(spec: HeadSpec, vocab: int) -> list[tuple[int, int]]:
    width = -(-vocab // spec.chunks)
    return [(start, min(start + width, vocab)) for start in range(0, vocab, width)]


def _capped(spec: HeadSpec, hidden: jax.Array, tile: jax.Array) -> jax.Array:
    wide = jnp.promote_types(hidden.dtype, jnp.float32)
    logits = jnp.dot(hidden, tile.astype(hidden.dtype), precision=spec.precision, preferred_element_type=wide)
    return capped(split_merged(logits) if hidden.ndim == 2 else split_tokens(logits), spec.softcap)


class _Running(NamedTuple):
    """The pass over the tiles, [N] each: maximum, its first column, scaled sum, the target's logit."""

    top: jax.Array
    best: jax.Array
    total: jax.Array
    target: jax.Array


def _visit(
    spec: HeadSpec, running: _Running | None, logits: jax.Array, start: int, targets: jax.Array
) -> _Running:
    columns = start + jax.lax.broadcasted_iota(targets.dtype, logits.shape, 1)
    top = jnp.max(logits, axis=1)
    target = jnp.sum(jnp.where(columns == targets[:, None], logits, 0), axis=1)
    best = targets
    if spec.correct:
        best = jnp.min(jnp.where(logits == top[:, None], columns, jnp.iinfo(targets.dtype).max), axis=1)
    if running is None:
        return _Running(top, best, jnp.sum(jnp.exp(logits - top[:, None]), axis=1), target)
    higher = jnp.maximum(running.top, top)
    total = running.total * jnp.exp(running.top - higher)
    total = total + jnp.sum(jnp.exp(logits - higher[:, None]), axis=1)
    first = jnp.where(top > running.top, best, running.best)
    return _Running(higher, first, total, running.target + target)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _score(
    spec: HeadSpec, hidden: jax.Array, weight: jax.Array, targets: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    return _forward(spec, hidden, weight, targets)[0]


type _Saved = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array | None]


def _forward(
    spec: HeadSpec, hidden: jax.Array, weight: jax.Array, targets: jax.Array
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], _Saved]:
    running: _Running | None = None
    logits: jax.Array | None = None
    # As many rounds as tiles.
    for start, stop in _tiles(spec, weight.shape[1]):
        logits = _capped(spec, hidden, weight[:, start:stop]) / spec.temperature
        running = _visit(spec, running, logits, start, targets)
    assert running is not None
    log_partition = jnp.log(running.total) + running.top
    kept = logits if spec.chunks == 1 else None
    scores = log_partition - running.target, log_partition, running.best
    return scores, (hidden, weight, targets, log_partition, kept)


def _backward(
    spec: HeadSpec, saved: _Saved, cotangents: tuple[jax.Array, jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, None]:
    hidden, weight, targets, log_partition, kept = saved
    loss_bar, partition_bar, _ = cotangents
    hidden_bar = jnp.zeros(hidden.shape, log_partition.dtype)
    weight_bars: list[jax.Array] = []
    for start, stop in _tiles(spec, weight.shape[1]):
        tile = weight[:, start:stop]
        logits = _capped(spec, hidden, tile) / spec.temperature if kept is None else kept
        columns = start + jax.lax.broadcasted_iota(targets.dtype, logits.shape, 1)
        share = jnp.exp(logits - log_partition[:, None]) * (loss_bar + partition_bar)[:, None]
        logits_bar = share - jnp.where(columns == targets[:, None], loss_bar[:, None], 0)
        logits_bar = _through_cap(spec, logits, logits_bar).astype(hidden.dtype)
        product = partial(jnp.dot, precision=spec.precision, preferred_element_type=log_partition.dtype)
        hidden_bar = hidden_bar + split_merged(product(logits_bar, tile.T.astype(hidden.dtype)))
        weight_bars.append(product(hidden.T, logits_bar).astype(weight.dtype))
    return hidden_bar.astype(hidden.dtype), jnp.concatenate(weight_bars, axis=1), None


def _through_cap(spec: HeadSpec, logits: jax.Array, logits_bar: jax.Array) -> jax.Array:
    """The cotangent before cap and temperature; `logits` come after both."""
    if spec.softcap is not None:
        logits_bar = logits_bar * (1 - jnp.square(logits * spec.temperature / spec.softcap))
    return logits_bar / spec.temperature


_score.defvjp(_forward, _backward)
