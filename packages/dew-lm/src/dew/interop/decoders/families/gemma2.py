"""Gemma 2 (arXiv 2408.00118): norms before and after each block, caps, windows in every other layer."""

from __future__ import annotations

from dew.interop.decoders.exact import inverse_root, root_of
from dew.interop.decoders.families.gemma import EMBEDDING_SCALE, TANH
from dew.interop.decoders.family import Family, Field
from dew.interop.decoders.llama_parts import ROWS, SIZES, activation, epsilon, kv_heads, tied
from dew.interop.decoders.rotary_fields import rotary
from dew.interop.decoders.window_fields import every, windows_by_layer

FAMILY = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    precedence=120,
    fields=(
        *SIZES,
        kv_heads(4),
        Field("head_dim", "head_dim", 256),
        activation(name="hidden_activation", default=TANH),
        epsilon(1e-6),
        rotary(),
        windows_by_layer(default=4096, pattern=every("", 2)),
        EMBEDDING_SCALE,
        tied(True),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
        Field("query_pre_attn_scalar", "scales.attention", 256, inverse_root, root_of),
        Field("attn_logit_softcapping", "attn_logit_softcap", 50.0, nullable=True),
        Field("final_logit_softcapping", "final_logit_softcap", 30.0, nullable=True),
    ),
    rows=ROWS,
    always={"norm_kind": "rms_offset", "block": "sandwich"},
    off={"use_bidirectional_attention": False},
    ignored=("cache_implementation", "hidden_act"),
    whole_heads=True,
)
