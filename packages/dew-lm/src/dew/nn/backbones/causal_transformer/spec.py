"""What the layers of a decoder share, where tokens stand, and the names under which attention reports.

Dimensions: B rows, T tokens, D turning width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
from flax import linen as nn
from flax.typing import Dtype

from dew.nn.attention import AttentionImpl
from dew.nn.backbones.causal_transformer.config import Biases, Block, LayerPlan, Temperature
from dew.nn.backbones.causal_transformer.mixers import MLA
from dew.nn.mlp import Activation
from dew.nn.moe.config import Mixture
from dew.nn.norms import NormKind, norm_of
from dew.nn.rotary import Pairs

QK = "qk"
"""The collection an attention layer sows `max_logits` [B, H] into, when it is mutable."""

type Table = tuple[jax.Array, jax.Array]
"""Cosines and sines, [B, T, D / 2] or [1, T, D / 2] each."""


class Places(NamedTuple):
    """Where the tokens of a call stand in their documents.

    Attributes:
        positions: [B, T], or [1, T] where rows are alike.
        tables: rotary tables of these positions by name.
    """

    positions: jax.Array
    tables: dict[str, Table]

    def turn(self, plan: LayerPlan) -> Table | None:
        """What a layer's heads turn by; None turns nothing."""
        return None if plan.angles is None else self.tables[plan.angles]


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """What the layers of a decoder share; `CausalTransformer` documents the fields."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    activation: Activation
    mixture: Mixture | None
    mixer: MLA | None
    block: Block
    norm_kind: NormKind
    norm_eps: float
    qk_norm: bool | str
    sinks: bool
    temperature: Temperature | None
    bias: Biases
    pairs: Pairs
    residual: float
    causal: bool
    softcap: float | None
    output_gain: float
    dtype: Dtype
    param_dtype: Dtype
    precision: jax.lax.PrecisionLike
    attention_impl: AttentionImpl | None

    def make_norm(self, axis: str = "norm") -> nn.Module:
        """A norm of the decoder's kind."""
        return norm_of(self.norm_kind)(
            epsilon=self.norm_eps, dtype=self.dtype, param_dtype=self.param_dtype, axis=axis
        )
