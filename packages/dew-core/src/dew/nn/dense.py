"""Dense layers with two-dimensional kernels and named axes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jax.nn.initializers import Initializer
from jaxtyping import Array, Float

from dew.nn.sharding import named_axes
from dew.nn.tokens import merged, parted


def fan_in_normal(gain: float = 1.0) -> Initializer:
    """Truncated normal of standard deviation `gain / sqrt(fan_in)`; `gain` is positive."""
    return nn.initializers.variance_scaling(gain**2, "fan_in", "truncated_normal")


class Dense(nn.Module):
    """`x @ kernel`, or `x @ kernel + bias`.

    Leading axes are flattened before the product: the weight's gradient then contracts one axis instead of
    two, which compiles to a faster product on a CPU, and to one sum over devices where rows and positions are
    split.

    Attributes:
        features: width of the result.
        axes: logical names of the kernel's input and output axis.
        kernel_init: of the kernel.
        dtype: computes.
        param_dtype: stores.
        precision: of the product.
        bias: whether there is one, zeros at first.
    """

    features: int
    axes: tuple[str, str]
    kernel_init: Initializer = fan_in_normal()
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None
    bias: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... F"]:
        kernel: jax.Array = self.param(
            "kernel", named_axes(self.kernel_init, *self.axes), (x.shape[-1], self.features), self.param_dtype
        )
        flat = merged(x) if x.ndim == 3 else x.reshape(-1, x.shape[-1])
        product = self.product(flat.astype(self.dtype), kernel.astype(self.dtype))
        if self.bias:
            shift: jax.Array = self.param(
                "bias", named_axes(nn.initializers.zeros, self.axes[1]), (self.features,), self.param_dtype
            )
            product = product + shift.astype(product.dtype)
        if x.ndim == 3:
            return parted(product, *x.shape[:2])
        return product.reshape(*x.shape[:-1], self.features)

    def product(self, x: Float[Array, "N D"], kernel: Float[Array, "D F"]) -> Float[Array, "N F"]:
        """`x @ kernel`: a call of its own, which quantized training carries out in a narrow type."""
        return jnp.dot(x, kernel, precision=self.precision)
