"""Probability ratios of the policy being trained to the one that started the update.

Dimensions: B rows, S slots. Row ratios are GSPO's (arXiv 2507.18071, eq. 7 and 14): the geometric mean of the
token ratios, so that a row's length does not set its scale.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from dew.rl.names import RatioName

LOG_LIMIT = 20.0
"""Logarithms of ratios are clamped to this range before they are exponentiated."""


@struct.dataclass
class PolicyRatio:
    """Ratios and how many were out of range.

    Attributes:
        values: [B, S] float32, 1 at slots that are not trained; a row's own ratio stands at each of its
            trained slots.
        clamped: scalar count of trained tokens whose log ratio was cut to `LOG_LIMIT`; there the gradient
            is 0.
    """

    values: jax.Array
    clamped: jax.Array


def policy_ratio(
    current: Float[Array, "B S"],
    old: Float[Array, "B S"],
    mask: Bool[Array, "B S"],
    *,
    level: RatioName = "token",
) -> PolicyRatio:
    """`exp(current - old)` of each token, or of the mean over each row's trained tokens.

    Both sides are log probabilities under one reading of the logits: the model's own, or both divided by
    the same temperature and normalised over the same ids.

    Args:
        current: under the parameters being differentiated.
        old: under the policy at the start of the update; no gradient flows into it.
        mask: the trained slots; what stands elsewhere is not read.
        level: `token`; `sequence`, the row's ratio with the gradient of the mean; or `sequence_token`, the
            same value with the gradient `s d current_t` at slot t (GSPO-token).

    Raises:
        ValueError: an unknown level.
    """
    trained = mask.astype(bool)
    now = jnp.where(trained, current, 0).astype(jnp.float32)
    before = jax.lax.stop_gradient(jnp.where(trained, old, 0).astype(jnp.float32))
    logs = now - before
    if level != "token":
        count = jnp.maximum(jnp.sum(trained, -1, keepdims=True), 1)
        row = jnp.broadcast_to(jnp.sum(logs, -1, keepdims=True) / count, logs.shape)
        if level == "sequence":
            logs = row
        elif level == "sequence_token":
            logs = jax.lax.stop_gradient(row) + now - jax.lax.stop_gradient(now)
        else:
            raise ValueError(f"level={level!r} must be 'token', 'sequence' or 'sequence_token'")
    bounded, clamped = clamp_logs(jnp.where(trained, logs, 0))
    return PolicyRatio(jnp.exp(bounded), jnp.sum(clamped, dtype=jnp.float32))


def clamp_logs(logs: Float[Array, "B S"]) -> tuple[Float[Array, "B S"], Bool[Array, "B S"]]:
    """`logs` cut to `LOG_LIMIT` on both sides, and where that changed them."""
    outside = jnp.abs(logs) > LOG_LIMIT
    return jnp.where(outside, jnp.sign(logs) * LOG_LIMIT, logs), outside
