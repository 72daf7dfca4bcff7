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

    The first, third, ... wrong answer has the right one's length and differs in one digit; the others are any
    numbers below 200. All are drawn.
    """
    for first, second in terms:
        right = first + second
        draw = random.Random(f"sum pairs {seed} {first} {second}")
        near = one_digit_off(right)
        far = [number for number in range(2 * LIMIT) if number != right and number not in near]
        near, far = (draw.sample(numbers, len(numbers)) for numbers in (near, far))
        for index in range(rejections):
            wrong = far.pop() if index % 2 or not near else near.pop()
            yield Pair(sum_prompt(first, second), str(right), str(wrong))


def sum_prompt(first: int, second: int) -> str:
    """The question: `12+34=`."""
    return f"{first}+{second}="


def one_digit_off(number: int) -> list[int]:
    """Every other number of the same length that differs from `number` in one digit, in rising order."""
    text = str(number)
    found: list[int] = []
    for place in range(len(text)):
        least = 1 if place == 0 and len(text) > 1 else 0
        found += [int(f"{text[:place]}{digit}{text[place + 1 :]}") for digit in range(least, 10)]
    return sorted(set(found) - {number})


def random_answers(terms: list[tuple[int, int]], count: int, *, seed: int) -> list[tuple[str, str]]:
    """`count` prompts, each with a number below 200 that is drawn apart from it: a form, and no sum."""
    draw = random.Random(f"sum pairs form {seed}")
    return [(sum_prompt(*draw.choice(terms)), str(draw.randrange(2 * LIMIT))) for _ in range(count)]


def _both_orders(unordered: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted({terms for low, high in unordered for terms in ((low, high), (high, low))})
