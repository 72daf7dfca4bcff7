"""Llama 1 to 3 (arXiv 2302.13971, 2407.21783): pre-norm, gated, rotary; with YaRN for long-context files."""

from __future__ import annotations

from dew.interop.decoders.family import Family, Field
from dew.interop.decoders.llama_parts import HEAD_DIM, KV_HEADS, ROWS, SIZES, activation, epsilon, tied
from dew.interop.decoders.rotary_fields import rotary

FAMILY = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    precedence=20,
    fields=(
        *SIZES,
        KV_HEADS,
        HEAD_DIM,
        activation(),
        epsilon(1e-6),
        rotary(),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
        Field("mlp_bias", "bias.mlp", False),
    ),
    rows=ROWS,
    always={},
    off={"rope_interleaved": False},
    ignored=("is_llama_config", "pretraining_tp"),
    whole_heads=True,
)
