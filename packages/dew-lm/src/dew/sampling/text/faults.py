"""What makes a row's distribution undefined, found on the device and told by name on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dew.failure import StatedFailure
from dew.sampling.decoding.filters import drawable


class UndefinedDistribution(StatedFailure, FloatingPointError):
    """A row of a generation that nothing can be drawn from."""


SOUND, MODEL_UNDEFINED, CHAIN_UNDEFINED, EXHAUSTED = 0, 1, 2, 3

CAUSES = {
    MODEL_UNDEFINED: "has no distribution at generated token {step}: the model's own logits are NaN, +inf or "
    "without a finite entry; look at the weights",
    CHAIN_UNDEFINED: "has no distribution at generated token {step}: the chain of transforms left its scores "
    "NaN, +inf or without a finite entry; look at the transforms",
    EXHAUSTED: "has fewer continuations than were asked for: the search found no further one; ask for a "
    "smaller n, or allow more tokens",
}


def fault_of(logits: jax.Array, scores: jax.Array) -> jax.Array:
    """`[rows]` int32: whether the model's logits and the scores made of them are distributions."""
    undefined = jnp.where(drawable(scores), SOUND, CHAIN_UNDEFINED)
    return jnp.where(drawable(logits), undefined, MODEL_UNDEFINED).astype(jnp.int32)


def refuse_undefined(faults: jax.Array | np.ndarray, steps: jax.Array | np.ndarray) -> None:
    """Raise where a row had no distribution to draw from.

    Args:
        faults: `[rows]`.
        steps: `[rows]`, the tokens each row had then.

    Raises:
        UndefinedDistribution: naming the first such row.
    """
    faults = np.asarray(faults)
    if not faults.any():
        return
    row = int(np.flatnonzero(faults)[0])
    raise UndefinedDistribution(f"row {row} {CAUSES[int(faults[row])].format(step=int(steps[row]))}")
