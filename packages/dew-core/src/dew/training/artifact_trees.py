"""Artifacts as trees: their arrays apart from the rest, so that they cross a jit and reach the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import numpy as np

from dew.training.distributed import to_host


def disassemble(value: Any, arrays: list[Any]) -> Callable[[list[Any]], Any]:
    """Append the arrays in `value` to `arrays` and return how to build `value` from a list like it.

    Dataclasses, tuples, lists and mappings are walked; everything else that is no array is kept as it is.
    """
    if isinstance(value, (jax.Array, np.ndarray)):
        index = len(arrays)
        arrays.append(value)
        return lambda filled: filled[index]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        fields: dict[str, Any] = {name: getattr(value, name) for name in names}
        parts = {name: disassemble(part, arrays) for name, part in fields.items()}
        return lambda filled: dataclasses.replace(
            value, **{name: build(filled) for name, build in parts.items()}
        )
    if isinstance(value, Mapping):
        entries = {name: disassemble(part, arrays) for name, part in cast("Mapping[Any, Any]", value).items()}
        return lambda filled: {name: build(filled) for name, build in entries.items()}
    if isinstance(value, (tuple, list)):
        sequence = cast("tuple[Any, ...] | list[Any]", value)
        items = [disassemble(part, arrays) for part in sequence]
        return lambda filled: type(sequence)([build(filled) for build in items])
    return lambda filled: value


def host_artifacts(artifacts: Any) -> Any:
    """The same artifacts with every array in host memory; all processes take part."""
    arrays: list[Any] = []
    rebuild = disassemble(artifacts, arrays)
    return rebuild([to_host(array) for array in arrays])
