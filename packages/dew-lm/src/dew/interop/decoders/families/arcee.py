"""Arcee's AFM: Llama with squared ReLU and no gate."""

from __future__ import annotations

from dew.interop.decoders.family import Family, Field
from dew.interop.decoders.llama_parts import HEAD_DIM, KV_HEADS, ROWS, SIZES, activation, epsilon, tied
from dew.interop.decoders.rotary_fields import rotary

FAMILY = Family(
    model_type="arcee",
    architecture="ArceeForCausalLM",
    precedence=10,
    fields=(
        *SIZES,
        KV_HEADS,
        HEAD_DIM,
        activation({"relu2": "relu2"}, default="relu2"),
        epsilon(1e-5),
        rotary(),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
        Field("mlp_bias", "bias.mlp", False),
    ),
    rows=ROWS,
    always={},
    off={"rope_interleaved": False},
    ignored=("is_llama_config", "pretraining_tp"),
    gated=False,
    whole_heads=True,
)
