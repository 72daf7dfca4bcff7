"""The laws of the learning-rate records, as functions of completed updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import optax

if TYPE_CHECKING:
    import jax

    from dew.training.optim.config import Cosine, Linear, Power


def warmed_up(peak: float, warmup: int, after: optax.Schedule) -> optax.Schedule:
    """`peak * n / warmup` for n below `warmup`, then `after(n - warmup)`. A shorter run ends within the
    rise."""
    if warmup == 0:
        return after
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), after], [warmup])


def cosine(spec: Cosine, peak: float, total_updates: int) -> optax.Schedule:
    """See `Cosine`."""
    fall = max(1, total_updates - spec.warmup_updates)
    return warmed_up(
        peak, spec.warmup_updates, optax.cosine_decay_schedule(peak, fall, alpha=spec.end_factor)
    )


def linear(spec: Linear, peak: float, total_updates: int) -> optax.Schedule:
    """See `Linear`."""
    fall = max(1, total_updates - spec.warmup_updates)
    return warmed_up(peak, spec.warmup_updates, optax.linear_schedule(peak, peak * spec.end_factor, fall))


def power(spec: Power, peak: float, total_updates: int) -> optax.Schedule:
    """See `Power`.

    Raises:
        ValueError: the tail begins before the warmup ends.
    """
    start = total_updates - spec.tail_updates
    if spec.tail_updates and start < spec.warmup_updates:
        raise ValueError(
            f"schedule.tail_updates={spec.tail_updates} and schedule.warmup_updates={spec.warmup_updates} "
            f"overlap in a run of {total_updates} updates; shorten one or train longer"
        )

    def law(count: jax.typing.ArrayLike) -> jax.Array:
        seen = jnp.maximum(jnp.asarray(count, jnp.float32), 1.0) * spec.per_update
        rate = jnp.minimum(peak, spec.scale * seen**spec.exponent)
        rise = peak * jnp.asarray(count, jnp.float32) / max(1, spec.warmup_updates)
        return jnp.where(jnp.asarray(count) < spec.warmup_updates, rise, rate)

    def tailed(count: jax.typing.ArrayLike) -> jax.Array:
        through = jnp.clip((jnp.asarray(count, jnp.float32) - start) / spec.tail_updates, 0.0, 1.0)
        held = law(jnp.minimum(jnp.asarray(count), start))
        return held * (1 - (1 - spec.end_factor) * through)

    return tailed if spec.tail_updates else law
