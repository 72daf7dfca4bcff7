"""Qwen3's mixtures of experts (arXiv 2505.09388): Qwen3 with experts, some of its layers dense."""

from __future__ import annotations

from dew.interop.decoders.expert_parts import (
    AUXILIARY,
    STACKED_ROWS,
    expert_rows,
    mixture,
    sparse_layers,
)
from dew.interop.decoders.family import Family, Field
from dew.interop.decoders.llama_parts import (
    FUSED,
    HEAD_DIM,
    ROWS,
    SIZES,
    activation,
    epsilon,
    kv_heads,
    tied,
)
from dew.interop.decoders.rotary_fields import rotary
from dew.interop.decoders.window_fields import switched_window

FAMILY = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    precedence=80,
    fields=(
        *SIZES,
        kv_heads(4),
        HEAD_DIM,
        activation(FUSED),
        epsilon(1e-6),
        rotary(),
        switched_window(4096),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
        mixture(
            {
                "num_experts": ("num_experts", 128),
                "top_k": ("num_experts_per_tok", 8),
                "intermediate_size": ("moe_intermediate_size", 768),
                "normalize": ("norm_topk_prob", False),
            },
            parts=(sparse_layers(),),
            also={"num_local_experts": "num_experts"},
        ),
    ),
    rows=(*ROWS, *expert_rows()),
    stacked=(*ROWS, *STACKED_ROWS),
    always={"qk_norm": True},
    off={},
    ignored=(*AUXILIARY, "max_window_layers"),
    gated=False,
)
