"""Ministral: Mistral with the window in some layers."""

from __future__ import annotations

from dew.interop.decoders.family import Family
from dew.interop.decoders.llama_parts import HEAD_DIM, ROWS, SIZES, activation, epsilon, kv_heads, tied
from dew.interop.decoders.rotary_fields import rotary
from dew.interop.decoders.window_fields import all_layers, windows_by_layer

FAMILY = Family(
    model_type="ministral",
    architecture="MinistralForCausalLM",
    precedence=40,
    fields=(
        *SIZES,
        kv_heads(8),
        HEAD_DIM,
        activation(),
        epsilon(1e-6),
        rotary(),
        windows_by_layer(default=4096, pattern=all_layers),
        tied(False),
    ),
    rows=ROWS,
    always={},
    off={"attention_bias": False, "mlp_bias": False},
)
