"""Tokens that are never drawn, or not as the first one.

Reference: `SuppressTokensLogitsProcessor` and `SuppressTokensAtBeginLogitsProcessor` of transformers 5.16.1.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from dew.sampling.decoding.state import StepState
from dew.sampling.decoding.tokens import Ids, id_array, token_count, within


@struct.dataclass
class SuppressTokens:
    """These tokens are never drawn.

    Attributes:
        tokens: one id or several; an id beyond the vocabulary is refused by `generate`.
    """

    tokens: Ids

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", id_array("SuppressTokens", self.tokens))

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        return jnp.where(among(logits, self.tokens), -jnp.inf, logits)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse ids the model does not have."""
        within("SuppressTokens", self.tokens, vocab_size)


@struct.dataclass
class BeginSuppressTokens:
    """These tokens are not drawn at one place of the response.

    Attributes:
        tokens: one id or several.
        offset: the drawn token they are kept from: 0 is the first, 1 the one behind a forced begin token.
    """

    tokens: Ids
    offset: int | jax.Array = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", id_array("BeginSuppressTokens", self.tokens))
        token_count("offset", self.offset)

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        here = (state.step == self.offset)[:, None]
        return jnp.where(here & among(logits, self.tokens), -jnp.inf, logits)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse ids the model does not have."""
        within("BeginSuppressTokens", self.tokens, vocab_size)


def among(logits: jax.Array, tokens: Any) -> jax.Array:
    """`[1, vocab]`, which ids are in `tokens` `[count]`."""
    vocab = logits.shape[-1]
    return jnp.zeros((1, vocab), bool).at[0, jnp.asarray(tokens, jnp.int32)].set(True, mode="drop")
