"""A validation pass that brings the rows a probe is fitted on: training records first, then validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from dew.data.dataset import BatchIterator, DataPartition, Dataset, HostBatch, OpenIterator
from dew.objectives.jepa.representation import FIT, PROBE_KEY, SCORE, SKIP


def with_probe_rows(dataset: Dataset, rows: int | None = None) -> Dataset:
    """`dataset` whose validation pass begins with training records, each batch marked by a field `probe`.

    The records are the first of the training order, every one once: a probe sees the same rows at every
    evaluation, and none of them is scored.

    Args:
        dataset: with a validation pass.
        rows: how many training records; None takes all of them.

    Raises:
        ValueError: no validation pass, no row, or no number of rows for data of unknown length.
    """
    if dataset.val is None:
        raise ValueError("the dataset has no validation pass, so no probe can be scored; split some rows off")
    most = dataset.records if rows is None else min(rows, dataset.records or rows)
    if most is None:
        raise ValueError("rows=None takes all training records, whose number is not known; give a number")
    if most < 1:
        raise ValueError(f"rows={rows} must be at least 1: a probe is fitted on training records")
    train, val, batch = dataset.train, dataset.val, dataset.batch

    def opened(partition: DataPartition) -> BatchIterator:
        return ProbePass(train, val, partition, batch=batch, rows=most)

    return dataclasses.replace(dataset, val=opened)


class ProbePass:
    """One pass over `rows` training records and then the validation data, at one share."""

    def __init__(
        self, train: OpenIterator, val: OpenIterator, partition: DataPartition, *, batch: int, rows: int
    ) -> None:
        self._places = np.asarray(partition.rows(batch))
        self._batch, self._rows = batch, rows
        self._train, self._val = train(partition), val(partition)
        self._batches = self._marked()

    def __iter__(self) -> ProbePass:
        return self

    def __next__(self) -> HostBatch:
        return next(self._batches)

    def get_state(self) -> bytes:
        """Refused: a validation pass is read from its start."""
        raise ValueError("a validation pass with probe rows keeps no position; open it again")

    def set_state(self, state: bytes) -> None:
        """Refused, as `get_state` is."""
        raise ValueError("a validation pass with probe rows keeps no position; open it again")

    def close(self) -> None:
        """Close both passes."""
        self._batches = iter(())
        self._train.close()
        self._val.close()

    def _marked(self) -> Iterator[HostBatch]:
        for start in range(0, self._rows, self._batch):
            use = np.where(start + self._places < self._rows, FIT, SKIP)
            yield {**next(self._train), PROBE_KEY: use.astype(np.int32)}
        for rows in self._val:
            count = len(next(iter(rows.values())))
            yield {**rows, PROBE_KEY: np.full(count, SCORE, np.int32)}
