"""`LastDigit`: prompts that ask for the last digit of a sum. Importing it imports no JAX."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dew.data.config import IN_PROCESS, DatasetSpec, Loading

if TYPE_CHECKING:
    from dew.data.dataset import Dataset

DIGITS = "0123456789"


@dataclass(frozen=True, kw_only=True)
class LastDigit(DatasetSpec):
    """The 100 prompts `a+b=` over two digits; the answer is the last digit of the sum.

    Training passes over them in a new order each time; validation asks all of them once, in rising order.
    """

    loading: Loading = IN_PROCESS

    def load(self, *, batch: int, tokenize: object = None) -> Dataset:
        """Open the prompts as ids.

        Args:
            batch: prompts in a global batch, at most 100.
            tokenize: the run's tokenizer.

        Raises:
            TypeError: `tokenize` is no tokenizer.
        """
        from dew.data.arithmetic.prompts import prompt_dataset

        return prompt_dataset(
            self.prompts(), tokenize, batch=batch, seed=self.seed, loading=self.loading, name="last digit"
        )

    def prompts(self) -> list[str]:
        """Every prompt, in rising order."""
        return [f"{first}+{second}=" for first in DIGITS for second in DIGITS]

    def check(self, prompt: str, response: str) -> float:
        """1 where `response` is the last digit of the sum that `prompt` writes and nothing else, else 0."""
        first, second = prompt.removesuffix("=").split("+")
        return float(response == str((int(first) + int(second)) % 10))

    def form(self, count: int, *, seed: int) -> list[tuple[str, str]]:
        """`count` random prompts, each with a random digit as its answer: the form of an answer, no sum.

        The answer is drawn apart from the prompt, so one in ten is right.
        """
        draw = random.Random(f"last digit form {seed}")
        prompts = self.prompts()
        return [(draw.choice(prompts), draw.choice(DIGITS)) for _ in range(count)]
