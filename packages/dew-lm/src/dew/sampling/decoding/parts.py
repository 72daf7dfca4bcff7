"""The extension points of decoding."""

from __future__ import annotations

from typing import Protocol

import jax

from dew.sampling.decoding.state import StepState


class LogitsTransform(Protocol):
    """Rewrites the scores of every row, inside the compiled loop.

    A pytree class carries its arrays as data; a plain function or a `jax.tree_util.Partial` works too. A
    class may define `check_vocabulary(vocab_size)`, which refuses ids the model does not have by
    `ValueError`; a criterion too.
    """

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        """The new scores `[rows, vocab]`; a token of score -inf is not drawn."""
        ...


class Stopping(Protocol):
    """Decides which rows end with the token that was just committed.

    A criterion that is a limit on length sets `cuts_off: ClassVar[bool] = True`: rows that no other criterion
    ends then count as cut off, not as terminated. No other attribute is looked at.
    """

    def __call__(self, state: StepState, drawn: jax.Array, /) -> jax.Array:
        """Booleans `[rows]`. `state` already holds the `drawn` tokens."""
        ...
