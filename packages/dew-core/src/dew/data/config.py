"""What a run writes about its data: the loader's concurrency, the batch ramp and the dataset specification.

Plain records. Importing this module imports neither jax nor numpy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from dew.data.dataset import Dataset
    from dew.data.records import Records


@dataclass(frozen=True)
class Loading:
    """Concurrency and buffers of the data loader.

    Attributes:
        workers: processes that read and transform records; 0 reads in the training process.
        threads: reading threads in each worker; 0 reads inline.
        read_buffer: records each worker reads ahead.
        worker_buffer: batches each worker holds ready.

    Raises:
        ValueError: a negative count, or a buffer below 1.
    """

    workers: int = 32
    threads: int = 64
    read_buffer: int = 128
    worker_buffer: int = 2

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("threads", 0), ("read_buffer", 1), ("worker_buffer", 1)):
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"loading.{name}={value} must be at least {least}")


IN_PROCESS = Loading(workers=0, threads=0)
"""Records are read where they are asked for: right where reading one costs microseconds."""


@dataclass(frozen=True)
class Ramp:
    """A global batch that grows over the first records of a run, as `dew.data.stages` says.

    Attributes:
        start: the global batch the run starts at.
        increment: what each stage adds to it.
        records: records the whole ramp spans, in equal parts for its stages.

    Raises:
        ValueError: a number below 1.
    """

    start: int
    increment: int
    records: int

    def __post_init__(self) -> None:
        for name in ("start", "increment", "records"):
            if getattr(self, name) < 1:
                raise ValueError(f"batch_ramp.{name}={getattr(self, name)} must be at least 1")

    def check(self, batch: int) -> None:
        """Refuse a ramp that does not grow to `batch` in whole increments.

        Raises:
            ValueError: it does not.
        """
        if self.start >= batch:
            raise ValueError(
                f"batch_ramp.start={self.start} must be below the batch of {batch} that the ramp ends at"
            )
        if (batch - self.start) % self.increment:
            raise ValueError(
                f"batch_ramp.increment={self.increment} must divide {batch} - {self.start} = "
                f"{batch - self.start}, from batch_ramp.start to the batch that the ramp ends at"
            )


@dataclass(frozen=True, kw_only=True)
class DatasetSpec(ABC):
    """A dataset as a configuration names it. Subclasses add their fields and implement `load`.

    Attributes:
        seed: seeds the order of the records; one seed gives one order on every machine and process count.
        loading: concurrency of the loader; it changes no batch.

    Raises:
        ValueError: a negative seed.
    """

    component_kind: ClassVar[str] = "dataset"
    chosen_by: ClassVar[tuple[str, ...]] = ()
    """Fields that, given on the command line, put this dataset in the place of one of the same base class
    without them."""

    seed: int = 0
    loading: Loading = Loading()

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"data.seed={self.seed} must be 0 or more")

    @abstractmethod
    def load(self, *, batch: int, tokenize: object = None) -> Dataset:
        """Open the data at `batch` records a global batch.

        Args:
            batch: global batch size.
            tokenize: what turns text into ids, for a dataset that holds text; its type is the dataset's
                to say.

        Raises:
            TypeError: `tokenize` is given to a dataset that cannot use it.
        """


@dataclass(frozen=True, kw_only=True)
class RecordSpec(DatasetSpec):
    """A dataset whose records can be had by number, so that others can build on them.

    Subclasses add their fields and implement `records`.
    """

    @abstractmethod
    def records(self, *, tokenize: object = None) -> Records:
        """The records; `tokenize` and what is raised are those of `load`."""

    def load(self, *, batch: int, tokenize: object = None) -> Dataset:
        """Open the records in batches of `batch`.

        Args:
            batch: global batch size.
            tokenize: as for `records`, which says what is raised.
        """
        return self.records(tokenize=tokenize).dataset(batch=batch, loading=self.loading)
