"""The rotary positions of a `config.json`, in the spelling of transformers 4 or 5.

Version 4 has `rope_theta` beside `rope_scaling`, version 5 has both in `rope_parameters`. The fields written
are version 4's, which either version reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from dew.interop.decoders.family import Group
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.rotary_scaling import NEEDED, OPTIONAL, RotaryScaling

SPELLED = {
    "factor": "factor",
    "original_length": "original_max_position_embeddings",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "truncate": "truncate",
    "short_factors": "short_factor",
    "long_factors": "long_factor",
}
"""A field of `RotaryScaling` -> the file's."""
LONGEST = "max_position_embeddings"
SPELLINGS = ("rope_parameters", "rope_scaling")
MESSAGES = {
    "max_seq_len": LONGEST,
    **{own: name for own, name in SPELLED.items() if own != name},
}
"""A name in what a model says of its positions -> the file's."""


def heading(config: Mapping[str, Any]) -> str:
    """The file's own heading of what it says of the rotation."""
    return next((name for name in SPELLINGS if config.get(name)), "rope_scaling")


def rotary(
    *, theta: float = 10000.0, fraction: float | None = None, names: Mapping[str, str] | None = None
) -> Group:
    """The group of fields for one rotation in all layers.

    Args:
        theta: of a file that says none.
        fraction: of a file that says none, in a family where a part of a head may turn; None turns all.
        names: other names of `rope_theta` and `partial_rotary_factor` in the family's files.
    """
    spelled = {"theta": "rope_theta", "fraction": "partial_rotary_factor"} | dict(names or {})
    known = [LONGEST, spelled["theta"], *SPELLINGS, *([spelled["fraction"]] if fraction else [])]

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        stated = spelled_out(config)
        base = stated.pop("rope_theta", None) or config.get(spelled["theta"]) or theta
        own: dict[str, Any] = {"rope_theta": float(base), "max_seq_len": longest(config)}
        if fraction is not None:
            part = stated.pop("partial_rotary_factor", config.get(spelled["fraction"]))
            own["rotary.fraction"] = fraction if part is None else float(part)
        scaling = scaling_of(stated, config)
        if scaling is not None and scaling.kind == "dynamic":
            # The stated length is where the frequencies begin to move, not where rows end.
            own["max_seq_len"] = int(cast("float", scaling.factor) * own["max_seq_len"])
        return own | {"rotary.scaling": scaling}

    def write(model: CausalTransformer) -> dict[str, Any]:
        part = {spelled["fraction"]: model.rotary.fraction} if fraction is not None else {}
        scaling = written_scaling(model.rotary.scaling)
        scaled = {"rope_scaling": scaling} if scaling else {}
        return {**written_lengths(model), spelled["theta"]: model.rope_theta, **scaled, **part}

    own = {"rope_theta": spelled["theta"], "rotary.fraction": spelled["fraction"]}
    return Group(tuple(known), read, write, MESSAGES | own)


def spelled_out(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the file says of the rotation under its own heading, without nulls.

    Raises:
        ValueError: it says two things.
    """
    given = [dict(config[name]) for name in SPELLINGS if config.get(name)]
    if len(given) == 2 and given[0] != given[1]:
        raise ValueError(
            f"config.json rope_scaling={given[1]} and rope_parameters={given[0]} differ; keep one of them"
        )
    return {name: value for name, value in (given[0] if given else {}).items() if value is not None}


def longest(config: Mapping[str, Any]) -> int:
    """`max_position_embeddings`.

    Raises:
        ValueError: the file lacks it.
    """
    if config.get(LONGEST) is None:
        raise ValueError(f"config.json lacks {LONGEST}")
    return int(config[LONGEST])


def scaling_of(stated: Mapping[str, Any], config: Mapping[str, Any]) -> RotaryScaling | None:
    """The scaling of the file, None for plain frequencies.

    Raises:
        ValueError: a kind or a field that is not computed.
    """
    stated, told = dict(stated), heading(config)
    legacy = stated.pop("type", "default")
    kind = stated.pop("rope_type", legacy)
    if kind == "default":
        if stated:
            raise ValueError(f"config.json {told} holds {', '.join(stated)}, which are not read")
        return None
    if kind not in NEEDED:
        raise ValueError(f"config.json {told} of type {kind!r} is not computed; {', '.join(NEEDED)} are")
    read = (*NEEDED[kind], *OPTIONAL.get(kind, ()))
    values: dict[str, Any] = {}
    for own, name in SPELLED.items():
        value = stated.pop(name, None)
        if own in read and value is not None:
            values[own] = tuple(map(float, value)) if isinstance(value, list) else value
    if stated:
        raise ValueError(f"config.json {told} holds {', '.join(stated)}, which {kind} does not read")
    if "original_length" in read:
        values["original_length"] = _trained_length(kind, values, config)
    if kind == "longrope" and "factor" not in values:
        values["factor"] = longest(config) / values["original_length"]
    return RotaryScaling(kind=kind, **values)


def _trained_length(kind: str, values: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    if kind == "dynamic":
        return longest(config)
    beside = config.get("original_max_position_embeddings")
    return int(beside or values.get("original_length") or longest(config))


def written_lengths(model: CausalTransformer) -> dict[str, Any]:
    """`max_position_embeddings` of a model."""
    scaling = model.rotary.scaling
    dynamic = scaling is not None and scaling.kind == "dynamic"
    return {LONGEST: scaling.original_length if scaling is not None and dynamic else model.max_seq_len}


def written_scaling(scaling: RotaryScaling | None) -> dict[str, Any] | None:
    """`rope_scaling` of a model."""
    if scaling is None:
        return None
    unset = RotaryScaling.__dataclass_fields__
    read = (*NEEDED[scaling.kind], *OPTIONAL.get(scaling.kind, ()))
    values = {name: getattr(scaling, name) for name in read if getattr(scaling, name) != unset[name].default}
    if scaling.kind == "dynamic":
        values.pop("original_length")
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {"rope_type": scaling.kind, **{SPELLED[name]: value for name, value in plain.items()}}
