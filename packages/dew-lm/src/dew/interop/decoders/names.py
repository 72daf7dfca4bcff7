"""The names of the families, importable without JAX."""

from __future__ import annotations

MODEL_TYPES = (
    "arcee",
    "cohere2",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "llama",
    "llama4_text",
    "ministral",
    "mistral",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "smollm3",
)
"""Each is a module of `dew.interop.decoders.families` with a `FAMILY`, and a name of the reader."""
