"""A decoder from the fields of a `config.json`, and back, as a family's data say.

Nothing is passed over: a field of a file is read, known to change nothing, or refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from dew.interop.decoders.family import REQUIRED, WITHOUT_EFFECT, Family, Field
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.backbones.causal_transformer.config import Biases, Rotary, Scales
from dew.nn.backbones.causal_transformer.sizes import feed_forward_width, windows
from dew.nn.moe.config import Mixture

RECORDS = {"rotary": Rotary, "bias": Biases, "scales": Scales}
NUMERICS = ("dtype", "param_dtype", "precision", "attention_impl", "remat", "parent", "name")
"""Fields of a model that no published architecture states."""


def model_of(family: Family, config: Mapping[str, Any], *, dtype: Any, param_dtype: Any) -> CausalTransformer:
    """The decoder that `config` describes.

    Raises:
        ValueError: a field that is missing, unknown, or asks for what this decoder does not compute.
    """
    refuse_unread(family, config)
    own: dict[str, Any] = dict(family.always)
    for part in family.fields:
        if isinstance(part, Field):
            own |= dict.fromkeys(part.targets, _read(part, config))
        else:
            own |= part.read(config)
    return CausalTransformer(**_nested(own), dtype=dtype, param_dtype=param_dtype)


def config_of(family: Family, model: CausalTransformer) -> dict[str, Any]:
    """The file's fields of `model`, whether or not the family computes it; `losses` tells that."""
    written: dict[str, Any] = {"architectures": [family.architecture], "model_type": family.model_type}
    for part in family.fields:
        if isinstance(part, Field):
            written[part.name] = part.write(_value(model, part.targets[0]))
        else:
            written |= part.write(model)
    return written


def losses(family: Family, model: CausalTransformer) -> dict[str, Any]:
    """The fields of `model` that its file in this family would not tell: dotted name -> the model's value.

    Empty where the family computes what the model computes.
    """
    if family.whole_heads and model.hidden_size % model.num_heads:
        return {"num_heads": model.num_heads}
    try:
        back = model_of(family, config_of(family, model), dtype=model.dtype, param_dtype=model.param_dtype)
    except (ValueError, KeyError) as error:
        return {"model": error}
    told, kept = computed(model), computed(back)
    return {name: value for name, value in told.items() if kept[name] != value}


def computed(model: CausalTransformer) -> dict[str, Any]:
    """What a model computes, by dotted name, with every default spelled out."""
    values = {each.name: getattr(model, each.name) for each in fields(model) if each.name not in NUMERICS}
    spans = windows(model.num_layers, model.sliding_window, model.sliding_layers)
    chunks = windows(model.num_layers, model.attention_chunk_size, model.chunked_layers)
    turned = model.position == "rotary"
    values |= {
        "num_kv_heads": model.kv_heads,
        "head_dim": model.head_width,
        "intermediate_size": _width(model),
        "sliding_window": next(filter(None, spans), None),
        "sliding_layers": tuple(span is not None for span in spans),
        "chunked_layers": tuple(size is not None for size in chunks),
        "rope_theta": model.rope_theta if turned else None,
    }
    for name in RECORDS:
        record = values.pop(name)
        values |= {f"{name}.{each.name}": getattr(record, each.name) for each in fields(record)}
    values["rotary.layers"] = tuple(turned and model.rotary.at(layer) for layer in range(model.num_layers))
    values["scales.attention"] = model.scales.of_scores(model.head_width, 0)
    values["mixture"] = _spelled_out(model)
    return values


def refuse_unread(family: Family, config: Mapping[str, Any]) -> None:
    """Refuse a file with another head than the language model's, or with a field that is not read.

    Raises:
        ValueError: naming the field.
    """
    named = config.get("architectures")
    if named is not None and list(named) != [family.architecture]:
        raise ValueError(f"config.json architectures={named!r}: {family.architecture} alone is read")
    known = {*family.read_fields, *family.off, *family.ignored, *WITHOUT_EFFECT}
    for name, value in config.items():
        if name not in known and value is not None:
            raise ValueError(
                f"config.json {name}={value!r}: {family.model_type} is read without such a field"
            )
    for name, wanted in family.off.items():
        value = config.get(name)
        if value is not None and value != wanted:
            raise ValueError(f"config.json {name}={value!r}: this decoder computes {wanted!r} alone")


def _read(part: Field, config: Mapping[str, Any]) -> Any:
    if part.nullable and part.name in config and config[part.name] is None:
        return None
    value = config.get(part.name)
    if value is None and part.default is REQUIRED:
        raise ValueError(f"config.json lacks {part.name}")
    try:
        return part.read(part.default if value is None else value)
    except KeyError as error:
        raise ValueError(
            f"config.json {part.name}={value!r} is not computed here; {error.args[0]}"
        ) from error


def _value(model: CausalTransformer, dotted: str) -> Any:
    own: dict[str, Any] = {
        "num_kv_heads": model.kv_heads,
        "head_dim": model.head_width,
        "intermediate_size": _width(model),
        "scales.attention": model.scales.of_scores(model.head_width, 0),
    }
    if dotted in own:
        return own[dotted]
    value: Any = model
    for name in dotted.split("."):
        value = getattr(value, name)
    return value


def _width(model: CausalTransformer) -> int:
    return model.intermediate_size or feed_forward_width(model.hidden_size, model.activation)


def _spelled_out(model: CausalTransformer) -> Mixture | None:
    """The model's mixture with its defaults."""
    mixture = model.mixture
    if mixture is None:
        return None
    layers = tuple(mixture.at(layer) for layer in range(model.num_layers))
    return replace(mixture, intermediate_size=mixture.intermediate_size or _width(model), layers=layers)


def _nested(own: Mapping[str, Any]) -> dict[str, Any]:
    """The model's arguments, with dotted names gathered into their records."""
    plain = {name: value for name, value in own.items() if "." not in name}
    for record, cls in RECORDS.items():
        prefix = f"{record}."
        held = {name.removeprefix(prefix): value for name, value in own.items() if name.startswith(prefix)}
        plain |= {record: cls(**held)} if held else {}
    return plain
