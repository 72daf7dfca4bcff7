"""Dynamic loss scaling for half-precision gradients (Micikevicius et al., 2018, section 3.2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

INITIAL = 2.0**15
LARGEST = 2.0**24
SMALLEST = 1.0
GROWTH_INTERVAL = 2000


@struct.dataclass
class LossScale:
    """The factor the loss is multiplied by before differentiation, and its history.

    Attributes:
        value: float32 factor, a power of two.
        streak: int32, finite attempts since the factor last changed.
    """

    value: jax.Array
    streak: jax.Array


def initial_scale() -> LossScale:
    """The scale a run starts with."""
    return LossScale(jnp.asarray(INITIAL, jnp.float32), jnp.asarray(0, jnp.int32))


def adjusted(scale: LossScale, accepted: jax.Array) -> LossScale:
    """Halve after a rejected attempt; double after `GROWTH_INTERVAL` accepted ones in a row."""
    streak = jnp.where(accepted, scale.streak + 1, 0)
    grows = streak >= GROWTH_INTERVAL
    grown = jnp.where(grows, jnp.minimum(scale.value * 2, LARGEST), scale.value)
    value = jnp.where(accepted, grown, jnp.maximum(scale.value / 2, SMALLEST))
    return LossScale(value, jnp.where(grows, 0, streak).astype(jnp.int32))
