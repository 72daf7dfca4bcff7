"""Granite 3: Llama with constant factors of embedding, residual branches, attention scores and logits."""

from __future__ import annotations

from dew.interop.decoders.exact import reciprocal
from dew.interop.decoders.family import Family, Field
from dew.interop.decoders.llama_parts import KV_HEADS, ROWS, SIZES, activation, epsilon, tied
from dew.interop.decoders.rotary_fields import rotary

FAMILY = Family(
    model_type="granite",
    architecture="GraniteForCausalLM",
    precedence=340,
    fields=(
        *SIZES,
        KV_HEADS,
        activation(),
        epsilon(1e-6),
        rotary(),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
        Field("mlp_bias", "bias.mlp", False),
        Field("embedding_multiplier", "scales.embedding", 1.0),
        Field("residual_multiplier", "scales.residual", 1.0),
        Field("attention_multiplier", "scales.attention", 1.0),
        Field("logits_scaling", "scales.logits", 1.0, lambda scaling: 1 / scaling, reciprocal),
    ),
    rows=ROWS,
    always={},
    off={},
)
