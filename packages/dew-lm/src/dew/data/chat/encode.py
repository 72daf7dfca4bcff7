"""From text with a writer for every character to ids with a writer for every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from dew.data.chat.roles import Role
from dew.data.chat.turns import Spoken
from dew.data.text.tokenizer import ByteTokenizer, HFTokenizer, Tokenizer


@dataclass(frozen=True)
class Row:
    """One text as ids.

    Attributes:
        ids: [n].
        roles: [n], values of `Role`.
    """

    ids: npt.NDArray[np.int64]
    roles: npt.NDArray[np.uint8]


class RoleEncoder:
    """Encodes texts as a whole, the special tokens that they spell included and no other added.

    A token is its first character's writer's; one that holds any character of the assistant's is the
    assistant's, as transformers counts them.

    Args:
        tokenizer: `ByteTokenizer` or `HFTokenizer`.
        bos: the text of the id that begins a sequence, or None.

    Raises:
        TypeError: another tokenizer, which says nothing about where its tokens stand.
    """

    def __init__(self, tokenizer: Tokenizer, bos: str | None = None) -> None:
        if not isinstance(tokenizer, ByteTokenizer | HFTokenizer):
            raise TypeError(
                f"tokenize={tokenizer!r} does not say which characters a token holds; use byte, or a "
                "tokenizer.json"
            )
        self._tokenizer = tokenizer
        self._backend = _without_trimming(tokenizer) if isinstance(tokenizer, HFTokenizer) else None
        self._bos = None if bos is None or self._backend is None else self._backend.token_to_id(bos)

    def rows(self, texts: Sequence[Spoken]) -> list[Row]:
        """Each text as a row.

        Raises:
            ValueError: one begins with its first id twice.
        """
        if self._backend is None:
            return [_bytes_row(each) for each in texts]
        encodings = self._backend.encode_batch([each.text for each in texts], add_special_tokens=False)
        return [self._row(each, encoding) for each, encoding in zip(texts, encodings, strict=True)]

    def first_bytes(self, text: str) -> int:
        """Bytes of `text` that its first token holds, the whole of a letter whose first part it is."""
        if self._backend is None:
            return min(1, len(text.encode()))
        offsets = self._backend.encode(text, add_special_tokens=False).offsets
        return len(text[: offsets[0][1]].encode()) if offsets else 0

    def _row(self, text: Spoken, encoding: Any) -> Row:
        ids = np.asarray(encoding.ids, np.int64)
        if self._bos is not None and ids[:2].tolist() == [self._bos, self._bos]:
            raise ValueError(
                f"the rendered text begins with its first token twice ({text.text[:40]!r}); take it out "
                "of the "
                "chat template or of the first message"
            )
        offsets = np.asarray(encoding.offsets, np.int64).reshape(-1, 2)
        return Row(ids, token_roles(text.roles, offsets[:, 0], offsets[:, 1]))


def token_roles(
    characters: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Whose each token is.

    Args:
        characters: [characters], whose each is.
        starts: [tokens], the first character of each.
        stops: [tokens], the one after its last.
    """
    if not len(characters):
        return np.full(len(starts), Role.TEMPLATE, np.uint8)
    before = np.concatenate([[0], np.cumsum(characters == Role.ASSISTANT)])
    first = np.minimum(starts, len(characters) - 1)
    spoken = before[np.minimum(np.maximum(stops, first + 1), len(characters))] > before[first]
    return np.where(spoken, np.uint8(Role.ASSISTANT), characters[first])


def _bytes_row(text: Spoken) -> Row:
    data = text.text.encode()
    widths = [len(character.encode()) for character in text.text]
    return Row(np.frombuffer(data, np.uint8).astype(np.int64), np.repeat(text.roles, widths))


def _without_trimming(tokenizer: HFTokenizer) -> tokenizers.Tokenizer:
    # A post-processor may cut spaces off the offsets, and adds nothing where no special token is asked for.
    copy = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    copy.post_processor = None  # pyright: ignore[reportAttributeAccessIssue]
    copy.no_padding()
    copy.no_truncation()
    return copy
