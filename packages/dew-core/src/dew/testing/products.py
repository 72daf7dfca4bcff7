"""Count the multiply-adds of a function's matrix products, to check a family's cost formula against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax


def multiply_adds(function: Callable[..., Any], *arguments: Any) -> int:
    """The multiply-adds of all `dot_general`s that `function` traces to, inner functions included.

    A product masked afterwards is counted whole, and a loop's body times its length. Kernels and grouped
    products are not seen, so trace the reference implementations.

    Raises:
        ValueError: a loop whose length the trace does not tell.
    """
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def _count(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            total += _product(equation)
            continue
        if equation.primitive.name == "while":
            raise ValueError("a while loop does not tell how often it runs; count its body by itself")
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += times * sum(_count(inner) for inner in _inner(equation.params))
    return total


def _product(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)


def _inner(parameters: dict[str, Any]) -> Iterator[Any]:
    for value in parameters.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            held = getattr(each, "jaxpr", each)
            if hasattr(held, "eqns"):
                yield held
