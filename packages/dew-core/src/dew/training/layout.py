"""Logical axis names to mesh placements, and the check that a placement really shards.

Modules box their parameters with logical names (`flax.linen.with_partitioning`, `with_logical_partitioning`);
a `Layout` maps the names to mesh axes. A parameter without names is split over `fsdp` along its largest
dimension.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
from flax.core import meta
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

if TYPE_CHECKING:
    from dew.training.config import Layout


def is_boxed(leaf: Any) -> bool:
    """Whether a node carries partitioning metadata around its array."""
    return isinstance(leaf, meta.AxisMetadata)


def unboxed(tree: Any) -> Any:
    """The tree without partitioning metadata; no sharding constraint is applied."""

    def value(leaf: Any) -> Any:
        if isinstance(leaf, meta.Partitioned):
            return leaf.value
        return leaf.unbox() if isinstance(leaf, meta.AxisMetadata) else leaf

    return jax.tree.map(value, tree, is_leaf=is_boxed)


def tree_shardings(layout: Layout, mesh: Mesh, tree: Any) -> Any:
    """The placement of every leaf, in the structure of the unboxed tree."""

    def placement(leaf: Any) -> NamedSharding:
        names = leaf.names if isinstance(leaf, meta.Partitioned) else None
        shape = tuple(unboxed(leaf).shape)
        return NamedSharding(mesh, leaf_spec(layout, mesh, shape, names))

    return jax.tree.map(placement, tree, is_leaf=is_boxed)


def leaf_spec(layout: Layout, mesh: Mesh, shape: tuple[int, ...], names: tuple[str | None, ...] | None) -> P:
    """The partition of one array.

    Rules are taken in order: the first that fits claims its mesh axis, and each mesh axis splits one
    dimension.
    """
    if math.prod(shape) < layout.min_shard:
        return P()
    if names is None:
        return _largest(mesh, shape)
    axes: list[str | None] = [None] * len(shape)
    for logical, axis in layout.table:
        for dimension, name in enumerate(names):
            if name == logical and _splits(mesh, axis, shape[dimension]) and axis not in axes:
                axes[dimension] = axis
    return P(*axes) if any(axes) else P()


def check_replication(layout: Layout, params: Any, shardings: Any, mesh: Mesh) -> None:
    """See `Layout.check`."""
    if layout.host_parameters:
        raise ValueError(
            f"layout.host_parameters={layout.host_parameters!r} is read by an offloaded inference placement "
            "alone; "
            "leave it empty here"
        )
    if not any(mesh.shape[axis] > 1 for axis in ("fsdp", "expert", "tensor")):
        return
    whole: dict[str, int] = {}
    total = 0
    placements = jax.tree.leaves(shardings)
    for (path, leaf), sharding in zip(jax.tree.leaves_with_path(unboxed(params)), placements, strict=True):
        if leaf.size < layout.min_shard:
            continue
        total += leaf.size
        if sharding.is_fully_replicated:
            whole[jax.tree_util.keystr(path, simple=True, separator="/")] = leaf.size
    kept = sum(whole.values())
    if total and kept > layout.tolerance * total:
        worst = ", ".join(sorted(whole, key=lambda name: -whole[name])[:3])
        raise ValueError(
            f"{kept / total:.1%} of the shardable parameter elements stay replicated, above "
            f"layout.tolerance={layout.tolerance:.1%}; largest: {worst}. Name their axes in layout.rules, "
            "change the "
            "mesh so that it divides them, or raise the tolerance"
        )


def _splits(mesh: Mesh, axis: str | None, size: int) -> bool:
    return axis is not None and mesh.shape.get(axis, 1) > 1 and size % mesh.shape[axis] == 0


def _largest(mesh: Mesh, shape: tuple[int, ...]) -> P:
    fitting = [dimension for dimension, size in enumerate(shape) if _splits(mesh, "fsdp", size)]
    if not fitting:
        return P()
    widest = max(fitting, key=lambda dimension: (shape[dimension], dimension))
    return P(*("fsdp" if dimension == widest else None for dimension in range(len(shape))))
