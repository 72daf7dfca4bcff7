"""Of which kind each field of a `config.json` is, whichever family reads it, as transformers declares them.

What JSON holds under a name is judged before anything is computed from it: a number written as a string, a
whole number written as 32.0, or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast


@dataclass(frozen=True)
class Kind:
    """What a field may hold.

    Attributes:
        told: for messages.
        fits: whether a value is of it.
    """

    told: str
    fits: Callable[[Any], bool]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _all(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, cast("list[Any]", value)))


INTEGER: Final = Kind("an integer", _whole)
SIZE: Final = Kind("an integer of at least 1", lambda value: _whole(value) and value >= 1)
NUMBER: Final = Kind("a finite number", _finite)
FACTOR: Final = Kind("a finite number above 0", lambda value: _finite(value) and value > 0)
FLAG: Final = Kind("true or false", lambda value: isinstance(value, bool))
SWITCH: Final = Kind("true, false or an integer", lambda value: isinstance(value, int))
NAME: Final = Kind("a string", lambda value: isinstance(value, str))
NAMES: Final = Kind("a list of strings", lambda value: _all(value, lambda each: isinstance(each, str)))
INTEGERS: Final = Kind("a list of integers", lambda value: _all(value, lambda each: isinstance(each, int)))
NUMBERS: Final = Kind("a list of finite numbers", lambda value: _all(value, _finite))
RECORD: Final = Kind("an object of fields", lambda value: isinstance(value, dict))

SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "intermediate_size_mlp", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"),
    *("n_embd", "n_head", "n_inner", "n_layer", "n_positions", "original_max_position_embeddings"),
    *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("index_head_dim", "index_n_heads", "index_topk", "moe_intermediate_size"),
    *("shared_expert_intermediate_size", "attention_chunk_size", "floor_scale", "sliding_window_pattern"),
    *("decoder_sparse_step", "interleave_moe_layer_step", "no_rope_layer_interval"),
)
COUNTS = (
    *("experts_per_token", "first_k_dense_replace", "max_window_layers", "n_group", "n_routed_experts"),
    *("n_shared_experts", "num_experts", "num_experts_per_tok", "num_local_experts", "sliding_window"),
    *("topk_group", "num_nextn_predict_layers", "num_mtp_layers"),
)
NUMBERED = (
    *("attention_multiplier", "attn_logit_softcapping", "attn_scale", "embedding_multiplier"),
    *("final_logit_softcapping", "layer_norm_eps", "layer_norm_epsilon", "logit_scale"),
    *("partial_rotary_factor", "residual_multiplier", "rms_norm_eps", "rotary_pct"),
    *("routed_scaling_factor", "swiglu_limit"),
)
FACTORS = (
    *("logits_scaling", "query_pre_attn_scalar", "rope_local_base_freq", "rope_theta", "rotary_emb_base"),
)
FLAGS = (
    *("attention_bias", "mlp_bias", "norm_topk_prob", "qkv_bias", "rope_interleave"),
    *(
        "scale_attn_by_inverse_layer_idx",
        "scale_attn_weights",
        "tie_word_embeddings",
        "use_parallel_residual",
    ),
    *("use_qk_norm", "use_sliding_window"),
)
KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(SIZES, SIZE),
    **dict.fromkeys(COUNTS, INTEGER),
    **dict.fromkeys(NUMBERED, NUMBER),
    **dict.fromkeys(FACTORS, FACTOR),
    **dict.fromkeys(FLAGS, FLAG),
    **dict.fromkeys(("activation_function", "hidden_act", "hidden_activation", "topk_method"), NAME),
    **dict.fromkeys(("architectures", "layer_types", "mlp_layer_types"), NAMES),
    **dict.fromkeys(("mlp_only_layers", "moe_layers", "no_rope_layers"), INTEGERS),
    **dict.fromkeys(("quantization_config", "rope_parameters", "rope_scaling"), RECORD),
    # Older files of Llama 4 say how often, in place of whether.
    "attn_temperature_tuning": SWITCH,
}
"""A published field -> its kind. Null is as if the field were not there, but for those of `NEVER_NULL`."""
NEVER_NULL = ("activation_function", "hidden_act")
"""Fields that transformers refuses to find null."""
OF_ANY = ("architectures", "num_mtp_layers", "num_nextn_predict_layers", "quantization_config")
"""Fields that are looked at in files of every family."""
SCALING: Mapping[str, Kind] = {
    **dict.fromkeys(("type", "rope_type"), NAME),
    **dict.fromkeys(("rope_theta", "factor", "low_freq_factor", "high_freq_factor"), FACTOR),
    **dict.fromkeys(("partial_rotary_factor", "beta_fast", "beta_slow", "attention_factor"), NUMBER),
    **dict.fromkeys(("mscale", "mscale_all_dim"), NUMBER),
    **dict.fromkeys(("short_factor", "long_factor"), NUMBERS),
    **dict.fromkeys(("full_attention", "sliding_attention"), RECORD),
    "original_max_position_embeddings": SIZE,
    "truncate": FLAG,
}
"""The same of what is within `rope_scaling` and `rope_parameters`."""


def refuse_kinds(config: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse the fields of a file that hold another kind of value than theirs.

    Args:
        config: the file.
        names: its fields that are read.

    Raises:
        ValueError: naming the field, its value and the kind.
    """
    for name in (*names, *OF_ANY):
        if name in config:
            _refuse(name, config[name], KINDS[name], null=name not in NEVER_NULL)
    for heading in ("rope_scaling", "rope_parameters"):
        if heading in names and config.get(heading):
            _refuse_within(heading, config[heading])


def _refuse_within(path: str, record: Mapping[str, Any]) -> None:
    """Names that `SCALING` lacks are refused by those who read the record."""
    for name, kind in SCALING.items():
        if name in record:
            _refuse(f"{path}.{name}", record[name], kind)
            if kind is RECORD and record[name]:
                _refuse_within(f"{path}.{name}", record[name])


def _refuse(path: str, value: Any, kind: Kind, *, null: bool = True) -> None:
    if value is None and null:
        return
    if not kind.fits(value):
        raise ValueError(f"config.json {path}={value!r} must be {kind.told}")
