"""A run that starts from a published decoder: its model's fields for the record, and its weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dew.config.record import encode

if TYPE_CHECKING:
    from dew.config import ModelConfig
    from dew.nn.backbones.causal_transformer import CausalTransformer
    from dew.objectives.base import Variables

LENGTH = "max_seq_len"
"""The one field of a published model that a run may choose."""


def pinned(source: str) -> str:
    """`source` as a record keeps it: a folder as it stands, a repository with the commit it is at."""
    from dew.interop.pretrained import located

    name, revision = parted(source)
    folder = located(name, revision)
    return source if Path(source).is_dir() else f"{name}@{folder.name}"


def parted(source: str) -> tuple[str, str | None]:
    """A folder or a repository, and its revision: `owner/name@revision` names both."""
    if Path(source).is_dir() or "@" not in source:
        return source, None
    name, _, revision = source.rpartition("@")
    return name, revision


def published_fields(source: str) -> dict[str, Any]:
    """What the published model is built from, as JSON, read from its description alone.

    Raises:
        FileNotFoundError: no such folder or repository, or no `config.json` in it.
        ValueError: an architecture or a field that the decoder does not compute.
    """
    from dew.interop.decoders.catalogue import family_of
    from dew.interop.decoders.translation import NUMERICS, model_of, naming
    from dew.interop.pretrained import described, located

    folder = located(*parted(source))
    config, architecture = described(folder)
    with naming(folder):
        model = model_of(family_of(architecture), config, dtype="float32", param_dtype="float32")
    return {
        field.name: encode(getattr(model, field.name), field.name)
        for field in dataclasses.fields(model)
        if field.name not in NUMERICS and getattr(model, field.name) != _default(field)
    }


def with_published(model: ModelConfig, source: str, *, start: ModelConfig) -> tuple[ModelConfig, str]:
    """`model` with all fields of the decoder published at `source`, and `source` as a record keeps it.

    A record has those fields already, and both are taken as they stand.

    Args:
        model: of the run; it may choose the published model's longest row.
        source: a folder or a repository.
        start: what the command line starts from, which is nobody's choice.

    Raises:
        FileNotFoundError: no such folder or repository.
        ValueError: `model` names other fields of the architecture.
    """
    own = model.config
    if "vocab_size" in own:
        return model, source
    if own == start.config:
        own = {}
    more = sorted(own.keys() - {LENGTH})
    if more:
        raise ValueError(
            f"model.config names {', '.join(more)}, and pretrained={source} decides the architecture; "
            f"leave everything but {LENGTH} out of model.config"
        )
    fields = {**published_fields(source), **own}
    described = dataclasses.replace(model, architecture="causal_transformer", config=fields)
    return described, pinned(source)


def published_variables(source: str, model: CausalTransformer) -> Variables:
    """The published weights, stored in `model`'s `param_dtype`.

    Raises:
        ValueError: a model that computes something else than the published one.
    """
    import jax.numpy as jnp

    from dew.interop import load_pretrained
    from dew.interop.decoders.translation import computed

    name, revision = parted(source)
    read = load_pretrained(name, revision=revision, param_dtype=jnp.dtype(model.param_dtype).name)
    theirs, ours = computed(read.model), computed(model)
    other = sorted(name for name in theirs if name != LENGTH and theirs[name] != ours[name])
    if other:
        name = other[0]
        raise ValueError(
            f"model.config makes {name}={ours[name]!r}, and pretrained={source} has {theirs[name]!r}; the "
            f"checkpoint decides the architecture: leave everything but {LENGTH} out of model.config"
        )
    return read.variables


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
