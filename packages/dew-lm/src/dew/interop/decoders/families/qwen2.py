"""Qwen2 and 2.5 (arXiv 2407.10671): Llama with biases of queries, keys and values."""

from __future__ import annotations

from dew.interop.decoders.family import Family
from dew.interop.decoders.llama_parts import ROWS, SIZES, activation, epsilon, kv_heads, tied
from dew.interop.decoders.rotary_fields import rotary
from dew.interop.decoders.window_fields import after, windows_by_layer

FAMILY = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    precedence=50,
    fields=(
        *SIZES,
        kv_heads(32),
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
    ),
    rows=ROWS,
    always={"bias.qkv": True},
    off={"use_mrope": False},
)
