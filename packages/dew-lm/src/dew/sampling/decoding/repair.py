"""Transforms of the scores as such: their scale's origin, and values that are no numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from dew.sampling.decoding.state import StepState


@struct.dataclass
class Renormalize:
    """`log softmax(logits)`: every score of a row moves by one constant, so that they are log probabilities.

    Neither a later filter nor a likelihood can tell the difference. Reference: `LogitNormalization` of
    transformers 5.16.1.
    """

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        return jax.nn.log_softmax(logits, axis=-1)


@struct.dataclass
class RemoveInvalidValues:
    """NaN becomes 0, an infinity the largest or smallest finite number of the scores' dtype.

    It repairs what the chain before it left undefined. A model whose own logits are undefined is refused by
    `generate` whatever the chain holds. Reference: `InfNanRemoveLogitsProcessor` of transformers 5.16.1.
    """

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        bounds = jnp.finfo(logits.dtype)
        return jnp.nan_to_num(logits, nan=0.0, posinf=float(bounds.max), neginf=float(bounds.min))
