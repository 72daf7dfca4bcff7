"""Teacher-forced scores of a token batch, and which targets count.

Dimensions: B rows, S targets a row, D model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from dew.nn.moe.router import RoutingLoad
from dew.objectives.base import Variables
from dew.objectives.lm.depths import DepthScores
from dew.objectives.lm.indexing import IndexerScores

if TYPE_CHECKING:
    from dew.nn.inputs import ModelInputs


@struct.dataclass
class Scores:
    """What a model says about the next-token targets of [B, S + 1] ids.

    Attributes:
        losses: [B, S] cross entropy in nats, float32 or wider.
        weights: [B, S] 1 where the target counts, 0 elsewhere.
        correct: [B, S] whether the best id is the target, or None.
        hidden: [B, S, D] the states the head read.
        log_partition: [B, S] log of the sum of the exponentials of the logits.
        routing: the load of every router by the path of its module, or None if not asked for.
        qk_stats: the largest attention logits as `Aux.qk_stats` holds them, or None if not asked for.
        depths: what the prediction depths say, or None if not asked for.
        indexer: how far the indexers are from the attention, or None if not asked for.
        layers: [B, S, D] the output states of the layers that were asked for, in that order.
    """

    losses: jax.Array
    weights: jax.Array
    correct: jax.Array | None
    hidden: jax.Array
    log_partition: jax.Array
    routing: Mapping[tuple[str, ...], RoutingLoad] | None = None
    qk_stats: Variables | None = None
    depths: DepthScores | None = None
    indexer: IndexerScores | None = None
    layers: tuple[jax.Array, ...] = ()


def target_weights(
    tokens: Int[Array, "B S1"],
    *,
    pad_id: int | None,
    segment_ids: Int[Array, "B S1"] | None,
    roles: Int[Array, "B S1"] | None = None,
    loss_role: int | None = None,
) -> Float[Array, "B S"]:
    """Return 1 for each target that counts: not `pad_id`, in the document of its predictor, of `loss_role`.

    Segment 0 is padding, not a document.

    Args:
        tokens: [B, S + 1].
        pad_id: targets of this id do not count; None counts all.
        segment_ids: [B, S + 1], the document of each token, or None where a row is one.
        roles: [B, S + 1], whose each token is.
        loss_role: with `roles`, only this one's targets count; None counts all.
    """
    targets = tokens[:, 1:]
    counts = jnp.ones(targets.shape, bool)
    if pad_id is not None:
        counts = counts & (targets != pad_id)
    if segment_ids is not None:
        document = segment_ids[:, 1:]
        counts = counts & (document == segment_ids[:, :-1]) & (document != 0)
    if loss_role is not None and roles is not None:
        counts = counts & (roles[:, 1:] == loss_role)
    return counts.astype(jnp.float32)


def left_aligned(tokens: Int[Array, "B S1"], left_padding: Int[Array, " B"]) -> Int[Array, "B S1"]:
    """Return rows turned left by their padding counts, so that the first real token stands at 0."""
    width = tokens.shape[1]
    source = (jnp.arange(width) + left_padding[:, None]) % width
    return jnp.take_along_axis(tokens, source, axis=1)


def original_alignment(values: Float[Array, "B S"], left_padding: Int[Array, " B"]) -> Float[Array, "B S"]:
    """Return values of left-aligned rows in their original slots, zero where the input is padding."""
    slots = jnp.arange(values.shape[1])
    source = slots - left_padding[:, None]
    moved = jnp.take_along_axis(values, jnp.maximum(source, 0), axis=1)
    return jnp.where(source >= 0, moved, 0)


def plain_ids(tokens: jax.Array | ModelInputs) -> jax.Array:
    """Return the ids of `tokens`.

    Raises:
        ValueError: inputs that carry an attention mask or conditions of their own.
    """
    from dew.nn.inputs import ModelInputs

    if not isinstance(tokens, ModelInputs):
        return tokens
    if tokens.token_fields or tokens.conditions:
        named = ", ".join([*tokens.token_fields, *tokens.conditions])
        raise ValueError(
            f"per_token_log_probs reads the ids alone, and the inputs carry {named}; "
            "pass the ids and their left_padding"
        )
    return jnp.asarray(tokens.tokens)
