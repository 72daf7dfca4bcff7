"""Small configurations of every family of decoders, and what is altered in each to see that it matters.

A default configuration proves little: at transformers' own initialization, a wrong rotary scaling moves the
logits by 1e-5. These settings are wide enough that an altered field moves them far beyond rounding. Read by
`tools/make_family_golden.py` and by the tests of `dew.interop.decoders`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}
LONG = {
    "type": "longrope",
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [1.2, 2.0, 5.0, 9.0],
}
SIZES: Mapping[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-2,
    "tie_word_embeddings": False,
    # torch gives the vector of a padding token no gradient, which is no part of the function.
    "pad_token_id": None,
}
SCOUT = {**LLAMA3, "high_freq_factor": 1.0}
"""No ramp between the two wavelengths, as Llama 4 Scout has it."""
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
SHAPES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "intermediate_size_mlp",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "n_embd",
    "n_layer",
    "n_inner",
    "n_positions",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "n_shared_experts",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "mlp_only_layers",
    "decoder_sparse_step",
    "first_k_dense_replace",
    "moe_layers",
    "interleave_moe_layer_step",
    "qkv_bias",
    "use_qk_norm",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "index_n_heads",
    "index_head_dim",
)
"""Fields that say which tensors there are: altered, they are refused by the tensors' names or shapes."""
LENGTHS = ("max_position_embeddings",)
"""Fields that say how long a row may be."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A configuration of transformers, and alterations of it.

    Attributes:
        config: name of the configuration class.
        fields: of it.
        altered: what is altered, one after another; each must move the logits by 100 tolerances.
        weak: alterations out of that reach (forms of GELU), which must move them by more than a tolerance;
            the functions are also tested by themselves.
        refused: values that other models have, and this decoder does not compute.
        tokens: of a row.
        offset: norms' scales count from 1.
        experts: weights are drawn under the names of the saved file, which holds experts apart.
    """

    config: str
    fields: Mapping[str, Any]
    altered: tuple[Mapping[str, Any], ...] = ()
    weak: tuple[Mapping[str, Any], ...] = ()
    refused: tuple[Mapping[str, Any], ...] = ()
    tokens: int = 40
    offset: bool = False
    experts: bool = False


def llama_like(*leave: str, **changed: Any) -> dict[str, Any]:
    """`SIZES` with changes, and without some fields."""
    return {name: value for name, value in (SIZES | changed).items() if name not in leave}


GEMMA = llama_like(head_dim=16, tie_word_embeddings=True, query_pre_attn_scalar=24, sliding_window=5)
TANH, ERF = "gelu_pytorch_tanh", "gelu"

DEEPSEEK = llama_like(
    num_key_value_heads=4,
    rope_theta=1e4,
    kv_lora_rank=32,
    q_lora_rank=24,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=12,
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=48,
    n_shared_experts=2,
    first_k_dense_replace=1,
    n_group=4,
    topk_group=2,
    routed_scaling_factor=1.7,
)
"""Latent attention, and 8 experts in 4 groups of 2, of which a token's 3 come from the best 2."""
NARROW = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
WIDE = {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}
INDEXED = {"index_n_heads": 8, "index_head_dim": 16, "index_topk": 8}
"""With fewer heads the ReLU leaves exact zeros, and the order of ties decides."""
ROUTED = (
    {"num_experts_per_tok": 2},
    {"first_k_dense_replace": 2},
    {"topk_group": 3},
    {"n_group": 2},
    {"routed_scaling_factor": 1.0},
)
"""Alterations of a mixture that leave its tensors, but for `first_k_dense_replace`."""

CASES: Mapping[str, Case] = {
    "llama": Case(
        config="LlamaConfig",
        fields=llama_like(rope_theta=10000.0, rope_scaling=LLAMA3),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"rope_scaling": None},
            {"rope_scaling": {**LLAMA3, "factor": 32.0}},
            {"rope_scaling": {**LLAMA3, "low_freq_factor": 2.0}},
            {"rope_scaling": {**LLAMA3, "high_freq_factor": 8.0}},
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 32}},
            {"rope_scaling": None, "rope_parameters": {**LLAMA3, "rope_theta": 20000.0}},
        ),
    ),
    "llama_biased_tied": Case(
        config="LlamaConfig",
        fields=llama_like(tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    ),
    "llama_linear": Case(
        config="LlamaConfig",
        fields=llama_like(rope_scaling={"rope_type": "linear", "factor": 4.0}),
        altered=({"rope_scaling": {"rope_type": "linear", "factor": 2.0}},),
    ),
    "llama_dynamic": Case(
        config="LlamaConfig",
        fields=llama_like(max_position_embeddings=32, rope_scaling={"rope_type": "dynamic", "factor": 4.0}),
        altered=({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},),
    ),
    "llama_yarn": Case(
        config="LlamaConfig",
        fields=llama_like(head_dim=32, rope_scaling=YARN),
        altered=(
            {"rope_scaling": {**YARN, "factor": 8.0}},
            {"rope_scaling": {**YARN, "original_max_position_embeddings": 32}},
            {"rope_scaling": {**YARN, "beta_fast": 32.0}},
            {"rope_scaling": {**YARN, "beta_slow": 0.5}},
            {"rope_scaling": {**YARN, "attention_factor": 1.5}},
            {"rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 2.0}},
            {"rope_scaling": {**YARN, "truncate": False}},
        ),
        tokens=80,
    ),
    "arcee": Case(
        config="ArceeConfig",
        fields=llama_like(hidden_act="relu2", rope_theta=10000.0),
        altered=({"rms_norm_eps": 2e-2}, {"rope_theta": 20000.0}),
        refused=({"hidden_act": "relu"},),
    ),
    "mistral": Case(
        config="MistralConfig",
        fields=llama_like(head_dim=24, sliding_window=5, rope_theta=10000.0),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"sliding_window": 4},
            {"sliding_window": 6},
            {"sliding_window": None},
        ),
    ),
    "ministral": Case(
        config="MinistralConfig",
        fields=llama_like(
            head_dim=24, sliding_window=5, layer_types=[SLIDING, FULL, FULL, SLIDING], rope_theta=10000.0
        ),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"sliding_window": 6},
            {"layer_types": [FULL, SLIDING, SLIDING, FULL]},
        ),
    ),
    "qwen2": Case(
        config="Qwen2Config",
        fields=llama_like(use_sliding_window=True, sliding_window=5, max_window_layers=2, rope_theta=1e4),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"use_sliding_window": False},
            {"sliding_window": 6},
            {"max_window_layers": 3},
            {"layer_types": [SLIDING, FULL, FULL, SLIDING]},
        ),
    ),
    "qwen3": Case(
        config="Qwen3Config",
        fields=llama_like(
            head_dim=24, use_sliding_window=True, sliding_window=5, max_window_layers=2, rope_theta=1e4
        ),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"use_sliding_window": False},
            {"sliding_window": 6},
            {"max_window_layers": 3},
            {"layer_types": [SLIDING, FULL, FULL, SLIDING]},
        ),
    ),
    "gemma": Case(
        config="GemmaConfig",
        fields=llama_like(head_dim=24, tie_word_embeddings=True, hidden_act=TANH, rope_theta=10000.0),
        altered=({"rms_norm_eps": 5e-1}, {"rope_theta": 20000.0}),
        weak=({"hidden_act": ERF},),
        offset=True,
    ),
    "gemma2": Case(
        config="Gemma2Config",
        fields={
            **GEMMA,
            "hidden_activation": TANH,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
            "rope_theta": 10000.0,
        },
        altered=(
            {"rms_norm_eps": 5e-1},
            {"rope_theta": 20000.0},
            {"query_pre_attn_scalar": 16},
            {"attn_logit_softcapping": None},
            {"final_logit_softcapping": None},
            {"sliding_window": 6},
            {"layer_types": [FULL, SLIDING, FULL, SLIDING]},
        ),
        weak=({"hidden_activation": ERF},),
        offset=True,
    ),
    "gemma3_text": Case(
        config="Gemma3TextConfig",
        fields={
            **GEMMA,
            "num_hidden_layers": 6,
            "hidden_activation": TANH,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "final_logit_softcapping": 8.0,
        },
        altered=(
            {"rms_norm_eps": 5e-1},
            {"rope_theta": 1e3},
            {"rope_local_base_freq": 1e3},
            {"rope_scaling": None},
            {"query_pre_attn_scalar": 16},
            {"final_logit_softcapping": None},
            {"sliding_window": 6},
            {"sliding_window_pattern": 3},
            {"layer_types": [FULL] * 6},
            {
                "rope_scaling": None,
                "rope_parameters": {
                    FULL: {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
                    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
                },
            },
        ),
        refused=({"attn_logit_softcapping": 5.0}, {"use_bidirectional_attention": True}),
        weak=({"hidden_activation": ERF},),
        offset=True,
    ),
    "gpt2": Case(
        config="GPT2Config",
        fields={
            "vocab_size": 97,
            "n_positions": 128,
            "n_embd": 64,
            "n_layer": 4,
            "n_head": 4,
            "n_inner": 96,
            "layer_norm_epsilon": 1e-2,
            "scale_attn_by_inverse_layer_idx": True,
        },
        altered=(
            {"layer_norm_epsilon": 5e-2},
            {"n_head": 2},
            {"scale_attn_weights": False},
            {"scale_attn_by_inverse_layer_idx": False},
        ),
        weak=({"activation_function": ERF},),
    ),
    "gpt_neox": Case(
        config="GPTNeoXConfig",
        fields=llama_like(
            "rms_norm_eps", "num_key_value_heads", layer_norm_eps=1e-2, rotary_pct=0.25, rotary_emb_base=1e4
        ),
        altered=(
            {"layer_norm_eps": 5e-2},
            {"num_attention_heads": 2},
            {"use_parallel_residual": False},
            {"rotary_pct": 0.5},
            {"rotary_emb_base": 100.0},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        ),
        weak=({"hidden_act": TANH},),
    ),
    "gpt_neox_sequential": Case(
        config="GPTNeoXConfig",
        fields=llama_like(
            "rms_norm_eps",
            "num_key_value_heads",
            layer_norm_eps=1e-2,
            use_parallel_residual=False,
            attention_bias=False,
            rotary_pct=0.5,
        ),
        altered=({"use_parallel_residual": True},),
    ),
    "phi3": Case(
        config="Phi3Config",
        fields=llama_like(
            rope_theta=1e4,
            partial_rotary_factor=0.5,
            original_max_position_embeddings=32,
            rope_scaling=LONG,
        ),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"partial_rotary_factor": 0.75, "rope_scaling": None},
            {"original_max_position_embeddings": 16},
            {"max_position_embeddings": 64},
            {"rope_scaling": {**LONG, "long_factor": [1.2, 2.0, 5.0, 4.0]}},
            {"rope_scaling": None},
            {"sliding_window": 5},
            {
                "rope_scaling": None,
                "rope_parameters": {**LONG, "rope_type": "longrope", "attention_factor": 2.0},
            },
        ),
    ),
    "phi3_short": Case(
        config="Phi3Config",
        fields=llama_like(
            rope_theta=1e4,
            partial_rotary_factor=0.5,
            original_max_position_embeddings=64,
            rope_scaling=LONG,
            sliding_window=5,
        ),
        altered=(
            {"rope_scaling": {**LONG, "short_factor": [2.0, 1.5, 2.0, 3.0]}},
            {"rope_scaling": {**LONG, "factor": 8.0}},
            {"sliding_window": 6},
        ),
    ),
    "olmo2": Case(
        config="Olmo2Config",
        fields=llama_like(rope_theta=1e4),
        altered=({"rms_norm_eps": 5e-1}, {"hidden_act": TANH}, {"rope_theta": 20000.0}),
    ),
    "smollm3": Case(
        config="SmolLM3Config",
        fields=llama_like(
            rope_theta=1e4,
            no_rope_layers=[1, 1, 0, 1],
            use_sliding_window=True,
            sliding_window=5,
        ),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"no_rope_layers": [1, 1, 1, 1]},
            {"no_rope_layers": None, "no_rope_layer_interval": 2},
            {"use_sliding_window": False},
            {"sliding_window": 6},
            {"layer_types": [SLIDING, FULL, SLIDING, FULL]},
        ),
    ),
    "granite": Case(
        config="GraniteConfig",
        fields=llama_like(
            rope_theta=1e4,
            embedding_multiplier=3.0,
            residual_multiplier=0.5,
            attention_multiplier=0.1,
            logits_scaling=4.0,
        ),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"embedding_multiplier": 2.0},
            {"residual_multiplier": 1.0},
            {"attention_multiplier": 0.25},
            {"logits_scaling": 8.0},
        ),
    ),
    "glm4": Case(
        config="Glm4Config",
        fields=llama_like(head_dim=24, rope_theta=1e4, partial_rotary_factor=0.5),
        altered=(
            {"rms_norm_eps": 5e-1},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"partial_rotary_factor": 1.0},
        ),
    ),
    "cohere2": Case(
        config="Cohere2Config",
        fields=llama_like(
            "rms_norm_eps",
            layer_norm_eps=1e-2,
            sliding_window=5,
            tie_word_embeddings=True,
            logit_scale=0.25,
            rope_theta=1e4,
            layer_types=[SLIDING, FULL, SLIDING, SLIDING],
        ),
        altered=(
            {"layer_norm_eps": 5e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"sliding_window": 6},
            {"logit_scale": 0.5},
            {"layer_types": [SLIDING, SLIDING, SLIDING, FULL]},
            {"layer_types": None, "sliding_window_pattern": 2},
        ),
    ),
    "mixtral": Case(
        config="MixtralConfig",
        fields=llama_like(sliding_window=5, num_local_experts=6, num_experts_per_tok=2, rope_theta=1e6),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"sliding_window": 4},
            {"sliding_window": 6},
            {"sliding_window": None},
            {"num_experts_per_tok": 3},
        ),
        experts=True,
    ),
    "qwen2_moe": Case(
        config="Qwen2MoeConfig",
        fields=llama_like(
            use_sliding_window=True,
            sliding_window=5,
            max_window_layers=2,
            rope_theta=1e4,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=48,
            shared_expert_intermediate_size=40,
            norm_topk_prob=False,
            mlp_only_layers=[1],
        ),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"use_sliding_window": False},
            {"sliding_window": 6},
            {"max_window_layers": 3},
            {"layer_types": [FULL, SLIDING, FULL, SLIDING]},
            {"num_experts_per_tok": 3},
            {"norm_topk_prob": True},
        ),
        experts=True,
    ),
    "qwen3_moe": Case(
        config="Qwen3MoeConfig",
        fields=llama_like(
            head_dim=24,
            use_sliding_window=True,
            sliding_window=5,
            rope_theta=1e4,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=48,
            norm_topk_prob=False,
            mlp_only_layers=[1],
        ),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"use_sliding_window": False},
            {"sliding_window": 6},
            {"num_experts_per_tok": 3},
            {"norm_topk_prob": True},
        ),
        experts=True,
    ),
    "qwen3_moe_normalized": Case(
        config="Qwen3MoeConfig",
        fields=llama_like(
            head_dim=24,
            rope_theta=1e4,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=48,
            norm_topk_prob=True,
            decoder_sparse_step=2,
            attention_bias=True,
            tie_word_embeddings=True,
        ),
        altered=({"norm_topk_prob": False},),
        experts=True,
    ),
    "glm4_moe": Case(
        config="Glm4MoeConfig",
        fields=llama_like(
            head_dim=16,
            partial_rotary_factor=0.5,
            rope_theta=1e4,
            use_qk_norm=True,
            attention_bias=True,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=48,
            n_shared_experts=1,
            n_group=4,
            topk_group=2,
            routed_scaling_factor=1.7,
            first_k_dense_replace=1,
            norm_topk_prob=True,
        ),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"partial_rotary_factor": 1.0},
            {"num_experts_per_tok": 2},
            {"n_group": 2},
            {"topk_group": 3},
            {"routed_scaling_factor": 1.0},
            {"norm_topk_prob": False},
        ),
        experts=True,
    ),
    "gpt_oss": Case(
        config="GptOssConfig",
        fields=llama_like(
            head_dim=32,
            attention_bias=True,
            sliding_window=5,
            rope_theta=1e4,
            rope_scaling={**YARN, "original_max_position_embeddings": 32, "truncate": False},
            num_local_experts=6,
            num_experts_per_tok=2,
            swiglu_limit=0.5,
        ),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"rope_theta": 20000.0},
            {"rope_scaling": {**YARN, "original_max_position_embeddings": 32, "truncate": True}},
            {"rope_scaling": {**YARN, "original_max_position_embeddings": 64, "truncate": False}},
            {"rope_scaling": {"rope_type": "default"}},
            {"sliding_window": 6},
            {"layer_types": [FULL, SLIDING, FULL, SLIDING]},
            {"num_experts_per_tok": 3},
            {"swiglu_limit": 0.6},
        ),
        tokens=80,
        experts=True,
    ),
    "deepseek_v2": Case(
        config="DeepseekV2Config",
        fields={**DEEPSEEK, "topk_method": "group_limited_greedy", "rope_scaling": NARROW},
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"rope_scaling": None},
            {"topk_method": "greedy"},
            *ROUTED,
        ),
        experts=True,
    ),
    "deepseek_v2_lite": Case(
        config="DeepseekV2Config",
        fields={
            **DEEPSEEK,
            "num_hidden_layers": 2,
            "q_lora_rank": None,
            "topk_method": "greedy",
            "attention_bias": True,
        },
        altered=({"num_experts_per_tok": 2},),
        experts=True,
    ),
    "deepseek_v3": Case(
        config="DeepseekV3Config",
        fields={**DEEPSEEK, "norm_topk_prob": True, "rope_interleave": True, "rope_scaling": NARROW},
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"rope_scaling": None},
            {"rope_interleave": False},
            {"norm_topk_prob": False},
            *ROUTED,
        ),
        experts=True,
    ),
    "deepseek_v3_plain": Case(
        config="DeepseekV3Config",
        fields={
            **DEEPSEEK,
            "num_hidden_layers": 2,
            "q_lora_rank": None,
            "norm_topk_prob": False,
            "rope_interleave": False,
            "attention_bias": True,
        },
        altered=({"rope_interleave": True}, {"norm_topk_prob": True}, {"n_group": 1, "topk_group": 1}),
        experts=True,
    ),
    "deepseek_v3_yarn": Case(
        config="DeepseekV3Config",
        fields={**DEEPSEEK, "num_hidden_layers": 2, "qk_rope_head_dim": 32, "rope_scaling": WIDE},
        altered=(
            {"rope_scaling": {**WIDE, "mscale_all_dim": 0}},
            {"rope_scaling": {**WIDE, "mscale": 1.4}},
            {"rope_scaling": {**WIDE, "mscale": 1.0, "mscale_all_dim": 1.0}},
            {"rope_scaling": {**WIDE, "attention_factor": 1.3}},
            {"rope_scaling": {**WIDE, "factor": 8.0}},
            {"rope_scaling": {**WIDE, "original_max_position_embeddings": 32}},
            {"rope_scaling": {**WIDE, "beta_fast": 32.0}},
            {"rope_scaling": {**WIDE, "beta_slow": 0.5}},
            {"rope_scaling": {**WIDE, "truncate": False}},
        ),
        tokens=80,
        experts=True,
    ),
    "deepseek_v32": Case(
        config="DeepseekV32Config",
        fields={**DEEPSEEK, **INDEXED, "norm_topk_prob": True, "rope_scaling": NARROW},
        altered=(
            {"index_topk": 6},
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"rope_scaling": None},
            {"norm_topk_prob": False},
            {"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]},
            *ROUTED,
        ),
        experts=True,
    ),
    "llama4_text": Case(
        config="Llama4TextConfig",
        fields=llama_like(
            head_dim=16,
            intermediate_size_mlp=80,
            rope_theta=1e4,
            attention_chunk_size=8,
            no_rope_layers=[1, 1, 1, 0],
            floor_scale=8,
            attn_scale=1.0,
            num_local_experts=4,
            num_experts_per_tok=1,
            interleave_moe_layer_step=2,
        ),
        altered=(
            {"rms_norm_eps": 2e-2},
            {"hidden_act": TANH},
            {"rope_theta": 20000.0},
            {"rope_scaling": LLAMA3},
            {"rope_scaling": SCOUT},
            {"attention_chunk_size": 7},
            {"attention_chunk_size": 9},
            {"no_rope_layers": [1, 1, 1, 1]},
            {"no_rope_layers": None, "no_rope_layer_interval": 2},
            {"layer_types": [CHUNKED, FULL, CHUNKED, FULL]},
            {"use_qk_norm": False},
            {"attn_temperature_tuning": False},
            {"floor_scale": 4},
            {"attn_scale": 0.5},
            {"num_experts_per_tok": 2},
            {"moe_layers": [0, 3]},
            {"interleave_moe_layer_step": 1},
        ),
        experts=True,
    ),
    "llama4_text_biased": Case(
        config="Llama4TextConfig",
        fields=llama_like(
            num_hidden_layers=2,
            head_dim=16,
            intermediate_size_mlp=80,
            rope_theta=1e4,
            rope_scaling=SCOUT,
            attention_chunk_size=5,
            # A key's bias has no gradient where heads do not turn: it moves all scores of a query alike.
            no_rope_layers=[1, 1],
            layer_types=[FULL, CHUNKED],
            use_qk_norm=False,
            attention_bias=True,
            tie_word_embeddings=True,
            num_local_experts=6,
            num_experts_per_tok=3,
            moe_layers=[0, 1],
        ),
        altered=({"attention_chunk_size": 6}, {"use_qk_norm": True}),
        experts=True,
    ),
}
