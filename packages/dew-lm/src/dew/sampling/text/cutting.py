"""Text up to a stop string that stands whole in it. Importing it imports no JAX."""

from __future__ import annotations

from collections.abc import Sequence


def cut(text: str, strings: Sequence[str]) -> str:
    """`text` up to the first of `strings` in it."""
    return text[: min((at for each in strings if (at := text.find(each)) >= 0), default=len(text))]


def pending(text: str, strings: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the start of one of `strings`."""
    longest = max(map(len, strings), default=1) - 1
    sizes = range(min(len(text), longest), 0, -1)
    return next((size for size in sizes if any(each.startswith(text[-size:]) for each in strings)), 0)
