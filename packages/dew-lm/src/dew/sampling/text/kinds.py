"""Of which kind the fields of policies and strategies are. Importing it imports no numerical library."""

from __future__ import annotations

from numbers import Integral, Real


def require_integer(name: str, value: object, rule: str) -> None:
    """Refuse what is no integer, of Python or of NumPy.

    Args:
        name: of the field, for the message.
        value: what it holds.
        rule: what it must be, for the message.

    Raises:
        TypeError: naming the field.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}={value!r} must be an integer: {rule}")


def require_number(name: str, value: object, rule: str) -> None:
    """Refuse what is no real number, of Python or of NumPy; the arguments are those of `require_integer`.

    Raises:
        TypeError: naming the field.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} must be a number: {rule}")
