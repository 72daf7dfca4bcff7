"""Which published architecture computes what a `CausalTransformer` computes, and the fields that say so.

All of them share Llama's tensor names. They differ in what their configuration can express:

| model                                                | architecture           |
|------------------------------------------------------|------------------------|
| gated, no window                                     | `LlamaForCausalLM`     |
| `relu2`, no window                                   | `ArceeForCausalLM`     |
| a window in every layer, or heads that do not divide | `MistralForCausalLM`   |
| a window in some layers                              | `MinistralForCausalLM` |
| normalized queries and keys                          | `Qwen3ForCausalLM`     |

Arcee alone has a feed-forward block without a gate. Elsewhere `relu2` is written as a gated block with
`hidden_act="relu"` whose gate and up projections are the same matrix: `relu(z) * z = relu(z)^2`, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.backbones.causal_transformer.sizes import feed_forward_width, windows

GATED = {"swiglu": "silu", "geglu": "gelu_pytorch_tanh"}
"""The gate's nonlinearity under the name transformers gives it."""
CLASSES = {
    "llama": "LlamaForCausalLM",
    "arcee": "ArceeForCausalLM",
    "mistral": "MistralForCausalLM",
    "ministral": "MinistralForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Model type -> the class that reads it."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a model is published.

    Attributes:
        model_type: the architecture, a key of `CLASSES`.
        doubled: the up projection is also written as the gate.
        fields: `config.json`, without the tokens' ids and the dtype.
    """

    model_type: str
    doubled: bool
    fields: Mapping[str, Any]


def layout_of(model: object) -> Layout:
    """The layout of `model`.

    Raises:
        ValueError: a model that no published architecture computes; the message names the field.
    """
    if not isinstance(model, CausalTransformer):
        raise ValueError(f"model {type(model).__name__} has no published layout; causal_transformer has one")
    _refuse_what_no_layout_has(model)
    model_type = _model_type(model)
    doubled = model.activation == "relu2" and model_type != "arcee"
    fields = {
        "architectures": [CLASSES[model_type]],
        "model_type": model_type,
        **_sizes(model),
        "hidden_act": _hidden_act(model, doubled),
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tie_embeddings,
        "attention_bias": False,
        "attention_dropout": 0.0,
        **_extra(model, model_type),
    }
    return Layout(model_type=model_type, doubled=doubled, fields=fields)


def _refuse_what_no_layout_has(model: CausalTransformer) -> None:
    for name in ("attn_logit_softcap", "final_logit_softcap"):
        value = getattr(model, name)
        if value is not None:
            raise ValueError(
                f"model.config {name}={value} has no published layout: no architecture with this decoder's "
                "norms bounds its scores; train without it to export"
            )
    if model.mixture is not None:
        raise ValueError(
            f"model.config mixture={model.mixture} is not written to a published layout by this version; "
            "train without it to export"
        )
    if not model.causal:
        raise ValueError("causal=False has no published layout: the architectures here decode causally")


def _model_type(model: CausalTransformer) -> str:
    spans = _spans(model)
    divides = model.hidden_size % model.num_heads == 0
    if model.qk_norm:
        return "qwen3"
    if None in spans and any(spans):
        return "ministral"
    if any(spans) or not divides:
        return "mistral"
    return "arcee" if model.activation == "relu2" else "llama"


def _spans(model: CausalTransformer) -> tuple[int | None, ...]:
    return windows(model.num_layers, model.sliding_window, model.sliding_layers)


def _hidden_act(model: CausalTransformer, doubled: bool) -> str:
    if model.activation == "relu2":
        return "relu" if doubled else "relu2"
    return GATED[model.activation]


def _sizes(model: CausalTransformer) -> dict[str, int]:
    width = model.intermediate_size
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": feed_forward_width(model.hidden_size, model.activation)
        if width is None
        else width,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_width,
        "max_position_embeddings": model.max_seq_len,
    }


def _extra(model: CausalTransformer, model_type: str) -> dict[str, Any]:
    """The fields that one architecture has and another lacks."""
    spans = _spans(model)
    kinds = ["full_attention" if span is None else "sliding_attention" for span in spans]
    window = next(filter(None, spans), None)
    match model_type:
        case "mistral":
            return {"sliding_window": window}
        case "ministral":
            return {"sliding_window": window, "layer_types": kinds}
        case "qwen3":
            used = {"use_sliding_window": window is not None, "sliding_window": window}
            return {**used, "layer_types": kinds}
        case _:
            return {"mlp_bias": False}
