"""A validation pass among several processes: every row once, however unevenly the rows were shared out."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dew.data.dataset import BatchIterator, HostBatch
from dew.objectives.base import Batch
from dew.training import pool
from dew.training.agreement import described
from dew.training.distributed import gather_bytes, place_rows, shard_batch
from dew.training.mesh import data_partition, replicated, row_shards


def global_batches(source: BatchIterator, mesh: Mesh) -> Iterator[Batch]:
    """The pass as global batches; all processes take part until none of them has rows left.

    Where the shares of a batch differ, or its rows do not divide over the mesh, every device gets it whole.

    Raises:
        ValueError: the processes' rows differ in more than their number.
    """
    if jax.process_count() == 1:
        yield from (place_rows(rows, mesh) for rows in source)
        return
    share = data_partition(mesh)
    while True:
        with pool.waiting("the validation data"):
            rows = next(source, None)
        pool.check()
        told = json.dumps([share.index, _count(rows), described(rows, of_rows=True)])
        said = [json.loads(text) for text in pool.exchange("a validation batch", told)]
        counts = {index: count for index, count, _ in said}
        total = sum(counts.values())
        if not total:
            return
        form = _agreed([form for _, count, form in said if count])
        if rows is not None and len(set(counts.values())) == 1 and total % row_shards(mesh) == 0:
            yield shard_batch(rows, mesh)
        else:
            yield jax.device_put(_gathered(rows, share.index, form), replicated(mesh))


def _gathered(rows: HostBatch | None, index: int, form: dict[str, str]) -> HostBatch:
    """The rows of all shares, in the shares' order."""
    shares: dict[int, dict[str, Any]] = {}
    for packed in gather_bytes(_packed(rows, index)):
        with np.load(io.BytesIO(packed), allow_pickle=False) as held:
            fields = {name.removeprefix("/"): held[name] for name in held.files if name != "share"}
            shares[int(held["share"])] = fields
    full = [shares[each] for each in sorted(shares) if shares[each]]
    whole: HostBatch = {}
    for name, dtype_and_shape in form.items():
        # A file of arrays forgets the names of some dtypes.
        dtype = jnp.dtype(dtype_and_shape.partition("[")[0])
        leaves = [fields[name].view(dtype) for fields in full]
        *folders, last = name.split("/")
        place = whole
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = np.concatenate(leaves) if leaves[0].ndim else leaves[0]
    return whole


def _packed(rows: HostBatch | None, index: int) -> bytes:
    flat = dict(_leaves(rows)) if rows is not None and _count(rows) else {}
    packed = io.BytesIO()
    arrays: dict[str, Any] = {f"/{name}": leaf for name, leaf in flat.items()}
    np.savez(packed, allow_pickle=False, share=np.asarray(index), **arrays)
    return packed.getvalue()


def _leaves(rows: HostBatch) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    for path, leaf in jax.tree.leaves_with_path(rows):
        if not all(isinstance(key, jax.tree_util.DictKey) for key in path):
            raise TypeError(
                f"a batch that several processes share unevenly must be nested dicts; {path} is not"
            )
        yield jax.tree_util.keystr(path, simple=True, separator="/"), np.asarray(leaf)


def _count(rows: HostBatch | None) -> int:
    sizes = [np.shape(leaf)[0] for leaf in jax.tree.leaves(rows) if np.ndim(leaf)]
    return int(max(sizes, default=0))


def _agreed(forms: list[dict[str, str]]) -> dict[str, str]:
    for form in forms:
        if form != forms[0]:
            raise ValueError(
                f"the rows of a validation batch are {forms[0]} on one process and {form} on another; every "
                "process must bring the same fields, shapes and dtypes"
            )
    return forms[0]
