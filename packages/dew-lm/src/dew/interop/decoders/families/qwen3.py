"""Qwen3 (arXiv 2505.09388): normalized queries and keys in each head."""

from __future__ import annotations

from dew.interop.decoders.family import Family, Field
from dew.interop.decoders.llama_parts import ROWS, SIZES, activation, epsilon, kv_heads, tied
from dew.interop.decoders.rotary_fields import rotary
from dew.interop.decoders.window_fields import after, windows_by_layer

FAMILY = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    precedence=60,
    fields=(
        *SIZES,
        kv_heads(32),
        Field("head_dim", "head_dim", 128),
        activation(),
        epsilon(1e-6),
        rotary(),
        windows_by_layer(
            default=4096,
            pattern=after("max_window_layers", 28),
            switch=True,
            others=("max_window_layers",),
        ),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
    ),
    rows=ROWS,
    always={"qk_norm": True},
    off={},
)
