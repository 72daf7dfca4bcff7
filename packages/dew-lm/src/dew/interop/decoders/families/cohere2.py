"""Command R7B and Command A (arXiv 2504.00698): one norm for attention and feed-forward in parallel; heads
turn in layers with a window alone.
"""

from __future__ import annotations

from dew.interop.decoders.family import Family, Field
from dew.interop.decoders.llama_parts import KV_HEADS, ROWS, SIZES, activation, epsilon, tied
from dew.interop.decoders.rotary_fields import rotary
from dew.interop.decoders.window_fields import every, windows_by_layer

FAMILY = Family(
    model_type="cohere2",
    architecture="Cohere2ForCausalLM",
    precedence=360,
    fields=(
        *SIZES,
        KV_HEADS,
        activation(),
        epsilon(1e-5, "layer_norm_eps"),
        rotary(),
        windows_by_layer(
            default=4096,
            pattern=every("sliding_window_pattern", 4),
            others=("sliding_window_pattern",),
            turned=True,
        ),
        tied(True),
        Field("attention_bias", ("bias.qkv", "bias.output"), False),
        Field("logit_scale", "scales.logits", 0.0625),
    ),
    rows=ROWS,
    always={"block": "parallel_shared", "norm_kind": "layer_scale", "rotary.pairs": "neighbours"},
    off={
        "layer_switch": 4,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_qk_norm": False,
    },
    ignored=(
        "_sliding_window_pattern",
        "cache_implementation",
        "head_dim",
        "use_embedding_sharing",
        "use_parallel_embedding",
    ),
)
