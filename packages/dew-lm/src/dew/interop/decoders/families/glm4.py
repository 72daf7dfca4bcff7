"""GLM-4-0414: norms before and after each block, half of a head turns, neighbouring coordinates in pairs."""

from __future__ import annotations

from dew.interop.decoders.family import Family, Field, fused, linear, norm
from dew.interop.decoders.llama_parts import (
    ATTENTION,
    FUSED,
    LAYER,
    OUTER,
    OWN,
    SIZES,
    activation,
    epsilon,
    kv_heads,
    tied,
)
from dew.interop.decoders.rotary_fields import rotary

NORMS = {
    "input_layernorm": "input_layernorm",
    "post_self_attn_layernorm": "post_attention_layernorm",
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "post_mlp_layernorm": "post_feedforward_layernorm",
}
"""The file's name of a norm -> the name it has here."""

FAMILY = Family(
    model_type="glm4",
    architecture="Glm4ForCausalLM",
    precedence=350,
    fields=(
        *SIZES,
        kv_heads(2),
        Field("head_dim", "head_dim", 128),
        activation(FUSED),
        epsilon(1.5625e-7),
        rotary(fraction=0.5),
        tied(False),
        Field("attention_bias", "bias.qkv", True),
    ),
    rows=(
        *OUTER,
        *(row for name, own in NORMS.items() for row in norm(f"{LAYER}.{name}", f"{OWN}/{own}")),
        *ATTENTION,
        *fused(f"{LAYER}.mlp.gate_up_proj", (f"{OWN}/mlp/gate_proj", f"{OWN}/mlp/up_proj")),
        *linear(f"{LAYER}.mlp.down_proj", f"{OWN}/mlp/down_proj"),
    ),
    always={"block": "sandwich", "rotary.pairs": "neighbours"},
    off={},
    gated=False,
)
