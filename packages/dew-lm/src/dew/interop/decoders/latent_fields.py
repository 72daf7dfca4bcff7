"""Fields and tensors of latent attention, and of DeepSeek's mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.interop.decoders.expert_parts import (
    STACKED_ROWS,
    expert_groups,
    expert_rows,
    later_layers,
    mixture,
    shared_experts,
    shared_rows,
)
from dew.interop.decoders.family import Group, Row, linear, norm
from dew.interop.decoders.llama_parts import LAYER, MLP, NORMS, OUTER, OWN
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.backbones.causal_transformer.mixers import MLA

LATENT = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
"""Sizes of latent attention -> what a file without them means."""
INDEXED = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
"""The same of an indexer."""
UNREAD = ("aux_loss_alpha", "ep_size", "head_dim", "num_nextn_predict_layers", "qk_head_dim", "seq_aux")
"""Fields of training and of placement, and two that follow from others. Files say how many prediction depths
were trained beside the decoder; their tensors are no part of it."""


def latent(sizes: Mapping[str, int]) -> Group:
    """The fields of the mixer.

    Args:
        sizes: those that the family has, and their defaults.
    """

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        heads = config.get("num_attention_heads")
        if config.get("num_key_value_heads") not in (None, heads):
            raise ValueError(
                f"config.json num_key_value_heads={config['num_key_value_heads']}: latent attention has a "
                f"key head for each of the num_attention_heads={heads}"
            )
        given: dict[str, Any] = {name: config.get(name) for name in sizes}
        missing = {name: size for name, size in sizes.items() if given[name] is None}
        if "q_lora_rank" in config:
            # Null is said on purpose: queries without a latent vector.
            missing.pop("q_lora_rank", None)
        return {"mixer": MLA(**{**given, **missing})}

    def write(model: CausalTransformer) -> dict[str, Any]:
        if model.mixer is None:
            raise ValueError("mixer=None: plain attention is none of this family")
        written = {name: getattr(model.mixer, name) for name in sizes}
        return {**written, "num_key_value_heads": model.num_heads}

    return Group(("num_key_value_heads", *sizes), read, write)


def sigmoid_experts(layers: Group | None = None) -> Group:
    """The mixture of DeepSeek-V3: sigmoid scores, a bias for each expert, groups ranked by their best two.

    Args:
        layers: which layers have it; None has all but the first few.
    """
    return mixture(
        {
            "num_experts": ("n_routed_experts", 256),
            "top_k": ("num_experts_per_tok", 8),
            "intermediate_size": ("moe_intermediate_size", 2048),
            "normalize": ("norm_topk_prob", True),
            "scale": ("routed_scaling_factor", 2.5),
        },
        fixed={"scores": "sigmoid", "bias": True},
        parts=(layers or later_layers(3), expert_groups("best_two", 8, 4), shared_experts(1)),
    )


ATTENTION = (
    *(
        row
        for name in ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
        for row in linear(f"{LAYER}.self_attn.{name}", f"{OWN}/self_attn/{name}")
    ),
    *(
        row
        for name in ("q_a_layernorm", "kv_a_layernorm")
        for row in norm(f"{LAYER}.self_attn.{name}", f"{OWN}/self_attn/{name}")
    ),
)
INDEXER = (
    *(
        row
        for name in ("wq_b", "wk", "weights_proj")
        for row in linear(f"{LAYER}.self_attn.indexer.{name}", f"{OWN}/self_attn/indexer/{name}")
    ),
    *norm(f"{LAYER}.self_attn.indexer.k_norm", f"{OWN}/self_attn/indexer/k_norm"),
)
BESIDE = (
    Row(f"{LAYER}.mlp.gate.e_score_correction_bias", (f"moe/{OWN}/mlp/gate/bias",)),
    *shared_rows("shared_experts"),
)
COMMON = (*OUTER, *NORMS, *ATTENTION, *INDEXER, *MLP, *BESIDE)
LATENT_ROWS, LATENT_STACKED = (*COMMON, *expert_rows()), (*COMMON, *STACKED_ROWS)
"""The tensors of the families, of experts apart and together; a model has those whose leaves it has."""
