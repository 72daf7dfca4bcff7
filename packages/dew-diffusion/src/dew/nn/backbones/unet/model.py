"""A U-Net that denoises images: down through ever fewer pixels, up again with what each level kept.

Dimensions: B rows, H and W pixels, C channels in, O channels out, P side of the pixel blocks.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from dew.nn.attention import AttentionImpl
from dew.nn.backbones.unet.parts import PartSpec, PixelAttention, ResidualBlock, check_heads, nearest
from dew.nn.denoising import Conditioning, check_sizes


class UNet(nn.Module):
    """Residual blocks at `len(channels)` resolutions, each half the one before, joined by skip connections.

    Sides may be odd: halving rounds up, and doubling is cut to the side it came from.

    Attributes:
        channels: width of each level, the full resolution first.
        blocks: residual blocks of a level on the way down; the way up has one more.
        attention: for each level, whether its blocks are followed by attention over the pixels; empty means
            at none. The innermost pixels always have it.
        num_heads: attention heads, a divisor of every level's channels.
        condition_size: width of the embedding of noise level and condition.
        pixel_block: P; the network works on blocks of P by P pixels, folded into channels.
        norm_groups: groups of every norm at most.
        output_channels: channels of the prediction.
        dropout: fraction of each block's inner activations that training drops.
        dtype: computes; time embedding, norms' statistics and the result are float32 or wider.
        param_dtype: stores.
        precision: of every product; None is the backend's default.
        attention_impl: the attention kernel.

    Raises:
        ValueError: at construction, for no level, sizes below 1, heads that do not divide, flags that do not
            count the levels, or a dropout outside [0, 1).
    """

    channels: tuple[int, ...] = (64, 128, 256, 256)
    blocks: int = 2
    attention: tuple[bool, ...] = ()
    num_heads: int = 4
    condition_size: int = 256
    pixel_block: int = 1
    norm_groups: int = 32
    output_channels: int = 3
    dropout: float = 0.0
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None
    attention_impl: AttentionImpl | None = "auto"

    def __post_init__(self) -> None:
        if not self.channels:
            raise ValueError("channels=() must hold one width a level; use one at least, as in (64, 128)")
        for name in ("blocks", "num_heads", "condition_size", "pixel_block", "norm_groups"):
            check_sizes(**{name: getattr(self, name)})
        check_sizes(output_channels=self.output_channels, channels=min(self.channels))
        check_heads(tuple(self.channels), self.num_heads)
        if self.attention and len(self.attention) != len(self.channels):
            raise ValueError(
                f"attention={self.attention} must hold one flag for each of the {len(self.channels)} levels"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must lie in [0, 1)")
        super().__post_init__()

    def _spec(self) -> PartSpec:
        return PartSpec(
            num_heads=self.num_heads,
            norm_groups=self.norm_groups,
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
            ValueError: sides that the pixel blocks do not fill, or a condition of another rank.
        """
        spec = self._spec()
        condition = Conditioning(
            self.condition_size, self.dtype, self.param_dtype, self.precision, name="conditioning"
        )(noise_level, textcontext)
        hidden = spec.convolution(self.channels[0], "conv_in")(folded(x, self.pixel_block))
        hidden, skips = self._down(spec, hidden, condition, train)
        for index in range(2):
            hidden = ResidualBlock(self.channels[-1], spec, name=f"middle_{index}")(hidden, condition, train)
            if index == 0:
                hidden = PixelAttention(spec, name="middle_attention")(hidden)
        hidden = self._up(spec, hidden, skips, condition, train)
        hidden = nn.silu(spec.norm(self.channels[0], "norm_out")(hidden))
        features = self.output_channels * self.pixel_block**2
        result = spec.convolution(features, "conv_out", init=nn.initializers.zeros)(hidden)
        return unfolded(result.astype(jnp.promote_types(self.dtype, jnp.float32)), self.pixel_block)

    def _level(self, spec: PartSpec, level: int, hidden: jax.Array, name: str) -> jax.Array:
        if not self.attention or not self.attention[level]:
            return hidden
        return PixelAttention(spec, name=f"{name}_attention")(hidden)

    def _down(
        self, spec: PartSpec, hidden: jax.Array, condition: jax.Array, train: bool
    ) -> tuple[jax.Array, list[jax.Array]]:
        skips = [hidden]
        for level, width in enumerate(self.channels):
            for index in range(self.blocks):
                name = f"down_{level}_{index}"
                hidden = ResidualBlock(width, spec, name=name)(hidden, condition, train)
                hidden = self._level(spec, level, hidden, name)
                skips.append(hidden)
            if level + 1 < len(self.channels):
                hidden = spec.convolution(width, f"halve_{level}", stride=2)(hidden)
                skips.append(hidden)
        return hidden, skips

    def _up(
        self, spec: PartSpec, hidden: jax.Array, skips: list[jax.Array], condition: jax.Array, train: bool
    ) -> jax.Array:
        for level in reversed(range(len(self.channels))):
            for index in range(self.blocks + 1):
                name = f"up_{level}_{index}"
                joined = jnp.concatenate([hidden, skips.pop()], axis=-1)
                hidden = ResidualBlock(self.channels[level], spec, name=name)(joined, condition, train)
                hidden = self._level(spec, level, hidden, name)
            if level:
                sides = (skips[-1].shape[1], skips[-1].shape[2])
                hidden = spec.convolution(self.channels[level], f"double_{level}")(nearest(hidden, sides))
        return hidden


def folded(x: Float[Array, "B H W C"], block: int) -> Float[Array, "B h w D"]:
    """[B, H, W, C] as [B, H / P, W / P, P P C].

    Raises:
        ValueError: a side that is no multiple of `block`.
    """
    rows, height, width, channels = x.shape
    if height % block or width % block:
        raise ValueError(
            f"pixel_block={block} must divide the sample's sides, {height} and {width}; change either"
        )
    cut = x.reshape(rows, height // block, block, width // block, block, channels)
    return cut.swapaxes(2, 3).reshape(rows, height // block, width // block, block * block * channels)


def unfolded(x: Float[Array, "B h w D"], block: int) -> Float[Array, "B H W C"]:
    """Undo `folded`."""
    rows, height, width, _ = x.shape
    cut = x.reshape(rows, height, width, block, block, -1)
    return cut.swapaxes(2, 3).reshape(rows, height * block, width * block, -1)
