"""GPT-OSS (arXiv 2508.10925): sinks, windows in every other layer, biased experts with a clamped gate, YaRN.

The experts of published files are packed as MXFP4; they are read as floats and written as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.interop.decoders.expert_parts import AUXILIARY, mixture
from dew.interop.decoders.family import Family, Field, Group, Row, linear
from dew.interop.decoders.forms import INTERLEAVED
from dew.interop.decoders.llama_parts import (
    ATTENTION,
    LAYER,
    NORMS,
    OUTER,
    OWN,
    SIZES,
    epsilon,
    kv_heads,
    tied,
)
from dew.interop.decoders.rotary_fields import SPELLINGS, rotary
from dew.interop.decoders.window_fields import every, windows_by_layer
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe.config import ClampedGate

PLAIN = rotary(theta=150000.0)
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The scaling of a file that says none."""
LIMIT = "swiglu_limit"


def _read_rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    stated = any(config.get(name) for name in SPELLINGS)
    return PLAIN.read(config if stated else {**config, "rope_scaling": YARN})


def _write_rotary(model: CausalTransformer) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": "default"}, **PLAIN.write(model)}


def _read_gate(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"gate": ClampedGate(limit=float(config.get(LIMIT, 7.0)))}


def _write_gate(model: CausalTransformer) -> dict[str, Any]:
    gate = None if model.mixture is None else model.mixture.gate
    return {} if gate is None else {LIMIT: gate.limit}


def _experts(name: str, own: str) -> tuple[Row, Row]:
    """The projections of all experts and their biases."""
    return (
        Row(
            f"{LAYER}.mlp.experts.gate_up_proj{name}",
            (f"{OWN}/mlp/{own}_gate_proj", f"{OWN}/mlp/{own}_up_proj"),
            INTERLEAVED,
        ),
        Row(f"{LAYER}.mlp.experts.down_proj{name}", (f"{OWN}/mlp/{own}_down_proj",)),
    )


FAMILY = Family(
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    precedence=420,
    fields=(
        *SIZES,
        kv_heads(8),
        Field("head_dim", "head_dim", 64),
        epsilon(1e-5),
        Group(PLAIN.names, _read_rotary, _write_rotary, PLAIN.spelled),
        windows_by_layer(default=128, pattern=every("", 2)),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), True),
        mixture(
            {"num_experts": ("num_local_experts", 128), "top_k": ("num_experts_per_tok", 4)},
            fixed={"router_bias": True, "expert_bias": True},
            parts=(Group((LIMIT,), _read_gate, _write_gate, {"gate.limit": LIMIT}),),
            also={"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
        ),
    ),
    rows=(
        *OUTER,
        *NORMS,
        *ATTENTION,
        Row(f"{LAYER}.self_attn.sinks", (f"{OWN}/self_attn/sinks",)),
        *linear(f"{LAYER}.mlp.router", f"{OWN}/mlp/gate"),
        *_experts("", "experts"),
        *_experts("_bias", "bias"),
    ),
    always={"sinks": True},
    off={},
    ignored=(*AUXILIARY, "hidden_act", "initial_context_length", "quantization_config"),
    gated=False,
)
