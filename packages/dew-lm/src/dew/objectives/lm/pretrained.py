"""The variables a run starts from: drawn, or held and checked against the model."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from dew.nn.sharding import boxed_like, unboxed
from dew.objectives.base import PathFilter, Variables, select, thaw
from dew.objectives.lm.decoder import Decoder


def initial_variables(
    model: Decoder, key: jax.Array, held: Variables | None, fresh: PathFilter | None = None
) -> Variables:
    """Return the model's variables with their axis names.

    Args:
        model: what they are for.
        key: draws them where none are held.
        held: a complete tree, split by `freeze` or whole.
        fresh: leaves that `held` may lack all together, which are then drawn; None for none.

    Raises:
        ValueError: `held` lacks a leaf, has one too many, or one of another shape.
    """
    # No parameter depends on the row's length.
    draw = partial(model.init, key, jnp.zeros((1, 1), jnp.int32))
    if held is None:
        return draw()
    template = jax.eval_shape(draw)
    whole = unboxed(thaw(held))
    if fresh is not None and not select(whole, fresh):
        whole = _together(whole, select(unboxed(draw()), fresh))
    _check_leaves(unboxed(template), whole)
    return boxed_like(template, whole)


def _together(first: Variables, second: Variables) -> Variables:
    """One tree of the leaves of both."""
    return cast("Variables", unflatten_dict(_flat(first) | _flat(second)))


def _flat(tree: Variables) -> dict[tuple[str, ...], Any]:
    return cast("dict[tuple[str, ...], Any]", flatten_dict(cast("dict[str, Any]", tree)))


def _check_leaves(expected: Variables, given: Variables) -> None:
    want = _shapes(expected)
    have = _shapes(given)
    for path in sorted(want.keys() | have.keys()):
        if want.get(path) != have.get(path):
            raise ValueError(
                f"pretrained variables hold {_said(have.get(path))} at {path}, and the model has "
                f"{_said(want.get(path))}; build the model with the checkpoint's own sizes"
            )


def _shapes(tree: Variables) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}


def _said(shape: tuple[int, ...] | None) -> str:
    return "nothing" if shape is None else f"shape {shape}"
