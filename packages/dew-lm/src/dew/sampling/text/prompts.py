"""Prompt rows of any form as one checked, packed batch.

Dimensions: B rows, P slots as given, W slots after packing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from dew.nn.inputs import ModelInputs

type Array = jax.Array | np.ndarray

SMALLEST, DOUBLING = 16, 512


@dataclass(frozen=True)
class Prompts:
    """Checked prompt rows.

    Attributes:
        given: `[B, P]` as the caller wrote them.
        packed: `[B, W]` real tokens at the start of each row, zeros behind them.
        lengths: `[B]` real tokens of each row, on the host.
    """

    given: Array
    packed: Array
    lengths: np.ndarray

    @property
    def rows(self) -> int:
        return int(self.given.shape[0])

    @property
    def width(self) -> int:
        """P, the slots of a prompt as it was given."""
        return int(self.given.shape[1])

    @property
    def longest(self) -> int:
        """The real tokens of the longest row."""
        return int(self.lengths.max())

    def widened(self, width: int) -> Self:
        """These rows in `width` packed slots, at least W of them."""
        xp: Any = jnp if isinstance(self.packed, jax.Array) else np
        return replace(self, packed=xp.pad(self.packed, ((0, 0), (0, width - self.packed.shape[1]))))


def bucket(count: int, most: int) -> int:
    """The compiled size for `count` slots: doubling from 16 to 512, then steps of 512, at most `most`."""
    size = SMALLEST
    while size < min(count, DOUBLING):
        size *= 2
    if count > DOUBLING:
        size = -(-count // DOUBLING) * DOUBLING
    return min(size, most)


def check_prompts(inputs: ModelInputs | Array, model: Any, budget: int) -> Prompts:
    """Check `inputs` against the model and pack their rows to the left.

    Raises:
        TypeError: ids that are no integers.
        ValueError: a wrong shape, a row without a real token, an id outside the vocabulary, a prompt too long
            for `budget` more tokens, or fields this decoder does not read.
    """
    tokens, mask = _fields(inputs)
    lengths = np.asarray(mask.sum(axis=1), np.int64)
    _check_lengths(lengths, int(model.max_seq_len), budget)
    _check_ids(tokens, mask, int(model.vocab_size))
    width = bucket(int(lengths.max()), int(model.max_seq_len))
    return Prompts(tokens, _packed(tokens, mask, width), lengths)


def _fields(inputs: ModelInputs | Array) -> tuple[Array, Array]:
    """The token rows and the boolean mask of their real slots."""
    if not isinstance(inputs, ModelInputs):
        inputs = ModelInputs(inputs)
    if inputs.conditions:
        raise ValueError(
            f"conditions={sorted(inputs.conditions)} are not read by this decoder; leave them out"
        )
    unread = sorted(set(inputs.token_fields) - {"attention_mask"})
    if unread:
        raise ValueError(f"token_fields={unread} are not read by this decoder; it takes attention_mask alone")
    tokens = inputs.tokens if isinstance(inputs.tokens, jax.Array) else np.asarray(inputs.tokens)
    if not np.issubdtype(tokens.dtype, np.integer):
        raise TypeError(f"tokens have dtype {tokens.dtype}; they must be integer ids")
    if tokens.ndim != 2 or 0 in tokens.shape:
        raise ValueError(
            f"tokens have shape {tokens.shape}; they must be [rows, slots] with one of each at least"
        )
    mask = inputs.token_fields.get("attention_mask")
    if mask is None:
        return tokens, np.ones(tokens.shape, bool)
    if mask.shape != tokens.shape:
        raise ValueError(f"attention_mask has shape {mask.shape}; it must match the tokens' {tokens.shape}")
    return tokens, mask != 0


def _check_lengths(lengths: np.ndarray, most: int, budget: int) -> None:
    if not lengths.all():
        row = int(np.argmin(lengths))
        raise ValueError(f"row {row} holds no real token; every prompt needs one to continue from")
    longest = int(lengths.max())
    if longest + budget > most:
        fixes = [f"shorten the prompt to {most - budget} tokens"] if budget < most else []
        fixes += [f"ask for at most {most - longest}"] if longest < most else []
        raise ValueError(
            f"row {int(np.argmax(lengths))} holds {longest} tokens, and max_new_tokens={budget} more make "
            f"{longest + budget}; the model reads max_seq_len={most}: {' or '.join(fixes) or 'shorten both'}"
        )


def _check_ids(tokens: Array, mask: Array, vocab_size: int) -> None:
    wrong = np.asarray(((tokens < 0) | (tokens >= vocab_size)) & mask)
    if wrong.any():
        row, slot = (int(each) for each in np.argwhere(wrong)[0])
        raise ValueError(
            f"row {row} holds the id {int(tokens[row, slot])}; the model's ids are 0 to {vocab_size - 1}"
        )


def _packed(tokens: Array, mask: Array, width: int) -> Array:
    """`[B, width]`: each row's real tokens in order from slot 0, zeros behind them."""
    xp: Any = jnp if isinstance(tokens, jax.Array) else np
    if not isinstance(tokens, jax.Array):
        mask = np.asarray(mask)
    order = xp.argsort(~mask, axis=1, stable=True)
    moved = xp.where(
        xp.take_along_axis(mask, order, axis=1), xp.take_along_axis(tokens, order, axis=1), 0
    ).astype(np.int32)[:, :width]
    return xp.pad(moved, ((0, 0), (0, width - moved.shape[1])))
