"""What a component of a request holds, as a text that two processes can compare.

Arrays count by their bytes, functions by their code with its defaults, its closure and the plain globals it
reads, other objects by their attributes. Places in memory and file names do not count.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import os
import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
PLAIN = (type(None), bool, int, float, complex, str, bytes, types.EllipsisType)


def described(tree: Any, name: str = "the tree") -> str:
    """The structure of a tree of components and a digest of all that it holds.

    Args:
        tree: arrays, functions, and objects with attributes; a pytree or not.
        name: of the tree, for messages.

    Raises:
        ValueError: it holds what cannot be told of by its contents, as a lock or a generator.
    """
    digest = hashlib.sha256()
    for fact in _facts(tree, name, ()):
        digest.update(f"{len(fact)}:".encode() + fact)
    return f"{without_addresses(str(jax.tree.structure(tree)))} with {digest.hexdigest()[:16]}"


def without_addresses(text: str) -> str:
    """`text` without what a `repr` says of a place in memory."""
    return ADDRESS.sub("", text)


def _facts(value: Any, place: str, around: tuple[int, ...]) -> Iterator[bytes]:
    """All that `value` holds, in an order of its own; an object that holds itself is told of once."""
    if isinstance(value, PLAIN):
        yield f"{type(value).__name__} {value!r}".encode()
    elif isinstance(value, jax.Array | np.ndarray | np.generic):
        yield from _array(value, place, around)
    elif id(value) in around:
        yield f"again {len(around) - around.index(id(value))}".encode()
    else:
        yield _name(type(value)).encode()
        for part, held in _parts(value, place):
            yield part.encode()
            yield from _facts(held, f"{place}{part}", (*around, id(value)))


def _array(value: Any, place: str, around: tuple[int, ...]) -> Iterator[bytes]:
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        yield str(value.dtype).encode()
        value = jax.random.key_data(value)
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        yield f"global {value.dtype}{value.shape}".encode()  # one array, which the processes made together
        return
    array = np.asarray(value)
    yield f"{array.dtype}{array.shape}".encode()
    if array.dtype == object:
        yield from _facts(array.tolist(), place, around)
    else:
        yield np.ascontiguousarray(array).tobytes()


def _parts(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """What `value` is made of, each with its name."""
    if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType | np.ufunc):
        yield "", _name(value)
        owner = getattr(value, "__self__", None)
        if isinstance(value, types.BuiltinFunctionType) and not isinstance(owner, types.ModuleType):
            yield ".__self__", owner
    elif isinstance(value, types.FunctionType):
        yield from _function(value)
    elif isinstance(value, types.CodeType):
        yield from _code(value)
    elif isinstance(value, types.MethodType):
        yield from ((".__func__", value.__func__), (".__self__", value.__self__))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", held) for key, held in _in_order(value))
    elif isinstance(value, tuple | list):
        yield from ((f"[{index}]", held) for index, held in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield "", sorted(described(held, place) for held in value)
    else:
        yield from _attributes(value, place)


def _in_order(mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(mapping.items(), key=lambda item: without_addresses(repr(item[0])))


def _function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    yield ".__code__", function.__code__
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield from ((f" holding {name}", _content(cell)) for name, cell in cells)
    for name in sorted(_names(function.__code__)):
        held = function.__globals__.get(name)
        if isinstance(held, (*PLAIN, jax.Array, np.ndarray, np.generic)):
            yield f" reading {name}", held
    yield from ((f".{name}", held) for name, held in _in_order(vars(function)))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return ()


def _code(code: types.CodeType) -> Iterator[tuple[str, Any]]:
    yield ".co_code", code.co_code
    yield ".co_names", code.co_names
    yield ".co_consts", code.co_consts


def _names(code: types.CodeType) -> set[str]:
    """The names that `code` and the functions within it read."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _attributes(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, how it is called, and the function that it wraps."""
    if isinstance(value, enum.Enum | re.Pattern | np.dtype | os.PathLike):
        yield "", str(value)
        return
    wrapped = getattr(value, "__wrapped__", None)
    if wrapped is not None:  # a compiled or a cached function, whose own attributes are its machinery
        yield ".__wrapped__", wrapped
        return
    held = _held(value)
    called = inspect.getattr_static(type(value), "__call__", None)
    if isinstance(called, types.FunctionType):
        yield ".__call__", called
    elif held is None:
        yield "", _said(value, place)
    yield from ((f".{name}", each) for name, each in (held or {}).items())


def _held(value: Any) -> dict[str, Any] | None:
    """The attributes of an object by name, or None where it keeps none in Python."""
    if dataclasses.is_dataclass(value):
        return {each.name: getattr(value, each.name, ()) for each in dataclasses.fields(value)}
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    if not slots and not hasattr(value, "__dict__"):
        return None
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return dict(_in_order(found | getattr(value, "__dict__", {})))


def _slots(kind: type) -> tuple[str, ...]:
    slots: Any = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _said(value: object, place: str) -> str:
    text = repr(value)
    if ADDRESS.search(text):
        raise ValueError(
            f"{place} holds {text}, of which nothing can be told that another process could compare; hold "
            "arrays, numbers, texts, functions, or objects made of them"
        )
    return text


def _name(value: type | types.ModuleType | Callable[..., Any]) -> str:
    module = getattr(value, "__module__", None) or ""
    return f"{module}.{getattr(value, '__qualname__', value.__name__)}"
