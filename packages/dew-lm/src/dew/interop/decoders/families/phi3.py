"""Phi-3 (arXiv 2404.14219) and Phi-4-mini: fused projections, LongRoPE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.interop.decoders.family import Family, Group, fused, linear
from dew.interop.decoders.llama_parts import (
    FUSED,
    KV_HEADS,
    LAYER,
    NORMS,
    OUTER,
    OWN,
    SIZES,
    activation,
    epsilon,
    tied,
)
from dew.interop.decoders.rotary_fields import rotary
from dew.interop.decoders.window_fields import window_everywhere
from dew.nn.backbones.causal_transformer import CausalTransformer

ORIGINAL = "original_max_position_embeddings"
PLAIN = rotary(fraction=1.0)


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    scaling = config.get("rope_scaling")
    if scaling and scaling.get("type") in ("su", "yarn"):
        # Older names of what the family calls longrope.
        config = {**config, "rope_scaling": {**scaling, "type": "longrope"}}
    return PLAIN.read(config)


def _write(model: CausalTransformer) -> dict[str, Any]:
    written = PLAIN.write(model)
    scaling = model.rotary.scaling
    if scaling is None:
        return written | {ORIGINAL: model.max_seq_len}
    if scaling.kind == "longrope" and scaling.original_length is not None:
        told = dict(written["rope_scaling"])
        told.pop(ORIGINAL)
        if scaling.factor == model.max_seq_len / scaling.original_length:
            told.pop("factor")
        written["rope_scaling"] = {"type": told.pop("rope_type"), **told}
    return written | {ORIGINAL: scaling.original_length}


FAMILY = Family(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    precedence=310,
    fields=(
        *SIZES,
        KV_HEADS,
        activation(FUSED),
        epsilon(1e-5),
        Group((*PLAIN.names, ORIGINAL), _read, _write, PLAIN.spelled),
        window_everywhere(None),
        tied(False),
    ),
    rows=(
        *OUTER,
        *NORMS,
        *fused(f"{LAYER}.self_attn.qkv_proj", tuple(f"{OWN}/self_attn/{name}_proj" for name in "qkv")),
        *linear(f"{LAYER}.self_attn.o_proj", f"{OWN}/self_attn/o_proj"),
        *fused(f"{LAYER}.mlp.gate_up_proj", (f"{OWN}/mlp/gate_proj", f"{OWN}/mlp/up_proj")),
        *linear(f"{LAYER}.mlp.down_proj", f"{OWN}/mlp/down_proj"),
    ),
    always={},
    off={"attention_bias": False, "mlp_bias": False, "lm_head_bias": False, "full_attn_mod": 1},
    ignored=("embd_pdrop", "resid_pdrop", "interpolate_factor"),
    gated=False,
)
