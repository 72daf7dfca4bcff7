"""Dense layers with a bias and named axes, and the check of a network's sizes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jax.nn.initializers import Initializer
from jaxtyping import Array, Float

from dew.nn.dense import Dense
from dew.nn.sharding import named_axes


class Affine(nn.Module):
    """`x @ kernel + bias`.

    Attributes:
        features: width of the result.
        axes: logical names of the kernel's input and output axis.
        kernel_init: of the kernel; the bias starts at zero.
        dtype: computes.
        param_dtype: stores.
        precision: of the product.
    """

    features: int
    axes: tuple[str, str]
    kernel_init: Initializer = nn.initializers.xavier_uniform()
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... F"]:
        product = Dense(
            self.features,
            self.axes,
            self.kernel_init,
            self.dtype,
            self.param_dtype,
            self.precision,
            name="matrix",
        )(x)
        start = named_axes(nn.initializers.zeros, self.axes[1])
        bias: jax.Array = self.param("bias", start, (self.features,), self.param_dtype)
        return product + bias.astype(self.dtype)


def check_sizes(**sizes: int) -> None:
    """Refuse a size below 1.

    Raises:
        ValueError: naming the size.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size} must be at least 1")
