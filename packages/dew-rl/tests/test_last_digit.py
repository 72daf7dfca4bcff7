"""Arithmetic prompts: what they ask, how they are judged, and the form the warm start teaches."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dew.data import ByteTokenizer, DataPartition
from dew.data.arithmetic import LastDigit, prompt_dataset
from dew.objectives.rl import RewardedTexts
from dew.objectives.rl.artifacts import MeanReward
from dew.testing import DatasetContract, MetricContract

pytestmark = pytest.mark.alone


class TestLastDigit(DatasetContract):
    def spec(self):
        return LastDigit(seed=3)

    def tokenize(self):
        return ByteTokenizer()


class TestMeanReward(MetricContract):
    """Means over 5 rewards; two rows abstain."""

    def metric(self):
        return MeanReward()

    def artifacts(self):
        passes = [[1.0, 0.0, np.nan], [0.5], [np.nan, 1.0, 1.0]]
        return [
            RewardedTexts(prompts=["p"] * len(each), texts=["t"] * len(each), rewards=np.asarray(each))
            for each in passes
        ]

    def expected(self):
        return 3.5 / 5


@pytest.mark.parametrize(
    ("prompt", "response", "worth"),
    [
        ("3+4=", "7", 1),
        ("9+8=", "7", 1),
        ("9+8=", "17", 0),
        ("3+4=", "7 ", 0),
        ("3+4=", "", 0),
        ("0+0=", "0", 1),
    ],
)
def test_the_answer_is_the_last_digit_and_nothing_else(prompt, response, worth):
    assert LastDigit().check(prompt, response) == worth


def test_validation_asks_every_pair_once():
    dataset = LastDigit().load(batch=50, tokenize=ByteTokenizer())
    assert dataset.val is not None and dataset.records == 100
    asked = [
        bytes(row).decode()
        for batch in dataset.val(DataPartition())
        for row in batch["prompt"].astype(np.uint8)
    ]
    assert asked == LastDigit().prompts() and len(set(asked)) == 100 and asked[37] == "3+7="


def test_form_says_nothing_about_the_answer():
    examples = LastDigit().form(20_000, seed=1)
    right = np.mean([LastDigit().check(*example) for example in examples])
    assert abs(right - 0.1) < 0.01
    assert min(Counter(answer for _, answer in examples).values()) > 1800
    assert examples == LastDigit().form(20_000, seed=1) != LastDigit().form(20_000, seed=2)


def test_prompts_of_unequal_length_are_masked():
    dataset = prompt_dataset(["a", "bcd"], ByteTokenizer(), batch=2, seed=0, name="two")
    assert dataset.val is not None
    batch = next(iter(dataset.val(DataPartition())))
    assert batch["prompt"].tolist() == [[97, 0, 0], [98, 99, 100]]
    assert batch["prompt_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]


def test_prompts_need_a_tokenizer_and_an_id_each():
    with pytest.raises(TypeError, match="tokenize=None"):
        LastDigit().load(batch=4)
    with pytest.raises(ValueError, match="prompt '' makes no id"):
        prompt_dataset(["a", ""], ByteTokenizer(), batch=1, seed=0, name="empty")
