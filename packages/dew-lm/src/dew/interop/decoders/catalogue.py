"""Which families there are, and which of them reads a file or writes a model.

A file is read by the family of its `model_type`. A model is written by the first family, in the order of
their `precedence`, whose files tell everything that it computes: it is written, read back and compared. A
family that was named writes its own files or refuses.

| model                                                | architecture           |
|------------------------------------------------------|------------------------|
| `relu2`, no window                                   | `ArceeForCausalLM`     |
| gated, no window                                     | `LlamaForCausalLM`     |
| a window in every layer, or heads that do not divide | `MistralForCausalLM`   |
| a window in some layers                              | `MinistralForCausalLM` |
| biases of queries, keys and values                   | `Qwen2ForCausalLM`     |
| normalized queries and keys                          | `Qwen3ForCausalLM`     |

Elsewhere `relu2` is written as a gated block with `hidden_act="relu"` whose gate and up projections are the
same matrix: `relu(z) z = relu(z)^2`, exactly.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dew.interop.decoders.family import Family
from dew.interop.decoders.names import MODEL_TYPES
from dew.interop.decoders.translation import config_of, losses
from dew.nn.backbones.causal_transformer import CausalTransformer


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a model is published.

    Attributes:
        family: whose files it has.
        doubled: the up projection is also written as the gate.
        fields: `config.json`, without the tokens' ids and the dtype.
    """

    family: Family
    doubled: bool
    fields: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        """The family's name."""
        return self.family.model_type


def family_of(model_type: str) -> Family:
    """The family called `model_type`.

    Raises:
        ValueError: there is none.
    """
    if model_type not in MODEL_TYPES:
        close = difflib.get_close_matches(model_type, MODEL_TYPES, n=2)
        fix = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(MODEL_TYPES)}"
        raise ValueError(f"model_type={model_type!r} is no family of decoders that is read; {fix}")
    module = importlib.import_module(f"dew.interop.decoders.families.{model_type}")
    family: Family = module.FAMILY
    return family


def families() -> tuple[Family, ...]:
    """All of them, in the order in which they are asked to write a model."""
    return tuple(sorted(map(family_of, MODEL_TYPES), key=lambda family: family.precedence))


def layout_of(model: object, family: str | None = None) -> Layout:
    """The layout of `model`.

    Args:
        model: a `CausalTransformer`.
        family: the `model_type` to write; None takes the first that can.

    Raises:
        ValueError: a model that no published architecture computes, or not the one that was named; the
            message names the fields.
    """
    if not isinstance(model, CausalTransformer):
        raise ValueError(f"model {type(model).__name__} has no published layout; causal_transformer has one")
    lost: dict[str, dict[str, Any]] = {}
    for candidate in families() if family is None else (family_of(family),):
        lost[candidate.model_type] = losses(candidate, model)
        if not lost[candidate.model_type]:
            doubled = candidate.gated and model.activation == "relu2"
            return Layout(family=candidate, doubled=doubled, fields=config_of(candidate, model))
    raise ValueError(_refusal(lost, family))


def _refusal(lost: Mapping[str, Mapping[str, Any]], family: str | None) -> str:
    """What stands in the way of the family that comes closest."""
    closest = min(lost, key=lambda name: (len(lost[name]), "model" in lost[name]))
    named = ", ".join(f"{name}={value}" for name, value in lost[closest].items())
    if family is not None:
        return (
            f"model.config {named}: files of {family} say something else; leave the family out, or change it"
        )
    return (
        f"model.config {named} has no published layout: the closest, {closest}, says something else; "
        "train without it to export"
    )
