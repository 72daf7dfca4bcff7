"""Configurations as JSON records, and back by their declared types.

A dataclass becomes an object of its fields. A component that plugins register (a dataset, a schedule)
becomes its registered name and its fields: `{"name": "token_windows", "path": ...}`. Reading is strict: a
field the class lacks, a field the record lacks and a value of another type are refused with their path.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union, cast


def component_kind(cls: object) -> str | None:
    """The registry kind whose members are stored by name, as a class states in `component_kind`; else
    None."""
    kind = getattr(cls, "component_kind", None) if isinstance(cls, type) else None
    return kind if isinstance(kind, str) else None


def encode(value: object, path: str) -> Any:
    """`value` as JSON.

    Args:
        value: a dataclass, a registered component, or plain values in mappings, lists and tuples.
        path: dotted name of `value`, for errors.

    Raises:
        ValueError: a number JSON cannot hold (nan, infinities), or a mapping key that is no string.
        TypeError: a value of any other type.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(
                f"{path or 'value'}={value} is not finite, and a record holds finite numbers only"
            )
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value, path)
    if isinstance(value, Mapping):
        return _encode_mapping(cast("Mapping[object, object]", value), path)
    if isinstance(value, (list, tuple)):
        items = cast("typing.Sequence[object]", value)
        return [encode(item, f"{path}[{index}]") for index, item in enumerate(items)]
    raise TypeError(
        f"{path or 'value'} is of type {type(value).__name__}, which a record cannot hold; "
        "use numbers, strings, booleans, lists, mappings or dataclasses of them"
    )


def fields_record(value: Any, path: str = "") -> dict[str, Any]:
    """The fields of a dataclass as JSON, without a registered name."""
    return {
        field.name: encode(getattr(value, field.name), _join(path, field.name))
        for field in dataclasses.fields(value)
        if field.init
    }


def _encode_dataclass(value: Any, path: str) -> dict[str, Any]:
    record = fields_record(value, path)
    kind = component_kind(type(value))
    if kind is None:
        return record
    if "name" in record:
        raise TypeError(
            f"{type(value).__name__}.name clashes with the registered name in a record; rename it"
        )
    from dew.registry import name_of

    return {"name": name_of(kind, type(value)), **record}


def _encode_mapping(value: Mapping[object, object], path: str) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"{path or 'value'} has the key {key!r}; a record's keys are strings")
    return {cast("str", key): encode(item, _join(path, cast("str", key))) for key, item in value.items()}


def decode(hint: Any, value: Any, path: str) -> Any:
    """The value of declared type `hint` that `encode` wrote as `value`.

    Args:
        hint: an annotation as `typing.get_type_hints` resolves it.
        value: parsed JSON.
        path: dotted name, for errors.

    Raises:
        ValueError: unknown, missing or ill-typed fields, with their path.
    """
    hint = plain(hint)
    origin = typing.get_origin(hint)
    if hint is Any or hint is object:
        return value
    if origin in (Union, types.UnionType):
        return _decode_union(typing.get_args(hint), value, path)
    if origin is Literal:
        return _decode_literal(typing.get_args(hint), value, path)
    if component_kind(hint) is not None and (value is None or isinstance(value, Mapping)):
        return _decode_component(cast("type", hint), value, path)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, value, path)
    if (origin or hint) in (tuple, list):
        return _decode_sequence(hint, value, path)
    if isinstance(origin or hint, type) and issubclass(origin or hint, Mapping):
        return _decode_mapping(hint, value, path)
    return _decode_scalar(hint, value, path)


def plain(hint: Any) -> Any:
    """`hint` without aliases and annotations."""
    while True:
        if isinstance(hint, typing.TypeAliasType):
            hint = hint.__value__
        elif typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        elif hasattr(hint, "__origin__") and isinstance(hint.__origin__, typing.TypeAliasType):
            hint = hint.__origin__.__value__
        else:
            return hint


def _decode_union(arms: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in arms:
        return None
    failures: list[str] = []
    arms = tuple(arm for arm in arms if arm is not type(None))
    # A float arm also reads integers, so it comes last: 3 under `int | float` stays an integer.
    for arm in sorted(arms, key=lambda arm: plain(arm) is float):
        try:
            return decode(arm, value, path)
        except ValueError as error:
            failures.append(str(error))
    if len(arms) == 1:
        raise ValueError(failures[0])
    raise ValueError(f"{path}={value!r} fits none of its types: {'; '.join(failures)}")


def _decode_literal(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    for choice in choices:
        if choice == value and type(choice) is type(value):
            return choice
    close = difflib.get_close_matches(str(value).lower(), [str(choice) for choice in choices], n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise ValueError(f"{path}={value!r} must be one of {', '.join(map(repr, choices))}{hint}")


def _decode_component(declared: type, value: Any, path: str) -> Any:
    from dew.registry import registry_of

    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError(f"{path}={value!r} must be an object with the registered name under 'name'")
    record = dict(cast("Mapping[str, Any]", value))
    cls = registry_of(cast("str", component_kind(declared))).config(record.pop("name"))
    if not issubclass(cls, declared):
        raise ValueError(f"{path}.name={value['name']!r} is no {declared.__name__}")
    return _decode_dataclass(cls, record, path)


def _decode_dataclass(cls: type, value: Any, path: str) -> Any:
    return from_fields(cls, _object(value, path), path)


def from_fields(cls: type, value: Mapping[str, Any], path: str = "") -> Any:
    """An instance of the dataclass `cls` from the record of its fields.

    Raises:
        ValueError: a field that `cls` lacks, or one that the record lacks.
    """
    names = [field.name for field in dataclasses.fields(cast("Any", cls)) if field.init]
    for name in value:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            fix = f"did you mean {close[0]}?" if close else f"{cls.__name__} has {', '.join(names) or 'none'}"
            raise ValueError(f"{_join(path, name)}: unknown field; {fix}")
    missing = [_join(path, name) for name in names if name not in value]
    if missing:
        raise ValueError(f"{', '.join(missing)}: missing; the record of {cls.__name__} holds every field")
    hints = typing.get_type_hints(cls)
    return cls(**{name: decode(hints[name], value[name], _join(path, name)) for name in names})


def _decode_sequence(hint: Any, value: Any, path: str) -> Any:
    if not isinstance(value, list):
        raise ValueError(f"{path}={value!r} must be a list")
    items = cast("list[Any]", value)
    kind = cast("type", typing.get_origin(hint) or hint)
    arms = typing.get_args(hint)
    if kind is list or not arms or arms[-1] is Ellipsis:
        inner = arms[0] if arms else Any
        return kind(decode(inner, item, f"{path}[{index}]") for index, item in enumerate(items))
    if len(items) != len(arms):
        raise ValueError(f"{path}={value!r} must hold {len(arms)} values, not {len(items)}")
    return tuple(
        decode(arm, item, f"{path}[{i}]") for i, (arm, item) in enumerate(zip(arms, items, strict=True))
    )


def _decode_mapping(hint: Any, value: Any, path: str) -> dict[str, Any]:
    record = _object(value, path)
    arms = typing.get_args(hint)
    inner = arms[1] if len(arms) == 2 else Any
    return {name: decode(inner, item, _join(path, name)) for name, item in record.items()}


SCALARS: Mapping[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
    str: ((str,), "a string"),
    type(None): ((type(None),), "null"),
}
"""What JSON type each plain Python type is read from, and how an error calls it."""


def _decode_scalar(hint: Any, value: Any, path: str) -> Any:
    if hint not in SCALARS:
        raise ValueError(f"{path}: the declared type {hint!r} cannot be read from a record")
    accepted, called = SCALARS[hint]
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{path}={value!r} must be {called}")
    return float(value) if hint is float else value


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{path or 'record'}={value!r} must be an object of fields")
    return cast("Mapping[str, Any]", value)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def differences(old: Any, new: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """The leaves where two records differ: dotted path to (old, new); a side without the leaf shows None."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        before, after = cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new)
        found: dict[str, tuple[Any, Any]] = {}
        for name in (*before, *(name for name in after if name not in before)):
            found |= differences(before.get(name), after.get(name), _join(path, name))
        return found
    same = old == new and isinstance(old, bool) == isinstance(new, bool)
    return {} if same else {path: (old, new)}
