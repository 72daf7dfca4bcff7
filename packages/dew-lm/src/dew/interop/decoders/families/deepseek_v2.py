"""DeepSeek-V2 (arXiv 2405.04434): latent attention, softmax routers limited to groups, and shared experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.interop.decoders.expert_parts import expert_groups, later_layers, mixture, shared_experts
from dew.interop.decoders.family import Family, Field, Group
from dew.interop.decoders.latent_fields import LATENT, LATENT_ROWS, LATENT_STACKED, UNREAD, latent
from dew.interop.decoders.llama_parts import FUSED, SIZES, activation, epsilon, tied
from dew.interop.decoders.rotary_fields import rotary
from dew.nn.backbones.causal_transformer import CausalTransformer

GREEDY, GROUPED = "greedy", "group_limited_greedy"
GROUPS = expert_groups("best")


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    method = config.get("topk_method", GREEDY)
    if method not in (GREEDY, GROUPED):
        raise ValueError(f"config.json topk_method={method!r} is not computed; {GREEDY} and {GROUPED} are")
    return GROUPS.read(config) if method == GROUPED else {}


def _write(model: CausalTransformer) -> dict[str, Any]:
    limited = model.mixture is not None and model.mixture.groups is not None
    return {"topk_method": GROUPED if limited else GREEDY, **GROUPS.write(model)}


FAMILY = Family(
    model_type="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    precedence=450,
    fields=(
        *SIZES,
        activation(FUSED),
        epsilon(1e-6),
        rotary(),
        latent(LATENT),
        mixture(
            {
                "num_experts": ("n_routed_experts", 64),
                "top_k": ("num_experts_per_tok", 6),
                "intermediate_size": ("moe_intermediate_size", 1407),
                "scale": ("routed_scaling_factor", 1.0),
            },
            fixed={"normalize": False},
            parts=(
                later_layers(0),
                Group(("topk_method", *GROUPS.names), _read, _write, GROUPS.spelled),
                shared_experts(2),
            ),
        ),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
    ),
    rows=LATENT_ROWS,
    stacked=LATENT_STACKED,
    always={"rotary.pairs": "neighbours"},
    off={
        "mlp_bias": False,
        "moe_layer_freq": 1,
        "norm_topk_prob": False,
        "pretraining_tp": 1,
        "scoring_func": "softmax",
    },
    ignored=UNREAD,
    gated=False,
)
