"""OLMo 2 (arXiv 2501.00656): norms behind attention and feed-forward, queries and keys normalized whole."""

from __future__ import annotations

from dew.interop.decoders.family import Family, Field
from dew.interop.decoders.llama_parts import KV_HEADS, ROWS, SIZES, activation, epsilon, tied
from dew.interop.decoders.rotary_fields import rotary

FAMILY = Family(
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    precedence=320,
    fields=(
        *SIZES,
        KV_HEADS,
        activation(),
        epsilon(1e-5),
        rotary(),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
    ),
    rows=ROWS,
    always={"block": "post", "qk_norm": "width"},
    off={},
)
