"""What every dataset specification keeps, and rows in memory as a dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import jax
import numpy as np

from dew.data.config import DatasetSpec, Loading
from dew.data.dataset import DataPartition, Dataset


def in_memory(rows: Mapping[str, Any], *, batch: int, seed: int | None = None) -> Dataset:
    """A dataset over `rows`, arrays with one leading row axis; the same rows are its validation pass.

    Args:
        rows: field name to array.
        batch: records in a global batch.
        seed: shuffles each epoch; None keeps the order.
    """
    import grain

    count = len(next(iter(rows.values())))
    records = [{name: np.asarray(array)[row] for name, array in rows.items()} for row in range(count)]
    source = grain.MapDataset.source(records)
    train = source if seed is None else source.seed(seed).shuffle()
    loading = Loading(workers=0, threads=0)
    return Dataset.from_grain(train, batch=batch, validation=source, loading=loading)


class DatasetContract(ABC):
    """Implement `spec`; the batches, shares, positions and fingerprints of what it loads are then tested."""

    rows = 4
    """The global batch to load at; even."""

    @abstractmethod
    def spec(self) -> DatasetSpec:
        """The dataset under test."""

    def tokenize(self) -> object:
        """What `load` gets as `tokenize`."""
        return None

    def load(self) -> Dataset:
        """The dataset at `rows` records a batch."""
        return self.spec().load(batch=self.rows, tokenize=self.tokenize())

    def test_batches_have_the_size_they_were_loaded_at(self) -> None:
        for batch in taken(self.load(), DataPartition(), 2):
            assert {len(leaf) for leaf in jax.tree.leaves(batch)} == {self.rows}

    def test_two_passes_give_the_same_order(self) -> None:
        for first, second in zip(*(taken(self.load(), DataPartition(), 3) for _ in range(2)), strict=True):
            assert_same(first, second)

    def test_shares_make_up_the_global_batch(self) -> None:
        whole = taken(self.load(), DataPartition(), 2)
        halves = [taken(self.load(), DataPartition(index=index, count=2), 2) for index in range(2)]
        for batch, low, high in zip(whole, *halves, strict=True):
            joined = jax.tree.map(lambda first, second: np.concatenate([first, second]), low, high)
            assert_same(batch, joined)

    def test_position_continues_with_the_next_batch(self) -> None:
        dataset = self.load()
        expected = taken(dataset, DataPartition(), 3)[2]
        with closing(dataset.train(DataPartition())) as iterator:
            for _ in range(2):
                next(iterator)
            position = iterator.get_state()
        with closing(dataset.train(DataPartition())) as iterator:
            iterator.set_state(position)
            assert_same(next(iterator), expected)

    def test_position_of_other_data_is_refused(self) -> None:
        with closing(self.load().train(DataPartition())) as iterator:
            next(iterator)
            position = iterator.get_state()
        other = self.spec().load(batch=2 * self.rows, tokenize=self.tokenize())
        with closing(other.train(DataPartition())) as iterator:
            try:
                iterator.set_state(position)
            except ValueError as error:
                assert "batch" in str(error), error
            else:
                raise AssertionError("a position saved at another batch size was accepted")

    def test_validation_is_a_finite_pass(self) -> None:
        dataset = self.load()
        if dataset.val is None:
            return
        with closing(dataset.val(DataPartition())) as iterator:
            assert sum(1 for _ in bounded(iterator, 100_000)) > 0


def bounded(iterator: Iterator[Any], limit: int) -> Iterator[Any]:
    """What `iterator` gives, refused when it does not end within `limit`."""
    for count, item in enumerate(iterator):
        assert count < limit, f"the validation pass gave {limit} batches and did not end"
        yield item


def taken(dataset: Dataset, partition: DataPartition, count: int) -> list[Any]:
    """The first `count` training batches of one share."""
    with closing(dataset.train(partition)) as iterator:
        return [next(iterator) for _ in range(count)]


def assert_same(first: Any, second: Any) -> None:
    """Fail unless two batches are equal, array for array."""
    jax.tree.map(np.testing.assert_array_equal, first, second)
