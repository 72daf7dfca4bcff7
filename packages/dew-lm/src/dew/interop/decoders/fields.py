"""A decoder from the fields of a published `config.json`.

Nothing is passed over: a field is read, known to change nothing here, or refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.interop.decoders.layout import CLASSES, GATED, layout_of
from dew.nn.backbones.causal_transformer import CausalTransformer

SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
}
"""Field of the file -> field of the model."""
OPTIONAL = ("num_key_value_heads", "head_dim", "tie_word_embeddings")
"""Fields a file may leave out: as many key heads as queries', heads that divide the width, an untied head."""
WITHOUT_EFFECT = (
    "_name_or_path",
    "architectures",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "pad_token_id",
    "torch_dtype",
    "transformers_version",
    "use_cache",
)
"""Fields that say nothing about what the model computes."""
ROPE = ("rope_theta", "rope_parameters", "rope_scaling")
OFF: Mapping[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "pretraining_tp": 1,
    "sliding_window": None,
    "use_sliding_window": False,
    "layer_types": None,
}
"""Fields that the model may lack, and the value that means so."""


def model_of(config: Mapping[str, Any], dtype: Any, param_dtype: Any) -> CausalTransformer:
    """The decoder that `config` describes.

    Raises:
        ValueError: a field that is missing, unknown, or asks for what this decoder does not compute.
    """
    missing = [name for name in SIZES if name not in config and name not in OPTIONAL]
    if missing:
        raise ValueError(f"config.json lacks {', '.join(missing)}")
    known = {"model_type", "hidden_act", "max_window_layers", *SIZES, *WITHOUT_EFFECT, *ROPE, *OFF}
    for name, value in config.items():
        if name not in known and value is not None:
            raise ValueError(f"config.json {name}={value!r}: this decoder knows no such field")
    fields = {own: config[name] for name, own in SIZES.items() if config.get(name) is not None}
    model = CausalTransformer(
        **fields,
        rope_theta=rope_theta(config),
        activation=activation(config),
        qk_norm=config["model_type"] == "qwen3",
        **window(config),
        dtype=dtype,
        param_dtype=param_dtype,
    )
    written = layout_of(model)
    refuse_unlike(config, written.fields)
    return model


def refuse_unlike(config: Mapping[str, Any], written: Mapping[str, Any]) -> None:
    """Refuse a file whose fields are not those that the model would be published with."""
    if config["model_type"] != written["model_type"] and written["model_type"] not in ("llama", "arcee"):
        raise ValueError(
            f"config.json model_type={config['model_type']!r} with these fields is what "
            f"{written['model_type']} computes, and they differ elsewhere; it is not read by this version"
        )
    for name, off in OFF.items():
        value, wanted = config.get(name, off), written.get(name, off)
        if value != wanted and name != "layer_types" and value != off:
            raise ValueError(f"config.json {name}={value!r}: this decoder computes {wanted!r} alone")


def activation(config: Mapping[str, Any]) -> Any:
    """The feed-forward blocks' nonlinearity; `relu` gates by its own input, which the tensors must bear out.

    Raises:
        ValueError: one that this decoder lacks.
    """
    spelled = {name: own for own, name in GATED.items()} | {"relu": "relu2", "relu2": "relu2"}
    name = config.get("hidden_act")
    if name not in spelled or (name == "relu2") != (config["model_type"] == "arcee"):
        raise ValueError(f"config.json hidden_act={name!r} of {config['model_type']} is not computed here")
    return spelled[name]


def rope_theta(config: Mapping[str, Any]) -> float:
    """The base of the rotary frequencies.

    Raises:
        ValueError: scaled frequencies.
    """
    spelled: Mapping[str, Any] = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling")
    if scaling is not None or spelled.get("rope_type", "default") != "default":
        raise ValueError(
            f"config.json rope_scaling={scaling or dict(spelled)}: scaled positions are not read"
        )
    more = sorted(set(spelled) - {"rope_theta", "rope_type"})
    if more:
        raise ValueError(f"config.json rope_parameters holds {', '.join(more)}, which are not read")
    theta = config.get("rope_theta", spelled.get("rope_theta"))
    if theta is None:
        raise ValueError("config.json lacks rope_theta")
    return float(theta)


def window(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model's window fields.

    A Qwen3 file has no window unless it says `use_sliding_window`, and then leaves its first
    `max_window_layers` layers without one.

    Raises:
        ValueError: a kind of layer that this decoder lacks.
    """
    width, kinds = config.get("sliding_window"), config.get("layer_types")
    unknown = sorted(set(kinds or ()) - {"sliding_attention", "full_attention"})
    if unknown:
        raise ValueError(
            f"config.json layer_types names {', '.join(unknown)}; sliding_attention and full_attention alone "
            "are read"
        )
    qwen = config["model_type"] == "qwen3"
    if width is None or not config.get("use_sliding_window", not qwen):
        return {}
    if kinds is None and qwen:
        first = config.get("max_window_layers", 28)
        kinds = [
            "sliding_attention" if index >= first else "full_attention"
            for index in range(config["num_hidden_layers"])
        ]
    if kinds is None or set(kinds) == {"sliding_attention"}:
        return {"sliding_window": width}
    flags = tuple(kind == "sliding_attention" for kind in kinds)
    return {"sliding_window": width, "sliding_layers": flags} if any(flags) else {}


def refuse_class(config: Mapping[str, Any]) -> None:
    """Refuse another head than the language model's.

    Raises:
        ValueError: `architectures` names another class.
    """
    wanted = CLASSES[config["model_type"]]
    named = config.get("architectures")
    if named is not None and list(named) != [wanted]:
        raise ValueError(f"config.json architectures={named!r}: {wanted} alone is read")
