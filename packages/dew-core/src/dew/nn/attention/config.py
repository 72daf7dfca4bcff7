"""The names of the attention kernels, importable without JAX."""

from __future__ import annotations

from typing import Literal

#: What a model's `attention_impl` may name; `auto` is resolved each time a function is traced.
AttentionImpl = Literal["auto", "reference", "xla", "cudnn", "tpu"]
