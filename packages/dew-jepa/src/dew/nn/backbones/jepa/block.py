"""A pre-norm transformer layer that sees both ways, with GELU and biases (arXiv 2010.11929).

Dimensions: B rows, T tokens, E width, H heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Bool, Float

from dew.nn.attention import AttentionImpl, scaled_dot_product_attention
from dew.nn.dense import Dense, fan_in_normal
from dew.nn.sharding import named_axes
from dew.nn.tokens import split_positions


@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """What the layers of a transformer share.

    Attributes:
        width: E.
        heads: H, a divisor of E.
        hidden: inner width of the feed-forward part.
        norm_eps: added to every variance.
        output_gain: scale of what a layer first adds to its input.
        dtype: computes; norms and softmax are float32 or wider.
        param_dtype: stores.
        precision: of every product.
        attention_impl: the attention kernel.
    """

    width: int
    heads: int
    hidden: int
    norm_eps: float
    output_gain: float
    dtype: Dtype
    param_dtype: Dtype
    precision: jax.lax.PrecisionLike
    attention_impl: AttentionImpl | None


class Affine(nn.Module):
    """`x @ kernel + bias`.

    Attributes:
        features: width of the result.
        axes: logical names of the kernel's input and output axis.
        spec: numerics.
        gain: scale of the kernel's initial values.
    """

    features: int
    axes: tuple[str, str]
    spec: BlockSpec
    gain: float = 1.0

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... F"]:
        spec = self.spec
        product = Dense(
            self.features,
            self.axes,
            kernel_init=fan_in_normal(self.gain),
            dtype=spec.dtype,
            param_dtype=spec.param_dtype,
            precision=spec.precision,
            name="weight",
        )(x)
        start = named_axes(nn.initializers.zeros, self.axes[1])
        bias: jax.Array = self.param("bias", start, (self.features,), spec.param_dtype)
        return product + bias.astype(spec.dtype)


def layer_norm(spec: BlockSpec, name: str | None = None) -> nn.LayerNorm:
    """Normalization over the features with a learned scale and bias."""
    return nn.LayerNorm(
        epsilon=spec.norm_eps,
        dtype=spec.dtype,
        param_dtype=spec.param_dtype,
        scale_init=named_axes(nn.initializers.ones, "norm"),
        bias_init=named_axes(nn.initializers.zeros, "norm"),
        name=name,
    )


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + feed_forward(norm(x))`."""

    spec: BlockSpec

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T E"], valid: Bool[Array, "B T"] | None = None
    ) -> Float[Array, "B T E"]:
        """The layer's output; tokens see the valid ones alone, and None means all are."""
        x = x + self._attention(layer_norm(self.spec, "attention_norm")(x), valid)
        return x + self._feed_forward(layer_norm(self.spec, "mlp_norm")(x))

    def _attention(self, x: jax.Array, valid: jax.Array | None) -> jax.Array:
        spec = self.spec
        heads = (*x.shape[:2], spec.heads, -1)
        query, key, value = (
            Affine(spec.width, ("embed", "heads"), spec, name=name)(x).reshape(heads)
            for name in ("query", "key", "value")
        )
        mixed = scaled_dot_product_attention(
            query,
            key,
            value,
            mask=None if valid is None else valid[:, None, None, :],
            implementation=spec.attention_impl,
            precision=spec.precision,
        )
        out = Affine(spec.width, ("heads", "embed"), spec, spec.output_gain, name="output")
        return out(mixed.reshape(x.shape))

    def _feed_forward(self, x: jax.Array) -> jax.Array:
        spec = self.spec
        hidden = nn.gelu(Affine(spec.hidden, ("embed", "mlp"), spec, name="up")(x), approximate=False)
        return Affine(spec.width, ("mlp", "embed"), spec, spec.output_gain, name="down")(hidden)


class Stack(nn.Module):
    """`layers` blocks and a last norm.

    Attributes:
        spec: sizes and numerics.
        layers: how many blocks.
    """

    spec: BlockSpec
    layers: int

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T E"], valid: Bool[Array, "B T"] | None = None
    ) -> Float[Array, "B T E"]:
        x = split_positions(x)
        for index in range(self.layers):
            x = split_positions(Block(self.spec, name=f"layers_{index}")(x, valid))
        return layer_norm(self.spec, "norm")(x)


def block_spec(
    *,
    width: int,
    layers: int,
    heads: int,
    mlp_ratio: float,
    residual_gain: float = 1.0,
    norm_eps: float,
    dtype: Dtype,
    param_dtype: Dtype,
    precision: jax.lax.PrecisionLike,
    attention_impl: AttentionImpl | None,
) -> BlockSpec:
    """The spec of `layers` blocks, whose outputs together start at the scale `residual_gain`."""
    return BlockSpec(
        width=width,
        heads=heads,
        hidden=round(mlp_ratio * width),
        norm_eps=norm_eps,
        output_gain=residual_gain * (2 * layers) ** -0.5,
        dtype=dtype,
        param_dtype=param_dtype,
        precision=precision,
        attention_impl=attention_impl,
    )


def check_sizes(model: str, *, width: int, heads: int, mlp_ratio: float, **sizes: int) -> None:
    """Refuse sizes that no transformer has.

    Raises:
        ValueError: a size below 1, a width that 4 or the heads do not divide, or a feed-forward part without
            width.
    """
    for name, size in {"hidden_size": width, "num_heads": heads, **sizes}.items():
        if size < 1:
            raise ValueError(f"{model}: {name}={size} must be at least 1")
    if width % 4:
        raise ValueError(
            f"{model}: hidden_size={width} must be a multiple of 4: position codes are sines and cosines of "
            "rows and columns"
        )
    if width % heads:
        fits = ", ".join(str(count) for count in divisors(width))
        raise ValueError(f"{model}: num_heads={heads} must divide hidden_size={width}; use {fits}")
    if not mlp_ratio > 0 or round(mlp_ratio * width) < 1:
        raise ValueError(
            f"{model}: mlp_ratio={mlp_ratio} leaves the feed-forward parts no width at hidden_size={width}; "
            "use 4.0"
        )


def divisors(number: int) -> list[int]:
    """The whole numbers that divide `number`, in order."""
    return [count for count in range(1, number + 1) if number % count == 0]
