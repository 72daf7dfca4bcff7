"""What two processes compare of a component: all that it holds, and nothing of where it lies."""

from __future__ import annotations

import functools
import threading
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.sampling.decoding import EndOfSequence, StopStrings, stop_strings
from dew.sampling.text.components import as_data
from dew.sampling.text.describing import described


def by_default(floor):
    def cut(state, logits, floor=floor):
        return logits - floor

    return cut


def by_keyword(floor):
    def cut(state, logits, *, floor=floor):
        return logits - floor

    return cut


def by_closure(floor):
    return lambda state, logits: logits - floor


def by_inner_closure(floor):
    scale = by_closure(floor)
    return lambda state, logits: scale(state, logits)


def by_constant(floor):
    return eval(f"lambda state, logits: logits - {floor}")


def by_attribute(floor):
    cut = by_closure(0.0)
    cut.floor = floor
    return cut


def by_global(floor):
    return eval("lambda state, logits: logits - FLOOR", {"FLOOR": floor})


class Cut:
    def __init__(self, floor):
        self.floor = floor

    def __call__(self, state, logits):
        return logits - self.floor

    def method(self, state, logits):
        return logits - self.floor


class Slotted:
    __slots__ = ("floor",)

    def __init__(self, floor):
        self.floor = floor

    def __call__(self, state, logits):
        return logits - self.floor


@flax.struct.dataclass
class Part:
    floor: Any
    cut: Any = flax.struct.field(pytree_node=False)

    def __call__(self, state, logits):
        return self.cut(state, logits) - self.floor


WAYS = [
    by_default,
    by_keyword,
    by_closure,
    by_inner_closure,
    by_constant,
    by_attribute,
    by_global,
    Cut,
    Slotted,
    lambda floor: Cut(floor).method,
    lambda floor: functools.partial(by_default(0.0), floor=floor),
    lambda floor: jax.tree_util.Partial(by_closure(0.0), np.full(3, floor)),
    lambda floor: jax.jit(by_closure(floor)),
    lambda floor: Part(jnp.full(3, floor), by_closure(0.0)),
    lambda floor: Part(0.0, by_closure(floor)),
    lambda floor: Part({floor, 7.0}, by_closure(0.0)),
    lambda floor: [0.0, floor].append,
]


@pytest.mark.parametrize("way", WAYS)
def test_one_number_makes_a_difference_wherever_it_is_held(way):
    first, again, other = (described(as_data((way(floor),))) for floor in (1.0, 1.0, 2.0))
    assert first == again
    assert first != other


def test_a_key_and_a_criterion_are_told_of_by_what_they_hold():
    assert described(jax.random.key(0)) == described(jax.random.key(0)) != described(jax.random.key(1))
    assert described((EndOfSequence(3),)) == described((EndOfSequence(3),)) != described((EndOfSequence(4),))


def test_a_function_that_holds_itself_has_an_end():
    def outer():
        def cut(state, logits):
            return cut

        return cut

    assert described(outer()) == described(outer())


def test_stop_strings_of_one_tokenizer_are_the_same_and_others_are_others():
    from dew.data.text import ByteTokenizer

    made: list[StopStrings] = [stop_strings(ByteTokenizer(), text) for text in ("ab", "ab", "ac")]
    first, again, other = map(described, made)
    assert first == again != other


@pytest.mark.parametrize("held", [threading.Lock(), np.random.default_rng(0), iter([1])])
def test_what_cannot_be_told_is_refused_by_its_place(held):
    with pytest.raises(ValueError, match=r"^logits\[0\]\.func\.floor holds <?.* at 0x"):
        described(as_data((Cut(held),)), "logits")
