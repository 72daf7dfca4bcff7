"""Criteria that end a row; a request's criteria combine with OR."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from dew.sampling.decoding.state import StepState
from dew.sampling.decoding.tokens import id_array, token_count, within


@struct.dataclass
class EndOfSequence:
    """The row ends with one of these ids.

    Attributes:
        eos: one id or several.
    """

    eos: int | tuple[int, ...] = struct.field(pytree_node=False)

    def __post_init__(self) -> None:
        ids = id_array("EndOfSequence", self.eos).tolist()
        object.__setattr__(self, "eos", ids[0] if isinstance(self.eos, int) else tuple(ids))

    def __call__(self, state: StepState, drawn: jax.Array, /) -> jax.Array:
        return jnp.isin(drawn, jnp.asarray(self.eos, drawn.dtype))

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse ids the model does not have."""
        within("EndOfSequence", self.eos, vocab_size)


@struct.dataclass
class MaxNewTokens:
    """A budget below the request's own. A row it ends counts as cut off, not as terminated.

    Attributes:
        count: drawn tokens.
    """

    count: int | jax.Array
    cuts_off: ClassVar[bool] = True

    def __post_init__(self) -> None:
        token_count("count", self.count, least=1)

    def __call__(self, state: StepState, drawn: jax.Array, /) -> jax.Array:
        return state.step >= self.count


@struct.dataclass
class MaxLength:
    """A budget for prompt and drawn tokens together. A row it ends counts as cut off, not as terminated.

    Attributes:
        length: real tokens of a row.
    """

    length: int | jax.Array
    cuts_off: ClassVar[bool] = True

    def __post_init__(self) -> None:
        token_count("length", self.length, least=1)

    def __call__(self, state: StepState, drawn: jax.Array, /) -> jax.Array:
        return state.total() >= self.length
