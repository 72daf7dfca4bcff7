"""Root-mean-square normalization (arXiv 1910.07467) and layer normalization (arXiv 1607.06450)."""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from dew.nn.sharding import named_axes

type NormKind = Literal["rms", "rms_offset", "layer", "layer_scale"]
"""`rms`; `rms_offset`, whose stored scale counts from 1, as Gemma's; `layer`; `layer_scale`, without bias."""

NORMS: tuple[str, ...] = ("rms", "rms_offset", "layer", "layer_scale")


def rms_normalize(x: Float[Array, "... D"], epsilon: float) -> Float[Array, "... D"]:
    """Return `x / sqrt(mean(x^2) + epsilon)` over the last axis, in float32 or wider."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return wide * jax.lax.rsqrt(mean_square + epsilon)


class RMSNorm(nn.Module):
    """`(offset + scale) x / sqrt(mean(x^2) + epsilon)` over the last axis.

    Attributes:
        epsilon: added to the mean square.
        dtype: of the result; the statistics and the product with the scale are float32 or wider.
        param_dtype: of the scale.
        axis: logical name of the normalized axis.
        offset: what the stored scale counts from; 1 keeps a stored zero for a factor of 1.
    """

    epsilon: float = 1e-6
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    axis: str = "norm"
    offset: float = 0.0

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        scale: jax.Array = self.param(
            "scale",
            named_axes(nn.initializers.constant(1.0 - self.offset), self.axis),
            (x.shape[-1],),
            self.param_dtype,
        )
        normalized = rms_normalize(x, self.epsilon)
        factor = scale.astype(normalized.dtype)
        return (normalized * (self.offset + factor if self.offset else factor)).astype(self.dtype)


class LayerNorm(nn.Module):
    """`scale (x - mean(x)) / sqrt(var(x) + epsilon) + bias` over the last axis.

    Attributes:
        epsilon: added to the variance.
        dtype: of the result; the statistics are float32 or wider.
        param_dtype: of scale and bias.
        axis: logical name of the normalized axis.
        bias: whether there is one.
    """

    epsilon: float = 1e-5
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    axis: str = "norm"
    bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        width = (x.shape[-1],)
        scale: jax.Array = self.param(
            "scale", named_axes(nn.initializers.ones, self.axis), width, self.param_dtype
        )
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        normalized = rms_normalize(centred, self.epsilon) * scale.astype(wide.dtype)
        if self.bias:
            bias: jax.Array = self.param(
                "bias", named_axes(nn.initializers.zeros, self.axis), width, self.param_dtype
            )
            normalized = normalized + bias.astype(wide.dtype)
        return normalized.astype(self.dtype)


def norm_of(kind: NormKind) -> partial[RMSNorm] | partial[LayerNorm]:
    """The module of a kind, to be called with epsilon, dtypes and axis."""
    if kind in ("rms", "rms_offset"):
        return partial(RMSNorm, offset=float(kind == "rms_offset"))
    return partial(LayerNorm, bias=kind == "layer")
