"""Which parameters are matrices, and which of their axes make the two sides.

A module names the axes of its parameters where it makes them; those names say what a shape cannot: that
`[embed, heads, head_dim]` is one matrix from `embed` to all heads, that `[expert, embed, mlp]` is a stack of
independent ones, and that a vocabulary's table is no map between activations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from flax import linen as nn

from dew.training.optim.groups import path_name

type AxisNames = Mapping[str, tuple[str | None, ...]]
"""Full parameter path, `params/...`, to the logical name of every axis."""

STACKED = ("expert", "layers")
"""Axes along which independent matrices lie."""

HEADS = ("heads", "kv_heads")
"""Axes that form one side with a `head_dim` after them."""

TABLES = ("vocab", "position")
"""Axes that are looked up or scored rather than multiplied through: embeddings and the vocabulary head."""


@dataclass(frozen=True)
class Sides:
    """The axes of a matrix, or of a stack of them along every other axis.

    Attributes:
        inputs: axes that a product sums over.
        outputs: axes of the result.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def sizes(self, shape: Sequence[int]) -> tuple[int, int]:
        """How many inputs and outputs a matrix of this shape has."""
        fan_in = math.prod(shape[axis] for axis in self.inputs)
        return fan_in, math.prod(shape[axis] for axis in self.outputs)

    def stacked(self, x: jax.Array) -> tuple[jax.Array, tuple[int, ...]]:
        """`x` as `[..., inputs, outputs]`, and the order its axes were brought into."""
        inside = (*self.inputs, *self.outputs)
        order = (*(axis for axis in range(x.ndim) if axis not in inside), *inside)
        batch = tuple(x.shape[axis] for axis in order[: x.ndim - len(inside)])
        return x.transpose(order).reshape(*batch, *self.sizes(x.shape)), order

    def restored(self, matrices: jax.Array, order: Sequence[int], shape: Sequence[int]) -> jax.Array:
        """Undo `stacked` for an array of this shape."""
        back = sorted(range(len(order)), key=lambda place: order[place])
        return matrices.reshape([shape[axis] for axis in order]).transpose(back)


def axis_names(boxed: Any) -> AxisNames:
    """The axis names of every parameter that carries them.

    Args:
        boxed: the variables as `init` returns them, or their shapes, with names not yet removed; collections
            other than `params` are left out.
    """

    def is_boxed(leaf: Any) -> bool:
        return isinstance(leaf, nn.meta.AxisMetadata)

    found: dict[str, tuple[str | None, ...]] = {}
    for path, leaf in jax.tree.leaves_with_path(boxed["params"], is_leaf=is_boxed):
        if isinstance(leaf, nn.Partitioned):
            found[path_name(path)] = tuple(str(name) if name else None for name in leaf.names)
    return found


def sides(names: Sequence[str | None]) -> Sides | None:
    """The axes of a matrix's input and of its output, or None for a parameter that is no matrix.

    Axes of `STACKED` are batches. A `head_dim` belongs to the heads before it. What then has exactly two
    sides, and none of `TABLES`, is a matrix.
    """
    if any(name in TABLES for name in names):
        return None
    found: list[list[int]] = []
    for axis, name in enumerate(names):
        if name in STACKED:
            continue
        if name == "head_dim" and axis and names[axis - 1] in HEADS:
            found[-1].append(axis)
        else:
            found.append([axis])
    if len(found) != 2:
        return None
    return Sides(tuple(found[0]), tuple(found[1]))
