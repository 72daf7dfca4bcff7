"""Decoders of about 30 million parameters that the benchmarks compare with transformers."""

from __future__ import annotations

from typing import Any

import decoder

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.backbones.causal_transformer.config import Scales
from dew.nn.moe.config import Mixture

VOCAB = 8192
SHARED: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 512, "num_layers": 6, "max_seq_len": 1024}
FIELDS: dict[str, dict[str, Any]] = {
    "llama-30m": {**SHARED, "num_heads": 8, "num_kv_heads": 4, "intermediate_size": 1536},
    "mixtral-30m": {
        **SHARED,
        "hidden_size": 384,
        "num_heads": 6,
        "num_kv_heads": 2,
        "intermediate_size": 384,
        "mixture": Mixture(num_experts=8, top_k=2),
    },
    "gemma-30m": {
        **SHARED,
        "num_layers": 8,
        "num_heads": 4,
        "num_kv_heads": 1,
        "head_dim": 128,
        "intermediate_size": 1536,
        "activation": "geglu",
        "tie_embeddings": True,
        "norm_kind": "rms_offset",
        "scales": Scales(embedding=512**0.5),
    },
}
NAMES = ("small", *FIELDS)
ROWS = {"small": decoder.ROWS} | dict.fromkeys(FIELDS, 4)


def model(name: str) -> Any:
    """The model called `name`."""
    return decoder.objective().model if name == "small" else CausalTransformer(**FIELDS[name])


def described(name: str) -> dict[str, Any]:
    """What a result says of it."""
    fields = {key: value for key, value in FIELDS[name].items() if isinstance(value, (int, str))}
    return {**fields, "batch": [ROWS[name], decoder.LENGTH], "dtype": "float32", "optimizer": "adamw"}
