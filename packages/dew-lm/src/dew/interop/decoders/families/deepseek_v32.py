"""DeepSeek-V3.2 (arXiv 2512.02556): DeepSeek-V3 that attends to the keys its lightning indexer selects."""

from __future__ import annotations

from dew.interop.decoders.family import Family, Field
from dew.interop.decoders.latent_fields import (
    DERIVED,
    EXPERTS,
    INDEXED,
    LATENT,
    LATENT_ROWS,
    experts,
    latent,
)
from dew.interop.decoders.llama_parts import FUSED, SIZES, activation, epsilon, tied
from dew.interop.decoders.rotary_fields import rotary

FAMILY = Family(
    model_type="deepseek_v32",
    architecture="DeepseekV32ForCausalLM",
    precedence=420,
    fields=(
        *SIZES,
        activation(FUSED),
        epsilon(1e-6),
        rotary(),
        latent({**LATENT, **INDEXED}),
        experts(EXPERTS, scores="sigmoid", rank="best_two", bias=True, normalize=True, layers=True),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
    ),
    rows=LATENT_ROWS,
    always={"rotary.pairs": "neighbours"},
    off={
        "mlp_bias": False,
        "moe_layer_freq": 1,
        "rope_interleave": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    ignored=(
        *DERIVED,
        "aux_loss_alpha",
        "ep_size",
        "layer_types",
        "num_nextn_predict_layers",
        "pretraining_tp",
        "seq_aux",
    ),
    gated=False,
)
