"""Perplexity of a corpus under a decoder, over sliding windows.

With `l_i = -log p(x_i | the ids before it in its window)` over the `T` ids that are scored, and `B` bytes
of text that they spell:

    per token   exp(sum l / T)
    per byte    exp(sum l / B)
    bits per byte   sum l / (B log 2)

The number per token depends on the tokenizer; those per byte compare models of different tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from dew.data.tokens.source import TokenSource
from dew.eval.perplexity.windows import ScoringWindows, check_ids
from dew.objectives.base import Variables
from dew.objectives.lm import LMObjective
from dew.objectives.lm.decoder import Decoder, vocabulary_of


@dataclass(frozen=True, kw_only=True)
class CorpusPerplexity:
    """How well a corpus is predicted.

    Attributes:
        nats: summed loss.
        tokens: ids that were scored.
        size: bytes of text that they spell, or None where nobody said.
    """

    nats: float
    tokens: int
    size: int | None = None

    @property
    def per_token(self) -> float:
        """Perplexity; infinite beyond a float's range."""
        return _exp(self.nats / self.tokens)

    @property
    def per_byte(self) -> float:
        """Perplexity of a byte.

        Raises:
            ValueError: the number of bytes is not known.
        """
        return _exp(self.nats / self._bytes())

    @property
    def bits_per_byte(self) -> float:
        """The cross entropy of a byte in bits.

        Raises:
            ValueError: the number of bytes is not known.
        """
        return self.nats / self._bytes() / math.log(2)

    def _bytes(self) -> int:
        if self.size is None:
            raise ValueError("nobody said how many bytes the ids spell; give size=, or use text_perplexity")
        return self.size


def _exp(nats: float) -> float:
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def corpus_perplexity(
    model: Decoder,
    variables: Variables,
    source: TokenSource,
    *,
    context: int,
    stride: int,
    batch: int = 8,
    size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CorpusPerplexity:
    """Score every id of `source` but the first, once.

    Args:
        model: a causal decoder, as `dew.objectives.lm.decoder.Decoder` describes it.
        variables: its complete variables.
        source: the ids, as one text; nothing separates its documents.
        context: ids of a window, at most the model's `max_seq_len` + 1.
        stride: between the beginnings of neighbouring windows; every id from the second window on has
            `context - stride` before it at least. A smaller one costs more and scores with more context.
        batch: windows that are scored together.
        size: bytes of text that the scored ids spell, for the numbers per byte.
        progress: hears how many windows of how many are scored.

    Raises:
        ValueError: a context or a stride out of its range, a corpus of fewer than two ids, an id that the
            model does not have, a batch below 1, or a size below 1.
    """
    longest = getattr(model, "max_seq_len", None)
    if isinstance(longest, int) and context > longest + 1:
        raise ValueError(
            f"context={context} must be at most {longest + 1}: the model reads max_seq_len={longest} ids, "
            "and the last of them predicts one more"
        )
    windows = ScoringWindows(source, context=context, stride=stride)
    for name, value in (("batch", batch), ("size", size)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    check_ids(source, vocabulary_of(model, variables))
    objective = LMObjective(model, context - 1, ema_decay=None, token_accuracy=False)
    losses = jax.jit(lambda held, rows: objective.token_scores(held, rows).losses)
    nats, tokens = 0.0, 0
    for first in range(0, len(windows), batch):
        rows, scored = windows.batch(first, batch)
        found = np.asarray(losses(variables, rows), np.float64)
        nats += float(found[scored].sum())
        tokens += int(scored.sum())
        if progress is not None:
            progress(min(first + batch, len(windows)), len(windows))
    return CorpusPerplexity(nats=nats, tokens=tokens, size=size)
