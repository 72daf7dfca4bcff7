"""Mistral (arXiv 2310.06825): Llama with one sliding window in every layer, and heads of any width."""

from __future__ import annotations

from dew.interop.decoders.family import Family
from dew.interop.decoders.llama_parts import HEAD_DIM, ROWS, SIZES, activation, epsilon, kv_heads, tied
from dew.interop.decoders.rotary_fields import rotary
from dew.interop.decoders.window_fields import window_everywhere

FAMILY = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    precedence=30,
    fields=(
        *SIZES,
        kv_heads(8),
        HEAD_DIM,
        activation(),
        epsilon(1e-6),
        rotary(),
        window_everywhere(4096),
        tied(False),
    ),
    rows=ROWS,
    always={},
    off={"attention_bias": False, "mlp_bias": False},
)
