"""Fields and tensors that most families took over from Llama."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dew.interop.decoders.family import Field, Row, linear, norm

GATED = MappingProxyType(
    {
        "silu": "swiglu",
        "gelu_pytorch_tanh": "geglu",
        "gelu_new": "geglu",
        "gelu": "geglu_erf",
        "relu": "relu2",
    }
)
"""A gate's nonlinearity -> the block. `relu` gates by its own input, which the tensors must bear out."""
FUSED = MappingProxyType({name: own for name, own in GATED.items() if own != "relu2"})
"""The same where one tensor holds gate and up projection, so that they are two."""
PLAIN = MappingProxyType(
    {
        "gelu_new": "gelu",
        "gelu_pytorch_tanh": "gelu",
        "gelu_fast": "gelu",
        "gelu": "gelu_erf",
        "relu2": "relu2",
    }
)
"""A nonlinearity -> the block without a gate."""

SIZES = (
    Field("vocab_size", "vocab_size"),
    Field("hidden_size", "hidden_size"),
    Field("intermediate_size", "intermediate_size"),
    Field("num_hidden_layers", "num_layers"),
    Field("num_attention_heads", "num_heads"),
)
KV_HEADS = Field("num_key_value_heads", "num_kv_heads", None)
"""As many as query heads in a file that does not say."""
HEAD_DIM = Field("head_dim", "head_dim", None)


def kv_heads(default: int) -> Field:
    """The number of key heads, in a family with a number of its own for files that do not say."""
    return Field("num_key_value_heads", "num_kv_heads", default, nullable=True)


def epsilon(default: float, name: str = "rms_norm_eps") -> Field:
    """The norms' epsilon."""
    return Field(name, "norm_eps", default)


def tied(default: bool) -> Field:
    """Whether the head is the embedding."""
    return Field("tie_word_embeddings", "tie_embeddings", default)


def activation(table: Mapping[str, str] = GATED, *, name: str = "hidden_act", default: Any = "silu") -> Field:
    """The feed-forward block; written as the first name that means it."""
    spelled = {own: published for published, own in reversed(list(table.items()))}
    return Field(name, "activation", default, _Known(table).read, _Known(spelled).read)


class _Known:
    """A table whose misses say what it holds."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self.table = table

    def read(self, name: Any) -> str:
        if name not in self.table:
            raise KeyError(f"{', '.join(self.table)} are")
        return self.table[name]


OUTER = (
    Row("model.embed_tokens.weight", ("embed_tokens/embedding",)),
    *norm("model.norm", "norm"),
    *linear("lm_head", "lm_head"),
)
LAYER, OWN = "model.layers.{layer}", "layers_{layer}"
ATTENTION = tuple(
    row
    for name in ("q_proj", "k_proj", "v_proj", "o_proj")
    for row in linear(f"{LAYER}.self_attn.{name}", f"{OWN}/self_attn/{name}")
)
QK_NORMS = tuple(
    row
    for name in ("q_norm", "k_norm")
    for row in norm(f"{LAYER}.self_attn.{name}", f"{OWN}/self_attn/{name}")
)
MLP = tuple(
    row
    for name in ("gate_proj", "up_proj", "down_proj")
    for row in linear(f"{LAYER}.mlp.{name}", f"{OWN}/mlp/{name}")
)
LAYER_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
NORMS = tuple(row for name in LAYER_NORMS for row in norm(f"{LAYER}.{name}", f"{OWN}/{name}"))
ROWS = (*OUTER, *NORMS, *ATTENTION, *QK_NORMS, *MLP)
"""Llama's tensors; a model has those of them whose leaves it has."""
