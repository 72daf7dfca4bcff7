"""What the real-valued fields of a model may be. Importing it imports no JAX."""

from __future__ import annotations

import math
from numbers import Real


def check_positive(name: str, value: float | None, *, zero: bool = False, remedy: str = "") -> None:
    """Refuse a field that is no finite number above 0; None is a field that is not set.

    Args:
        name: of the field, for the message.
        value: what it holds.
        zero: 0 is allowed too.
        remedy: what else to do, for the message.

    Raises:
        TypeError: it is no number.
        ValueError: it is infinite, NaN, negative, or 0 where that is not allowed.
    """
    if value is None:
        return
    rule = "a finite number of at least 0" if zero else "a finite number above 0"
    told = f"{name}={value!r} must be {rule}{f'; {remedy}' if remedy else ''}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(told)
    if not (math.isfinite(value) and (value >= 0 if zero else value > 0)):
        raise ValueError(told)
