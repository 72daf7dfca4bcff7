"""SmolLM3: Llama with layers whose heads do not turn (arXiv 2501.18795)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dew.interop.decoders.family import Family, Field, Group
from dew.interop.decoders.llama_parts import ROWS, SIZES, activation, epsilon, kv_heads, tied
from dew.interop.decoders.rotary_fields import rotary
from dew.interop.decoders.window_fields import every, windows_by_layer
from dew.nn.backbones.causal_transformer import CausalTransformer


def turned(config: Mapping[str, Any]) -> Sequence[bool]:
    """Which layers turn: those with a 1 in `no_rope_layers`, or all but each `no_rope_layer_interval`-th."""
    stated = config.get("no_rope_layers")
    if stated is None:
        return every("no_rope_layer_interval", 4)(config)
    return [bool(flag) for flag in stated]


WINDOWS = windows_by_layer(
    default=None, pattern=lambda config: [not flag for flag in turned(config)], switch=True
)


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    flags = turned(config)
    if len(flags) < config["num_hidden_layers"]:
        raise ValueError(f"config.json no_rope_layers names {len(flags)} layers, fewer than there are")
    own = {} if all(flags) else {"rotary.layers": tuple(flags[: config["num_hidden_layers"]])}
    return own | WINDOWS.read(config)


def _write(model: CausalTransformer) -> dict[str, Any]:
    flags = [int(model.rotary.at(layer)) for layer in range(model.num_layers)]
    return {"no_rope_layers": flags, **WINDOWS.write(model)}


FAMILY = Family(
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    precedence=330,
    fields=(
        *SIZES,
        kv_heads(4),
        activation(),
        epsilon(1e-6),
        rotary(theta=2_000_000.0),
        Group(("no_rope_layers", "no_rope_layer_interval", *WINDOWS.names), _read, _write),
        tied(True),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
        Field("mlp_bias", "bias.mlp", False),
    ),
    rows=ROWS,
    always={},
    off={},
    ignored=("max_window_layers", "pretraining_tp"),
)
