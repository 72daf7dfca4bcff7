"""`SumPairs`: preferences between a right and a wrong sum. Importing it imports no JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dew.data.config import IN_PROCESS, DatasetSpec, Loading

if TYPE_CHECKING:
    from dew.data.dataset import Dataset

END = "\n"
"""Ends a response; it is part of it."""


@dataclass(frozen=True, kw_only=True)
class SumPairs(DatasetSpec):
    """Prompts `a+b=` over terms below 100; the right sum is preferred to a wrong one.

    Half of the wrong answers in training differ in one digit, the others are any numbers below 200. In
    validation all differ in one digit.

    Attributes:
        seq_len: predictions a row; a row holds one id more. The longest pair has 10 bytes.
        rejections: wrong answers to each sum, all different, in training; at most 100.
        held_out: part of the sums kept for validation, in both orders of their terms, with one wrong answer
            each.

    Raises:
        ValueError: a number outside its range.
    """

    seq_len: int = 9
    rejections: int = 4
    held_out: float = 0.1
    loading: Loading = IN_PROCESS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seq_len < 2:
            raise ValueError(f"data.seq_len={self.seq_len} must be at least 2: a prompt and a response")
        if not 1 <= self.rejections <= 100:
            raise ValueError(f"data.rejections={self.rejections} must lie between 1 and 100")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"data.held_out={self.held_out} must be at least 0 and below 1")

    def load(self, *, batch: int, tokenize: object = None) -> Dataset:
        """Make the pairs as ids.

        Args:
            batch: pairs in a global batch.
            tokenize: the run's tokenizer.

        Raises:
            TypeError: `tokenize` is no tokenizer.
            ValueError: a pair longer than `seq_len` allows.
        """
        from dew.data.preferences.records import pair_dataset
        from dew.data.preferences.sums import split_terms, sum_pairs

        training, validation = split_terms(self.held_out, seed=self.seed)
        return pair_dataset(
            list(sum_pairs(training, rejections=self.rejections, seed=self.seed)),
            list(sum_pairs(validation, rejections=1, seed=self.seed)),
            tokenize,
            seq_len=self.seq_len,
            end=END,
            batch=batch,
            seed=self.seed,
            loading=self.loading,
            name=f"sums, {self.rejections} rejections, {self.held_out} held out",
        )

    def form(self, count: int, *, seed: int) -> list[tuple[str, str]]:
        """`count` training prompts with answers of the right form that say nothing about the sum."""
        from dew.data.preferences.sums import random_answers, split_terms

        answers = random_answers(split_terms(self.held_out, seed=self.seed)[0], count, seed=seed)
        return [(prompt, answer + END) for prompt, answer in answers]
