"""Numbers that files store as the inverse of what a model multiplies by, found again to the last bit."""

from __future__ import annotations


def inverse_root(scalar: float) -> float:
    """`scalar ** -0.5`: a score's factor from `query_pre_attn_scalar`."""
    return scalar**-0.5


def root_of(scale: float) -> float:
    """The number whose `inverse_root` is `scale`, as short as it can be written."""
    return _shortest(scale**-2.0)


def reciprocal(factor: float) -> float:
    """The divisor that a factor stands for, as short as it can be written."""
    return _shortest(1 / factor)


def _shortest(value: float) -> float:
    rounded = float(f"{value:.12g}")
    return int(rounded) if rounded.is_integer() else rounded
