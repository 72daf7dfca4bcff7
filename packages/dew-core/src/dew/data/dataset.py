"""The `Dataset` a run reads: iterators over shares of one global order of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dew.data.config import Loading, Ramp
from dew.data.stages import Stages

if TYPE_CHECKING:
    import grain

type HostBatch = dict[str, Any]
"""One process's rows of a global batch: host arrays with a leading row axis, keyed by field name."""


@dataclass(frozen=True)
class DataPartition:
    """The share of every global batch that one process reads.

    Attributes:
        index: which of the `count` disjoint shares.
        count: number of shares.
        readers: processes that read this same share alike.

    Raises:
        ValueError: an index outside the shares, or a count below 1.
    """

    index: int = 0
    count: int = 1
    readers: int = 1

    def __post_init__(self) -> None:
        if self.count < 1 or self.readers < 1:
            raise ValueError(f"count={self.count} and readers={self.readers} must be at least 1")
        if not 0 <= self.index < self.count:
            raise ValueError(f"index={self.index} must lie in 0..{self.count - 1}, since count={self.count}")

    def rows(self, total: int) -> range:
        """The rows of a global batch of `total` rows that this share holds.

        Raises:
            ValueError: `total` is no multiple of `count`.
        """
        if total % self.count:
            raise ValueError(
                f"a batch of {total} rows cannot be cut into {self.count} equal shares; "
                f"use a batch that is a multiple of {self.count}"
            )
        return self.portion(total)

    def portion(self, total: int) -> range:
        """The rows of `total` that this share holds where shares may differ by a row, and may be empty."""
        return range(self.index * total // self.count, (self.index + 1) * total // self.count)


@runtime_checkable
class BatchIterator(Protocol):
    """An exclusively owned pass over one share.

    `close` is ordinary finalization and must not race `__next__`, `get_state` or `set_state`. A source that
    can interrupt a blocked read also has `request_stop()`: thread-safe, nonblocking, idempotent, safe beside
    all others.
    """

    def __iter__(self) -> BatchIterator: ...
    def __next__(self) -> HostBatch: ...

    def get_state(self) -> bytes:
        """The position after the last batch returned, with the data's fingerprint."""
        ...

    def set_state(self, state: bytes) -> None:
        """Continue from `state`. Raises `ValueError` where it was saved on other data."""
        ...

    def close(self) -> None: ...


type OpenIterator = Callable[[DataPartition], BatchIterator]
type Pipeline = grain.MapDataset[Any] | Callable[[DataPartition], grain.IterDataset[Any]]
"""A Grain pipeline over records, or a function that builds the batched pipeline of one share."""


@dataclass(frozen=True)
class Dataset:
    """The training and validation data of a run.

    Every call of `train` and `val` opens a fresh iterator that the caller owns and closes.

    Attributes:
        train: opens the endless training order at one share.
        val: opens one finite validation pass at one share, or None.
        records: number of training records, or None where it is not known.
        batch: records in a global batch.
        ramp: how the batch grows to `batch` over the first records, or None. What `train` opens grows it.
        description: what became of the source, a line each: how much there is and what was left out.
        kinds: by split, `train` and `val`, the kinds of targets in its records, as whose words the tokens of
            a conversation are. A split that is not named is not known.

    Raises:
        ValueError: a batch below 1, a negative record count, or a ramp that does not end at `batch`.
    """

    train: OpenIterator
    val: OpenIterator | None
    records: int | None
    batch: int
    ramp: Ramp | None = None
    description: tuple[str, ...] = ()
    kinds: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} must be at least 1")
        if self.records is not None and self.records < 0:
            raise ValueError(f"records={self.records} must not be negative; None says it is not known")
        if self.ramp is not None:
            self.ramp.check(self.batch)

    @property
    def steps_per_epoch(self) -> int | None:
        """Whole batches in one pass over the records; None where their number is not known.

        With a ramp these are batches of the size it ends at.
        """
        return None if self.records is None else self.records // self.batch

    def epoch_steps(self, epochs: int = 1) -> int:
        """Steps in `epochs` passes; with a ramp, the whole steps within the records of as many passes.

        Raises:
            ValueError: the number of records is not known, or smaller than a batch.
        """
        steps = self.steps_per_epoch
        if steps is None:
            raise ValueError(f"epochs={epochs} needs a known number of records; give trainer.steps instead")
        if steps < 1:
            raise ValueError(
                f"{self.records} records make no whole batch of {self.batch}; use a smaller batch or give "
                "trainer.steps"
            )
        if self.ramp is None:
            return steps * epochs
        return self.stages.steps_within(steps * self.batch * epochs)

    @property
    def stages(self) -> Stages:
        """Which records each training step reads."""
        return Stages(self.batch, self.ramp)

    def ramped(self, ramp: Ramp) -> Dataset:
        """This data with a batch that grows to `batch` as `ramp` says.

        Raises:
            ValueError: a ramp that does not end at `batch`, or training data that has no records by number.
        """
        grow = getattr(self.train, "ramped", None)
        if grow is None:
            raise ValueError(
                f"ramp={ramp}: the training data comes in batches that are made elsewhere; build it over a "
                "grain.MapDataset, or leave batch_ramp unset"
            )
        return replace(self, train=grow(ramp), ramp=ramp)

    @classmethod
    def from_grain(
        cls,
        train: Pipeline,
        *,
        batch: int,
        validation: Pipeline | None = None,
        records: int | None = None,
        loading: Loading = Loading(),  # noqa: B008 - frozen
        fingerprint: Mapping[str, object] | None = None,
    ) -> Dataset:
        """Build a dataset over Grain pipelines.

        A `grain.MapDataset` of records is repeated without end, batched over epoch boundaries and cut into
        the reader's share; its position is one global record count, so any process count continues from it.
        Put `seed(n).shuffle()` before it for a new order each epoch. A function of `DataPartition` builds a
        `grain.IterDataset` that is already batched; its position is Grain's own state, which only the same
        partition continues from.

        Args:
            train: the training pipeline.
            batch: records in a global batch.
            validation: a finite pipeline of either form, or None.
            records: number of training records; default the length of a `MapDataset`, else not known.
            loading: concurrency for a `MapDataset`; a function brings its own and takes the default here.
            fingerprint: names and JSON values that tell this data from other data; a saved position with
                other values is refused on resume. `batch` and `records` are always compared.

        Raises:
            ValueError: an empty pipeline, or `loading` beside a function.
        """
        from dew.data.grain_pipeline import open_pipeline

        if records is None and not callable(train):
            records = len(train)
        identity = {**(fingerprint or {}), "batch": batch, "records": records}

        def opened(pipeline: Pipeline, *, endless: bool) -> OpenIterator:
            return open_pipeline(
                pipeline, batch=batch, loading=loading, fingerprint=identity, endless=endless
            )

        return cls(
            train=opened(train, endless=True),
            val=None if validation is None else opened(validation, endless=False),
            records=records,
            batch=batch,
        )
