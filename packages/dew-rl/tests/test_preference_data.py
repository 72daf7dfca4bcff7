"""Pairs of sums and their token rows."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from dew.data.dataset import DataPartition
from dew.data.preferences import Pair, SumPairs, pair_records
from dew.data.preferences.config import END
from dew.data.preferences.sums import one_digit_off, split_terms, sum_pairs
from dew.data.text import ByteTokenizer
from dew.testing import DatasetContract


class TestSumPairs(DatasetContract):
    def spec(self):
        return SumPairs(rejections=1, held_out=0.01)

    def tokenize(self):
        return ByteTokenizer()


def test_every_sum_is_on_one_side_in_both_orders():
    training, held = split_terms(0.1, seed=3)
    assert len(set(training) | set(held)) == len(training) + len(held) == 100 * 100
    assert not {tuple(reversed(terms)) for terms in held} & set(training)
    assert len(held) == pytest.approx(1000, abs=10)


def test_chosen_answers_are_right_and_rejected_ones_all_wrong_and_different():
    terms = [(7, 5), (99, 99), (0, 0)]
    pairs = list(sum_pairs(terms, rejections=6, seed=1))
    for number, (first, second) in enumerate(terms):
        group = pairs[6 * number : 6 * number + 6]
        assert {(pair.prompt, pair.chosen) for pair in group} == {(f"{first}+{second}=", str(first + second))}
        wrong = [pair.rejected for pair in group]
        assert len(set(wrong)) == 6 and str(first + second) not in wrong
        # In turn one digit off, and any other number.
        assert [int(answer) in one_digit_off(first + second) for answer in wrong] == [True, False] * 3


def test_hundred_rejections_of_a_one_digit_sum_are_still_different():
    wrong = [pair.rejected for pair in sum_pairs([(3, 4)], rejections=100, seed=0)]
    assert len(set(wrong)) == 100 and "7" not in wrong


def test_numbers_one_digit_off_keep_their_length():
    assert one_digit_off(7) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert one_digit_off(10) == [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 30, 40, 50, 60, 70, 80, 90]
    assert len(one_digit_off(105)) == 8 + 9 + 9


def test_validation_holds_one_answer_that_is_one_digit_off_for_each_held_out_sum():
    dataset = SumPairs(held_out=0.01).load(batch=16, tokenize=ByteTokenizer())
    with closing(dataset.val(DataPartition())) as batches:
        rows = [row for batch in batches for row in zip(batch["chosen"], batch["rejected"], strict=True)]
    assert len(rows) == len(split_terms(0.01, seed=0)[1])
    for chosen, rejected in rows:
        prompt, right = text_of(chosen).split("=")
        same, wrong = text_of(rejected).split("=")
        assert prompt == same and int(right) == sum(map(int, prompt.split("+")))
        assert int(wrong) in one_digit_off(int(right))


def text_of(row):
    return bytes(row.tolist()).rstrip(b"\0").decode()


def test_forms_end_as_responses_do_and_say_nothing_about_the_sum():
    form = SumPairs().form(2000, seed=0)
    answers = np.asarray([int(answer.removesuffix(END)) for _, answer in form])
    sums = np.asarray([sum(map(int, prompt.rstrip("=").split("+"))) for prompt, _ in form])
    assert (answers == sums).mean() < 0.02 and abs(np.corrcoef(answers, sums)[0, 1]) < 0.07
    held = set(split_terms(0.1, seed=0)[1])
    assert not {tuple(map(int, prompt.rstrip("=").split("+"))) for prompt, _ in form} & held


def test_masks_hold_the_response_with_its_end_and_no_prompt():
    record = pair_records([Pair("ab", "c", "def")], ByteTokenizer(), seq_len=6, end="\0")[0]
    assert record["chosen"].tolist() == [97, 98, 99, 0, 0, 0, 0]
    assert record["chosen_mask"].tolist() == [0, 1, 1, 0, 0, 0]
    assert record["rejected_mask"].tolist() == [0, 1, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("pair", "end", "message"),
    [
        (Pair("", "c", "d"), "\n", "prompt without an id"),
        (Pair("a", "", "d"), "", "response without an id"),
        (Pair("ab", "c", "defghi"), "\n", "makes 9 ids, .* use --data.seq-len 8"),
    ],
)
def test_pairs_that_make_no_row_are_refused(pair, end, message):
    with pytest.raises(ValueError, match=message):
        pair_records([pair], ByteTokenizer(), seq_len=6, end=end)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seq_len": 1}, "data.seq_len=1"),
        ({"rejections": 0}, "data.rejections=0"),
        ({"rejections": 101}, "data.rejections=101"),
        ({"held_out": 1.0}, r"data.held_out=1\.0"),
    ],
)
def test_numbers_out_of_range_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        SumPairs(**fields)


def test_what_is_no_tokenizer_is_refused():
    with pytest.raises(TypeError, match="tokenize=None"):
        SumPairs().load(batch=4)
