"""What a run shows of itself: prompts it continues at every evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from dew.artifacts import TextSamples
from dew.objectives.base import Variables
from dew.sampling.text.config import Sampling

if TYPE_CHECKING:
    from flax import linen as nn

    from dew.objectives.lm.decoder import Decoder

UNFILTERED = Sampling()
"""Draws from the model's own distribution."""

type Prompt = Sequence[int] | Sequence[Sequence[int]]
"""The ids of one prompt, or of several of one length."""


@dataclass(frozen=True)
class Samples:
    """The text preview of a run, drawn once an evaluation.

    It limits nothing that is scored.

    Attributes:
        prompt: what is continued.
        max_new_tokens: tokens drawn for each prompt.
        sampling: how they are drawn.
        decode: from ids to text.

    Raises:
        ValueError: no prompt token, prompts of different lengths, or fewer than one new token.
    """

    prompt: Prompt
    max_new_tokens: int
    sampling: Sampling = UNFILTERED
    decode: Callable[[list[int]], str] = lambda ids: str(ids)

    def __post_init__(self) -> None:
        prompt_rows(self.prompt)
        if self.max_new_tokens < 1:
            raise ValueError(
                f"max_new_tokens={self.max_new_tokens} must be at least 1; unset samples to show no text"
            )


def prompt_rows(prompt: Prompt) -> list[list[int]]:
    """Return `prompt` as rows of ids.

    Raises:
        ValueError: no token, or rows of different lengths.
    """
    nested = bool(len(prompt)) and isinstance(prompt[0], (Sequence, np.ndarray))
    rows = cast("Sequence[Sequence[int]]", prompt if nested else [prompt])
    lengths = sorted({len(row) for row in rows})
    if len(lengths) != 1:
        raise ValueError(f"prompts have lengths {lengths}; prompts shown together need one length")
    if lengths[0] == 0:
        raise ValueError(f"prompt={prompt!r} holds no token; a model continues at least one")
    return [[int(token) for token in row] for row in rows]


def prompt_batch(prompt: Prompt) -> Int[Array, "B P"]:
    """Return int32 ids [B, P] of one prompt, or of several of one length.

    Raises:
        ValueError: no token, or prompts of different lengths.
    """
    return jnp.asarray(prompt_rows(prompt), jnp.int32)


def draw_samples(
    model: Decoder, variables: Variables, samples: Samples, *, key: jax.Array
) -> TextSamples | None:
    """Continue the prompts on every process, and decode on process zero.

    Returns:
        The texts, or None on the other processes.
    """
    from dew.sampling import generate

    drawn = generate(
        cast("nn.Module", model),
        variables,
        prompt_batch(samples.prompt),
        samples.max_new_tokens,
        key=key,
        sampling=samples.sampling,
    ).host()
    if jax.process_index() != 0:
        return None
    prompts = prompt_rows(samples.prompt)
    tokens, lengths = np.asarray(drawn.tokens), np.asarray(drawn.lengths)
    texts = [
        samples.decode([int(token) for token in row[len(prompt) : len(prompt) + int(length)]])
        for prompt, row, length in zip(prompts, tokens, lengths, strict=True)
    ]
    return TextSamples(prompts=[samples.decode(prompt) for prompt in prompts], texts=texts)
