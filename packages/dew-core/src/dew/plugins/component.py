"""The record a plugin announces a part with: strings only, so that listing the parts imports none of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

CONTRACT = 1
"""The contract number a plugin module states as `DEW_CONTRACT`; it rises when a hook changes incompatibly."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Component:
    """One named part of a run.

    Attributes:
        kind: what it is: `objective`, `model`, `schedule`, `sampler`, `preset`, `scheduler`, `metric`,
            `dataset`, `tokenizer`, `encoder`, `optimizer`, `tracker`, `reader`, `writer`, `task`, `recipe`,
            `command`, or a kind of the plugin's own.
        name: what a user writes to get it; letters, digits and `_ . -`.
        ref: `"module:attribute"` of the part, imported on first use.
        summary: one line for the lists and the help.
        config: `"module:Class"` of its configuration, where it has one beside `ref`. For a dataset or a
            schedule `ref` is the configuration itself; a recipe and an objective name a `RunConfig` subclass.
        requires: what to install when importing `ref` misses a package, as in `dew-core[images]`.
        aliases: further names it answers to.

    Raises:
        ValueError: a name or a reference that is not of the form above.
    """

    kind: str
    name: str
    ref: str
    summary: str
    config: str = ""
    requires: str = ""
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (self.name, *self.aliases):
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"name={name!r} of a {self.kind} must hold letters, digits and _ . - alone "
                    "and start with a letter or a digit"
                )
        for label, reference in (("ref", self.ref), ("config", self.config or self.ref)):
            if not REFERENCE.fullmatch(reference):
                raise ValueError(
                    f'{label}={reference!r} of {self.kind} {self.name!r} must read "module:attribute", '
                    'as in "mine.models:TinyNet"'
                )
