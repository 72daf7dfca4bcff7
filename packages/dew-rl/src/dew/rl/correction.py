"""Weights for tokens that another policy drew than the one the update starts from.

The weight is `old / behavior`, importance sampling with its tail cut (truncated importance sampling, Ionides
2008) or its outliers left out. Dimensions: B rows, S slots.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from dew.rl.names import CorrectionName, LevelName
from dew.rl.ratio import clamp_logs


@struct.dataclass
class Correction:
    """Weights and what they say of the distance between the two policies.

    Attributes:
        weights: [B, S] float32, free of gradients, 0 at slots that are not trained.
        mean_weight: their mean over trained tokens.
        effective: effective sample size over the number of tokens, `(sum w)^2 / (n sum w^2)`.
        kl: mean of `behavior - old`, the sampled KL(behavior || old) in nats.
        masked: fraction of the trained tokens left out by `mode="mask"`.
        unknown: count of trained tokens without a behavior; their weight counts as 1 and `kl` skips them.
    """

    weights: jax.Array
    mean_weight: jax.Array
    effective: jax.Array
    kl: jax.Array
    masked: jax.Array
    unknown: jax.Array


def off_policy_weights(
    old: Float[Array, "B S"],
    behavior: Float[Array, "B S"],
    mask: Bool[Array, "B S"],
    *,
    level: LevelName = "token",
    mode: CorrectionName = "truncate",
    low: float | None = None,
    high: float = 2.0,
) -> Correction:
    """`exp(old - behavior)` of each token, or of the whole row, kept within bounds.

    Args:
        old: log probabilities under the policy at the start of the update.
        behavior: under the distribution that drew the tokens; NaN where nobody recorded it.
        mask: the trained slots.
        level: `token`, or `sequence` for the product over the row's trained tokens.
        mode: `truncate` cuts a weight to its bounds, `mask` gives a weight outside them 0.
        low: the least weight; None for no bound.
        high: the greatest weight.

    Raises:
        ValueError: bounds that leave 1 outside, or an unknown level or mode.
    """
    _check(level, mode, low, high)
    trained = mask.astype(bool)
    known = trained & ~jnp.isnan(behavior)
    logs = jnp.where(known, old, 0).astype(jnp.float32) - jnp.where(known, behavior, 0).astype(jnp.float32)
    exponents = logs
    if level == "sequence":
        exponents = jnp.broadcast_to(jnp.sum(logs, -1, keepdims=True), logs.shape)
    raw = jax.lax.stop_gradient(jnp.exp(clamp_logs(exponents)[0]))
    least = 0.0 if low is None else low
    outside = trained & ((raw < least) | (raw > high))
    bounded = jnp.clip(raw, least, high) if mode == "truncate" else jnp.where(outside, 0, raw)
    weights = jnp.where(trained, bounded, 0)
    count = jnp.maximum(jnp.sum(trained, dtype=jnp.float32), 1)
    total, squares = jnp.sum(weights), jnp.sum(jnp.square(weights))
    return Correction(
        weights=weights,
        mean_weight=total / count,
        effective=jnp.where(squares > 0, jnp.square(total) / (count * jnp.where(squares > 0, squares, 1)), 0),
        kl=-jax.lax.stop_gradient(jnp.sum(logs)) / jnp.maximum(jnp.sum(known), 1),
        masked=jnp.sum(outside, dtype=jnp.float32) / count if mode == "mask" else jnp.zeros(()),
        unknown=jnp.sum(trained & ~known, dtype=jnp.float32),
    )


def off_policy_rows(
    current: Float[Array, "B S"],
    behavior: Float[Array, "B S"],
    mask: Bool[Array, "B S"],
    advantages: Float[Array, " B"],
    *,
    threshold: float,
) -> Bool[Array, " B"]:
    """The rows to keep: all but bad ones that the policy has already left (DeepSeek-V3.2, arXiv 2512.02556).

    A row is dropped when its advantage is negative and the mean of `behavior - current` over its trained
    tokens exceeds `threshold`; a token without a behavior adds 0 to it.
    """
    trained = mask.astype(bool)
    known = trained & ~jnp.isnan(behavior)
    gaps = jnp.where(known, behavior, 0) - jax.lax.stop_gradient(jnp.where(known, current, 0))
    mean = jnp.sum(gaps, -1) / jnp.maximum(jnp.sum(trained, -1), 1)
    return ~((advantages < 0) & (mean > threshold))


def _check(level: str, mode: str, low: float | None, high: float) -> None:
    if level not in ("token", "sequence"):
        raise ValueError(f"level={level!r} must be 'token' or 'sequence'")
    if mode not in ("truncate", "mask"):
        raise ValueError(f"mode={mode!r} must be 'truncate' or 'mask'")
    if high < 1 or (low is not None and not 0 <= low <= 1):
        raise ValueError(f"low={low} and high={high} must leave 1 between them, with low at least 0")
