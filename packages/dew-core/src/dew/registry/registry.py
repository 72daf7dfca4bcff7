"""The typed view of one kind of component."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from typing import Any

from dew.plugins.component import Component
from dew.plugins.known import SHIPPED_BY, obtain
from dew.registry.build import construct


class UnknownComponent(ValueError, KeyError):
    """A name that no installed plugin registers."""

    __str__ = ValueError.__str__


def resolve(reference: str) -> Any:
    """Import `"module:attribute"` and return what it names."""
    module, _, attribute = reference.partition(":")
    value: Any = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


class Registry:
    """The components of one kind, from every installed plugin, by name; nothing is imported before use."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def _components(self) -> dict[str, Component]:
        from dew.plugins.loader import installed

        return {name: part for (kind, name), part in installed().components.items() if kind == self.kind}

    def names(self) -> tuple[str, ...]:
        """The registered names in order, aliases left out."""
        return tuple(sorted({part.name for part in self._components().values()}))

    def component(self, name: str) -> Component:
        """The record behind a name or an alias.

        Raises:
            UnknownComponent: nobody registers it; the message offers close matches or names its package.
        """
        parts = self._components()
        if name in parts:
            return parts[name]
        raise UnknownComponent(self._unknown(name, list(parts)))

    def _unknown(self, name: str, choices: list[str]) -> str:
        message = f"no {self.kind} is named {name!r}"
        distribution = SHIPPED_BY.get((self.kind, name))
        if distribution is not None:
            return f"{message} here: it ships in {distribution}; {obtain(distribution)}"
        close = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
        if close:
            return f"{message}; did you mean {' or '.join(close)}?"
        return f"{message}; installed: {', '.join(sorted(choices)) or 'none'}"

    def get(self, name: str) -> Any:
        """Import and return what `name` stands for."""
        part = self.component(name)
        return self._import(part, part.ref)

    def config(self, name: str) -> type[Any]:
        """Import and return the configuration class of `name`."""
        part = self.component(name)
        return self._import(part, part.config or part.ref)

    def _import(self, part: Component, reference: str) -> Any:
        try:
            return resolve(reference)
        except ModuleNotFoundError as error:
            if not part.requires:
                raise
            raise ImportError(
                f"{self.kind} {part.name!r} needs {error.name}: pip install '{part.requires}'",
                name=error.name,
            ) from error

    def build(self, name: str, /, **fields: Any) -> Any:
        """Construct `name` from `fields`, each checked against its signature.

        Raises:
            UnknownComponent: the name.
            TypeError: a field the component does not take, or one it needs and did not get.
        """
        return construct(f"{self.kind} {name!r}", self.get(name), fields)

    def name_of(self, cls: type) -> str:
        """The name whose part or configuration is `cls`."""
        reference = f"{cls.__module__}:{cls.__qualname__}"
        parts = {part.name: part for part in self._components().values()}
        for name, part in parts.items():
            if reference in (part.ref, part.config):
                return name
        for name, part in parts.items():
            for other in (part.ref, part.config):
                if other.endswith(f":{cls.__qualname__}") and resolve(other) is cls:
                    return name
        raise ValueError(f"{cls.__qualname__} of {cls.__module__} is registered as no {self.kind}")

    def __getitem__(self, name: str) -> Any:
        return self.get(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.get(name)
        except UnknownComponent as error:
            raise AttributeError(str(error)) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._components()

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.names()})

    def __repr__(self) -> str:
        return f"<registry of {self.kind}: {', '.join(self.names()) or 'none'}>"
