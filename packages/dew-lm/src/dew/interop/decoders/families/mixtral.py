"""Mixtral (arXiv 2401.04088): Mistral with experts in every layer."""

from __future__ import annotations

from dew.interop.decoders.expert_parts import AUXILIARY, STACKED_ROWS, expert_rows, mixture
from dew.interop.decoders.family import Family
from dew.interop.decoders.llama_parts import (
    ATTENTION,
    FUSED,
    HEAD_DIM,
    LAYER,
    NORMS,
    OUTER,
    SIZES,
    activation,
    epsilon,
    kv_heads,
    tied,
)
from dew.interop.decoders.rotary_fields import rotary
from dew.interop.decoders.window_fields import window_everywhere

FAMILY = Family(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    precedence=70,
    fields=(
        *SIZES,
        kv_heads(8),
        HEAD_DIM,
        activation(FUSED),
        epsilon(1e-5),
        rotary(theta=1e6),
        window_everywhere(None),
        tied(False),
        mixture(
            {"num_experts": ("num_local_experts", 8), "top_k": ("num_experts_per_tok", 2)},
            also={"num_experts": "num_local_experts"},
        ),
    ),
    rows=(
        *OUTER,
        *NORMS,
        *ATTENTION,
        *expert_rows(f"{LAYER}.block_sparse_moe", ("w1", "w3", "w2")),
    ),
    stacked=(*OUTER, *NORMS, *ATTENTION, *STACKED_ROWS),
    always={},
    off={"attention_bias": False, "mlp_bias": False},
    ignored=(*AUXILIARY, "router_jitter_noise"),
    gated=False,
)
