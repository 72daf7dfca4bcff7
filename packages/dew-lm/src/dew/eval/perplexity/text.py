"""Perplexity of a text: its ids, and the bytes that the scored ones spell."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral

import numpy as np

from dew.data.chat.encode import RoleEncoder
from dew.data.chat.turns import Spoken
from dew.data.text.tokenizer import Tokenizer
from dew.data.tokens.source import Ids
from dew.eval.perplexity.score import CorpusPerplexity, corpus_perplexity
from dew.inference.text.processor import RunProcessor
from dew.objectives.base import Variables
from dew.objectives.lm.decoder import Decoder, vocabulary_of


class TokenArray:
    """Ids in memory as a source.

    Args:
        ids: [n].
    """

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self.place = "the text"

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, start: int, stop: int) -> Ids:
        """Ids `start..stop-1`."""
        return self._ids[start:stop]


def text_perplexity(
    model: Decoder,
    variables: Variables,
    text: str,
    tokenizer: Tokenizer | RunProcessor,
    *,
    context: int,
    stride: int,
    batch: int = 8,
    prefix: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CorpusPerplexity:
    """Score a text, and count the bytes that the scored ids spell.

    Args:
        model: a causal decoder.
        variables: its complete variables.
        text: at least one token with `prefix`, two without.
        tokenizer: `ByteTokenizer` or `HFTokenizer`, or the processor of a task, for the tokenizer it holds.
        context: ids of a window.
        stride: between the beginnings of neighbouring windows.
        batch: windows that are scored together.
        prefix: an id set before the text, as the one that begins or ends a document: then every token of the
            text is scored. Without one the first token has nothing before it, and neither it nor its bytes
            count.
        progress: hears how many windows of how many are scored.

    Raises:
        TypeError: a tokenizer that does not say where its tokens stand, or a `prefix` that is no integer.
        ValueError: a `prefix` that the model does not have, a text that is too short, or what
            `corpus_perplexity` refuses.
    """
    if prefix is not None:
        _check_prefix(prefix, vocabulary_of(model, variables))
    characters = np.zeros(len(text), np.uint8)
    encoder = RoleEncoder(tokenizer.tokenizer if isinstance(tokenizer, RunProcessor) else tokenizer)
    (row,) = encoder.rows([Spoken(text, characters)])
    ids, size = row.ids, len(text.encode())
    if prefix is not None:
        ids = np.concatenate([[prefix], ids])
    elif len(ids):
        size -= encoder.first_bytes(text)
    return corpus_perplexity(
        model,
        variables,
        TokenArray(ids.astype(np.uint32)),
        context=context,
        stride=stride,
        batch=batch,
        size=size,
        progress=progress,
    )


def _check_prefix(prefix: int, vocab_size: int) -> None:
    if isinstance(prefix, bool) or not isinstance(prefix, Integral):
        raise TypeError(f"prefix={prefix!r} must be an integer, the id that stands before the text")
    if not 0 <= prefix < vocab_size:
        raise ValueError(f"prefix={prefix} must be one of the model's ids, 0 to {vocab_size - 1}")
