"""Sentences for a word that names nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from dew.plugins.known import SHIPPED_BY, obtain


def close(word: str, choices: Iterable[str]) -> list[str]:
    """The choices that `word` may have been meant as, best first."""
    return difflib.get_close_matches(word, list(choices), n=3, cutoff=0.6)


def unknown(kind: str, word: str, choices: Iterable[str], remedy: str) -> str:
    """Say that `word` is no `kind`, with the close match, the package that ships it, or the `remedy`."""
    message = f"{word!r} is no {kind}"
    distribution = SHIPPED_BY.get((kind, word))
    if distribution is not None:
        return f"{message} here: it ships in {distribution}; {obtain(distribution)}"
    matches = close(word, choices)
    return f"{message}; did you mean {' or '.join(matches)}?" if matches else f"{message}; {remedy}"
