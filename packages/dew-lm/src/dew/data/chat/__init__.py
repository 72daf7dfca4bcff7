"""Conversations as training data: the tokenizer's own template, and a role for every token."""

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Role": "dew.data.chat.roles:dew-lm",
    },
)

if TYPE_CHECKING:
    from dew.data.chat.roles import Role as Role
