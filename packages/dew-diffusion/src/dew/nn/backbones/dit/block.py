"""A transformer block that its condition scales, shifts and gates (arXiv 2212.09748, figure 3).

Dimensions: B rows, N tokens, H heads, E model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jax.nn.initializers import Initializer
from jaxtyping import Array, Float

from dew.nn.attention import AttentionImpl, scaled_dot_product_attention
from dew.nn.denoising import Affine

EPSILON = 1e-6
"""Added to the variance of every norm."""


@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """What the blocks of one model share; `SimpleDiT` documents the fields."""

    hidden_size: int
    num_heads: int
    mlp_width: int
    dropout: float
    dtype: Dtype
    param_dtype: Dtype
    precision: jax.lax.PrecisionLike
    attention_impl: AttentionImpl | None

    def affine(
        self,
        features: int,
        axes: tuple[str, str],
        name: str,
        init: Initializer = nn.initializers.xavier_uniform(),  # noqa: B008 - a pure function
    ) -> Affine:
        """A dense layer in this precision."""
        return Affine(features, axes, init, self.dtype, self.param_dtype, self.precision, name=name)


def standardized(x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """`(x - mean) / sqrt(variance + 1e-6)` over the last axis, in float32 or wider."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + EPSILON)


def modulated(
    x: Float[Array, "B N E"], shift: Float[Array, "B E"], scale: Float[Array, "B E"]
) -> Float[Array, "B N E"]:
    """`standardized(x) * (1 + scale) + shift`, every row with its own, in the dtype of `x`."""
    changed = standardized(x) * (1 + scale[:, None]) + shift[:, None]
    return changed.astype(x.dtype)


class Block(nn.Module):
    """`x + g1 attention(modulated(x, s1, r1))`, then `x + g2 mlp(modulated(x, s2, r2))`.

    The six vectors are affine in `silu(condition)` and start at zero, so that every block starts as the
    identity.

    Attributes:
        spec: sizes and numerics.
    """

    spec: BlockSpec

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N E"], condition: Float[Array, "B E"], train: bool
    ) -> Float[Array, "B N E"]:
        spec = self.spec
        vectors = spec.affine(6 * spec.hidden_size, ("embed", "mlp"), "modulation", nn.initializers.zeros)(
            nn.silu(condition)
        )
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = jnp.split(vectors, 6, axis=-1)
        drop = partial(nn.Dropout, spec.dropout, deterministic=not train)
        mixed = self._attention(modulated(x, shift_1, scale_1))
        x = x + gate_1[:, None] * drop()(mixed)
        fed = self._feed_forward(modulated(x, shift_2, scale_2))
        return x + gate_2[:, None] * drop()(fed)

    def _attention(self, x: jax.Array) -> jax.Array:
        spec = self.spec
        rows, tokens, width = x.shape
        packed = spec.affine(3 * width, ("embed", "heads"), "qkv")(x)
        heads = packed.reshape(rows, tokens, 3, spec.num_heads, width // spec.num_heads)
        mixed = scaled_dot_product_attention(
            heads[:, :, 0],
            heads[:, :, 1],
            heads[:, :, 2],
            implementation=spec.attention_impl,
            precision=spec.precision,
        )
        return spec.affine(width, ("heads", "embed"), "out")(mixed.reshape(rows, tokens, width))

    def _feed_forward(self, x: jax.Array) -> jax.Array:
        spec = self.spec
        hidden = nn.gelu(spec.affine(spec.mlp_width, ("embed", "mlp"), "mlp_up")(x), approximate=True)
        return spec.affine(spec.hidden_size, ("mlp", "embed"), "mlp_down")(hidden)
