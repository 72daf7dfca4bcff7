"""Places of a configuration where one of several records can stand: a dataset, a schedule, an optional part.

A choice is written `path:name` (`data:text`, `optim.schedule:cosine`, `trainer.wandb:none`), before or after
the options it brings. An option below a slot that is empty fills it where only one record has that option; an
option that the record in a slot lacks can choose another one of the same kind.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Union

from dew.cli.errors import UserError
from dew.cli.suggest import close, unknown
from dew.registry import registry_of

REGISTERED = ("dataset", "schedule", "preset", "sampler")
"""Kinds whose components are configuration records, so that every plugin's can stand in a slot."""

NONE = "none"
CHOICE = re.compile(r"[a-z][\w.-]*")


@dataclass(frozen=True)
class Slot:
    """One place with a choice.

    Attributes:
        path: the dotted name of the field.
        kind: the kind of component that stands here, or empty.
        arms: what can stand here, by the name that chooses it; None for an empty slot.
        summaries: one line on each of them.
        default: what stands here unless another is chosen.
    """

    path: str
    kind: str
    arms: Mapping[str, type | None]
    summaries: Mapping[str, str]
    default: object


def spelled(name: str) -> str:
    """A name as the command line writes it."""
    return name.replace("_", "-").lower()


def bare(hint: Any) -> Any:
    """`hint` without its alias and its annotations."""
    while True:
        if isinstance(hint, typing.TypeAliasType):
            hint = hint.__value__
        elif typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        else:
            return hint


def arms_of(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    hint = bare(hint)
    if typing.get_origin(hint) in (Union, types.UnionType):
        return tuple(arm for member in typing.get_args(hint) for arm in arms_of(member))
    return (hint,)


def registered(base: type) -> tuple[str, dict[str, tuple[type, str]]]:
    """The kind whose components derive from `base`; class and summary of those that can be imported."""
    for kind in REGISTERED:
        registry = registry_of(kind)
        found: dict[str, tuple[type, str]] = {}
        for name in registry.names():
            # One that cannot be imported is left out here; choosing it by name raises its error.
            with suppress(Exception):
                cls = registry.config(name)
                if issubclass(cls, base):
                    found[spelled(name)] = (cls, registry.component(name).summary)
        if found:
            return kind, found
    return "", {}


def slot_of(path: str, hint: Any, default: object) -> Slot | None:
    """The slot a field is, or None for a plain field."""
    arms = arms_of(hint)
    records = [arm for arm in arms if isinstance(arm, type) and dataclasses.is_dataclass(arm)]
    optional = type(None) in arms
    found: dict[str, tuple[type | None, str]] = {}
    kinds: set[str] = set()
    for record in records:
        kind, members = registered(record)
        kinds.add(kind)
        found |= members or {plain_name(path, record, len(records)): (record, first_line(record))}
    if not records or (len(found) == 1 and not optional and kinds == {""}):
        return None
    if optional:
        found[NONE] = (None, "Leave it out.")
    if default is not None and type(default) not in (each for each, _ in found.values()):
        found[plain_name(path, type(default), 2)] = (type(default), first_line(type(default)))
    return Slot(
        path,
        kinds.pop() if len(kinds) == 1 else "",
        {name: record for name, (record, _) in found.items()},
        {name: summary for name, (_, summary) in found.items()},
        default,
    )


def first_line(record: type) -> str:
    """The summary line of a record's docstring."""
    return (record.__doc__ or "").strip().partition("\n")[0]


def plain_name(path: str, record: type, choices: int) -> str:
    """What chooses an unregistered record: the field's own name for the only one, else that of its class."""
    if choices == 1:
        return spelled(path.rpartition(".")[2])
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", record.__name__).lower()


def fields_of(cls: type, instance: object) -> Iterator[tuple[dataclasses.Field[Any], Any, object]]:
    """The constructor fields of a record, each with its whole annotation and its value in `instance`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        if field.init:
            yield field, hints[field.name], getattr(instance, field.name)


def slots(cls: type, instance: object, prefix: str = "") -> Iterator[Slot]:
    """Every slot of a configuration, those of the nested records included."""
    for field, hint, value in fields_of(cls, instance):
        path = f"{prefix}{field.name}"
        slot = slot_of(path, hint, value)
        if slot is not None:
            yield slot
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from slots(type(value), value, f"{path}.")


def choose(found: list[Slot], words: list[str]) -> tuple[dict[str, type | None], list[str]]:
    """What stands in each slot, and the words without the choices.

    Raises:
        UserError: a choice that does not exist, or an option that several records of an empty slot have.
    """
    by_path = {spelled(slot.path): slot for slot in found}
    chosen: dict[str, type | None] = {}
    rest: list[str] = []
    for word in words:
        path, colon, name = word.partition(":")
        slot = by_path.get(spelled(path)) if colon and not word.startswith("-") else None
        if slot is None:
            refuse_near_miss(path if colon else "", rest[-1:], by_path)
            rest.append(word)
        else:
            chosen[slot.path] = arm(slot, name)
    for slot in found:
        if slot.path not in chosen:
            chosen[slot.path] = implied(slot, rest) if slot.default is None else sibling(slot, rest)
    return chosen, rest


def arm(slot: Slot, name: str) -> type | None:
    """The record that `name` chooses in `slot`: the name of a choice, or of its class."""
    if spelled(name) in slot.arms:
        return slot.arms[spelled(name)]
    for record in slot.arms.values():
        if record is not None and plain_name(slot.path, record, 2) == spelled(name):
            return record
    registry = registry_of(slot.kind)
    if slot.kind and name in registry:
        return registry.config(name)
    choices = ", ".join(sorted(slot.arms))
    raise UserError(
        unknown(f"choice for {slot.path}", name, slot.arms, f"choose {slot.path}:NAME from {choices}")
    )


def refuse_near_miss(path: str, before: list[str], by_path: Mapping[str, Slot]) -> None:
    """Refuse a mistyped choice (`dta:text`). A word after an option is that option's value and passes."""
    if CHOICE.fullmatch(path) and not "".join(before).startswith("-") and close(path, by_path):
        raise UserError(unknown("choice", path, by_path, ""))


def implied(slot: Slot, words: list[str]) -> type | None:
    """The record an empty slot gets because an option of it is given."""
    names = options(slot, words)
    if not names:
        return None
    fitting = {
        name: record
        for name, record in slot.arms.items()
        if record is not None and names <= {spelled(field.name) for field in dataclasses.fields(record)}
    }
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    several = ", ".join(f"{slot.path}:{name}" for name in sorted(fitting or slot.arms) if name != NONE)
    raise UserError(
        f"--{spelled(slot.path)}.{sorted(names)[0]} needs to know what it belongs to; write one of "
        f"{several} before it"
    )


def sibling(slot: Slot, words: list[str]) -> type:
    """The slot's own record, or one of the same base class that an option given here chooses.

    A record names such options in `chosen_by`: `--data.path` over a set of images that has no path means a
    folder of images.
    """
    own: type[Any] = type(slot.default)
    lacking = options(slot, words) - {spelled(field.name) for field in dataclasses.fields(own)}
    for record in slot.arms.values():
        chosen_by = {spelled(name) for name in getattr(record, "chosen_by", ())}
        if record is not None and record.__bases__ == own.__bases__ and lacking & chosen_by:
            return record
    return own


def options(slot: Slot, words: list[str]) -> set[str]:
    """The fields of the record in `slot` that `words` give a value."""
    start = f"--{spelled(slot.path)}."
    return {
        spelled(word.partition("=")[0])[len(start) :].partition(".")[0]
        for word in words
        if under(word, start)
    }


def under(word: str, start: str) -> bool:
    """Whether `word` is an option below the prefix `start`."""
    return spelled(word).startswith(start)
