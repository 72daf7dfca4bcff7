"""The sampling policy as plain values; importing it needs no JAX."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dew.sampling.text.kinds import require_integer, require_number

if TYPE_CHECKING:
    from dew.sampling.decoding import LogitsTransform, Stopping


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn: temperature, then top-k, top-p and min-p, in this order.

    At least one token survives the filters. A zero temperature takes the best token and filters nothing.

    Attributes:
        temperature: divides the logits; 0 is greedy.
        top_k: keep the k best tokens and those tied with the k-th; unset keeps all.
        eos_id: one id or several that end a row; stored as a tuple, or None.
        pad_id: fills the slots after a row's end.
        top_p: keep the smallest set of best tokens whose mass reaches p; 1 keeps all.
        min_p: keep tokens at least this fraction as likely as the best one; 0 keeps all.

    Raises:
        TypeError: a field of another kind.
        ValueError: a field outside its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    eos_id: int | tuple[int, ...] | None = None
    pad_id: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p"):
            require_number(name, getattr(self, name), "it holds for all rows")
        require_integer("pad_id", self.pad_id, "the id behind a row's end")
        if self.top_k is not None:
            require_integer("top_k", self.top_k, "how many tokens are kept")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(
                f"temperature={self.temperature} must be finite and not negative; 0 takes the best token"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} must be at least 1; leave it unset to keep every token")
        if not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must lie in [0, 1]; 1 keeps every token")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p} must lie in [0, 1]; 0 keeps every token")
        if self.pad_id < 0:
            raise ValueError(f"pad_id={self.pad_id} must be a token id, 0 or above")
        object.__setattr__(self, "eos_id", _ids(self.eos_id))

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a row; empty when none does."""
        return _ids(self.eos_id) or ()

    def transforms(self) -> tuple[LogitsTransform, ...]:
        """The chain this policy stands for; a filter that keeps everything is left out."""
        from dew.sampling.decoding import Greedy, MinP, Temperature, TopK, TopP

        if self.temperature == 0:
            return (Greedy(),)
        chain: list[LogitsTransform] = [Temperature(self.temperature)]
        if self.top_k is not None:
            chain.append(TopK(self.top_k))
        if self.top_p < 1:
            chain.append(TopP(self.top_p))
        if self.min_p > 0:
            chain.append(MinP(self.min_p))
        return tuple(chain)

    def criteria(self) -> tuple[Stopping, ...]:
        """The stopping criteria this policy stands for."""
        from dew.sampling.decoding import EndOfSequence

        return (EndOfSequence(self.eos_ids),) if self.eos_ids else ()


def _ids(value: int | tuple[int, ...] | None) -> tuple[int, ...] | None:
    """`eos_id` as a tuple of distinct ids, or None."""
    if value is None:
        return None
    ids = tuple(value) if isinstance(value, Iterable) else (value,)
    if not ids:
        return None
    for each in ids:
        require_integer("eos_id", each, "an id that ends a row")
        if each < 0:
            raise ValueError(f"eos_id={value!r} must hold token ids, 0 or above")
    return tuple(dict.fromkeys(ids))
