"""Llama 4's language model: chunks in layers that turn, scores that grow with the position in the others.

Chunks and growth count a document's tokens from its first, as positions do. transformers counts them from the
first token of a row: in rows of several documents the two differ, and each document alone is equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dew.interop.decoders.expert_parts import AUXILIARY, PROJECTIONS, mixture
from dew.interop.decoders.family import Family, Field, Group, Row, linear, stated
from dew.interop.decoders.forms import COLUMNS
from dew.interop.decoders.llama_parts import (
    ATTENTION,
    FUSED,
    LAYER,
    NORMS,
    OUTER,
    OWN,
    activation,
    epsilon,
    kv_heads,
    tied,
)
from dew.interop.decoders.rotary_fields import rotary
from dew.interop.decoders.window_fields import FULL, every, layer_kinds
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.backbones.causal_transformer.config import Temperature
from dew.nn.backbones.causal_transformer.sizes import windows
from dew.nn.moe.config import SharedExpert

CHUNKED = "chunked_attention"
SIZE = "attention_chunk_size"


def _turned(config: Mapping[str, Any]) -> list[bool]:
    """Which layers turn: those with a 1 in `no_rope_layers`; without, all but each interval's last."""
    layers = config["num_hidden_layers"]
    # An empty list is as good as none: published files have one.
    flags = config.get("no_rope_layers") or every("no_rope_layer_interval", 4)(config)
    if len(flags) < layers:
        raise ValueError(f"config.json no_rope_layers names {len(flags)} layers, fewer than there are")
    return [bool(flag) for flag in flags[:layers]]


def _read_layers(config: Mapping[str, Any]) -> dict[str, Any]:
    turned, kinds = _turned(config), layer_kinds(config, CHUNKED)
    flags = turned if kinds is None else [kind == CHUNKED for kind in kinds]
    own: dict[str, Any] = {} if all(turned) else {"rotary.layers": tuple(turned)}
    if any(flags):
        own |= {"attention_chunk_size": _size(config)}
        own |= {} if all(flags) else {"chunked_layers": tuple(flags)}
    if any(turned) and config.get("use_qk_norm", True):
        own["qk_norm"] = "l2"
    if not all(turned) and config.get("attn_temperature_tuning", True):
        strength, rise = stated(config, "attn_scale", 0.1), stated(config, "floor_scale", 8192)
        own["attention_temperature"] = Temperature(strength=float(strength), every=rise)
    return own


def _size(config: Mapping[str, Any]) -> int:
    size = config.get(SIZE, 8192)
    if size is None:
        raise ValueError(f"config.json {SIZE}=None: layers with {CHUNKED} need a size")
    return int(size)


def _write_layers(model: CausalTransformer) -> dict[str, Any]:
    chunks = windows(model.num_layers, model.attention_chunk_size, model.chunked_layers)
    law = model.attention_temperature
    growth = {} if law is None else {"attn_scale": law.strength, "floor_scale": law.every}
    return {
        "no_rope_layers": [int(plan.angles is not None) for plan in model.plans],
        SIZE: model.attention_chunk_size or model.max_seq_len,
        "layer_types": [FULL if size is None else CHUNKED for size in chunks],
        "use_qk_norm": model.qk_norm == "l2",
        "attn_temperature_tuning": law is not None,
        **growth,
    }


LAYERS = Group(
    (
        "no_rope_layers",
        "no_rope_layer_interval",
        SIZE,
        "layer_types",
        "use_qk_norm",
        "attn_temperature_tuning",
        "attn_scale",
        "floor_scale",
    ),
    _read_layers,
    _write_layers,
    {"attention_temperature.every": "floor_scale", "attention_temperature.strength": "attn_scale"},
)

EXPERTS = mixture(
    {
        "num_experts": ("num_local_experts", 16),
        "top_k": ("num_experts_per_tok", 1),
        "intermediate_size": ("intermediate_size", 8192),
    },
    fixed={"scores": "sigmoid", "normalize": False, "weigh_inputs": True},
)


def _read_experts(config: Mapping[str, Any]) -> dict[str, Any]:
    layers, step = config["num_hidden_layers"], stated(config, "interleave_moe_layer_step", 1)
    placed = stated(config, "moe_layers", range(step - 1, layers, step))
    flags = tuple(layer in placed for layer in range(layers))
    if not any(flags):
        return {"mixture": None}
    width = stated(config, "intermediate_size", 8192)
    fixed = {"shared": SharedExpert(intermediate_size=width), **({} if all(flags) else {"layers": flags})}
    return {"mixture": replace(EXPERTS.read(config)["mixture"], **fixed)}


def _write_experts(model: CausalTransformer) -> dict[str, Any]:
    held = model.mixture
    placed = [layer for layer in range(model.num_layers) if held is not None and held.at(layer)]
    return {"moe_layers": placed, **EXPERTS.write(model)}


FAMILY = Family(
    model_type="llama4_text",
    architecture="Llama4ForCausalLM",
    precedence=480,
    fields=(
        Field("vocab_size", "vocab_size"),
        Field("hidden_size", "hidden_size"),
        Field("intermediate_size_mlp", "intermediate_size", 16384),
        Field("num_hidden_layers", "num_layers"),
        Field("num_attention_heads", "num_heads"),
        kv_heads(8),
        Field("head_dim", "head_dim", 128),
        activation(FUSED),
        epsilon(1e-5),
        rotary(theta=500000.0),
        LAYERS,
        Group(
            (*EXPERTS.names, "moe_layers", "interleave_moe_layer_step"),
            _read_experts,
            _write_experts,
            EXPERTS.spelled,
        ),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
    ),
    rows=(
        *OUTER,
        *NORMS,
        *ATTENTION,
        *(
            row
            for name, own in (("", ""), ("shared_expert.", "shared_expert/"))
            for each in PROJECTIONS
            for row in linear(f"{LAYER}.feed_forward.{name}{each}", f"{OWN}/mlp/{own}{each}")
        ),
        *linear(f"{LAYER}.feed_forward.router", f"{OWN}/mlp/gate"),
        Row(
            f"{LAYER}.feed_forward.experts.gate_up_proj",
            (f"{OWN}/mlp/experts_gate_proj", f"{OWN}/mlp/experts_up_proj"),
            COLUMNS,
        ),
        Row(f"{LAYER}.feed_forward.experts.down_proj", (f"{OWN}/mlp/experts_down_proj",)),
    ),
    always={"rotary.pairs": "neighbours"},
    off={"for_llm_compressor": False},
    ignored=(*AUXILIARY, "router_jitter_noise"),
    gated=False,
)
