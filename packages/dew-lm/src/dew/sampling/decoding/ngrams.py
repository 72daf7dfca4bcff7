"""Bans on sequences of tokens that a row already holds.

Reference: `NoRepeatNGramLogitsProcessor` and `EncoderNoRepeatNGramLogitsProcessor` of transformers 5.16.1,
each row reading its own tokens without padding.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from dew.sampling.decoding.state import StepState


@struct.dataclass
class NoRepeatNGram:
    """Ban every token that would repeat a sequence of `size` tokens the row holds, prompt included.

    Attributes:
        size: at least 1; 1 bans every token the row holds.
    """

    size: int = struct.field(pytree_node=False)

    def __post_init__(self) -> None:
        at_least_one("NoRepeatNGram", self.size)

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        tokens, lengths = state.history()
        return without_repeats(logits, (tokens, lengths), (tokens, lengths), self.size)


@struct.dataclass
class PromptNoRepeatNGram:
    """Ban every token that would complete a sequence of `size` tokens of the prompt.

    Attributes:
        size: at least 1; 1 bans every token of the prompt.
    """

    size: int = struct.field(pytree_node=False)

    def __post_init__(self) -> None:
        at_least_one("PromptNoRepeatNGram", self.size)

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        return without_repeats(logits, state.prompt_history(), state.history(), self.size)


type Row = tuple[jax.Array, jax.Array]
"""Left-aligned tokens `[rows, slots]` and their count `[rows]`."""


def without_repeats(logits: jax.Array, past: Row, now: Row, size: int) -> jax.Array:
    """Ban the last token of each window of `past` whose first `size - 1` tokens end `now`."""
    tokens, lengths = past
    rows, slots = tokens.shape
    windows = slots - size + 1
    if windows < 1:
        return logits
    starts = jnp.arange(windows)
    # Where there is a window, the row holds it, so `now` has the tokens that are compared.
    match = starts + size <= lengths[:, None]
    for place in range(size - 1):  # size is a static handful
        at = jnp.maximum(now[1] - (size - 1) + place, 0)[:, None]
        match &= tokens[:, place : place + windows] == jnp.take_along_axis(now[0], at, axis=1)
    banned = jnp.zeros(logits.shape, bool)
    banned = banned.at[jnp.arange(rows)[:, None], tokens[:, size - 1 :]].max(match, mode="drop")
    return jnp.where(banned, -jnp.inf, logits)


def at_least_one(name: str, size: object) -> None:
    """Refuse a size that is no positive integer.

    Raises:
        ValueError: naming the transform.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"{name}({size!r}) must be an integer of at least 1: the tokens of a sequence")
