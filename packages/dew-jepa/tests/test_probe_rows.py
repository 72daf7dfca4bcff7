"""The validation pass that brings a probe's rows along."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from dew.data.dataset import DataPartition, Dataset
from dew.objectives.jepa.probe_rows import with_probe_rows
from dew.objectives.jepa.representation import FIT, SCORE, SKIP
from dew.testing import in_memory

DATA = in_memory({"id": np.arange(10)}, batch=4, seed=3)


def batches(dataset: Dataset, partition: DataPartition | None = None):
    with closing(dataset.val(partition or DataPartition())) as source:
        return list(source)


def ids(pass_, use):
    return [int(one) for batch in pass_ for one in batch["id"][batch["probe"] == use]]


def test_every_training_record_is_fitted_on_once_and_every_validation_record_scored_once():
    pass_ = batches(with_probe_rows(DATA))
    assert sorted(ids(pass_, FIT)) == list(range(10))
    assert ids(pass_, SCORE) == list(range(10))
    assert len(ids(pass_, SKIP)) == 2, "what fills the third batch"


def test_every_pass_has_the_same_rows():
    dataset = with_probe_rows(DATA)
    for first, second in zip(batches(dataset), batches(dataset), strict=True):
        assert first.keys() == second.keys()
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])


def test_shares_make_up_the_whole_pass():
    dataset = with_probe_rows(DATA, 5)
    halves = [batches(dataset, DataPartition(index=index, count=2)) for index in range(2)]
    whole = batches(dataset)
    for use in (FIT, SCORE):
        assert sorted(ids(halves[0], use) + ids(halves[1], use)) == sorted(ids(whole, use))
    assert len(ids(whole, FIT)) == 5


def test_training_is_left_as_it_is():
    dataset = with_probe_rows(DATA)
    assert dataset.train is DATA.train and dataset.records == 10


@pytest.mark.parametrize(
    ("dataset", "rows", "named"),
    [
        (Dataset(DATA.train, None, 10, 4), None, "no validation pass"),
        (Dataset(DATA.train, DATA.val, None, 4), None, "rows=None"),
        (DATA, 0, "rows=0"),
    ],
)
def test_what_cannot_be_probed_is_refused(dataset, rows, named):
    with pytest.raises(ValueError, match=named):
        with_probe_rows(dataset, rows)
