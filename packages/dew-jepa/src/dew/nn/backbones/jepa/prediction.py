"""The narrow transformer that predicts hidden blocks from the context (arXiv 2301.08243, section 3).

Dimensions: B images, M blocks an image, K context and T target tokens, D width of the encoder, E of the
predictor.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Bool, Float, Int

from dew.nn.attention import AttentionImpl
from dew.nn.backbones.jepa.block import Affine, Stack, block_spec, check_sizes
from dew.nn.backbones.jepa.cost import predictor_macs
from dew.nn.patches import sincos_positions
from dew.nn.sharding import named_axes


class JepaPredictor(nn.Module):
    """Context features and one learned token at each target place, mixed; the target places are read out.

    Attributes:
        grid: patches in a column and in a row.
        features: D, the encoder's width.
        hidden_size: E, a multiple of 4.
        num_layers: how many layers.
        num_heads: attention heads, a divisor of E.
        mlp_ratio: inner width of the feed-forward parts, in E.
        norm_eps: added to every variance.
        dtype: computes; norms and softmax are float32 or wider.
        param_dtype: stores.
        precision: of every product.
        attention_impl: the attention kernel.

    Raises:
        ValueError: at construction, for sizes that do not divide.
    """

    grid: tuple[int, int]
    features: int
    hidden_size: int = 384
    num_layers: int = 6
    num_heads: int = 12
    mlp_ratio: float = 4.0
    norm_eps: float = 1e-6
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None
    attention_impl: AttentionImpl | None = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", tuple(self.grid))
        check_sizes(
            "vit_jepa_predictor",
            width=self.hidden_size,
            heads=self.num_heads,
            mlp_ratio=self.mlp_ratio,
            num_layers=self.num_layers,
            features=self.features,
        )
        super().__post_init__()

    def forward_macs(self, context: int, targets: int, blocks: int) -> int:
        """Multiply-adds of the products that one image needs: blocks of `targets` seen from `context`."""
        return predictor_macs(self, context, targets, blocks)

    @nn.compact
    def __call__(
        self,
        context: Float[Array, "B K D"],
        context_positions: Int[Array, "B K"],
        target_positions: Int[Array, "B M T"],
        *,
        context_valid: Bool[Array, "B K"] | None = None,
        target_valid: Bool[Array, "B M T"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B M T D"]:
        """The predicted features at the target places; each block is predicted by itself.

        Args:
            context: features of the encoder.
            context_positions: their places in the grid, row by row.
            target_positions: the places to predict.
            context_valid: which context tokens are meant; None means all.
            target_valid: which targets are; no token sees the others, whose predictions mean nothing.
            train: gates dropout, of which this predictor has none.
        """
        spec = block_spec(
            width=self.hidden_size,
            layers=self.num_layers,
            heads=self.num_heads,
            mlp_ratio=self.mlp_ratio,
            norm_eps=self.norm_eps,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            attention_impl=self.attention_impl,
        )
        rows, blocks, targets = target_positions.shape
        codes = jnp.asarray(sincos_positions(self.grid, self.hidden_size), self.dtype)
        start = named_axes(nn.initializers.truncated_normal(0.02), "embed")
        unknown: jax.Array = self.param("target_token", start, (self.hidden_size,), self.param_dtype)
        known = Affine(self.hidden_size, ("features", "embed"), spec, name="embedding")(context)
        known = jnp.repeat(known + codes[context_positions], blocks, axis=0)
        asked = (unknown.astype(self.dtype) + codes[target_positions]).reshape(rows * blocks, targets, -1)
        valid = _both_valid(context_valid, target_valid, known.shape[:2], asked.shape[:2], blocks)
        mixed = Stack(spec, self.num_layers, name="transformer")(jnp.concatenate([known, asked], 1), valid)
        read = Affine(self.features, ("embed", "features"), spec, name="projection")
        return read(mixed[:, -targets:]).reshape(rows, blocks, targets, self.features)


def _both_valid(
    context: jax.Array | None,
    targets: jax.Array | None,
    known: tuple[int, ...],
    asked: tuple[int, ...],
    blocks: int,
) -> jax.Array | None:
    if context is None and targets is None:
        return None
    first = jnp.ones(known, bool) if context is None else jnp.repeat(context, blocks, axis=0)
    second = jnp.ones(asked, bool) if targets is None else targets.reshape(asked)
    return jnp.concatenate([first, second], axis=1)
