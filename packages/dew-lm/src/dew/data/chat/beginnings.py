"""How far two texts, or two lists of messages, begin alike."""

from __future__ import annotations

from collections.abc import Sequence


def shared_length(one: Sequence[object], other: Sequence[object]) -> int:
    """The number of places from the start at which both hold the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (first, second) in pairs if first != second), min(len(one), len(other)))
