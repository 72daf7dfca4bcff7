"""A function with every sum taken in another order: how far rounding alone moves its results.

Float addition is not associative, so a mesh that adds partial sums changes last bits and, step by step, more.
What a different order of the same sums does to the same program on one device is the measure of what a mesh
may do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "remat2")
CUSTOM = ("custom_jvp_call", "custom_vjp_call")


def reordered(function: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """`function` whose products and sums add their terms in an order drawn from `seed`.

    Args:
        function: of trees of arrays, traceable.
        seed: one order each.
    """

    def other(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        walk = _Walk(np.random.default_rng(seed))
        return jax.tree.unflatten(jax.tree.structure(shape), walk.closed(closed, jax.tree.leaves(args)))

    return other


class _Walk:
    """Evaluates equations one after another; sums and products first permute what they sum over."""

    def __init__(self, draw: np.random.Generator) -> None:
        self._draw = draw

    def closed(self, jaxpr: ClosedJaxpr, values: Sequence[Any]) -> list[Any]:
        return self.open(jaxpr.jaxpr, jaxpr.consts, values)

    def open(self, jaxpr: Jaxpr, consts: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, values, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else known[atom]

        for equation in jaxpr.eqns:
            results = self._equation(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, values: list[Any]) -> Sequence[Any]:
        name, params = equation.primitive.name, equation.params
        if name in CALLS or name in CUSTOM:
            inner = params["call_jaxpr" if name in CUSTOM else "jaxpr"]
            return (
                self.closed(inner, values) if isinstance(inner, ClosedJaxpr) else self.open(inner, (), values)
            )
        if name == "cond":
            branches = [partial(self._branch, branch) for branch in params["branches"]]
            return jax.lax.switch(values[0], branches, *values[1:])
        if name == "scan":
            return self._scan(params, values)
        if name == "while":
            return self._while(params, values)
        if name == "dot_general":
            values = self._permuted_product(values, params["dimension_numbers"][0])
        elif name == "reduce_sum":
            values = [self._permuted(values[0], params["axes"])]
        result = equation.primitive.bind(*values, **params)
        return result if equation.primitive.multiple_results else [result]

    def _branch(self, branch: ClosedJaxpr, *values: Any) -> list[Any]:
        return self.closed(branch, values)

    def _scan(self, params: Any, values: list[Any]) -> Sequence[Any]:
        fixed, carried = (len(group.vals) for group in params["ft_in"].unpack()[:2])

        def body(carry: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
            results = self.closed(params["jaxpr"], [*values[:fixed], *carry, *rows])
            return results[:carried], results[carried:]

        start, rows = values[fixed : fixed + carried], values[fixed + carried :]
        carry, ys = jax.lax.scan(body, start, rows, length=params["length"], reverse=params["reverse"])
        return [*carry, *ys]

    def _while(self, params: Any, values: list[Any]) -> Sequence[Any]:
        first = params["cond_nconsts"]
        second = first + params["body_nconsts"]
        tested, fixed = values[:first], values[first:second]
        return jax.lax.while_loop(
            lambda carry: self.closed(params["cond_jaxpr"], [*tested, *carry])[0],
            lambda carry: self.closed(params["body_jaxpr"], [*fixed, *carry]),
            values[second:],
        )

    def _permuted(self, value: Any, axes: Sequence[int]) -> Any:
        for axis in axes:
            value = jnp.take(value, self._order(value.shape[axis]), axis=axis)
        return value

    def _permuted_product(self, values: list[Any], contracted: Any) -> list[Any]:
        left, right = values
        for one, other in zip(*contracted, strict=True):
            order = self._order(left.shape[one])
            left, right = jnp.take(left, order, axis=one), jnp.take(right, order, axis=other)
        return [left, right]

    def _order(self, size: int) -> np.ndarray:
        return self._draw.permutation(size)
