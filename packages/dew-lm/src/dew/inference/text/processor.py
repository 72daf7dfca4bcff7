"""Between text and token rows, on the host."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dew.data.chat import chat_template
from dew.data.chat.conversation import conversation
from dew.data.chat.template import Message
from dew.data.text import HFTokenizer, Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
HELD = 3
"""How many replacement characters the bytes of one unfinished character decode to, at most."""


class Processor(Protocol):
    """What a text task needs of its tokenizer."""

    def encode(self, text: str, /) -> list[int]:
        """The prompt ids of `text`; at least one."""
        ...

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of `ids`."""
        ...


class ChatProcessor(Processor, Protocol):
    """A processor that also reads conversations."""

    def chat(self, messages: Sequence[Message], /, *, tools: Sequence[Any] | None = None) -> list[int]:
        """The prompt ids of a conversation, up to where the assistant speaks."""
        ...


@dataclass(frozen=True)
class RunProcessor:
    """A run's own tokenizer as a task's processor. An empty prompt continues a newline.

    Attributes:
        tokenizer: a `ByteTokenizer`, an `HFTokenizer`, or another with their methods.
    """

    tokenizer: Tokenizer

    def encode(self, text: str, /) -> list[int]:
        """The prompt ids of `text`.

        Raises:
            ValueError: text that is not valid Unicode, or that the tokenizer turns into no token.
        """
        _refuse_broken(text)
        ids = self.tokenizer.encode(text or "\n")
        if not ids:
            raise ValueError(
                f"the tokenizer {self.tokenizer.name!r} makes no token of the prompt {text!r}; "
                "write a prompt it knows"
            )
        return ids

    def chat(self, messages: Sequence[Message], /, *, tools: Sequence[Any] | None = None) -> list[int]:
        """The prompt ids of a conversation in the tokenizer's own chat template.

        The prompt ends with the header that asks the assistant to speak. A template that asks for the day
        gets today.

        Args:
            messages: in order, each with `role` and `content`.
            tools: JSON schemas of functions that the assistant may call.

        Raises:
            ValueError: a tokenizer without a template, messages that are none, or that the template refuses.
        """
        today = datetime.date.today().isoformat()
        template = chat_template(self.tokenizer, with_tools=bool(tools), today=today)
        asked = conversation(list(messages), None if tools is None else list(tools), "the request")
        text = template.render(asked.messages, tools=asked.tools, add_generation_prompt=True).text
        _refuse_broken(text)
        return self.tokenizer.encode(text)

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        return self.tokenizer.decode(ids)


@dataclass(frozen=True)
class SourceProcessor(RunProcessor):
    """The tokenizer of a published model as a task's processor: its special tokens stand around a text."""

    def encode(self, text: str, /) -> list[int]:
        """The prompt ids of `text`, with the special tokens that the tokenizer puts around a text.

        Raises:
            ValueError: text that is not valid Unicode, or that the tokenizer turns into no token.
        """
        if not isinstance(self.tokenizer, HFTokenizer):
            return super().encode(text)
        _refuse_broken(text)
        ids = self.tokenizer.backend.encode(text, add_special_tokens=True).ids
        return ids or super().encode(text)


def settled(text: str) -> str:
    """`text` without an end that further tokens may still turn into a character.

    The bytes of an unfinished character decode to replacement characters, which hold until the rest arrives.
    """
    kept = len(text)
    while kept and len(text) - kept < HELD and text[kept - 1] == REPLACEMENT:
        kept -= 1
    return text[:kept]


def _refuse_broken(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the prompt holds {text[error.start]!r} at character {error.start}, which stands for no "
            "character (bytes that are not UTF-8 arrive like this); write the prompt in UTF-8"
        ) from error
