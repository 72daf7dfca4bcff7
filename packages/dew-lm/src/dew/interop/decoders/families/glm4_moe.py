"""GLM-4.5 (arXiv 2508.06471): experts chosen from groups by sigmoid scores, half of a head turns.

Files say how many prediction depths were trained beside the decoder; their tensors are no part of it.
"""

from __future__ import annotations

from dew.interop.decoders.expert_parts import (
    STACKED_ROWS,
    expert_groups,
    expert_rows,
    later_layers,
    mixture,
    shared_experts,
    shared_rows,
)
from dew.interop.decoders.family import Family, Field, Row
from dew.interop.decoders.llama_parts import (
    FUSED,
    HEAD_DIM,
    LAYER,
    OWN,
    ROWS,
    SIZES,
    activation,
    epsilon,
    kv_heads,
    tied,
)
from dew.interop.decoders.rotary_fields import rotary

BESIDE = (
    Row(f"{LAYER}.mlp.gate.e_score_correction_bias", (f"moe/{OWN}/mlp/gate/bias",)),
    *shared_rows("shared_experts"),
)

FAMILY = Family(
    model_type="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    precedence=410,
    fields=(
        *SIZES,
        kv_heads(8),
        HEAD_DIM,
        activation(FUSED),
        epsilon(1e-5),
        rotary(fraction=0.5),
        tied(False),
        Field("attention_bias", "bias.qkv", False),
        Field("use_qk_norm", "qk_norm", False),
        mixture(
            {
                "num_experts": ("n_routed_experts", 128),
                "top_k": ("num_experts_per_tok", 8),
                "intermediate_size": ("moe_intermediate_size", 1408),
                "normalize": ("norm_topk_prob", True),
                "scale": ("routed_scaling_factor", 1.0),
            },
            fixed={"scores": "sigmoid", "bias": True},
            parts=(later_layers(1), expert_groups("best_two"), shared_experts(1)),
        ),
    ),
    rows=(*ROWS, *expert_rows(), *BESIDE),
    stacked=(*ROWS, *STACKED_ROWS, *BESIDE),
    always={},
    off={},
    ignored=("num_nextn_predict_layers", "num_mtp_layers"),
    gated=False,
)
