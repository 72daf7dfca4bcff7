"""Where the rows of a request lie: on one device, split over a mesh, or shared out among processes.

The mesh is that of the weights. Every process brings its own rows; together they are the global rows, in the
order of the shares. Rows that the mesh does not divide are followed by copies of the first, which never draw.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dew.data.dataset import DataPartition
from dew.training.mesh import BATCH_AXES, data_partition

type Array = jax.Array | np.ndarray


@dataclass(frozen=True)
class Placement:
    """The place of one request's rows.

    Attributes:
        mesh: the devices, or None for one device.
        share: which of the global rows this process brings.
        rows: its prompts.
        placed: its rows with the copies behind them.
    """

    mesh: Mesh | None
    share: DataPartition
    rows: int
    placed: int

    @property
    def first(self) -> int:
        """The global number of this process's first row."""
        return self.share.index * self.rows

    @property
    def pooled(self) -> bool:
        """Whether several processes hold rows of the request."""
        return self.mesh is not None and spans_processes(self.mesh)

    def entered(self) -> contextlib.AbstractContextManager[Any]:
        """The mesh in use for the block."""
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def put(self, rows: Array) -> Array:
        """This process's `[rows, ...]` as an array of the global rows."""
        if self.mesh is None:
            return rows
        xp: Any = jnp if isinstance(rows, jax.Array) else np
        whole = xp.concatenate([rows, xp.repeat(rows[:1], self.placed - self.rows, axis=0)])
        sharding = NamedSharding(self.mesh, P(row_axes(self.mesh) or None))
        if not self.pooled:
            return jax.device_put(whole, sharding)
        shape = (self.placed * self.share.count, *whole.shape[1:])
        return jax.make_array_from_process_local_data(sharding, np.asarray(whole), shape)

    def put_keys(self, keys: jax.Array) -> jax.Array:
        """`put` of typed keys."""
        if self.mesh is None:
            return keys
        data = self.put(np.asarray(jax.random.key_data(keys)))
        return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(keys))

    def put_active(self) -> Array:
        """Booleans of the global rows: those that are no copies."""
        return replace(self, rows=self.placed).put(np.arange(self.placed) < self.rows)


def placement(params: Mapping[str, Any], rows: int) -> Placement:
    """Where `rows` rows of this process go, given where the weights are.

    Raises:
        ValueError: a mesh over several processes whose axes are not those of `dew.training.build_mesh`.
    """
    mesh = mesh_of(params)
    if mesh is None:
        return Placement(None, DataPartition(), rows, rows)
    share = DataPartition()
    if spans_processes(mesh):
        missing = [axis for axis in BATCH_AXES if axis not in mesh.shape]
        if missing:
            raise ValueError(
                f"the weights lie on a mesh of several processes without the axes {', '.join(missing)}; make "
                "it with dew.training.build_mesh"
            )
        share = data_partition(mesh)
    pieces = max(1, row_pieces(mesh) // share.count)
    return Placement(mesh, share, rows, -(-rows // pieces) * pieces)


def mesh_of(params: Mapping[str, Any]) -> Mesh | None:
    """The mesh of several devices that the weights lie on, or None."""
    for leaf in jax.tree.leaves(params):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh) and sharding.mesh.size > 1:
            return sharding.mesh
    return None


def spans_processes(mesh: Mesh) -> bool:
    """Whether devices of several processes are in it."""
    return len({device.process_index for device in mesh.devices.flat}) > 1


def row_axes(mesh: Mesh) -> tuple[str, ...]:
    """The axes that split rows."""
    return tuple(axis for axis in BATCH_AXES if axis in mesh.shape)


def row_pieces(mesh: Mesh) -> int:
    """Into how many pieces rows are cut."""
    return int(np.prod([mesh.shape[axis] for axis in row_axes(mesh)], dtype=np.int64))


def local_rows(array: Any) -> np.ndarray:
    """The rows of `array` that this process holds, on the host, in the array's order."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    pieces = {shard.index[0].start or 0: shard for shard in array.addressable_shards}
    return np.concatenate([np.asarray(pieces[start].data) for start in sorted(pieces)])
