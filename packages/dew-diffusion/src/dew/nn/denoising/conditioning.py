"""What a denoiser is told beside the noisy sample: how noisy it is, and what it shows."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from dew.nn.denoising.affine import Affine

SINUSOID = 256
"""Width of the sinusoids a noise level is written in."""

LONGEST_PERIOD = 10000.0
"""Over 2 pi, the longest period among them."""


def sinusoid(level: Float[Array, " B"], width: int = SINUSOID) -> Float[Array, "B W"]:
    """Cosines, then sines, of `level * 10000^(-2i / width)` for i below `width / 2`, in float32.

    Args:
        level: one number a row, in whatever unit the process gives it.
        width: even.

    Raises:
        ValueError: `width` is odd.
    """
    if width % 2:
        raise ValueError(f"width={width} must be even: a sinusoid is a cosine and a sine")
    half = width // 2
    rates = jnp.exp(-math.log(LONGEST_PERIOD) * jnp.arange(half, dtype=jnp.float32) / half)
    angles = level.astype(jnp.float32)[:, None] * rates
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


class Conditioning(nn.Module):
    """`W_2 silu(W_1 sinusoid(level)) + W_c textcontext`, one vector a row.

    The level stays float32 until after the sinusoid, whatever `dtype` is.

    Attributes:
        features: width of the result.
        dtype: computes.
        param_dtype: stores.
        precision: of the products.
    """

    features: int
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @nn.compact
    def __call__(
        self, level: Float[Array, " B"], textcontext: Float[Array, "B C"] | None
    ) -> Float[Array, "B D"]:
        """Embed.

        Raises:
            ValueError: a condition that is not one vector a row.
        """
        affine = partial(
            Affine,
            self.features,
            kernel_init=nn.initializers.normal(0.02),
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
        )
        hidden = nn.silu(affine(("embed", "mlp"), name="level_in")(sinusoid(level)))
        embedded = affine(("mlp", "embed"), name="level_out")(hidden)
        if textcontext is None:
            return embedded
        if textcontext.ndim != 2:
            raise ValueError(
                f"textcontext has shape {textcontext.shape}; this model takes one vector a row, [B, C]: "
                "conditions that are sequences are not supported yet"
            )
        return embedded + affine(("embed", "mlp"), name="condition")(textcontext)
