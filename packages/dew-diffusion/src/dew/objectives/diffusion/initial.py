"""The variables a run starts from: drawn, or held and checked against the model."""

from __future__ import annotations

from collections.abc import Callable

import jax

from dew.nn.sharding import boxed_like, unboxed
from dew.objectives.base import Variables


def initial_variables(draw: Callable[[], Variables], held: Variables | None) -> Variables:
    """`draw()`, or the leaves of `held` with its axis names.

    Raises:
        ValueError: `held` lacks a leaf, has one too many, or one of another shape.
    """
    if held is None:
        return draw()
    template = jax.eval_shape(draw)
    whole = unboxed(held)
    want, have = shapes(unboxed(template)), shapes(whole)
    for path in sorted(want.keys() | have.keys()):
        if want.get(path) != have.get(path):
            raise ValueError(
                f"pretrained variables hold {said(have.get(path))} at {path}, and the model has "
                f"{said(want.get(path))}; build the model with the checkpoint's own sizes"
            )
    return boxed_like(template, whole)


def shapes(tree: Variables) -> dict[str, tuple[int, ...]]:
    """Path to shape of every leaf."""
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}


def said(shape: tuple[int, ...] | None) -> str:
    """A shape in words."""
    return "nothing" if shape is None else f"shape {shape}"
