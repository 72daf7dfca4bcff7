"""Several datasets interleaved by weight: the law, the batches, and what is refused."""

import dataclasses
from collections import Counter
from fractions import Fraction

import grain
import numpy as np
import pytest

from dew.data import DataMixture, DataPartition, Loading, Ramp
from dew.data.config import IN_PROCESS, DatasetSpec, RecordSpec
from dew.data.interleave import odds, source_at
from dew.data.mixture import PARTS, Part
from dew.data.records import Records


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers(RecordSpec):
    """`count` numbers from `first` on, shuffled."""

    first: int = 0
    count: int = 6
    field: str = "number"
    loading: Loading = IN_PROCESS

    def records(self, *, tokenize=None):
        rows = [{self.field: np.int32(self.first + index)} for index in range(self.count)]
        source = grain.MapDataset.source(rows)
        identity = {"first": self.first, "seed": self.seed}
        return Records(train=source.seed(self.seed).shuffle(), validation=source[:2], identity=identity)


def mixture(*, weights=(3, 1), counts=(12, 5), loading=IN_PROCESS, seed=0):
    first, second = (
        Part(data=Numbers(first=at, count=n), weight=w)
        for at, n, w in zip((0, 100), counts, weights, strict=True)
    )
    return DataMixture(parts=(first, second), loading=loading, seed=seed)


def numbers(iterator, count):
    return np.concatenate([next(iterator)["number"] for _ in range(count)]).tolist()


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (0.7, 0.3), (0.1, 0.2, 0.7), (1, 1e-3, 5, 2)])
def test_every_source_gets_its_share_of_any_beginning_and_reads_its_records_in_order(weights):
    seen, counts = [], Counter()
    for number in range(3000):
        source, record = source_at(number, odds(weights))
        assert record == counts[source]
        counts[source] += 1
        seen.append([counts[index] for index in range(len(weights))])
    shares = [Fraction(repr(weight)) / sum(map(Fraction, map(repr, weights))) for weight in weights]
    apart = np.abs(np.asarray(seen) - np.arange(1, 3001)[:, None] * np.asarray(shares, float))
    assert apart.max() < len(weights) - 0.5


def test_three_to_one_is_three_then_one():
    assert [source_at(number, odds([3, 1]))[0] for number in range(8)] == [1, 0, 0, 0, 1, 0, 0, 0]


def test_a_record_far_out_is_found_alone():
    assert source_at(10**15 + 1, odds([1, 1])) == (0, 5 * 10**14)


def test_each_part_has_epochs_of_its_own():
    """Twelve and five numbers read three to one: 48 records are three passes of the one, 12 of the other."""
    drawn = numbers(mixture().load(batch=8).train(DataPartition()), 6)
    low, high = [n for n in drawn if n < 100], [n for n in drawn if n >= 100]
    passes = [low[start : start + 12] for start in (0, 12, 24)]
    assert [sorted(each) for each in passes] == [list(range(12))] * 3 and passes[0] != passes[1]
    assert len(high) == 12 and sorted(high[:5]) == sorted(high[5:10]) == list(range(100, 105))


def test_an_epoch_is_one_pass_of_all_parts():
    assert mixture().load(batch=4).records == 17


@pytest.mark.parametrize("loading", [IN_PROCESS, Loading(workers=0, threads=2)])
@pytest.mark.parametrize("cut", [1, 3, 7])
def test_a_position_goes_on_with_the_next_batch_on_other_shares(loading, cut):
    whole, saver = (mixture(loading=loading).load(batch=4).train(DataPartition()) for _ in range(2))
    numbers(whole, cut), numbers(saver, cut)
    shares = [mixture().load(batch=4).train(DataPartition(index, 2)) for index in range(2)]
    for share in shares:
        share.set_state(saver.get_state())
    for _ in range(4):
        assert numbers(shares[0], 1) + numbers(shares[1], 1) == numbers(whole, 1)


def test_a_mixture_grows_its_batch_over_the_same_order():
    plain, ramped = (mixture().load(batch=8) for _ in range(2))
    ramped = ramped.ramped(Ramp(2, 2, 12))
    assert numbers(ramped.train(DataPartition()), 7)[:32] == numbers(plain.train(DataPartition()), 4)


def test_validation_reads_the_parts_one_after_another():
    batches = list(mixture().load(batch=4).val(DataPartition()))
    assert [batch["number"].tolist() for batch in batches] == [[0, 1, 100, 101]]


def test_the_seed_reorders_every_part():
    one, other = (numbers(mixture(seed=seed).load(batch=8).train(DataPartition()), 3) for seed in (0, 1))
    assert one != other and [n < 100 for n in one] == [n < 100 for n in other]


@pytest.mark.parametrize("change", [{"weights": (2, 1)}, {"counts": (12, 6)}, {"seed": 1}])
def test_a_position_of_another_mixture_is_refused(change):
    position = mixture().load(batch=4).train(DataPartition()).get_state()
    with pytest.raises(ValueError, match="mixture was"):
        mixture(**change).load(batch=4).train(DataPartition()).set_state(position)


def test_parts_of_other_fields_are_refused():
    parts = (Part(data=Numbers()), Part(data=Numbers(field="digit")))
    with pytest.raises(ValueError, match=r"data\.parts\[1\] has records of {'digit': 'int32\[\]'}"):
        DataMixture(parts=parts).load(batch=2)


def test_a_part_without_records_by_number_is_refused():
    class Stream(DatasetSpec):
        def load(self, *, batch, tokenize=None):
            raise NotImplementedError

    with pytest.raises(TypeError, match=r"data\.parts\[1\]: Stream gives no records by number"):
        DataMixture(parts=(Part(data=Numbers()), Part(data=Stream()))).load(batch=2)


def test_one_part_is_no_mixture():
    with pytest.raises(ValueError, match=r"data\.parts has 1 datasets"):
        DataMixture(parts=(Part(data=Numbers()),)).load(batch=2)


def test_a_parts_own_loading_is_refused():
    with pytest.raises(ValueError, match=r"data\.parts\[0\] sets loading"):
        DataMixture(parts=(Part(data=Numbers(loading=Loading())), Part(data=Numbers())))


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan")])
def test_a_weight_must_be_positive_and_finite(weight):
    with pytest.raises(ValueError, match="weight="):
        Part(data=Numbers(), weight=weight)


def test_the_command_line_names_parts_by_the_fields_that_differ():
    text = '[{"data": {"name": "digits", "image_size": 12}, "weight": 2}, {"data": {"name": "textures"}}]'
    first, second = PARTS.parse(text)
    assert (first.data.image_size, first.weight, second.weight) == (12, 2.0, 1.0)
    assert PARTS.parse(PARTS.format((first, second))) == (first, second)
    with pytest.raises(ValueError, match=r"data\.parts\[0\]\.data\.sise: unknown field"):
        PARTS.parse('[{"data": {"name": "digits", "sise": 12}}]')
