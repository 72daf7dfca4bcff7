"""Arguments of the language-model objective that this version does not compute, refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNBUILT: Mapping[str, tuple[Any, str]] = {
    "loss_role": (None, "conversation data"),
    "roles": (None, "conversation data"),
}
"""Argument -> the value that works, and the part of Dew that any other belongs to."""


def refuse_unbuilt(owner: str, **values: Any) -> None:
    """Refuse every value but the one that works.

    Raises:
        ValueError: naming the argument and what it needs.
    """
    for name, value in values.items():
        neutral, part = UNBUILT[name]
        if value is not neutral and not _equal(value, neutral):
            raise ValueError(
                f"{owner}: {name} needs {part}, which this version does not support; leave it at {neutral!r}"
            )


def _equal(value: Any, neutral: Any) -> bool:
    # Arrays compare elementwise, and none of them is neutral.
    return isinstance(value, (bool, int, float, tuple)) and value == neutral
