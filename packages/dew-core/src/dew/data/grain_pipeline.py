"""Grain pipelines as Dew's iterators: shares, positions, fingerprints and worker processes.

The order is a law of the record index: global batch `k` holds records `k*B .. k*B+B-1` of the endless
repeated order (`dew.data.stages` says which where the batch grows), and a share is a fixed slice of its rows.
Threads and workers only decide who reads, never what.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

import grain
import jax
import numpy as np

from dew.data.config import Loading, Ramp
from dew.data.dataset import BatchIterator, DataPartition, HostBatch, OpenIterator, Pipeline
from dew.data.position import decode_position, encode_position
from dew.data.stages import Stages
from dew.data.worker_life import end_with_parent

type Records = grain.MapDataset[Any]


def open_pipeline(
    pipeline: Pipeline, *, batch: int, loading: Loading, fingerprint: Mapping[str, object], endless: bool
) -> OpenIterator:
    """Return the function that opens `pipeline` at a partition. See `Dataset.from_grain`.

    Raises:
        ValueError: an empty pipeline, or `loading` for a function that builds its own.
    """
    if isinstance(pipeline, grain.MapDataset):
        if len(pipeline) < 1:
            raise ValueError(f"the {'training' if endless else 'validation'} pipeline holds no records")
        records = pipeline.repeat() if endless and len(pipeline) < sys.maxsize else pipeline
        return OpenRecords(records, batch, loading, fingerprint)
    if loading != Loading():
        raise ValueError(
            "loading= is for a MapDataset; a function of the partition sets Grain's options itself"
        )

    def open_stream(partition: DataPartition) -> BatchIterator:
        return StreamIterator(pipeline, partition, batch=batch, fingerprint=fingerprint)

    return open_stream


@dataclass(frozen=True)
class OpenRecords:
    """Opens a share of a `MapDataset` in batches, which may grow.

    Attributes:
        records: what is read, repeated without end for training.
        batch: records in a global batch, at the end where it grows.
        loading: concurrency.
        fingerprint: tells this data from other data.
        ramp: how the batch grows, or None.
    """

    records: Records
    batch: int
    loading: Loading
    fingerprint: Mapping[str, object]
    ramp: Ramp | None = None

    def __call__(self, partition: DataPartition) -> BatchIterator:
        told = {} if self.ramp is None else {"ramp": list(astuple(self.ramp))}
        return RecordIterator(
            self.records,
            partition,
            stages=Stages(self.batch, self.ramp),
            loading=self.loading,
            fingerprint={**self.fingerprint, **told},
        )

    def example(self) -> Any:
        """The first record, or None where it is filtered out."""
        return self.records[0]

    def ramped(self, ramp: Ramp) -> OpenRecords:
        """The same records in batches that grow as `ramp` says."""
        ramp.check(self.batch)
        return replace(self, ramp=ramp)


class ShareOfBatches:
    """Random access to one share's rows of each global batch from step `start` on. The last batch may
    be short: shares then differ by a row at most, and may hold none."""

    def __init__(self, records: Records, partition: DataPartition, *, stages: Stages, start: int) -> None:
        self._records = records
        self._partition = partition
        self._stages = stages
        self._start = start

    def __len__(self) -> int:
        # One below Grain's own "endless", whose index arithmetic must not overflow.
        return min(self._stages.steps_begun(len(self._records)) - self._start, 2**62)

    def __getitem__(self, index: int) -> HostBatch:
        first, size = self._stages.step(self._start + index)
        total = min(size, len(self._records) - first)
        mine = self._partition.portion(total)
        rows = [self._records[first + row] for row in mine or range(1)]  # one at least, for its fields
        if any(row is None for row in rows):
            raise ValueError(
                "a filtered MapDataset has no fixed record positions; filter the source, or pass a "
                "function of the "
                "partition that builds an IterDataset"
            )
        return jax.tree.map(
            lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves])[: len(mine)], *rows
        )

    def __repr__(self) -> str:
        sizes, share = self._stages.sizes, self._partition
        return f"ShareOfBatches(sizes={sizes}, start={self._start}, partition={share})"


class RecordIterator:
    """A pass over a `MapDataset` whose position is the global number of records delivered."""

    def __init__(
        self,
        records: Records,
        partition: DataPartition,
        *,
        stages: Stages,
        loading: Loading,
        fingerprint: Mapping[str, object],
    ) -> None:
        for size in stages.sizes:
            partition.rows(size)
        self._records = records
        self._partition = partition
        self._stages = stages
        self._loading = loading
        self._fingerprint = fingerprint
        self._position = 0
        self._reader: Iterator[HostBatch] | None = None
        self._closed = False

    def __iter__(self) -> RecordIterator:
        return self

    def __next__(self) -> HostBatch:
        if self._closed:
            raise StopIteration
        if self._reader is None:
            self._reader = self._opened()
        batch = next(self._reader)
        _, size = self._stages.step(self._stages.steps_within(self._position))
        self._position = min(self._position + size, len(self._records))
        return batch

    def get_state(self) -> bytes:
        return encode_position(self._fingerprint, {"position": self._position})

    def set_state(self, state: bytes) -> None:
        position = decode_position(state, self._fingerprint).get("position")
        if not isinstance(position, int) or position < 0:
            raise ValueError(f"a saved data position must be a record count from 0 up, not {position!r}")
        if position < len(self._records):
            self._stages.step_at(position)
        self._release()
        self._position = position

    def close(self) -> None:
        self._closed = True
        self._release()

    def _release(self) -> None:
        reader, self._reader = self._reader, None
        if isinstance(reader, grain.DatasetIterator):
            reader.close()

    def _opened(self) -> Iterator[HostBatch]:
        start = self._stages.steps_begun(self._position)
        shares = ShareOfBatches(self._records, self._partition, stages=self._stages, start=start)
        loading = self._loading
        if loading.threads == 0 and loading.workers == 0:
            return (shares[index] for index in range(len(shares)))
        rows = len(self._partition.rows(self._stages.sizes[-1]))
        ahead = max(1, loading.read_buffer // rows)
        threads = min(loading.threads, ahead)
        dataset = grain.MapDataset.source(shares).to_iter_dataset(
            grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead if threads else 0)
        )
        return iter(in_workers(dataset, loading))


class StreamIterator:
    """A pass over an `IterDataset` that a caller builds for one share; its position is Grain's own state."""

    def __init__(
        self,
        build: Callable[[DataPartition], grain.IterDataset[Any]],
        partition: DataPartition,
        *,
        batch: int,
        fingerprint: Mapping[str, object],
    ) -> None:
        self._rows = len(partition.rows(batch))
        self._partition = partition
        self._batch = batch
        self._fingerprint = fingerprint
        self._batches = 0
        self._reader = iter(build(partition))
        self._closed = False

    def __iter__(self) -> StreamIterator:
        return self

    def __next__(self) -> HostBatch:
        if self._closed:
            raise StopIteration
        batch = next(self._reader)
        rows = {np.shape(leaf)[0] for leaf in jax.tree.leaves(batch)}
        if max(rows, default=0) > self._rows:
            raise ValueError(
                f"the pipeline delivers {max(rows)} rows where share {self._partition.index} of "
                f"{self._partition.count} reads {self._rows} of a batch of {self._batch}; batch it by "
                "batch // partition.count"
            )
        self._batches += 1
        return batch

    def get_state(self) -> bytes:
        share = [self._partition.index, self._partition.count]
        fields = {"position": self._batches * self._batch, "share": share, "grain": self._reader.get_state()}
        return encode_position(self._fingerprint, fields)

    def set_state(self, state: bytes) -> None:
        record = decode_position(state, self._fingerprint)
        index, count = record.get("share", (0, 0))
        if (index, count) != (self._partition.index, self._partition.count):
            raise ValueError(
                f"the position of share {index} of {count} cannot continue as share "
                f"{self._partition.index} of "
                f"{self._partition.count}: this pipeline's state is Grain's own; resume with {count} shares"
            )
        self._reader.set_state(record["grain"])
        self._batches = record["position"] // self._batch

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._reader.close()


def in_workers[T](dataset: grain.IterDataset[T], loading: Loading) -> grain.IterDataset[T]:
    """Spread `dataset` over `loading.workers` processes, in the same order; with 0 it is returned as it
    is."""
    if loading.workers == 0:
        return dataset
    from absl import flags

    if (
        not flags.FLAGS.is_parsed()
    ):  # Grain reads absl's flags, which a program without absl.app never parses.
        flags.FLAGS.mark_as_parsed()
    return dataset.mp_prefetch(
        grain.MultiprocessingOptions(
            num_workers=loading.workers, per_worker_buffer_size=loading.worker_buffer
        ),
        worker_init_fn=end_with_parent,
    )
