"""Parts of the train state that rest in pinned host memory between steps.

Offloading the optimizer's state frees the accelerator's memory between steps and during the model's passes
(ZeRO-Offload, arXiv:2101.06840, keeps its state there too, and computes there). The step fetches what it
reads; what it returns goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import jax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

if TYPE_CHECKING:
    from dew.training.config import HostField
    from dew.training.state import TrainState

HOST = "pinned_host"
"""The memory that a device reads without the processor's help."""


def offloaded(shardings: TrainState, shapes: TrainState, fields: Sequence[HostField]) -> TrainState:
    """The placement of a state whose arrays in `fields` rest in pinned host memory.

    Scalars, the counters of an optimizer, stay on the device: a transfer would cost more than they take.

    Args:
        shardings: of every leaf, in device memory.
        shapes: arrays or shapes in the same structure.
        fields: out of `opt_state` and `ema`.
    """

    def rest(sharding: Any, leaf: Any) -> Any:
        return sharding.with_memory_kind(HOST) if leaf.ndim else sharding

    return replace(
        shardings,
        **{name: jax.tree.map(rest, getattr(shardings, name), getattr(shapes, name)) for name in fields},
    )


def on_device(tree: Any) -> Any:
    """The tree with every array that rests in host memory copied to its device; traced or not."""

    def fetch(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or jax.typeof(leaf).memory_space != jax.memory.Space.Host:
            return leaf
        if isinstance(leaf, Tracer):
            return jax.device_put(leaf, jax.memory.Space.Device)
        return transferred(leaf, cast("NamedSharding", leaf.sharding).with_memory_kind("device"))

    return jax.tree.map(fetch, tree)


def transferred(array: jax.Array, place: NamedSharding) -> jax.Array:
    """The array in `place`, whose devices stand for those it lies on, in the order of the two meshes.

    An array of several processes is moved by its addressable pieces, which JAX does not do by itself between
    memories or backends.
    """
    source = array.sharding
    if array.is_fully_addressable or not isinstance(source, NamedSharding):
        return jax.device_put(array, place)
    beside = dict(zip(_devices(source), _devices(place), strict=True))
    keys = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    raw = jax.random.key_data(array) if keys else array
    pieces = [
        jax.device_put(piece.data, SingleDeviceSharding(beside[piece.device], memory_kind=place.memory_kind))
        for piece in raw.addressable_shards
    ]
    moved = jax.make_array_from_single_device_arrays(raw.shape, place, pieces)
    return jax.random.wrap_key_data(moved, impl=jax.random.key_impl(array)) if keys else moved


def _devices(sharding: NamedSharding) -> Sequence[Any]:
    return list(cast("Mesh", sharding.mesh).devices.flat)
