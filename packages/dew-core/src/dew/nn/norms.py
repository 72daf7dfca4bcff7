"""Root-mean-square normalization (arXiv 1910.07467)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from dew.nn.sharding import named_axes


def rms_normalize(x: Float[Array, "... D"], epsilon: float) -> Float[Array, "... D"]:
    """Return `x / sqrt(mean(x^2) + epsilon)` over the last axis, in float32 or wider."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return wide * jax.lax.rsqrt(mean_square + epsilon)


class RMSNorm(nn.Module):
    """`scale * x / sqrt(mean(x^2) + epsilon)` over the last axis.

    Attributes:
        epsilon: added to the mean square.
        dtype: of the result; the statistics are float32 or wider.
        param_dtype: of the scale.
        axis: logical name of the normalized axis.
    """

    epsilon: float = 1e-6
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    axis: str = "norm"

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        scale: jax.Array = self.param(
            "scale", named_axes(nn.initializers.ones, self.axis), (x.shape[-1],), self.param_dtype
        )
        normalized = rms_normalize(x, self.epsilon)
        return (normalized * scale.astype(normalized.dtype)).astype(self.dtype)
