"""Attention over positions that a mesh axis splits: who exchanges what, and the kernel on each device.

Two exchanges. All-to-all (DeepSpeed Ulysses, arXiv 2309.14509): each device trades its positions of all heads
for all positions of its heads, attends, and trades back. Gather: queries stay where they are, and each device
fetches every key and value. With as many key as query heads the first moves 2 / P
of what the second moves, and it lets kernels skip what causality forbids; it needs heads that the axis
divides.

Dimensions: B rows, T queries, S keys, H query heads, K key heads, D width, P devices along the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from dew.nn.sharding import automatic, axis_size
from dew.nn.tokens import position_shards, token_axes
from dew.training.mesh import SEQUENCE_AXIS

type Exchange = Literal["all-to-all", "gather"]
"""What devices along the sequence axis trade for one attention call."""

type Operands = Mapping[str, jax.Array]
"""The arrays of a call by the names of `scaled_dot_product_attention`; what was left out is not there."""

TENSOR_AXIS = "tensor"
"""The axis that heads are split over."""


class Plan(NamedTuple):
    """How a call lies on the mesh.

    Attributes:
        exchange: over the sequence axis.
        rows: mesh axes of B, or None.
        heads: the mesh axis of H and K, or None.
        keys: the mesh axis of S; None where every device is given all keys.
    """

    exchange: Exchange
    rows: tuple[str, ...] | None
    heads: str | None
    keys: str | None


def plan_exchange(
    query_shape: tuple[int, ...], key_shape: tuple[int, ...], *, ordered: bool, positioned: bool
) -> Plan | None:
    """The plan for a call on the mesh in use; None where one device computes it whole.

    That is so without a sequence axis, and for fewer queries than the axis has devices (a step of decoding).

    Args:
        query_shape: [B, T, H, D].
        key_shape: [B, S, K, D].
        ordered: whether the call is causal or windowed.
        positioned: whether it says where its queries stand.
    """
    shards = position_shards()
    rows, queries, heads, _ = query_shape
    keys, key_heads = key_shape[1:3]
    if shards == 1 or queries < shards or (ordered and not positioned and queries != keys):
        return None
    tensor = axis_size(TENSOR_AXIS) if automatic(TENSOR_AXIS) else 1
    by_tensor = tensor > 1 and heads % tensor == 0 and key_heads % tensor == 0
    each = shards * (tensor if by_tensor else 1)
    even = queries % shards == 0 and keys % shards == 0
    traded = even and heads % each == 0 and key_heads % each == 0
    return Plan(
        "all-to-all" if traded else "gather",
        token_axes(rows, queries).rows,
        TENSOR_AXIS if by_tensor else None,
        SEQUENCE_AXIS if keys % shards == 0 else None,
    )


def over_sequence(attend: Callable[[Operands], jax.Array], operands: Operands, *, ordered: bool) -> jax.Array:
    """Return `attend(operands)`, each device computing its share of the queries or of the heads.

    Args:
        attend: attention of one device, from the same names.
        operands: of the whole call.
        ordered: whether the call is causal or windowed.
    """
    query = operands["query"]
    positioned = "query_positions" in operands or "key_positions" in operands
    plan = plan_exchange(query.shape, operands["key"].shape, ordered=ordered, positioned=positioned)
    if plan is None:
        return attend(operands)
    queries = query.shape[1]
    given = dict(operands)
    if plan.exchange == "gather":
        if ordered and not positioned:
            given["query_positions"] = given["key_positions"] = jnp.arange(queries)[None]
        given = {name: _padded(name, value, queries) for name, value in given.items()}
    specs = {name: _spec(plan, name, value.shape, query.shape[0]) for name, value in given.items()}

    def local(held: dict[str, jax.Array]) -> jax.Array:
        if plan.exchange == "all-to-all":
            return _traded(attend, held)
        return attend(_gathered(held) if plan.keys else held)

    mixed = jax.shard_map(
        local,
        in_specs=(specs,),
        out_specs=specs["query"],
        axis_names={SEQUENCE_AXIS, *(plan.rows or ()), *filter(None, (plan.heads,))},
    )(given)
    return mixed[:, :queries]


def _traded(attend: Callable[[Operands], jax.Array], held: dict[str, jax.Array]) -> jax.Array:
    moved = {
        name: jax.lax.all_to_all(held[name], SEQUENCE_AXIS, split_axis=2, concat_axis=1, tiled=True)
        for name in ("query", "key", "value")
    }
    mixed = attend({**held, **moved})
    return jax.lax.all_to_all(mixed, SEQUENCE_AXIS, split_axis=1, concat_axis=2, tiled=True)


def _gathered(held: dict[str, jax.Array]) -> Operands:
    moved = {
        name: jax.lax.all_gather(held[name], SEQUENCE_AXIS, axis=1, tiled=True) for name in ("key", "value")
    }
    return {**held, **moved}


def _spec(plan: Plan, name: str, shape: tuple[int, ...], rows: int) -> PartitionSpec:
    """Where one operand of the call lies before the exchange."""
    gather = plan.exchange == "gather"
    if name == "query":
        return PartitionSpec(plan.rows, SEQUENCE_AXIS, plan.heads)
    if name in ("key", "value"):
        return PartitionSpec(plan.rows, plan.keys, plan.heads)
    if name == "sinks":
        # After a trade device i has the i-th part of its heads.
        parts = (plan.heads, None if gather else SEQUENCE_AXIS)
        return PartitionSpec(tuple(filter(None, parts)) or None)
    by_row = plan.rows if shape[0] == rows else None
    if name != "mask":
        own = gather and name.startswith("query")
        return PartitionSpec(by_row, SEQUENCE_AXIS if own else None)
    heads = filter(None, (plan.heads, None if gather else SEQUENCE_AXIS))
    return PartitionSpec(
        by_row,
        (tuple(heads) or None) if shape[1] > 1 else None,
        SEQUENCE_AXIS if gather and shape[2] > 1 else None,
    )


def _padded(name: str, value: jax.Array, queries: int) -> jax.Array:
    """The operand with queries added at the end until the axis divides them; their results are dropped."""
    more = -queries % position_shards()
    axis = {"query": 1, "query_segment_ids": 1, "query_positions": 1, "mask": 2}.get(name)
    if not more or axis is None or value.shape[axis] == 1:
        return value
    width: list[Any] = [(0, 0)] * value.ndim
    width[axis] = (0, more)
    return jnp.pad(value, width)
