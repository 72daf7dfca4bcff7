"""Rows meet the experts that other devices hold.

Every device sorts and computes its own rows, so that a batch split over a mesh is never gathered whole. Over
the expert axis the devices of a group exchange: each receives the group's rows, computes what its experts say
of them, and the sum returns to each row's device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from dew.nn.sharding import row_axes

EXPERT_AXIS = "expert"

type Blocks = Callable[[Any, Any, jax.Array | int], jax.Array]
"""`blocks(rows, bank, first)`: what experts `first` and following add to the result for each row."""


def over_expert_groups(blocks: Blocks, rows: Any, bank: Any) -> jax.Array:
    """Return `blocks(rows, bank, 0)`, computed where rows and experts lie on the mesh in use.

    Args:
        blocks: its result has the rows' leading axis, and the results of parts of a bank add up to the whole
            bank's.
        rows: arrays with one leading row axis.
        bank: arrays with a leading expert axis.
    """
    axes = row_axes(jax.tree.leaves(rows)[0].shape[0])
    if not axes:
        return blocks(rows, bank, 0)
    experts: int = jax.tree.leaves(bank)[0].shape[0]
    groups = jax.sharding.get_abstract_mesh().shape[EXPERT_AXIS]
    exchanged = groups > 1 and experts % groups == 0

    def local(rows: Any, bank: Any) -> jax.Array:
        if not exchanged:
            return blocks(rows, bank, 0)
        group = jax.lax.all_gather(rows, EXPERT_AXIS, tiled=True)
        first = jax.lax.axis_index(EXPERT_AXIS) * (experts // groups)
        return jax.lax.psum_scatter(blocks(group, bank, first), EXPERT_AXIS, tiled=True)

    return jax.shard_map(
        local,
        in_specs=(P(axes), P(EXPERT_AXIS if exchanged else None)),
        out_specs=P(axes),
        axis_names=set(axes),
    )(rows, bank)
