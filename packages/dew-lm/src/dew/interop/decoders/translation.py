"""A decoder from the fields of a `config.json`, and back, as a family's data say.

Nothing is passed over: a field of a file is read, known to change nothing, or refused by its name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dew.interop.decoders.family import REQUIRED, WITHOUT_EFFECT, Family, Field
from dew.interop.decoders.kinds import refuse_kinds
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.backbones.causal_transformer.config import Biases, Rotary, Scales
from dew.nn.backbones.causal_transformer.sizes import feed_forward_width, windows
from dew.nn.moe.config import Mixture

RECORDS = {"rotary": Rotary, "bias": Biases, "scales": Scales}
NUMERICS = ("dtype", "param_dtype", "precision", "attention_impl", "remat", "parent", "name")
"""Fields of a model that no published architecture states."""
NO_QUANTIZED = (
    "quantized weights of this kind are not read; take the model's unquantized folder, or dequantize it with "
    "the library that quantized it and save it in bfloat16, without quantization_config"
)


def model_of(family: Family, config: Mapping[str, Any], *, dtype: Any, param_dtype: Any) -> CausalTransformer:
    """The decoder that `config` describes.

    Raises:
        ValueError: a field that is missing, unknown, of another kind, or asks for what this decoder does not
            compute, by the file's name.
    """
    refuse_unread(family, config)
    try:
        return _built(family, config, dtype=dtype, param_dtype=param_dtype)
    except ValueError as error:
        raise ValueError(_in_names_of(family, str(error))) from error


@contextlib.contextmanager
def naming(folder: Path) -> Generator[None]:
    """Within it, what is refused begins with the folder whose file it stands in.

    Raises:
        ValueError: what was raised within.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def _built(family: Family, config: Mapping[str, Any], *, dtype: Any, param_dtype: Any) -> CausalTransformer:
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
        config = config_of(family, model)
        refuse_unread(family, config)
        back = _built(family, config, dtype=model.dtype, param_dtype=model.param_dtype)
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
    """Refuse a file with another head than the language model's, or with a field that is not read or is of
    another kind.

    Raises:
        ValueError: naming the field.
    """
    refuse_kinds(config, family.read_fields)
    named = config.get("architectures")
    if named is not None and named != [family.architecture]:
        raise ValueError(f"config.json architectures={named!r}: {family.architecture} alone is read")
    known = {*family.read_fields, *family.off, *family.ignored, *WITHOUT_EFFECT}
    for name, value in config.items():
        if name not in known and value is not None:
            raise ValueError(_unread(family, name, value))
    for name, wanted in family.off.items():
        value = config.get(name)
        if value is not None and value != wanted:
            raise ValueError(f"config.json {name}={value!r}: this decoder computes {wanted!r} alone")


def _unread(family: Family, name: str, value: Any) -> str:
    """What is said of a field that is not read."""
    if name == "quantization_config":
        return (
            f"config.json quantization_config of quant_method={value.get('quant_method')!r}: {NO_QUANTIZED}"
        )
    return (
        f"config.json {name}={value!r}: {family.model_type} is read without such a field; remove it if it "
        "changes nothing of what the model computes, which is otherwise not computed here"
    )


def _in_names_of(family: Family, message: str) -> str:
    """What a model says of its fields, in the names that the family's files have for them."""
    if message.startswith("config.json"):
        return message
    spelled: dict[str, str] = {}
    for part in family.fields:
        own = dict.fromkeys(part.targets, part.name) if isinstance(part, Field) else part.spelled
        # What a mixture says begins with its name: there, its own fields go first.
        spelled = {**spelled, **own} if message.startswith("mixture ") else {**own, **spelled}
    names = sorted((name for name in spelled if name != spelled[name]), key=len, reverse=True)
    for name in names:
        message = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", spelled[name], message)
    return f"config.json: {message}"


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
