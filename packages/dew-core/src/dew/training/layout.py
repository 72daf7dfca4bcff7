"""Logical axis names to mesh placements, and the check that a placement really shards.

Modules box their parameters with logical names (`flax.linen.with_partitioning`, `with_logical_partitioning`);
a `Layout` maps the names to mesh axes. A parameter without names is split over `fsdp` along its largest
dimension.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from flax.core import meta
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dew.training.config import PARAMETER_AXES

if TYPE_CHECKING:
    from dew.training.config import Layout

type AnyMesh = Mesh | AbstractMesh
"""A mesh, with or without devices."""


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


def leaf_spec(
    layout: Layout, mesh: AnyMesh, shape: tuple[int, ...], names: tuple[str | None, ...] | None
) -> P:
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
    used = {axis: mesh.shape[axis] for axis in PARAMETER_AXES if mesh.shape[axis] > 1}
    if not used:
        return
    leaves = _named_leaves(params)
    placements = jax.tree.leaves(shardings)
    whole = [
        leaf
        for leaf, sharding in zip(leaves, placements, strict=True)
        if leaf.size >= layout.min_shard and sharding.is_fully_replicated
    ]
    share = _share(layout, whole, leaves)
    if share > layout.tolerance:
        worst = sorted(whole, key=lambda leaf: -leaf.size)[:3]
        raise ValueError(
            f"{share:.1%} of the shardable parameter elements stay replicated, above "
            f"layout.tolerance={layout.tolerance:.1%}; largest: "
            f"{', '.join(f'{leaf.path} {list(leaf.shape)} ({_why(layout, used, leaf)})' for leaf in worst)}. "
            f"{_remedy(layout, used, leaves, share)}"
        )


@dataclass(frozen=True)
class _Leaf:
    """One parameter: where it stands, its shape and the names of its axes."""

    path: str
    shape: tuple[int, ...]
    names: tuple[str | None, ...] | None

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def _named_leaves(params: Any) -> list[_Leaf]:
    return [
        _Leaf(
            jax.tree_util.keystr(path, simple=True, separator="/"),
            tuple(unboxed(leaf).shape),
            leaf.names if isinstance(leaf, meta.Partitioned) else None,
        )
        for path, leaf in jax.tree.leaves_with_path(params, is_leaf=is_boxed)
    ]


def _share(layout: Layout, whole: list[_Leaf], leaves: list[_Leaf]) -> float:
    total = sum(leaf.size for leaf in leaves if leaf.size >= layout.min_shard)
    return sum(leaf.size for leaf in whole) / total if total else 0.0


def _why(layout: Layout, used: Mapping[str, int], leaf: _Leaf) -> str:
    """Why no axis in use splits a parameter."""
    if leaf.names is None:
        if "fsdp" not in used:
            return "without axis names fsdp alone could split it"
        return f"fsdp={used['fsdp']} divides none of its dimensions"
    rules = dict(layout.table)
    for name, size in zip(leaf.names, leaf.shape, strict=True):
        axis = rules.get(name) if name is not None else None
        if axis is not None and axis in used:
            return f"{name} of {size} is no multiple of {axis}={used[axis]}"
    return f"no rule sends {' or '.join(map(str, leaf.names))} to {' or '.join(used)}"


def _remedy(layout: Layout, used: Mapping[str, int], leaves: list[_Leaf], share: float) -> str:
    """A layout that works: one axis in use made smaller, else a tolerance."""
    for axis, size in used.items():
        for smaller in (factor for factor in range(size - 1, 0, -1) if size % factor == 0):
            sizes = {**used, axis: smaller}
            if all(each == 1 for each in sizes.values()):
                continue
            other = AbstractMesh(tuple(sizes.values()), tuple(sizes))
            large = [leaf for leaf in leaves if leaf.size >= layout.min_shard]
            whole = [leaf for leaf in large if not any(leaf_spec(layout, other, leaf.shape, leaf.names))]
            if _share(layout, whole, leaves) <= layout.tolerance:
                return f"mesh.{axis}={smaller} in place of {size} works"
    return (
        f"Data parallelism alone works (leave out {' and '.join(f'mesh.{axis}' for axis in used)}); "
        "so do rules for these axes in layout.rules, "
        f"or layout.tolerance={math.ceil(share * 100) / 100:g}"
    )


def _splits(mesh: AnyMesh, axis: str | None, size: int) -> bool:
    return axis is not None and mesh.shape.get(axis, 1) > 1 and size % mesh.shape[axis] == 0


def _largest(mesh: AnyMesh, shape: tuple[int, ...]) -> P:
    fitting = [dimension for dimension, size in enumerate(shape) if _splits(mesh, "fsdp", size)]
    if not fitting:
        return P()
    widest = max(fitting, key=lambda dimension: (shape[dimension], dimension))
    return P(*("fsdp" if dimension == widest else None for dimension in range(len(shape))))
