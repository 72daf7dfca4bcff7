"""What processes do together: place a batch on the mesh, agree on a phase, take a minimum."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from dew.data.dataset import Dataset
from dew.training import pool
from dew.training.config import MeshSpec
from dew.training.mesh import batch_sharding, replicated, row_shards
from dew.training.prefetch import DevicePrefetchIterator as DevicePrefetchIterator


def shard_batch(batch: Any, mesh: Mesh) -> Any:
    """Place this process's rows of a global batch on `mesh`; scalars are copied to every device.

    Args:
        batch: a tree of host arrays with a leading row axis; arrays that lie across processes already are
            global and move whole.
        mesh: from `build_mesh`.

    Raises:
        ValueError: the global rows cannot be split evenly over the mesh's batch axes.
    """
    rows_over = batch_sharding(mesh)
    whole = replicated(mesh)
    shards = row_shards(mesh)
    sharers = jax.process_count()

    def place(path: tuple[Any, ...], leaf: Any) -> jax.Array:
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        if array.ndim == 0:
            return jax.device_put(array, whole)
        if sharers == 1:
            if array.shape[0] % shards:
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                raise ValueError(
                    f"{name!r} has {array.shape[0]} rows, which {shards} row shards of the mesh do not "
                    "divide; "
                    f"use a batch that is a multiple of {shards}"
                )
            return jax.device_put(array, rows_over)
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return jax.device_put(array, rows_over)
        return jax.make_array_from_process_local_data(rows_over, np.asarray(array))

    return jax.tree_util.tree_map_with_path(place, batch)


def check_rows(data: Dataset, mesh: Mesh, spec: MeshSpec) -> None:
    """Refuse data with a batch, at any stage of its ramp, whose rows do not divide.

    They must over the mesh's row shards, and in each of these over the microbatches of a pipeline.

    Raises:
        ValueError: naming the first such batch.
    """
    shards = row_shards(mesh)
    parts = 1 if spec.stage == 1 else spec.microbatches or spec.stage
    cut = "" if parts == 1 else f" in {parts} pipeline microbatches each"
    for size in data.stages.sizes:
        if size % (shards * parts):
            stage = "" if data.ramp is None else f", a stage of batch_ramp={data.ramp},"
            raise ValueError(
                f"a batch of {size} rows{stage} cannot be split over the {shards} row shards of the "
                f"mesh{cut}; use multiples of {shards * parts}"
            )


def place_rows(batch: Any, mesh: Mesh) -> Any:
    """Place a validation batch.

    Like `shard_batch`, and whole on every device where its rows do not divide.
    """
    shards = row_shards(mesh)
    ragged = any(np.ndim(leaf) and np.shape(leaf)[0] % shards for leaf in jax.tree.leaves(batch))
    if ragged and jax.process_count() == 1:
        return jax.device_put(batch, replicated(mesh))
    return shard_batch(batch, mesh)


def minimum_across_processes(value: int) -> int:
    """The smallest `value` any process holds; every process calls it."""
    if jax.process_count() == 1:
        return value
    return int(np.min(multihost_utils.process_allgather(np.asarray(value, np.int64))))


def maximum_across_processes(value: int) -> int:
    """The largest `value` any process holds; every process calls it."""
    return -minimum_across_processes(-value)


def agree_process_phase(phase: str, error: BaseException | None = None) -> None:
    """Make a phase succeed on all processes or fail on all; each calls it once, with its own outcome.

    Raises:
        PoolFailure: another process failed in `phase`. A process that failed raises its own error.
    """
    told = "" if error is None else f"{type(error).__name__}: {error}"
    texts = pool.exchange(phase, told)
    if error is not None:
        raise error
    failed = [index for index, text in enumerate(texts) if text]
    if failed:
        raise pool.PoolFailure(f"process {failed[0]} of {len(texts)} failed in {phase}: {texts[failed[0]]}")


def gather_bytes(held: bytes) -> list[bytes]:
    """What every process holds, in their order; all of them take part."""
    if jax.process_count() == 1:
        return [held]
    sizes = multihost_utils.process_allgather(np.asarray(len(held), np.int64))
    padded = np.zeros(int(np.max(sizes)), np.uint8)
    padded[: len(held)] = np.frombuffer(held, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [row[: int(size)].tobytes() for size, row in zip(sizes, rows, strict=True)]


def to_host(tree: Any) -> Any:
    """Copy a tree's arrays to this process's memory, gathering what other processes hold.

    All of them take part.
    """

    def fetch(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.asarray(leaf.addressable_data(0) if leaf.is_fully_replicated else leaf)
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(fetch, tree)
