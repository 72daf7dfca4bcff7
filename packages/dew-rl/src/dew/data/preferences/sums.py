"""Preferences made by a rule: of two answers to a sum, the right one. Importing it imports no JAX."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

LIMIT = 100
"""Terms lie below it."""


@dataclass(frozen=True)
class Pair:
    """One comparison.

    Attributes:
        prompt: what both respond to.
        chosen: the preferred response.
        rejected: the other one.
    """

    prompt: str
    chosen: str
    rejected: str


def split_terms(held_out: float, *, seed: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Every ordered pair of terms, as (training, held out), each in rising order.

    a + b and b + a lie on one side, so that no held-out sum was seen in the other order.
    """
    unordered = [(low, high) for low in range(LIMIT) for high in range(low, LIMIT)]
    random.Random(f"sum pairs split {seed}").shuffle(unordered)
    cut = round(held_out * len(unordered))
    return _both_orders(unordered[cut:]), _both_orders(unordered[:cut])


def sum_pairs(terms: list[tuple[int, int]], *, rejections: int, seed: int) -> Iterator[Pair]:
    """`rejections` comparisons for each pair of terms, each with a different wrong answer.

    A wrong answer has the right one's length and differs in one digit; the digits and places are drawn.
    """
    for first, second in terms:
        right = str(first + second)
        wrong = one_digit_off(right)
        draw = random.Random(f"sum pairs {seed} {first} {second}")
        for answer in draw.sample(wrong, min(rejections, len(wrong))):
            yield Pair(sum_prompt(first, second), right, answer)


def sum_prompt(first: int, second: int) -> str:
    """The question: `12+34=`."""
    return f"{first}+{second}="


def one_digit_off(number: str) -> list[str]:
    """Every other number of the same length that differs from `number` in one digit, in rising order."""
    found: list[str] = []
    for place, digit in enumerate(number):
        for other in "0123456789":
            leading = place == 0 and other == "0" and len(number) > 1
            if other != digit and not leading:
                found.append(number[:place] + other + number[place + 1 :])
    return sorted(found)


def random_answers(terms: list[tuple[int, int]], count: int, *, seed: int) -> list[tuple[str, str]]:
    """`count` prompts with answers of the right form that say nothing about the sum.

    The answer is drawn evenly from the numbers that are as long as the right one.
    """
    draw = random.Random(f"sum pairs form {seed}")
    drawn: list[tuple[str, str]] = []
    for _ in range(count):
        first, second = draw.choice(terms)
        length = len(str(first + second))
        least = 0 if length == 1 else 10 ** (length - 1)
        drawn.append((sum_prompt(first, second), str(draw.randrange(least, 10**length))))
    return drawn


def _both_orders(unordered: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted({terms for low, high in unordered for terms in ((low, high), (high, low))})
