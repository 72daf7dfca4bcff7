"""Between text and token rows, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dew.data.text import Tokenizer

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
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the prompt holds {text[error.start]!r} at character {error.start}, which stands for no "
                "character (bytes that are not UTF-8 arrive like this); write the prompt in UTF-8"
            ) from error
        ids = self.tokenizer.encode(text or "\n")
        if not ids:
            raise ValueError(
                f"the tokenizer {self.tokenizer.name!r} makes no token of the prompt {text!r}; "
                "write a prompt it knows"
            )
        return ids

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        return self.tokenizer.decode(ids)


def settled(text: str) -> str:
    """`text` without an end that further tokens may still turn into a character.

    The bytes of an unfinished character decode to replacement characters, which hold until the rest arrives.
    """
    kept = len(text)
    while kept and len(text) - kept < HELD and text[kept - 1] == REPLACEMENT:
        kept -= 1
    return text[:kept]


def addition(written: str, text: str) -> str:
    """The part of `text` behind what it shares with `written`."""
    shared = 0
    for before, now in zip(written, text, strict=False):
        if before != now:
            break
        shared += 1
    return text[shared:]
