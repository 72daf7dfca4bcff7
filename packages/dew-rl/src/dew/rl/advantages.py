"""Advantages of a group: several responses to one prompt, each measured against the others.

Dimensions: G groups, N responses a group. A reward that is not finite, NaN above all, abstains: it enters no
statistic and its row carries no loss. Group standardisation is GRPO (arXiv 2402.03300, section 4.1.2),
subtracting the mean alone Dr.GRPO (arXiv 2503.20783), leaving one out RLOO (arXiv 2402.14740, section 2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from dew.rl.names import AdvantageName, NoSpread


@struct.dataclass
class Advantages:
    """Advantages and which rows count.

    Attributes:
        values: [G, N] float32; 0 where the reward abstains and throughout a group without spread.
        counted: [G, N] whether the row carries loss mass.
        singleton: [G] whether fewer than two rewards of the group can be compared.
        no_spread: [G] whether two or more rewards can be compared and all are equal.
    """

    values: jax.Array
    counted: jax.Array
    singleton: jax.Array
    no_spread: jax.Array


def group_advantages(
    rewards: Float[Array, "G N"], *, ddof: int = 1, epsilon: float = 1e-6, no_spread: NoSpread = "keep"
) -> Advantages:
    """Standardise each group: `(r - mean) / (std + epsilon)`.

    Args:
        rewards: NaN abstains.
        ddof: the standard deviation divides by the count less this.
        epsilon: added to the standard deviation.
        no_spread: whether a group of equal rewards, or of one, keeps its mass in the loss with advantage 0.

    Raises:
        ValueError: rewards that are not [G, N], `ddof` not 0 or 1, or an unknown `no_spread`.

    Example:
        >>> group_advantages(jnp.asarray([[1.0, 0.0, 0.0, 1.0]])).values.round(4).tolist()
        [[0.8659999966621399, -0.8659999966621399, -0.8659999966621399, 0.8659999966621399]]
    """
    return standardised(rewards, ddof=ddof, epsilon=epsilon, no_spread=no_spread)


def mean_advantages(rewards: Float[Array, "G N"], *, no_spread: NoSpread = "keep") -> Advantages:
    """Subtract each group's mean: `r - mean`. Arguments as in `group_advantages`."""
    _check_groups(rewards, no_spread)
    deviations, _ = centred(rewards)
    return _assembled(rewards, deviations, no_spread)


def rloo_advantages(rewards: Float[Array, "G N"], *, no_spread: NoSpread = "keep") -> Advantages:
    """Subtract the mean of the other rewards: `n / (n - 1) (r - mean)` over n that do not abstain.

    Arguments as in `group_advantages`.
    """
    _check_groups(rewards, no_spread)
    deviations, count = centred(rewards)
    return _assembled(rewards, deviations * count / jnp.maximum(count - 1, 1), no_spread)


ESTIMATORS: Mapping[AdvantageName, Callable[..., Advantages]] = {
    "group": group_advantages,
    "mean": mean_advantages,
    "rloo": rloo_advantages,
}
"""By name; each takes rewards [G, N] and `no_spread`."""


def standardised(
    rewards: Float[Array, "G N"], *, ddof: int, epsilon: float, no_spread: NoSpread
) -> Advantages:
    """The law of `group_advantages`."""
    _check_groups(rewards, no_spread)
    if ddof not in (0, 1):
        raise ValueError(f"ddof={ddof} must be 0 or 1")
    deviations, count = centred(rewards)
    # The mean is subtracted before squaring: E[x^2] - E[x]^2 leaves a residue that a small spread drowns in.
    variance = jnp.sum(jnp.square(deviations), -1, keepdims=True) / jnp.maximum(count - ddof, 1)
    return _assembled(rewards, deviations / (jnp.sqrt(variance) + epsilon), no_spread)


def centred(rewards: Float[Array, "G N"]) -> tuple[Float[Array, "G N"], Float[Array, "G 1"]]:
    """Deviations from the group's mean, 0 where the reward abstains, and how many do not."""
    scored = jnp.isfinite(rewards)
    known = jnp.where(scored, rewards, 0).astype(jnp.float32)
    count = jnp.sum(scored, -1, keepdims=True, dtype=jnp.float32)
    mean = jnp.sum(known, -1, keepdims=True) / jnp.maximum(count, 1)
    return jnp.where(scored, known - mean, 0), count


def equal_rewards(rewards: Float[Array, "G N"]) -> Bool[Array, " G"]:
    """Whether the rewards that do not abstain are all equal; true for a group without any."""
    scored = jnp.isfinite(rewards)
    high = jnp.max(jnp.where(scored, rewards, -jnp.inf), -1)
    low = jnp.min(jnp.where(scored, rewards, jnp.inf), -1)
    return ~(high > low)


def _assembled(rewards: jax.Array, values: jax.Array, no_spread: NoSpread) -> Advantages:
    scored = jnp.isfinite(rewards)
    singleton = jnp.sum(scored, -1) < 2
    # Compared before any subtraction: the mean of equal numbers need not be that number in float32.
    flat = equal_rewards(rewards)
    dropped = flat if no_spread == "drop" else jnp.zeros_like(flat)
    return Advantages(
        values=jnp.where(flat[:, None], 0, values).astype(jnp.float32),
        counted=scored & ~dropped[:, None],
        singleton=singleton,
        no_spread=flat & ~singleton,
    )


def _check_groups(rewards: jax.Array, no_spread: NoSpread) -> None:
    if rewards.ndim != 2:
        raise ValueError(f"rewards of shape {rewards.shape} must be [groups, responses of a group]")
    check_no_spread(no_spread)


def check_no_spread(no_spread: str) -> None:
    """Refuse a value that is not one of `NoSpread`.

    Raises:
        ValueError: naming it.
    """
    if no_spread not in ("keep", "drop"):
        raise ValueError(f"no_spread={no_spread!r} must be 'keep' or 'drop'")
