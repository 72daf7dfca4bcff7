"""DeepSeek-V2 (arXiv 2405.04434): latent attention, softmax routers limited to groups, and shared experts."""

from __future__ import annotations

from dew.interop.decoders.family import Family, Field
from dew.interop.decoders.latent_fields import DERIVED, LATENT, LATENT_ROWS, experts, latent
from dew.interop.decoders.llama_parts import FUSED, SIZES, activation, epsilon, tied
from dew.interop.decoders.rotary_fields import rotary

EXPERTS = {
    "n_routed_experts": 64,
    "num_experts_per_tok": None,
    "moe_intermediate_size": 1407,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 0,
    "n_group": None,
    "topk_group": None,
}

FAMILY = Family(
    model_type="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    precedence=400,
    fields=(
        *SIZES,
        activation(FUSED),
        epsilon(1e-6),
        rotary(),
        latent(LATENT),
        experts(EXPERTS, scores="softmax", rank="best", bias=False, method="greedy"),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
    ),
    rows=LATENT_ROWS,
    always={"rotary.pairs": "neighbours"},
    off={
        "mlp_bias": False,
        "moe_layer_freq": 1,
        "norm_topk_prob": False,
        "pretraining_tp": 1,
        "scoring_func": "softmax",
    },
    ignored=(*DERIVED, "aux_loss_alpha", "ep_size", "seq_aux"),
    gated=False,
)
