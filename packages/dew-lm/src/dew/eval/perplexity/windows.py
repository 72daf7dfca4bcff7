"""The windows a corpus is scored in: which ids each holds, and which of them it scores.

Window `k` holds the ids from `k * stride` on, at most `context` of them, and scores those that no window
before it holds: all but the corpus' first in window 0, then the last `stride` of each. So an id is scored
once, and, from the second window on, with `context - stride` ids before it at least. With `n` ids there are
`1 + ceil((n - context) / stride)` windows, or one where all fit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dew.data.tokens.source import TokenSource, place_of

type Ints = npt.NDArray[np.int32]
type Bools = npt.NDArray[np.bool_]


AT_ONCE = 1 << 20
"""Ids that are looked at together."""


def check_ids(source: TokenSource, vocab_size: int) -> None:
    """Refuse a corpus with an id that the model does not have.

    Args:
        source: the ids, all of which are read.
        vocab_size: ids must lie below it.

    Raises:
        ValueError: naming the id and where it stands.
    """
    for start in range(0, len(source), AT_ONCE):
        ids = source.read(start, min(start + AT_ONCE, len(source)))
        wrong = np.flatnonzero(ids >= vocab_size)
        if wrong.size:
            raise ValueError(
                f"{place_of(source)} holds the id {int(ids[wrong[0]])} at {start + int(wrong[0])}, and the "
                f"model has ids 0 to {vocab_size - 1}; take the ids of its own tokenizer, and check their "
                "dtype"
            )


class ScoringWindows:
    """The windows of a corpus.

    Args:
        source: the ids.
        context: of a window.
        stride: between the beginnings of neighbours.

    Raises:
        ValueError: a context below 2, a stride outside 1 .. context - 1, or fewer than two ids.
    """

    def __init__(self, source: TokenSource, *, context: int, stride: int) -> None:
        if context < 2:
            raise ValueError(f"context={context} must be at least 2: an id, and one that it predicts")
        if not 1 <= stride < context:
            raise ValueError(
                f"stride={stride} must lie between 1 and context - 1 = {context - 1}, so that every "
                "scored id has "
                "one before it"
            )
        if len(source) < 2:
            raise ValueError(f"a corpus of {len(source)} ids predicts none; it takes two at least")
        self._source = source
        self._context = context
        self._stride = stride

    def __len__(self) -> int:
        return 1 + max(0, -((self._context - len(self._source)) // self._stride))

    def __getitem__(self, index: int) -> tuple[Ints, Bools]:
        """The ids of a window, [context], filled with 0, and [context - 1], which of those after its first it
        scores."""
        start = index * self._stride
        ids = self._source.read(start, min(start + self._context, len(self._source)))
        row = np.zeros(self._context, np.int32)
        row[: len(ids)] = ids
        place = np.arange(1, self._context)
        before = 1 if index == 0 else self._context - self._stride
        return row, (place >= before) & (place < len(ids))

    def batch(self, first: int, rows: int) -> tuple[Ints, Bools]:
        """Windows `first ..` as [rows, context] and [rows, context - 1]; rows past the last score nothing."""
        found = [self[index] for index in range(first, min(first + rows, len(self)))]
        ids, scored = np.zeros((rows, self._context), np.int32), np.zeros((rows, self._context - 1), bool)
        for row, (window, counted) in enumerate(found):
            ids[row], scored[row] = window, counted
        return ids, scored
