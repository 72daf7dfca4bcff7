"""Penalties on tokens that a row already holds; padding is no part of a row.

Reference: `transformers.generation.logits_process` 5.16.1 for the first two, vLLM's
`model_executor/layers/utils.py` for the others.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from dew.sampling.decoding.state import StepState


@struct.dataclass
class RepetitionPenalty:
    """Divide a positive score by `penalty` and multiply a negative one, once for each token the row holds.

    Prompt and drawn tokens count alike. Source: arXiv 1909.05858, section 4.1.

    Attributes:
        penalty: above 0; above 1 discourages, below 1 encourages.
    """

    penalty: float | jax.Array

    def __post_init__(self) -> None:
        positive("RepetitionPenalty", self.penalty)

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        held = counts(*state.history(), logits.shape[-1]) > 0
        return jnp.where(held, scaled(logits, self.penalty), logits)


@struct.dataclass
class PromptRepetitionPenalty:
    """`RepetitionPenalty` with the inverse number, over the prompt's tokens alone.

    A penalty above 1 therefore favours what the prompt holds.

    Attributes:
        penalty: above 0.
    """

    penalty: float | jax.Array

    def __post_init__(self) -> None:
        positive("PromptRepetitionPenalty", self.penalty)

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        held = counts(*state.prompt_history(), logits.shape[-1]) > 0
        return jnp.where(held, scaled(logits, 1 / self.penalty), logits)


@struct.dataclass
class FrequencyPenalty:
    """Subtract `penalty` from a token's score as many times as it was drawn; the prompt does not count.

    Attributes:
        penalty: any number; above 0 discourages.
    """

    penalty: float | jax.Array

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        drawn = counts(*state.generated(), logits.shape[-1])
        return logits - self.penalty * drawn.astype(logits.dtype)


@struct.dataclass
class PresencePenalty:
    """Subtract `penalty` once from the score of every token that was drawn; the prompt does not count.

    Attributes:
        penalty: any number; above 0 discourages.
    """

    penalty: float | jax.Array

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        drawn = counts(*state.generated(), logits.shape[-1])
        return logits - self.penalty * (drawn > 0).astype(logits.dtype)


def counts(tokens: jax.Array, lengths: jax.Array, vocab_size: int) -> jax.Array:
    """`[rows, vocab_size]`, how often each id is among the first `lengths` of `tokens` `[rows, slots]`."""
    rows, slots = tokens.shape
    real = jnp.arange(slots) < lengths[:, None]
    blank = jnp.zeros((rows, vocab_size), jnp.int32)
    return blank.at[jnp.arange(rows)[:, None], tokens].add(real.astype(jnp.int32), mode="drop")


def scaled(logits: jax.Array, penalty: float | jax.Array) -> jax.Array:
    """Scores moved away from the top: negative ones times `penalty`, the others divided by it."""
    return jnp.where(logits < 0, logits * penalty, logits / penalty)


def positive(name: str, value: float | jax.Array) -> None:
    """Refuse a penalty that is not above 0.

    Raises:
        ValueError: naming the transform.
    """
    if isinstance(value, (int, float)) and not value > 0:
        raise ValueError(f"{name}({value}) must be above 0; 1 changes nothing")
