"""Parts of the convolutional denoiser: residual blocks, attention over pixels, and changes of resolution.

Dimensions: B rows, H and W pixels, C and F channels, E width of the condition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jax.nn.initializers import Initializer
from jaxtyping import Array, Float

from dew.nn.attention import AttentionImpl, scaled_dot_product_attention
from dew.nn.denoising import Affine
from dew.nn.sharding import named_axes


@dataclass(frozen=True, kw_only=True)
class PartSpec:
    """What the parts of one model share; `UNet` documents the fields."""

    num_heads: int
    norm_groups: int
    dropout: float
    dtype: Dtype
    param_dtype: Dtype
    precision: jax.lax.PrecisionLike
    attention_impl: AttentionImpl | None

    def convolution(
        self, features: int, name: str, *, side: int = 3, stride: int = 1, init: Initializer | None = None
    ) -> nn.Conv:
        """A convolution that keeps the resolution, or divides it by `stride` and rounds up."""
        start = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal") if init is None else init
        return nn.Conv(
            features,
            (side, side),
            strides=stride,
            kernel_init=named_axes(start, None, None, "embed", "mlp"),
            bias_init=named_axes(nn.initializers.zeros, "mlp"),
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            # Flax types fewer precisions than its convolution takes.
            precision=cast("Any", self.precision),
            name=name,
        )

    def norm(self, channels: int, name: str) -> nn.GroupNorm:
        """A group norm; its groups are the largest divisor of `channels` up to `norm_groups`."""
        return nn.GroupNorm(
            num_groups=max(count for count in range(1, self.norm_groups + 1) if channels % count == 0),
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            scale_init=named_axes(nn.initializers.ones, "norm"),
            bias_init=named_axes(nn.initializers.zeros, "norm"),
            name=name,
        )

    def affine(self, features: int, axes: tuple[str, str], name: str, init: Initializer) -> Affine:
        """A dense layer in this precision."""
        return Affine(features, axes, init, self.dtype, self.param_dtype, self.precision, name=name)


class ResidualBlock(nn.Module):
    """`shortcut(x) + conv(silu((1 + scale) norm(conv(silu(norm(x)))) + shift))`.

    Scale and shift are affine in `silu(condition)`. The second convolution starts at zero, so that the block
    starts as its shortcut.

    Attributes:
        features: channels of the result.
        spec: sizes and numerics.
    """

    features: int
    spec: PartSpec

    @nn.compact
    def __call__(
        self, x: Float[Array, "B H W C"], condition: Float[Array, "B E"], train: bool
    ) -> Float[Array, "B H W F"]:
        spec = self.spec
        hidden = nn.silu(spec.norm(x.shape[-1], "norm_1")(x))
        hidden = spec.convolution(self.features, "conv_1")(hidden)
        vectors = spec.affine(2 * self.features, ("embed", "mlp"), "modulation", nn.initializers.zeros)(
            nn.silu(condition)
        )
        scale, shift = jnp.split(vectors[:, None, None, :], 2, axis=-1)
        hidden = nn.silu(spec.norm(self.features, "norm_2")(hidden) * (1 + scale) + shift)
        hidden = nn.Dropout(spec.dropout, deterministic=not train)(hidden)
        hidden = spec.convolution(self.features, "conv_2", init=nn.initializers.zeros)(hidden)
        if x.shape[-1] == self.features:
            return x + hidden
        return spec.convolution(self.features, "shortcut", side=1)(x) + hidden


class PixelAttention(nn.Module):
    """`x + out(attention(norm(x)))` over the pixels of each image; `out` starts at zero.

    Attributes:
        spec: sizes and numerics.
    """

    spec: PartSpec

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        spec = self.spec
        rows, height, width, channels = x.shape
        tokens = spec.norm(channels, "norm")(x).reshape(rows, height * width, channels)
        start = nn.initializers.xavier_uniform()
        packed = spec.affine(3 * channels, ("embed", "heads"), "qkv", start)(tokens)
        heads = packed.reshape(rows, height * width, 3, spec.num_heads, channels // spec.num_heads)
        mixed = scaled_dot_product_attention(
            heads[:, :, 0],
            heads[:, :, 1],
            heads[:, :, 2],
            implementation=spec.attention_impl,
            precision=spec.precision,
        )
        out = spec.affine(channels, ("heads", "embed"), "out", nn.initializers.zeros)
        return x + out(mixed.reshape(rows, height * width, channels)).reshape(x.shape)


def nearest(x: Float[Array, "B H W C"], size: tuple[int, int]) -> Float[Array, "B h w C"]:
    """Every pixel twice down and across, cut to `size`, which is twice the sides or one less.

    The cut serves odd sides: a side of 7 was halved to 4, and 8 is cut to 7.
    """
    doubled = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
    return doubled[:, : size[0], : size[1]]


def check_heads(channels: tuple[int, ...], num_heads: int) -> None:
    """Refuse heads that do not divide a level's channels.

    Raises:
        ValueError: naming the level's channels and what would do.
    """
    shared = math.gcd(*channels)
    if shared % num_heads:
        fits = ", ".join(str(count) for count in range(1, shared + 1) if shared % count == 0)
        raise ValueError(f"num_heads={num_heads} must divide every one of channels={channels}; use {fits}")
