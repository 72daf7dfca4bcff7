"""The diffusion transformer with adaptive norms that start as the identity (adaLN-Zero, arXiv 2212.09748).

Dimensions: B rows, H and W pixels, C channels, P patch side, N = HW / P^2 tokens, E model width.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from dew.nn.attention import AttentionImpl
from dew.nn.backbones.dit.block import Block, BlockSpec, modulated
from dew.nn.backbones.dit.cost import forward_macs
from dew.nn.denoising import Conditioning, check_sizes
from dew.nn.patches import patchify, sincos_positions, unpatchify
from dew.nn.stack import DecoderBank, StackView
from dew.nn.tokens import split_positions


class SimpleDiT(nn.Module):
    """Patches, `num_layers` transformer blocks under the noise level and the condition, patches again.

    Attributes:
        patch_size: P, a divisor of the sample's sides.
        hidden_size: E, a multiple of 4.
        num_layers: how many blocks.
        num_heads: attention heads, a divisor of E.
        mlp_ratio: inner width of the feed-forward layers over E.
        output_channels: channels of the prediction.
        dropout: fraction of each branch's outputs that training drops.
        dtype: computes; norms, time embedding and the result are float32 or wider.
        param_dtype: stores.
        precision: of every product; None is the backend's default.
        attention_impl: the attention kernel.
        remat: recompute each block's activations in the backward pass instead of keeping them.

    Raises:
        ValueError: at construction, for sizes below 1, heads that do not divide, or a dropout outside [0, 1).
    """

    patch_size: int = 2
    hidden_size: int = 384
    num_layers: int = 12
    num_heads: int = 6
    mlp_ratio: int = 4
    output_channels: int = 3
    dropout: float = 0.0
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None
    attention_impl: AttentionImpl | None = "auto"
    remat: bool = False

    def __post_init__(self) -> None:
        check_sizes(
            patch_size=self.patch_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            mlp_ratio=self.mlp_ratio,
            output_channels=self.output_channels,
        )
        for divisor, name in ((4, "4"), (self.num_heads, f"num_heads={self.num_heads}")):
            if self.hidden_size % divisor:
                raise ValueError(f"hidden_size={self.hidden_size} must be a multiple of {name}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must lie in [0, 1)")
        super().__post_init__()

    @property
    def bank(self) -> DecoderBank:
        """Where the blocks stand."""
        return DecoderBank((), StackView(self.num_layers))

    def forward_macs(self, sample: tuple[int, int, int], condition: int = 0) -> int:
        """Multiply-adds of the products that one sample [H, W, C] needs, with a condition of that width."""
        return forward_macs(self, sample, condition)

    def _spec(self) -> BlockSpec:
        return BlockSpec(
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            mlp_width=self.mlp_ratio * self.hidden_size,
            dropout=self.dropout,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            attention_impl=self.attention_impl,
        )

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B H W C"],
        noise_level: Float[Array, " B"],
        textcontext: Float[Array, "B D"] | None = None,
        *,
        train: bool = False,
    ) -> Float[Array, "B H W O"]:
        """Predict the process's target, in float32 or wider.

        Args:
            x: the noisy samples as the process scales them.
            noise_level: what the process says about their noise, one number a row.
            textcontext: one condition vector a row, or None.
            train: whether dropout acts; it draws from the random stream `dropout`.

        Raises:
            ValueError: sides that the patches do not fill, or a condition of another rank.
        """
        spec = self._spec()
        wide = jnp.promote_types(self.dtype, jnp.float32)
        condition = Conditioning(
            self.hidden_size, self.dtype, self.param_dtype, self.precision, name="conditioning"
        )(noise_level, textcontext)
        tokens = spec.affine(self.hidden_size, ("embed", "mlp"), "patch_in")(patchify(x, self.patch_size))
        grid = (x.shape[1] // self.patch_size, x.shape[2] // self.patch_size)
        tokens = split_positions(tokens + jnp.asarray(sincos_positions(grid, self.hidden_size), tokens.dtype))
        block = nn.remat(Block, static_argnums=(3,)) if self.remat else Block
        for name in self.bank.view.names:
            tokens = split_positions(block(spec, name=name)(tokens, condition, train))
        zeros = nn.initializers.zeros
        ends = spec.affine(2 * self.hidden_size, ("embed", "mlp"), "final_modulation", zeros)
        shift, scale = jnp.split(ends(nn.silu(condition)), 2, axis=-1)
        area = self.patch_size**2 * self.output_channels
        pixels = spec.affine(area, ("embed", "mlp"), "patch_out", zeros)(modulated(tokens, shift, scale))
        return unpatchify(pixels.astype(wide), grid, self.patch_size)
