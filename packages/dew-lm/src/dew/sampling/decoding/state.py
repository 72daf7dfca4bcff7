"""What a transform or a criterion sees of the loop.

Dimensions: B rows, W prompt slots, N draw slots.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int, Key


@struct.dataclass
class StepState:
    """The rows as they stand at one step.

    Attributes:
        tokens: `[B, W + N]`, the prompt slots and then the draw slots.
        valid: `[B, W + N]`, the slots that hold a real token. A prompt's padding and the slots that are not
            drawn yet hold none, so a row reads its own history whatever its neighbours needed.
        step: `[B]`, how many tokens a row has committed.
        active: `[B]`, the rows still generating.
        keys: `[B]`, one key for each row. The draw of a step folds `step` into it; a transform that draws
            folds a number of its own in first.
        prompt_width: W.
        budget: `[B]`, how many tokens a row may draw; unset, the draw slots.
    """

    tokens: Int[Array, "B S"]
    valid: Bool[Array, "B S"]
    step: Int[Array, " B"]
    active: Bool[Array, " B"]
    keys: Key[Array, " B"]
    prompt_width: int = struct.field(pytree_node=False)
    budget: Int[Array, " B"] | None = None

    def history(self) -> tuple[jax.Array, jax.Array]:
        """Each row's real tokens, left aligned with zeros behind them, and their count."""
        return left_aligned(self.tokens, self.valid)

    def prompt_history(self) -> tuple[jax.Array, jax.Array]:
        """The prompt's real tokens, left aligned, and their count."""
        return left_aligned(self.tokens[:, : self.prompt_width], self.valid[:, : self.prompt_width])

    def generated(self) -> tuple[jax.Array, jax.Array]:
        """The drawn tokens, left aligned, and their count."""
        return left_aligned(self.tokens[:, self.prompt_width :], self.valid[:, self.prompt_width :])

    def total(self) -> jax.Array:
        """How many real tokens a row holds, prompt and draws together."""
        return jnp.sum(self.valid, axis=1, dtype=jnp.int32)

    def limit(self) -> jax.Array:
        """How many tokens a row may draw. Draw slots are rounded up, so they may be more."""
        if self.budget is not None:
            return self.budget
        return jnp.full(self.step.shape, self.tokens.shape[1] - self.prompt_width, jnp.int32)


def left_aligned(tokens: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Move each row's valid tokens to its start, in order, and fill the rest with zeros."""
    count = jnp.sum(valid, axis=1, dtype=jnp.int32)
    order = jnp.argsort(~valid, axis=1, stable=True)
    moved = jnp.take_along_axis(tokens, order, axis=1)
    return jnp.where(jnp.arange(tokens.shape[1]) < count[:, None], moved, 0), count
