"""Activations [B, S, ...] whose positions stay on the devices of the mesh's sequence axis.

Between attention calls every layer works on single positions, so a device computes and keeps
1 / `sequence` of them. Rows are split over the batch axes as ever.

Dimensions: B rows, S positions, N = B * S tokens.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
from jax.sharding import PartitionSpec as P

from dew.nn.sharding import automatic, axis_size, row_axes, split_rows
from dew.training.config import MeshSpec
from dew.training.mesh import BATCH_AXES, SEQUENCE_AXIS, STAGE_AXIS

TABLE_AXIS = "fsdp"
"""The batch axis that also splits the columns of an embedding."""


class TokenAxes(NamedTuple):
    """What splits the first two dimensions of [B, S, ...] on the mesh in use; None where nothing does."""

    rows: tuple[str, ...] | None
    positions: str | None

    @property
    def names(self) -> frozenset[str]:
        """Every mesh axis in it."""
        return frozenset(self.rows or ()) | frozenset(filter(None, (self.positions,)))


def token_axes(rows: int, positions: int) -> TokenAxes:
    """The mesh axes that split so many rows of so many positions."""
    shards = position_shards()
    return TokenAxes(
        row_axes(rows) or None,
        SEQUENCE_AXIS if shards > 1 and positions % shards == 0 else None,
    )


def position_shards() -> int:
    """Into how many pieces the mesh in use cuts positions; 1 where an enclosing function has cut them."""
    return axis_size(SEQUENCE_AXIS) if automatic(SEQUENCE_AXIS) else 1


def check_positions(name: str, positions: int) -> None:
    """Refuse a length that the mesh in use does not cut into equal pieces.

    Raises:
        ValueError: naming what holds so many positions, and what would do.
    """
    MeshSpec(sequence=position_shards()).check_positions(name, positions)


def split_tokens(x: jax.Array) -> jax.Array:
    """Return [B, S, ...] with its rows and positions on the devices they belong to.

    A dimension that the mesh in use does not divide stays as the compiler would have it.
    """
    axes = token_axes(*x.shape[:2])
    if axes.positions is None:
        return split_rows(x)
    free = P.UNCONSTRAINED
    return jax.lax.with_sharding_constraint(x, P(axes.rows or free, axes.positions, *[free] * (x.ndim - 2)))


def split_positions(x: jax.Array) -> jax.Array:
    """Return `split_tokens(x)` where the mesh in use splits the positions, and `x` as it is elsewhere."""
    return x if token_axes(*x.shape[:2]).positions is None else split_tokens(x)


def split_lookup(x: jax.Array) -> jax.Array:
    """Return [B, S, E], looked up in a table of vectors, on the devices `split_tokens` says.

    A device of a sharded table looks up its columns for the rows of all who share it, and they trade columns
    for rows. Said in two steps, the compiler does that for a device's positions; in one, for all positions.
    """
    axes = token_axes(*x.shape[:2])
    if axes.positions is None or axes.rows is None or axis_size(TABLE_AXIS) == 1:
        return split_tokens(x)
    apart = tuple(axis for axis in axes.rows if axis != TABLE_AXIS)
    looked_up = P(apart, axes.positions, *[P.UNCONSTRAINED] * (x.ndim - 2))
    return split_tokens(jax.lax.with_sharding_constraint(x, looked_up))


def merged(x: jax.Array) -> jax.Array:
    """Return [B, S, ...] as [N, ...], in an order of tokens that moves none between devices.

    Without a split of positions that is the order of `reshape`. With one, a device's tokens stand together.
    `parted` undoes it.
    """
    rows, positions = x.shape[:2]
    cut = _cuts(rows, positions)
    if cut is None:
        return x.reshape(rows * positions, *x.shape[2:])
    blocks = x.reshape(cut[0], rows // cut[0], cut[1], positions // cut[1], *x.shape[2:])
    return split_merged(blocks.swapaxes(1, 2).reshape(rows * positions, *x.shape[2:]))


def parted(x: jax.Array, rows: int, positions: int) -> jax.Array:
    """Return the [N, ...] of `merged` as [B, S, ...]."""
    cut = _cuts(rows, positions)
    if cut is None:
        return x.reshape(rows, positions, *x.shape[1:])
    blocks = x.reshape(cut[0], cut[1], rows // cut[0], positions // cut[1], *x.shape[1:])
    return split_tokens(blocks.swapaxes(1, 2).reshape(rows, positions, *x.shape[1:]))


def split_merged(x: jax.Array) -> jax.Array:
    """Return [N, ...] with every token of `merged` on the device it came from."""
    if position_shards() == 1:
        return split_rows(x)
    for rows in ((*BATCH_AXES, STAGE_AXIS), BATCH_AXES):
        axes = (*rows, SEQUENCE_AXIS)
        if automatic(*axes) and x.shape[0] % math.prod(axis_size(axis) for axis in axes) == 0:
            return jax.lax.with_sharding_constraint(x, P(axes, *[P.UNCONSTRAINED] * (x.ndim - 1)))
    return split_rows(x)


def _cuts(rows: int, positions: int) -> tuple[int, int] | None:
    """Row and position shards, or None where positions are whole."""
    axes = token_axes(rows, positions)
    if axes.positions is None:
        return None
    return math.prod(axis_size(axis) for axis in axes.rows or ()), position_shards()
