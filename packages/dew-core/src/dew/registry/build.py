"""Construct a component from plain fields, as a configuration or the command line holds them."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Union

POSITIONAL = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
LINEN = ("parent", "name")
"""Fields every Linen module has for Flax's own use."""


class FieldError(TypeError, ValueError):
    """A field that a component does not take, or one it needs."""


def construct(what: str, factory: Callable[..., Any], fields: Mapping[str, Any]) -> Any:
    """Call `factory(**fields)` with every field checked and narrowed to its declared type.

    A list becomes a tuple where the field is one, a mapping the declared dataclass, a dtype's name a dtype.

    Raises:
        FieldError: a field that `factory` does not take, or one without a default that is missing.
    """
    parameters = inspect.signature(factory).parameters
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        check(what, [name for name, each in parameters.items() if each.kind in POSITIONAL], fields)
    missing = [
        name
        for name, each in parameters.items()
        if each.kind in POSITIONAL and each.default is inspect.Parameter.empty and name not in fields
    ]
    if missing:
        raise FieldError(
            f"{what} needs {', '.join(missing)}; give {'it' if len(missing) == 1 else 'them'} a value"
        )
    hints = declared(factory)
    return factory(
        **{name: narrow(f"{what}: {name}", hints.get(name), value) for name, value in fields.items()}
    )


def check(what: str, accepted: list[str], fields: Mapping[str, Any]) -> None:
    """Refuse the fields that are not `accepted`, with close matches."""
    accepted = [name for name in accepted if name not in LINEN]
    for name in fields:
        if name not in accepted:
            close = difflib.get_close_matches(name, accepted, n=3, cutoff=0.6)
            fix = (
                f"did you mean {' or '.join(close)}?"
                if close
                else f"it takes {', '.join(accepted) or 'none'}"
            )
            raise FieldError(f"{what} has no field {name!r}; {fix}")


def declared(factory: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a class or a function, or none where they cannot be read at run time."""
    try:
        return typing.get_type_hints(factory)
    except NameError:
        return {}


def narrow(what: str, hint: Any, value: Any) -> Any:
    """`value` as the declared type spells it, where the two differ only in how they are written down."""
    hint = getattr(hint, "__value__", hint)
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        records = [arm for arm in typing.get_args(hint) if dataclasses.is_dataclass(arm)]
        tuples = [arm for arm in typing.get_args(hint) if (typing.get_origin(arm) or arm) is tuple]
        if isinstance(value, Mapping) and len(records) == 1:
            return narrow(what, records[0], value)
        return narrow(what, tuples[0], value) if isinstance(value, list) and tuples else value
    if isinstance(value, list) and (origin or hint) is tuple:
        arms = typing.get_args(hint)
        inner = arms[0] if len(arms) == 2 and arms[1] is Ellipsis else None
        return tuple(narrow(what, inner, each) for each in typing.cast("list[Any]", value))
    if isinstance(value, Mapping) and isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return construct(what, hint, typing.cast("Mapping[str, Any]", value))
    if isinstance(value, str) and what.endswith("dtype"):
        return dtype(what, value)
    return value


def dtype(what: str, name: str) -> Any:
    """The dtype called `name`."""
    import jax.numpy as jnp

    try:
        return jnp.dtype(name)
    except TypeError as error:
        raise FieldError(f"{what}={name!r} is no dtype; use float32, bfloat16, float16 or float64") from error
