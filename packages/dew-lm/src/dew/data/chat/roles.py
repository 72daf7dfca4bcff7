"""Who wrote a token of a conversation. Importing it imports no JAX."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal


class Role(IntEnum):
    """The value of a token in `text_roles`.

    `TEMPLATE` is what nobody said: the beginning, the header that asks the assistant to speak, padding, and
    turns that stand for context alone. A message's own frame (`<|im_start|>user` ... `<|im_end|>`) belongs to
    its writer, except the assistant's header, which the assistant never writes.
    """

    TEMPLATE = 0
    SYSTEM = 1
    USER = 2
    ASSISTANT = 3
    TOOL = 4


type RoleName = Literal["system", "user", "assistant", "tool"]
"""A role as a configuration writes it."""

SPELLINGS: dict[str, Role] = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "function": Role.TOOL,
    "ipython": Role.TOOL,
}
"""`role` of a message -> whose it is."""


def role_number(name: RoleName | None) -> Role | None:
    """The role of that name; None stays None."""
    return None if name is None else Role[name.upper()]
