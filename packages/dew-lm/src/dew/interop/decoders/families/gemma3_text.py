"""Gemma 3's text model (arXiv 2503.19786): five layers with a window, of another base, to one without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.interop.decoders.exact import inverse_root, root_of
from dew.interop.decoders.families.gemma import EMBEDDING_SCALE, TANH
from dew.interop.decoders.family import Family, Field, Group
from dew.interop.decoders.llama_parts import ROWS, SIZES, activation, epsilon, kv_heads, tied
from dew.interop.decoders.rotary_fields import (
    LONGEST,
    MESSAGES,
    longest,
    scaling_of,
    spelled_out,
    written_scaling,
)
from dew.interop.decoders.window_fields import FULL, SLIDING, every, windows_by_layer
from dew.nn.backbones.causal_transformer import CausalTransformer

WINDOWS = windows_by_layer(default=4096, pattern=every("sliding_window_pattern", 6))
GLOBAL, LOCAL = 1_000_000.0, 10_000.0
"""The bases of a file that says none."""


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    own = WINDOWS.read(config) | {"max_seq_len": longest(config)}
    stated: Mapping[str, Any] = config.get("rope_parameters") or {}
    by_kind = {name: value for name, value in stated.items() if value is not None}
    if by_kind and not set(by_kind) <= {FULL, SLIDING}:
        raise ValueError(f"config.json rope_parameters={dict(by_kind)} must name {FULL} and {SLIDING}")
    local = dict(by_kind.get(SLIDING) or {})
    local_theta = local.pop("rope_theta", None) or config.get("rope_local_base_freq") or LOCAL
    if scaling_of(local, config) is not None:
        raise ValueError(
            f"config.json rope_parameters {SLIDING}={local}: layers with a window are not scaled"
        )
    whole = spelled_out({**config, "rope_parameters": by_kind.get(FULL)})
    theta = whole.pop("rope_theta", None) or config.get("rope_theta") or GLOBAL
    own |= {"rope_theta": float(theta), "rotary.scaling": scaling_of(whole, config)}
    return own | ({"rotary.local_theta": float(local_theta)} if own.get("sliding_window") else {})


def _write(model: CausalTransformer) -> dict[str, Any]:
    scaling = written_scaling(model.rotary.scaling)
    return {
        **WINDOWS.write(model),
        LONGEST: model.max_seq_len,
        "rope_theta": model.rope_theta,
        "rope_local_base_freq": model.rotary.local_theta or LOCAL,
        **({"rope_scaling": scaling} if scaling else {}),
    }


POSITIONS = Group(
    (
        LONGEST,
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "rope_local_base_freq",
        "sliding_window_pattern",
        *WINDOWS.names,
    ),
    _read,
    _write,
    {**MESSAGES, "rotary.local_theta": "rope_local_base_freq"},
)
FAMILY = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    precedence=130,
    fields=(
        *SIZES,
        kv_heads(4),
        Field("head_dim", "head_dim", 256),
        activation(name="hidden_activation", default=TANH),
        epsilon(1e-6),
        POSITIONS,
        EMBEDDING_SCALE,
        tied(True),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
        Field("query_pre_attn_scalar", "scales.attention", 256, inverse_root, root_of),
        Field("final_logit_softcapping", "final_logit_softcap", None, nullable=True),
    ),
    rows=ROWS,
    always={"norm_kind": "rms_offset", "block": "sandwich", "qk_norm": True},
    # transformers carries the cap of the attention scores and does not apply it.
    off={"attn_logit_softcapping": None, "use_bidirectional_attention": False},
    ignored=("_sliding_window_pattern", "cache_implementation"),
    whole_heads=True,
)
