"""Several rewards for one response: summed first, or standardised each by itself and then summed.

Dimensions: K rewards, G groups, N responses a group. The second order is GDPO (arXiv 2601.05242).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dew.rl.advantages import Advantages, centred, check_no_spread, equal_rewards, standardised
from dew.rl.names import NoSpread


def summed_rewards(rewards: Float[Array, "K G N"], weights: Float[Array, " K"]) -> Float[Array, "G N"]:
    """The weighted sum of the rewards that do not abstain; NaN where all of them do."""
    _check_rewards(rewards, weights)
    scored = jnp.isfinite(rewards)
    total = jnp.sum(jnp.where(scored, rewards, 0) * weights[:, None, None], 0)
    return jnp.where(scored.any(0), total, jnp.nan)


def gdpo_advantages(
    rewards: Float[Array, "K G N"],
    weights: Float[Array, " K"],
    *,
    ddof: int = 1,
    epsilon: float = 1e-6,
    no_spread: NoSpread = "keep",
) -> Advantages:
    """Standardise each reward in its group, sum by weight, then divide by the deviation over all rows.

    A reward that is equal throughout a group adds exactly 0 there. The last scale is taken over rows, so a
    long response weighs no more than a short one.

    Args:
        rewards: NaN abstains.
        weights: of each reward.
        ddof: as in `group_advantages`, for both scales.
        epsilon: added to both standard deviations.
        no_spread: concerns groups in which no reward has a spread.

    Raises:
        ValueError: shapes that do not fit, `ddof` not 0 or 1, or an unknown `no_spread`.
    """
    _check_rewards(rewards, weights)
    check_no_spread(no_spread)
    each = [standardised(row, ddof=ddof, epsilon=epsilon, no_spread="keep").values for row in rewards]
    summed = jnp.sum(jnp.stack(each) * weights[:, None, None], 0)
    scored = jnp.isfinite(rewards).any(0)
    flat = jnp.all(jnp.stack([equal_rewards(row) for row in rewards]), 0)
    singleton = jnp.sum(scored, -1) < 2
    dropped = flat if no_spread == "drop" else jnp.zeros_like(flat)
    scaled = _row_scaled(jnp.where(scored, summed, jnp.nan), ddof, epsilon)
    return Advantages(
        values=jnp.where(flat[:, None], 0, scaled),
        counted=scored & ~dropped[:, None],
        singleton=singleton,
        no_spread=flat & ~singleton,
    )


def _row_scaled(values: jax.Array, ddof: int, epsilon: float) -> jax.Array:
    deviations, count = centred(values.reshape(1, -1))
    variance = jnp.sum(jnp.square(deviations)) / jnp.maximum(count - ddof, 1)
    return (deviations / (jnp.sqrt(variance) + epsilon)).reshape(values.shape)


def _check_rewards(rewards: jax.Array, weights: jax.Array) -> None:
    if rewards.ndim != 3 or weights.shape != rewards.shape[:1]:
        raise ValueError(
            f"rewards of shape {rewards.shape} and weights of shape {weights.shape} must be "
            "[rewards, groups, responses of a group] and [rewards]"
        )
