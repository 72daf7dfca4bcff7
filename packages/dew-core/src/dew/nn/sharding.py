"""Logical axis names, declared beside the module that owns a parameter, and rows kept on their devices.

A name says what a dimension is (`embed`, `heads`, `mlp`, `vocab`); one table in `dew.training.Layout` says
which mesh axis splits it. A model never spells a mesh axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from dew.training.mesh import BATCH_AXES, STAGE_AXIS


def named_axes(initializer: Callable[..., Any], *names: str | None) -> Callable[..., Any]:
    """Return `initializer` whose result carries one logical axis name a dimension.

    The parameter comes boxed as `nn.LogicallyPartitioned` out of `init`; modules read it unboxed.
    """
    return nn.with_logical_partitioning(initializer, names)


def unboxed(variables: Any) -> Any:
    """Return `variables` without axis names; a tree of plain arrays is returned as it is."""
    return nn.meta.unbox(variables)


def boxed_like(template: Any, values: Any) -> Any:
    """Return `values` with the axis names of `template`, a tree of the same structure as `init` yields it."""
    return nn.meta.replace_boxed(template, values)


def split_rows(x: jax.Array) -> jax.Array:
    """Return `x` with its leading axis split as the rows of a batch are, on the mesh in use.

    A product of rows and a weight that the same mesh axis splits can move either. Without this the compiler
    may gather the activations of the whole batch; with it the weight moves, as fully sharded data parallelism
    means it. Where the rows do not divide, or no axis splits them, `x` is returned as it is.
    """
    axes = row_axes(x.shape[0])
    if not axes:
        return x
    rest = [P.UNCONSTRAINED] * (x.ndim - 1)
    return jax.lax.with_sharding_constraint(x, P(axes, *rest))


def row_axes(rows: int) -> tuple[str, ...]:
    """The axes that split so many rows on the mesh in use; none where they do not divide.

    Outside the layers of a pipeline all stages have the same work to do, so rows are split over the stage
    axis as well if they divide.
    """
    choices: list[tuple[str, ...]] = [BATCH_AXES]
    if axis_size(STAGE_AXIS) > 1:
        choices = [(*BATCH_AXES, STAGE_AXIS), BATCH_AXES]
    for axes in choices:
        shards = math.prod(axis_size(axis) for axis in axes)
        if shards > 1 and rows % shards == 0 and automatic(*axes):
            return axes
    return ()


def automatic(*axes: str) -> bool:
    """Whether the mesh in use has all these axes and leaves them to the compiler."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return all(kinds.get(axis) == AxisType.Auto for axis in axes)


def axis_size(axis: str) -> int:
    """The size of one axis of the mesh in use; 1 where there is no such axis."""
    return jax.sharding.get_abstract_mesh().shape.get(axis, 1)
