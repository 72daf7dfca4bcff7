"""Fields and tensors that the DeepSeek families share: latent attention and their mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.interop.decoders.family import Group, Row, linear, norm
from dew.interop.decoders.forms import ROWS
from dew.interop.decoders.llama_parts import LAYER, MLP, NORMS, OUTER, OWN
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.backbones.causal_transformer.mixers import MLA
from dew.nn.moe.config import ExpertGroups, GroupRank, Mixture, ScoreKind, SharedExpert

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
DERIVED = ("head_dim", "qk_head_dim")
"""Fields that transformers computes from the others."""


def latent(sizes: Mapping[str, int]) -> Group:
    """The fields of the mixer.

    Args:
        sizes: those that the family has, and their defaults.
    """

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        heads = config.get("num_attention_heads")
        if config.get("num_key_value_heads") not in (None, heads):
            raise ValueError(
                f"config.json num_key_value_heads={config['num_key_value_heads']}: latent attention has a key "
                f"head for each of the num_attention_heads={heads}"
            )
        # Only `q_lora_rank` may be null, for queries without a latent vector; elsewhere null is unset.
        given = {name: config.get(name) for name in sizes}
        missing = {name: size for name, size in sizes.items() if given[name] is None}
        if "q_lora_rank" in config:
            missing.pop("q_lora_rank", None)
        mixer = MLA(**{**given, **missing})
        return {"mixer": mixer}

    def write(model: CausalTransformer) -> dict[str, Any]:
        if model.mixer is None:
            raise ValueError("mixer=None: plain attention is none of this family")
        written = {name: getattr(model.mixer, name) for name in sizes}
        return {**written, "num_key_value_heads": model.num_heads}

    return Group(("num_key_value_heads", *sizes), read, write)


EXPERTS = {
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
}
"""Fields of the mixture -> what a file without them means in DeepSeek-V3."""


def experts(
    defaults: Mapping[str, Any],
    *,
    scores: ScoreKind,
    rank: GroupRank,
    bias: bool,
    method: str | None = None,
    normalize: bool | None = None,
    layers: bool = False,
) -> Group:
    """The fields of the mixture of experts.

    Args:
        defaults: of the fields of `EXPERTS`.
        scores: of the router.
        rank: of its groups.
        bias: whether the router has the experts' biases.
        method: the family's default of `topk_method`, which says whether there are groups; None has groups
            always.
        normalize: its default of `norm_topk_prob`; None never normalizes.
        layers: whether `mlp_layer_types` may name the layers that have experts.
    """
    others = {"topk_method": method, "norm_topk_prob": normalize, "mlp_layer_types": layers or None}
    names = (*defaults, *(name for name, value in others.items() if value is not None))

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        given = {**defaults, **{name: config[name] for name in names if config.get(name) is not None}}
        flags = _layers(given, config["num_hidden_layers"])
        if not any(flags):
            return {"mixture": None}
        if given["num_experts_per_tok"] is None:
            raise ValueError("config.json lacks num_experts_per_tok")
        mixture = Mixture(
            num_experts=given["n_routed_experts"],
            top_k=given["num_experts_per_tok"],
            intermediate_size=given["moe_intermediate_size"],
            normalize=normalize is not None and bool(given.get("norm_topk_prob", normalize)),
            bias=bias,
            layers=flags,
            scores=scores,
            scale=float(given["routed_scaling_factor"]),
            groups=_groups(given, rank, given.get("topk_method", method)),
            shared=SharedExpert(intermediate_size=given["moe_intermediate_size"] * given["n_shared_experts"]),
        )
        return {"mixture": mixture}

    def write(model: CausalTransformer) -> dict[str, Any]:
        mixture = model.mixture
        if mixture is None:
            dense = {"mlp_layer_types": [DENSE] * model.num_layers} if layers else {}
            return {"first_k_dense_replace": model.num_layers, **dense}
        if mixture.shared is None or mixture.intermediate_size is None:
            raise ValueError("mixture: this family has experts of their own width, and a shared one")
        flags = [mixture.at(layer) for layer in range(model.num_layers)]
        written: dict[str, Any] = {
            "n_routed_experts": mixture.num_experts,
            "num_experts_per_tok": mixture.top_k,
            "moe_intermediate_size": mixture.intermediate_size,
            "n_shared_experts": mixture.shared.intermediate_size // mixture.intermediate_size,
            "routed_scaling_factor": mixture.scale,
            "first_k_dense_replace": flags.index(True),
            "n_group": 1 if mixture.groups is None else mixture.groups.count,
            "topk_group": 1 if mixture.groups is None else mixture.groups.keep,
        }
        if method is not None:
            written["topk_method"] = "greedy" if mixture.groups is None else GROUPED
        if normalize is not None:
            written["norm_topk_prob"] = mixture.normalize
        if layers:
            written["mlp_layer_types"] = [SPARSE if flag else DENSE for flag in flags]
        return written

    return Group(names, read, write)


GROUPED, GREEDY = "group_limited_greedy", "greedy"
SPARSE, DENSE = "sparse", "dense"


def _layers(given: Mapping[str, Any], count: int) -> tuple[bool, ...]:
    stated = given.get("mlp_layer_types")
    if stated is None:
        return tuple(layer >= given["first_k_dense_replace"] for layer in range(count))
    if len(stated) != count or not set(stated) <= {SPARSE, DENSE}:
        raise ValueError(
            f"config.json mlp_layer_types={stated} must name {SPARSE} or {DENSE} for each of the {count} layers"
        )
    return tuple(kind == SPARSE for kind in stated)


def _groups(given: Mapping[str, Any], rank: GroupRank, method: str | None) -> ExpertGroups | None:
    if method not in (None, GREEDY, GROUPED):
        raise ValueError(f"config.json topk_method={method!r} is not computed; {GREEDY} and {GROUPED} are")
    if method == GREEDY or given["n_group"] in (None, 1):
        return None
    return ExpertGroups(count=given["n_group"], keep=given["topk_group"], rank=rank)


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
MIXTURE = (
    Row(f"{LAYER}.mlp.gate.weight", (f"{OWN}/mlp/gate/kernel",), ROWS),
    Row(f"{LAYER}.mlp.gate.e_score_correction_bias", (f"moe/{OWN}/mlp/gate/bias",)),
    *(
        Row(f"{LAYER}.mlp.experts.{{expert}}.{name}.weight", (f"{OWN}/mlp/experts_{name}",), ROWS)
        for name in ("gate_proj", "up_proj", "down_proj")
    ),
    *(
        row
        for name in ("gate_proj", "up_proj", "down_proj")
        for row in linear(f"{LAYER}.mlp.shared_experts.{name}", f"{OWN}/mlp/shared_expert/{name}")
    ),
)
LATENT_ROWS = (*OUTER, *NORMS, *ATTENTION, *INDEXER, *MLP, *MIXTURE)
"""The tensors of the families; a model has those of them whose leaves it has."""
