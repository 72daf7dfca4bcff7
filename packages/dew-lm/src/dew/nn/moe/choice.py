"""Which experts a token goes to and with what weights, from a router's logits.

Dimensions: E experts, K of them chosen, any leading axes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dew.nn.moe.config import ExpertGroups, Mixture, ScoreKind

SMALLEST_SUM = 1e-20
"""Added to the sum that sigmoid weights are divided by, as DeepSeek-V3's published model does."""


class Choice(NamedTuple):
    """Experts and weights of every token, [B, S, K] each."""

    experts: jax.Array
    weights: jax.Array


def scores_of(logits: Float[Array, "... E"], kind: ScoreKind) -> Float[Array, "... E"]:
    """`softmax(logits)` over the experts, or `sigmoid(logits)`."""
    return jax.nn.softmax(logits, axis=-1) if kind == "softmax" else jax.nn.sigmoid(logits)


def best_experts(
    logits: Float[Array, "... E"],
    scores: Float[Array, "... E"],
    bias: Float[Array, " E"] | None,
    mixture: Mixture,
) -> Int[Array, "... K"]:
    """The K experts of largest `s + bias`, of the groups that may be chosen from where there are groups.

    Without bias and groups the logits decide, which rank as the scores do and do not saturate.
    """
    ranked = logits if mixture.groups is None else scores
    if bias is not None:
        ranked = scores + bias
    if mixture.groups is not None:
        ranked = within_best_groups(ranked, mixture.groups)
    return jax.lax.top_k(jax.lax.stop_gradient(ranked), mixture.top_k)[1]


def within_best_groups(ranked: Float[Array, "... E"], groups: ExpertGroups) -> Float[Array, "... E"]:
    """`ranked`, with minus infinity for the experts outside the groups that rank highest."""
    grouped = ranked.reshape(*ranked.shape[:-1], groups.count, -1)
    if groups.rank == "best":
        strength = jnp.max(grouped, axis=-1)
    else:
        strength = jnp.sum(jax.lax.top_k(grouped, 2)[0], axis=-1)
    kept = jax.lax.top_k(strength, groups.keep)[1]
    stays = jnp.any(kept[..., None] == jnp.arange(groups.count), axis=-2)
    return jnp.where(stays[..., None], grouped, -jnp.inf).reshape(ranked.shape)


def weights_of(
    logits: Float[Array, "... E"],
    scores: Float[Array, "... E"],
    chosen: Int[Array, "... K"],
    mixture: Mixture,
) -> Float[Array, "... K"]:
    """The weights of the chosen experts, as `Mixture` states them."""
    if mixture.normalize and mixture.scores == "softmax":
        weights = jax.nn.softmax(jnp.take_along_axis(logits, chosen, axis=-1), axis=-1)
    else:
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
        if mixture.normalize:
            weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + SMALLEST_SUM)
    return weights * mixture.scale
