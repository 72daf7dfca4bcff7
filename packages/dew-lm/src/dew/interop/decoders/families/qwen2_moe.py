"""Qwen1.5-MoE and Qwen2-57B-A14B (arXiv 2407.10671): Qwen2 with experts beside a gated shared one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.interop.decoders.expert_parts import (
    AUXILIARY,
    STACKED_ROWS,
    expert_rows,
    mixture,
    shared_rows,
    sparse_layers,
)
from dew.interop.decoders.family import Family, Field, Group, linear, stated
from dew.interop.decoders.llama_parts import (
    FUSED,
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
from dew.interop.decoders.window_fields import windows_by_layer
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe.config import SharedExpert

SHARED = "shared_expert_intermediate_size"


def _even_layers(config: Mapping[str, Any]) -> list[bool]:
    """Every other layer of the first `max_window_layers`, counted from the first."""
    first = stated(config, "max_window_layers", 28)
    return [layer % 2 == 0 and layer < first for layer in range(config["num_hidden_layers"])]


def _read_shared(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"shared": SharedExpert(intermediate_size=config.get(SHARED, 5632), gated=True)}


def _write_shared(model: CausalTransformer) -> dict[str, Any]:
    shared = None if model.mixture is None else model.mixture.shared
    return {} if shared is None else {SHARED: shared.intermediate_size}


BESIDE = (
    *shared_rows("shared_expert"),
    *linear(f"{LAYER}.mlp.shared_expert_gate", f"{OWN}/mlp/shared_expert_gate"),
)

FAMILY = Family(
    model_type="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    precedence=90,
    fields=(
        *SIZES,
        kv_heads(16),
        activation(FUSED),
        epsilon(1e-6),
        rotary(),
        windows_by_layer(default=4096, pattern=_even_layers, switch=True, others=("max_window_layers",)),
        tied(False),
        Field("qkv_bias", "bias.qkv", True),
        mixture(
            {
                "num_experts": ("num_experts", 60),
                "top_k": ("num_experts_per_tok", 4),
                "intermediate_size": ("moe_intermediate_size", 1408),
                "normalize": ("norm_topk_prob", False),
            },
            parts=(
                sparse_layers(),
                Group((SHARED,), _read_shared, _write_shared, {"shared.intermediate_size": SHARED}),
            ),
        ),
    ),
    rows=(*ROWS, *expert_rows(), *BESIDE),
    stacked=(*ROWS, *STACKED_ROWS, *BESIDE),
    always={},
    off={},
    ignored=AUXILIARY,
    gated=False,
)
