"""Sources of records interleaved by weight: which source, and which of its records, stands at a number.

With shares `p_1 + ... + p_n = 1` the first source takes record `k` where `floor(p_1 (k + 1))` is above
`floor(p_1 k)`, and so has `floor(p_1 k)` of the first `k` records, within one of its share. The others are
interleaved in the same way over the records that are left, with shares `p_i / (1 - p_1)`. All of it is exact
arithmetic on the number alone, so any record is found without those before it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import grain


def odds(weights: Sequence[float]) -> tuple[Fraction, ...]:
    """Each source's share of what the sources before it leave; the last has 1."""
    exact = [Fraction(repr(float(weight))) for weight in weights]
    return tuple(weight / sum(exact[index:]) for index, weight in enumerate(exact))


def source_at(number: int, odds: Sequence[Fraction]) -> tuple[int, int]:
    """Which source stands at `number`, and which of its records, both counted from 0.

    Args:
        number: 0 or more.
        odds: from the function of that name.
    """
    for source, share in enumerate(odds):
        before = number * share.numerator // share.denominator
        if (number + 1) * share.numerator // share.denominator > before:
            return source, before
        number -= before
    raise AssertionError("the last source takes every record that is left")


class Interleaved:
    """An endless source over sources that are each repeated without end.

    Args:
        sources: one pass of each.
        weights: how often each is read, in any unit.
    """

    def __init__(self, sources: Sequence[grain.MapDataset[Any]], weights: Sequence[float]) -> None:
        self._sources = [source.repeat() for source in sources]
        self._odds = odds(weights)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Any:
        source, record = source_at(index, self._odds)
        return self._sources[source][record]

    def __repr__(self) -> str:
        return f"Interleaved({self._sources!r}, {[str(share) for share in self._odds]})"
