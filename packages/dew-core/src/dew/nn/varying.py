"""Inside a function that is manual over mesh axes: operands that vary over the same of them."""

from __future__ import annotations

from typing import Any

import jax


def alike(*operands: Any) -> list[Any]:
    """The operands varying over the same manual mesh axes, so that each one's gradient has its own type."""
    held = [frozenset(jax.typeof(each).manual_axis_type.varying) for each in operands]
    every = frozenset[Any]().union(*held)
    return [_varying(each, every - own) for each, own in zip(operands, held, strict=True)]


def _varying(x: Any, axes: frozenset[Any]) -> Any:
    return jax.lax.pcast(x, tuple(axes), to="varying") if axes else x
