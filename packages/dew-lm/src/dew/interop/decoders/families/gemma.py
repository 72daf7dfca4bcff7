"""Gemma (arXiv 2403.08295): a scaled embedding, norms whose scale counts from 1, GEGLU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.interop.decoders.family import Family, Field, Group
from dew.interop.decoders.llama_parts import GATED, ROWS, SIZES, epsilon, kv_heads, tied
from dew.interop.decoders.rotary_fields import rotary
from dew.nn.backbones.causal_transformer import CausalTransformer

TANH = "gelu_pytorch_tanh"


def _embedding_scale(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"scales.embedding": config["hidden_size"] ** 0.5}


EMBEDDING_SCALE = Group((), _embedding_scale, lambda model: {})
"""The embedding is multiplied by the root of its width."""


def _activation(config: Mapping[str, Any]) -> dict[str, Any]:
    # First releases say hidden_act=gelu and mean the tanh form, which later ones state in hidden_activation.
    name = config.get("hidden_activation") or config.get("hidden_act") or TANH
    if name not in GATED:
        raise ValueError(f"config.json hidden_act={name!r} is not computed here; {', '.join(GATED)} are")
    return {"activation": GATED[name]}


def _written(model: CausalTransformer) -> dict[str, Any]:
    spelled = {own: published for published, own in reversed(list(GATED.items()))}
    return {"hidden_act": spelled[model.activation]}


FAMILY = Family(
    model_type="gemma",
    architecture="GemmaForCausalLM",
    precedence=110,
    fields=(
        *SIZES,
        kv_heads(16),
        Field("head_dim", "head_dim", 256),
        Group(("hidden_act", "hidden_activation"), _activation, _written, {"activation": "hidden_act"}),
        epsilon(1e-6),
        rotary(),
        EMBEDDING_SCALE,
        tied(True),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
    ),
    rows=ROWS,
    always={"norm_kind": "rms_offset"},
    off={"use_bidirectional_attention": False},
)
