"""The parts a request was resolved to, as data: one chain of transforms, one set of criteria."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import struct

from dew.sampling.decoding.filters import Greedy
from dew.sampling.decoding.state import StepState


@struct.dataclass
class Transforms:
    """A chain of logits transforms as one transform.

    Attributes:
        parts: in the order in which they run.
    """

    parts: tuple[Any, ...] = ()

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        """The scores `[rows, vocab]` after every part, in the dtype of `logits`."""
        scores = logits
        for part in self.parts:
            changed = part(state, scores)
            if changed.shape != logits.shape:
                raise ValueError(
                    f"the transform {_named(part)} turns scores over {logits.shape[-1]} ids, "
                    f"[rows, vocab]={list(logits.shape)}, into {list(changed.shape)}; it must keep "
                    "the shape: give an id that must not be drawn the score -inf"
                )
            scores = changed.astype(logits.dtype)
        return scores

    @property
    def certain(self) -> bool:
        """Whether the chain leaves one token: drawing from it needs no noise."""
        return bool(self.parts) and isinstance(self.parts[-1], Greedy)

    @property
    def weighing(self) -> Transforms:
        """The chain without a choice at its end: what it still says of how likely every token is."""
        return Transforms(self.parts[:-1]) if self.certain else self


@struct.dataclass
class Criteria:
    """Stopping criteria combined with OR.

    Attributes:
        parts: in any order.
    """

    parts: tuple[Any, ...] = ()

    def __call__(self, state: StepState, drawn: jax.Array, /) -> jax.Array:
        """Booleans `[rows]`: the rows that end with the token just drawn."""
        return self.judged(state, drawn)[0]

    def judged(self, state: StepState, drawn: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`[rows]` booleans each: which rows end, and which of them by a criterion that is no budget."""
        ended = terminated = jnp.zeros(drawn.shape, bool)
        for part in self.parts:
            fired = part(state, drawn)
            ended = ended | fired
            if not getattr(part, "cuts_off", False):
                terminated = terminated | fired
        return ended, terminated


def _named(part: Any) -> str:
    called = part.func if isinstance(part, jax.tree_util.Partial) else part
    return str(getattr(called, "__qualname__", None) or called)


def in_sequence(name: str, parts: Any) -> Sequence[Any]:
    """`parts`, refused where they are one part by itself.

    Raises:
        TypeError: naming the argument `name`.
    """
    if callable(parts) or not isinstance(parts, Iterable):
        raise TypeError(f"{name}={parts!r} must be a sequence; write {name}=(part,) for one")
    return tuple(cast("Iterable[Any]", parts))


def as_data(parts: Sequence[Any]) -> tuple[Any, ...]:
    """`parts` as one pytree; a plain function becomes a leafless node of it.

    Raises:
        TypeError: a part that cannot be called.
    """
    for part in parts:
        if not callable(part):
            raise TypeError(
                f"{part!r} is no transform or criterion: it must be callable as part(state, array)"
            )
    return tuple(jax.tree_util.Partial(part) if jax.tree_util.all_leaves([part]) else part for part in parts)
