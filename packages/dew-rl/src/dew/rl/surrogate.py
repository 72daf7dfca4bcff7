"""The clipped policy loss: PPO (arXiv 1707.06347, eq. 7), with the two sides apart and the dual clip.

Separate bounds are DAPO's (arXiv 2503.14476, eq. 10); the dual clip bounds the loss of a bad token whose
ratio is large (arXiv 1912.09729, eq. 5).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float


@struct.dataclass
class Surrogate:
    """Losses and where a bound holds them.

    Attributes:
        losses: [B, S] float32.
        clipped: [B, S] whether a bound holds the loss, so that its gradient is 0.
    """

    losses: jax.Array
    clipped: jax.Array


def clipped_surrogate(
    ratio: Float[Array, "B S"],
    advantages: Float[Array, "B S"] | Float[Array, "B 1"],
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual_clip: float | None = None,
) -> Surrogate:
    """`-min(r A, clip(r, 1 - low, 1 + high) A)`, and for A < 0 at most `-dual_clip A`.

    On a bound the loss still follows the ratio.

    Args:
        ratio: r, as `policy_ratio` gives it.
        advantages: A; constants of the loss, so no gradient flows into them.
        low: how far below 1 a bad token's ratio is followed, in [0, 1].
        high: how far above 1 a good token's ratio is followed, at least 0.
        dual_clip: the ratio up to which a bad token is pushed away; None follows it everywhere.

    Raises:
        ValueError: a bound out of its range, or `dual_clip` not above `1 + high`.
    """
    if not 0 <= low <= 1:
        raise ValueError(f"low={low} must lie in [0, 1]")
    if high < 0:
        raise ValueError(f"high={high} must be 0 or more")
    if dual_clip is not None and dual_clip <= 1 + high:
        raise ValueError(f"dual_clip={dual_clip} must be above 1 + high = {1 + high}; None leaves it out")
    gains = jax.lax.stop_gradient(advantages).astype(jnp.float32)
    above = (gains > 0) & (ratio > 1 + high)
    below = (gains < 0) & (ratio < 1 - low)
    bounded = jnp.where(above, 1 + high, jnp.where(below, 1 - low, ratio))
    clipped: Bool[Array, "B S"] = above | below
    if dual_clip is not None:
        far = (gains < 0) & (ratio > dual_clip)
        bounded = jnp.where(far, dual_clip, bounded)
        clipped = clipped | far
    return Surrogate(-bounded * gains, clipped)
