"""DeepSeek-V3.2 (arXiv 2512.02556): DeepSeek-V3 that attends to the keys its lightning indexer selects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.interop.decoders.expert_parts import later_layers
from dew.interop.decoders.family import Family, Field, Group
from dew.interop.decoders.latent_fields import (
    INDEXED,
    LATENT,
    LATENT_ROWS,
    LATENT_STACKED,
    UNREAD,
    latent,
    sigmoid_experts,
)
from dew.interop.decoders.llama_parts import FUSED, SIZES, activation, epsilon, tied
from dew.interop.decoders.rotary_fields import rotary
from dew.nn.backbones.causal_transformer import CausalTransformer

SPARSE, DENSE = "sparse", "dense"
LATER = later_layers(3)


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    stated = config.get("mlp_layer_types")
    if stated is None:
        return LATER.read(config)
    count = config["num_hidden_layers"]
    if len(stated) != count or not set(stated) <= {SPARSE, DENSE}:
        raise ValueError(
            f"config.json mlp_layer_types={stated} must say {SPARSE} or {DENSE} of each of the {count} layers"
        )
    return {"layers": tuple(kind == SPARSE for kind in stated)}


def _write(model: CausalTransformer) -> dict[str, Any]:
    flags = [model.mixture is not None and model.mixture.at(layer) for layer in range(model.num_layers)]
    return {"mlp_layer_types": [SPARSE if flag else DENSE for flag in flags]}


FAMILY = Family(
    model_type="deepseek_v32",
    architecture="DeepseekV32ForCausalLM",
    precedence=470,
    fields=(
        *SIZES,
        activation(FUSED),
        epsilon(1e-6),
        rotary(),
        latent({**LATENT, **INDEXED}),
        sigmoid_experts(Group(("mlp_layer_types", *LATER.names), _read, _write)),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
    ),
    rows=LATENT_ROWS,
    stacked=LATENT_STACKED,
    always={"rotary.pairs": "neighbours"},
    off={
        "mlp_bias": False,
        "moe_layer_freq": 1,
        "pretraining_tp": 1,
        "rope_interleave": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    ignored=(*UNREAD, "layer_types"),
    gated=False,
)
