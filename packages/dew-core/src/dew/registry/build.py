"""Construct a component from plain fields, as a configuration or the command line holds them."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Union

SCALARS: Mapping[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
    str: ((str,), "a string"),
    type(None): ((type(None),), "null"),
}
"""A declared type -> the types it is written as, and its name in messages."""
POSITIONAL = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
LINEN = ("parent", "name")
"""Fields every Linen module has for Flax's own use."""


class FieldError(TypeError, ValueError):
    """A field that a component does not take, or one it needs."""


def construct(what: str, factory: Callable[..., Any], fields: Mapping[str, Any]) -> Any:
    """Call `factory(**fields)` with every field checked and narrowed to its declared type.

    A list becomes a tuple where the field is one, a mapping the declared dataclass, a dtype's name a dtype.

    Raises:
        FieldError: a field that `factory` does not take or that is of another kind than declared, or one
            without a default that is missing.
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
    unset = {name for name, each in parameters.items() if each.default is None and fields.get(name) is None}
    return factory(
        **{
            name: None
            if value is None and name in unset
            else narrow(f"{what}: {name}", hints.get(name), value)
            for name, value in fields.items()
        }
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
    """`value` as the declared type spells it, where the two differ only in how they are written down.

    Raises:
        FieldError: a number, a string, a flag, null or a list where another kind is declared.
    """
    spelled = _spelled(what, hint, value)
    if not fits(hint, spelled):
        raise FieldError(f"{what}={value!r} must be {told(hint)}")
    return spelled


def fits(hint: Any, value: Any) -> bool:
    """Whether a value that JSON can hold is of the declared type. Other values and types are not judged."""
    hint = getattr(hint, "__value__", hint)
    if hint is None or type(value) not in (bool, int, float, str, type(None), list, tuple):
        return True
    if hint in SCALARS:
        return isinstance(value, SCALARS[hint][0]) and (hint is bool or not isinstance(value, bool))
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(arm, value) for arm in arms)
    if origin is typing.Literal:
        return any(type(value) is type(choice) for choice in arms)
    if (origin or hint) is tuple:
        if not isinstance(value, tuple):
            return False
        inner = arms[0] if len(arms) == 2 and arms[1] is Ellipsis else Any
        return all(fits(inner, each) for each in typing.cast("tuple[Any, ...]", value))
    return not (isinstance(hint, type) and dataclasses.is_dataclass(hint))


def told(hint: Any) -> str:
    """What a declared type may hold, in words."""
    hint = getattr(hint, "__value__", hint)
    if hint in SCALARS:
        return SCALARS[hint][1]
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(told, arms))
    if origin is typing.Literal:
        return f"one of {', '.join(map(repr, arms))}"
    if (origin or hint) is tuple:
        return "a list" if len(arms) != 2 or arms[1] is not Ellipsis else f"a list, each {told(arms[0])}"
    return "an object of fields" if dataclasses.is_dataclass(hint) else str(getattr(hint, "__name__", hint))


def _spelled(what: str, hint: Any, value: Any) -> Any:
    """`value` with lists as tuples, mappings as records and a dtype's name as the dtype, where declared."""
    hint = getattr(hint, "__value__", hint)
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        records = [arm for arm in typing.get_args(hint) if dataclasses.is_dataclass(arm)]
        tuples = [arm for arm in typing.get_args(hint) if (typing.get_origin(arm) or arm) is tuple]
        if isinstance(value, Mapping) and len(records) == 1:
            return _spelled(what, records[0], value)
        return _spelled(what, tuples[0], value) if isinstance(value, list) and tuples else value
    if isinstance(value, list) and (origin or hint) is tuple:
        arms = typing.get_args(hint)
        inner = arms[0] if len(arms) == 2 and arms[1] is Ellipsis else None
        return tuple(_spelled(what, inner, each) for each in typing.cast("list[Any]", value))
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
