"""The device mesh: its axes, the share of a batch each process reads, and how a batch is split over it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dew.data.dataset import DataPartition
from dew.training.config import MeshSpec
from dew.training.granules import device_groups, granules_of

AXES = ("stage", "data", "fsdp", "expert", "tensor", "sequence")
"""Every mesh has these axes, of size 1 where a run does not use them.

Stages come first, since they exchange least; and XLA takes a manual axis inside another one's region only
where it comes later.
"""

BATCH_AXES = ("data", "fsdp", "expert")
"""The axes that a batch's rows are split over."""

SEQUENCE_AXIS = "sequence"
"""The axis that positions are split over, between attention calls and in them."""

STAGE_AXIS = "stage"
"""The axis that a pipeline's layers are split over."""


def build_mesh(spec: MeshSpec, devices: Sequence[Any] | None = None) -> Mesh:
    """Arrange devices as `spec` says; the data axis takes the factor that is left.

    With `replicas` the data axis runs over that many groups of granules one after another, and every other
    axis lies inside a group (`dew.training.granules`).

    Args:
        spec: the sizes of the other axes.
        devices: what to arrange; default every device JAX sees.

    Raises:
        ValueError: the factors do not divide the number of devices of a replica, or the devices do not form
            `replicas` equal groups.
    """
    given = list(jax.devices() if devices is None else devices)
    inner = {axis: getattr(spec, axis) for axis in AXES if axis != "data"}
    factor = math.prod(inner.values())
    groups = device_groups(given, spec.replicas)
    if len(groups[0]) % factor:
        named = " x ".join(f"{axis}={size}" for axis, size in inner.items())
        of_each = f"{len(given)} devices"
        if spec.replicas > 1:
            of_each = f"the {len(groups[0])} devices of each of replicas={spec.replicas}"
        raise ValueError(
            f"{named} makes groups of {factor}, which do not divide {of_each}; "
            f"{_fitting(inner, len(groups[0]))} works"
        )
    shape = tuple(inner.get(axis, len(groups[0]) // factor) for axis in AXES)
    kinds = (AxisType.Auto,) * len(AXES)
    if devices is None and spec.replicas == 1:
        return jax.make_mesh(shape, AXES, axis_types=kinds)
    blocks = [_arranged(shape, group, given_order=devices is not None) for group in groups]
    return Mesh(np.concatenate(blocks, axis=AXES.index("data")), AXES, axis_types=kinds)


def _arranged(shape: tuple[int, ...], group: Sequence[Any], *, given_order: bool) -> np.ndarray:
    """One group's devices in a mesh's shape, neighbours of the interconnect beside each other.

    Several slices have no common interconnect to follow; they stand one after another.
    """
    if given_order or granules_of(group)[0] == "slices":
        return np.array(group, dtype=object).reshape(shape)
    return mesh_utils.create_device_mesh(shape, group)


def _fitting(sizes: Mapping[str, int], devices: int) -> str:
    """Factors no larger than `sizes` that divide `devices`, the first axes served first."""
    left, fits = devices, dict[str, int]()
    for axis, size in sizes.items():
        fits[axis] = max(factor for factor in range(1, size + 1) if left % factor == 0)
        left //= fits[axis]
    return " x ".join(f"{axis}={size}" for axis, size in fits.items() if size > 1) or "data parallelism alone"


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows split over every batch axis, all other dimensions whole."""
    return NamedSharding(mesh, P(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """One whole copy on every device."""
    return NamedSharding(mesh, P())


def row_shards(mesh: Mesh) -> int:
    """Into how many pieces the rows of a batch are cut."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def data_partition(mesh: Mesh) -> DataPartition:
    """The share of every global batch that this process reads on `mesh`.

    Processes whose devices hold the same rows (a tensor axis that spans them) read the same share.

    Raises:
        ValueError: this process has no device in `mesh`, or two processes hold rows that overlap in part.
    """
    rows = row_shards(mesh)
    blocks: dict[int, set[int]] = {}
    for device, index in batch_sharding(mesh).devices_indices_map((rows,)).items():
        blocks.setdefault(device.process_index, set()).update(range(*index[0].indices(rows)))
    shares = sorted({tuple(sorted(block)) for block in blocks.values()})
    if sum(map(len, shares)) != rows:
        raise ValueError("processes of this mesh hold overlapping rows of a batch; give each host whole rows")
    if jax.process_index() not in blocks:
        raise ValueError(
            f"process {jax.process_index()} has no device in the mesh, so it has no rows to read"
        )
    mine = tuple(sorted(blocks[jax.process_index()]))
    readers = sum(tuple(sorted(block)) == mine for block in blocks.values())
    return DataPartition(index=shares.index(mine), count=len(shares), readers=readers)
