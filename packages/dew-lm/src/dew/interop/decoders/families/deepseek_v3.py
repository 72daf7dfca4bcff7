"""DeepSeek-V3 (arXiv 2412.19437): latent attention, sigmoid routers with biases, groups and a shared expert.

Prediction depths of published files are not read.
"""

from __future__ import annotations

from dew.interop.decoders.family import Family, Field
from dew.interop.decoders.latent_fields import (
    LATENT,
    LATENT_ROWS,
    LATENT_STACKED,
    UNREAD,
    latent,
    sigmoid_experts,
)
from dew.interop.decoders.llama_parts import FUSED, SIZES, activation, epsilon, tied
from dew.interop.decoders.rotary_fields import rotary

FAMILY = Family(
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    precedence=460,
    fields=(
        *SIZES,
        activation(FUSED),
        epsilon(1e-6),
        rotary(),
        Field(
            "rope_interleave",
            "rotary.pairs",
            True,
            lambda interleaved: "neighbours" if interleaved else "halves",
            lambda pairs: pairs == "neighbours",
        ),
        latent(LATENT),
        sigmoid_experts(),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
    ),
    rows=LATENT_ROWS,
    stacked=LATENT_STACKED,
    always={},
    off={"pretraining_tp": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1},
    ignored=UNREAD,
    gated=False,
)
