"""Generalized advantage estimation (arXiv 1506.02438, eq. 16) over the trained tokens of each row.

Dimensions: B rows, S slots. Slots that are not trained (a tool's output, padding) are stepped over as if
they were not there: the running sum and the next value pass through them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float


@struct.dataclass
class Generalized:
    """Advantages and value targets, [B, S] float32, 0 at slots that are not trained."""

    advantages: jax.Array
    returns: jax.Array


def gae(
    rewards: Float[Array, "B S"],
    values: Float[Array, "B S"],
    mask: Bool[Array, "B S"],
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    truncated: Bool[Array, " B"] | None = None,
    next_values: Float[Array, " B"] | None = None,
) -> Generalized:
    """Advantages `A_t = d_t + gamma lam A_t+1` with `d_t = r_t + gamma V_t+1 - V_t`.

    t counts trained tokens. After the last one V is 0, or `next_values` in a row that was cut off: with
    these two arguments truncation bootstraps, without them it is an end like any other.

    Args:
        rewards: of each token.
        values: V, read at trained slots alone.
        mask: the trained slots.
        gamma: discount, in [0, 1].
        lam: decay of the sum, in [0, 1].
        truncated: rows that ended for want of budget.
        next_values: V of the state after the last token of those rows.

    Raises:
        ValueError: a number out of its range, or one of `truncated` and `next_values` without the other.
    """
    for name, number in (("gamma", gamma), ("lam", lam)):
        if not 0 <= number <= 1:
            raise ValueError(f"{name}={number} must lie in [0, 1]")
    if (truncated is None) != (next_values is None):
        raise ValueError("truncated and next_values go together: give both to bootstrap, or neither")
    trained = mask.astype(bool)
    known = jnp.where(trained, values, 0).astype(jnp.float32)
    earned = jnp.where(trained, rewards, 0).astype(jnp.float32)
    after = jnp.zeros(known.shape[:1], jnp.float32)
    if truncated is not None and next_values is not None:
        after = jnp.where(truncated, next_values, after).astype(jnp.float32)

    def back(carry: tuple[jax.Array, jax.Array], slot: tuple[jax.Array, jax.Array, jax.Array]):
        running, later = carry
        reward, value, counts = slot
        advantage = reward + gamma * later - value + gamma * lam * running
        carry = (jnp.where(counts, advantage, running), jnp.where(counts, value, later))
        return carry, jnp.where(counts, advantage, 0)

    slots = (earned.T, known.T, trained.T)
    _, found = jax.lax.scan(back, (jnp.zeros_like(after), after), slots, reverse=True)
    advantages = found.T
    return Generalized(advantages, jnp.where(trained, advantages + known, 0))


def terminal_rewards(rewards: Float[Array, " B"], mask: Bool[Array, "B S"]) -> Float[Array, "B S"]:
    """Each row's reward at its last trained slot, 0 elsewhere; a row without such a slot gets none."""
    trained = mask.astype(bool)
    later = jnp.cumsum(trained[:, ::-1], 1)[:, ::-1]
    last = trained & (later == 1)
    return jnp.where(last, rewards[:, None], 0).astype(jnp.float32)


def whiten(
    values: Float[Array, "B S"], mask: Bool[Array, "B S"], *, epsilon: float = 1e-8
) -> Float[Array, "B S"]:
    """`(v - mean) / sqrt(variance + epsilon)` over the trained slots, 0 elsewhere.

    The variance is the unbiased one. Fewer than two trained slots give 0.
    """
    trained = mask.astype(bool)
    known = jnp.where(trained, values, 0).astype(jnp.float32)
    count = jnp.sum(trained, dtype=jnp.float32)
    mean = jnp.sum(known) / jnp.maximum(count, 1)
    deviations = jnp.where(trained, known - mean, 0)
    variance = jnp.sum(jnp.square(deviations)) / jnp.maximum(count - 1, 1)
    return deviations * jax.lax.rsqrt(variance + epsilon)
