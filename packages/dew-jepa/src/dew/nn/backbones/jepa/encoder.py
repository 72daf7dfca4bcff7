"""The vision transformer that I-JEPA trains (arXiv 2301.08243, section 3), over all patches or some.

Dimensions: B images, H by W pixels of C channels, N patches, K of them given, D width.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Bool, Float, Int

from dew.nn.attention import AttentionImpl
from dew.nn.backbones.jepa.block import Affine, Stack, block_spec, check_sizes, divisors
from dew.nn.backbones.jepa.cost import encoder_macs
from dew.nn.backbones.jepa.tokens import gather_tokens
from dew.nn.patches import patchify, sincos_positions


class JepaEncoder(nn.Module):
    """Patches, a linear embedding, fixed position codes, `num_layers` layers and a norm.

    Attributes:
        image_size: H and W.
        channels: C.
        patch_size: side of a patch in pixels, a divisor of H and W.
        hidden_size: D, a multiple of 4.
        num_layers: how many layers.
        num_heads: attention heads, a divisor of D.
        mlp_ratio: inner width of the feed-forward parts, in D.
        position_scale: size of the position codes. Where they outweigh the patches, features tell little
            else, and predicting them is no task.
        residual_gain: size of what the layers add to the patches at the start; small, features begin as
            the patches themselves.
        norm_eps: added to every variance.
        dtype: computes; norms and softmax are float32 or wider.
        param_dtype: stores.
        precision: of every product.
        attention_impl: the attention kernel.

    Raises:
        ValueError: at construction, for sizes that do not divide.
    """

    image_size: tuple[int, int]
    channels: int = 3
    patch_size: int = 16
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    mlp_ratio: float = 4.0
    position_scale: float = 1.0
    residual_gain: float = 1.0
    norm_eps: float = 1e-6
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None
    attention_impl: AttentionImpl | None = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", tuple(self.image_size))
        check_sizes(
            "vit_jepa",
            width=self.hidden_size,
            heads=self.num_heads,
            mlp_ratio=self.mlp_ratio,
            num_layers=self.num_layers,
            patch_size=self.patch_size,
            channels=self.channels,
        )
        if self.residual_gain <= 0:
            raise ValueError(f"vit_jepa: residual_gain={self.residual_gain} must be positive")
        if any(side % self.patch_size for side in self.image_size):
            fits = ", ".join(str(side) for side in divisors(math.gcd(*self.image_size)))
            raise ValueError(
                f"vit_jepa: patch_size={self.patch_size} must divide both sides of image_size="
                f"{self.image_size}; use {fits}"
            )
        super().__post_init__()

    @property
    def grid(self) -> tuple[int, int]:
        """Patches in a column and in a row."""
        height, width = self.image_size
        return height // self.patch_size, width // self.patch_size

    @property
    def features(self) -> int:
        """Width of a token."""
        return self.hidden_size

    def forward_macs(self, tokens: int) -> int:
        """Multiply-adds of the products that one image of so many patches needs."""
        return encoder_macs(self, tokens)

    @nn.compact
    def __call__(
        self,
        images: Float[Array, "B H W C"],
        tokens: Int[Array, "B K"] | None = None,
        valid: Bool[Array, "B K"] | None = None,
        *,
        train: bool = False,
    ) -> Float[Array, "B T D"]:
        """The features of the patches at `tokens`, which see each other alone; None takes all patches.

        Args:
            images: in [-1, 1].
            tokens: places in the grid, row by row.
            valid: which of `tokens` are meant; the features of the others mean nothing, and no valid token
                sees them.
            train: gates dropout, of which this encoder has none: both values compute the same.

        Raises:
            ValueError: images of another shape.
        """
        if images.shape[1:] != (*self.image_size, self.channels):
            raise ValueError(
                f"images of shape {images.shape[1:]} do not fit vit_jepa with image_size={self.image_size} "
                f"and channels={self.channels}"
            )
        spec = block_spec(
            width=self.hidden_size,
            layers=self.num_layers,
            heads=self.num_heads,
            mlp_ratio=self.mlp_ratio,
            residual_gain=self.residual_gain,
            norm_eps=self.norm_eps,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            attention_impl=self.attention_impl,
        )
        patches = patchify(images, self.patch_size)
        places = self.position_scale * sincos_positions(self.grid, self.hidden_size)
        codes = jnp.asarray(places, self.dtype)[None]
        if tokens is not None:
            patches = gather_tokens(patches, tokens)
            codes = codes[0][tokens]
        x = Affine(self.hidden_size, ("patch", "embed"), spec, name="patch_embedding")(patches) + codes
        return Stack(spec, self.num_layers, name="transformer")(x, valid)
