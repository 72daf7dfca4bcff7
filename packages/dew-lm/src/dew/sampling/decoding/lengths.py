"""Transforms that move a response's end: forced tokens, least lengths and a growing end score.

Lengths are of each row by itself: its real prompt tokens and its drawn ones. Reference:
`transformers.generation.logits_process` 5.16.1.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from dew.sampling.decoding.state import StepState
from dew.sampling.decoding.suppression import among
from dew.sampling.decoding.tokens import Ids, id_array, one_id, token_count, within


@struct.dataclass
class ForcedBOS:
    """A row that holds one token alone draws this one next.

    Attributes:
        token: its id.
    """

    token: int | jax.Array

    def __post_init__(self) -> None:
        one_id("ForcedBOS", self.token)

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        return forced(logits, id_array("ForcedBOS", self.token), state.total() == 1)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse ids the model does not have."""
        within("ForcedBOS", self.token, vocab_size)


@struct.dataclass
class ForcedEOS:
    """The last token a row may draw is one of these; several share the chance.

    Attributes:
        eos: one id or several.
        max_length: prompt and drawn tokens of a row that is full; None is the request's own budget.
    """

    eos: Ids
    max_length: int | jax.Array | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "eos", id_array("ForcedEOS", self.eos))
        token_count("max_length", self.max_length, least=1)

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        if self.max_length is None:
            return forced(logits, self.eos, state.step == state.limit() - 1)
        return forced(logits, self.eos, state.total() == self.max_length - 1)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse ids the model does not have."""
        within("ForcedEOS", self.eos, vocab_size)


@struct.dataclass
class MinLength:
    """No end token before a row holds `length` tokens, prompt and drawn together.

    Attributes:
        length: tokens.
        eos: one id or several.
    """

    length: int | jax.Array
    eos: Ids

    def __post_init__(self) -> None:
        token_count("length", self.length)
        object.__setattr__(self, "eos", id_array("MinLength", self.eos))

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        short = (state.total() < self.length)[:, None]
        return jnp.where(short & among(logits, self.eos), -jnp.inf, logits)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse ids the model does not have."""
        within("MinLength", self.eos, vocab_size)


@struct.dataclass
class MinNewTokens:
    """No end token before `count` were drawn.

    Attributes:
        count: drawn tokens.
        eos: one id or several.
    """

    count: int | jax.Array
    eos: Ids

    def __post_init__(self) -> None:
        token_count("count", self.count)
        object.__setattr__(self, "eos", id_array("MinNewTokens", self.eos))

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        short = (state.step < self.count)[:, None]
        return jnp.where(short & among(logits, self.eos), -jnp.inf, logits)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse ids the model does not have."""
        within("MinNewTokens", self.eos, vocab_size)


@struct.dataclass
class ExponentialDecayLengthPenalty:
    """Raise the end tokens' scores ever faster: `s + |s| (factor^(t - start) - 1)` once `t > start`.

    `t` counts the tokens drawn before this one. An end token that another transform ruled out stays out.

    Attributes:
        start: drawn tokens that go unchanged, beside the first.
        factor: above 0; above 1 ends rows sooner.
        eos: one id or several.
    """

    start: int | jax.Array
    factor: float | jax.Array
    eos: Ids

    def __post_init__(self) -> None:
        token_count("start", self.start)
        if isinstance(self.factor, (int, float)) and not self.factor > 0:
            raise ValueError(f"ExponentialDecayLengthPenalty(factor={self.factor}) must be above 0")
        object.__setattr__(self, "eos", id_array("ExponentialDecayLengthPenalty", self.eos))

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        late = (state.step - self.start)[:, None]
        growth = jnp.expm1(late.astype(logits.dtype) * jnp.log(jnp.asarray(self.factor, logits.dtype)))
        raised = logits + jnp.abs(logits) * growth
        touched = (late > 0) & among(logits, self.eos) & ~jnp.isneginf(logits)
        return jnp.where(touched, raised, logits)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse ids the model does not have."""
        within("ExponentialDecayLengthPenalty", self.eos, vocab_size)


def forced(logits: jax.Array, tokens: Ids, now: jax.Array) -> jax.Array:
    """Zero on `tokens` and -inf elsewhere in the rows of `now` `[rows]`; other rows as they were."""
    only = jnp.where(among(logits, tokens), 0, -jnp.inf).astype(logits.dtype)
    return jnp.where(now[:, None], only, logits)
