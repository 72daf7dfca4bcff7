"""The check of a field that takes one of a few words. Importing it imports neither jax nor numpy."""

from __future__ import annotations

from collections.abc import Iterable


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a word that is none of `choices`.

    Raises:
        ValueError: naming the field, the word and the choices.
    """
    known = tuple(choices)
    if value not in known:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(known)}")
