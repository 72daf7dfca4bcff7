"""The transforms that a published model's controls stand for, in the order of transformers.

The order is that of `_get_logits_processor` in transformers 5.16.1: processors, then the filters of a source
that samples, then the normalization.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dew.inference.text.published import Controls
from dew.sampling.decoding import (
    BeginSuppressTokens,
    EpsilonCutoff,
    EtaCutoff,
    ExponentialDecayLengthPenalty,
    ForcedBOS,
    ForcedEOS,
    Greedy,
    LogitsTransform,
    MinLength,
    MinNewTokens,
    MinP,
    NoRepeatNGram,
    PromptNoRepeatNGram,
    PromptRepetitionPenalty,
    RemoveInvalidValues,
    Renormalize,
    RepetitionPenalty,
    StepState,
    SuppressTokens,
    Temperature,
    TopH,
    TopK,
    TopP,
    Typical,
    bad_words,
    sequence_bias,
)
from dew.sampling.text.config import Sampling


def chain_of(controls: Controls, sampling: Sampling) -> tuple[LogitsTransform, ...]:
    """The complete chain of a source.

    A search chooses by itself, so its chain has no filter and takes no best token. The best token of a source
    that does not sample is taken last, behind the normalization, which does not move it.

    Raises:
        ValueError: a value that breaks its transform's rule.
    """
    last = [Renormalize()] if controls.get("renormalize_logits") else []
    chain = processors(controls, sampling.eos_ids)
    if controls.searched:
        return (*chain, *last)
    if sampling.temperature == 0:
        return (*chain, *last, Greedy())
    return (*chain, *filters(controls, sampling), *last)


def processors(controls: Controls, ends: tuple[int, ...]) -> list[LogitsTransform]:
    """What runs whether or not the source samples."""
    makers: Sequence[tuple[str, Any]] = (
        ("sequence_bias", sequence_bias),
        ("encoder_repetition_penalty", PromptRepetitionPenalty),
        ("repetition_penalty", RepetitionPenalty),
        ("no_repeat_ngram_size", NoRepeatNGram),
        ("encoder_no_repeat_ngram_size", PromptNoRepeatNGram),
        ("bad_words_ids", lambda words: bad_words(words, ends)),
        ("min_length", lambda length: MinLength(length, ends)),
        ("min_new_tokens", lambda count: MinNewTokens(count, ends)),
        ("forced_bos_token_id", ForcedBOS),
        ("forced_eos_token_id", ForcedEOS),
        ("remove_invalid_values", lambda _: RemoveInvalidValues()),
        ("exponential_decay_length_penalty", lambda pair: _decay(pair, ends)),
        ("suppress_tokens", SuppressTokens),
        ("begin_suppress_tokens", lambda ids: _at_the_beginning(ids, controls)),
    )
    values = {name: controls.get(name) for name, _ in makers}
    if values["min_new_tokens"] is not None:
        # The reference overwrites the one with the other.
        values["min_length"] = None
    if not values["min_new_tokens"] or not ends:
        values["min_new_tokens"] = None
    if not ends:
        values["min_length"] = None
    return [_made(name, make, values[name]) for name, make in makers if values[name] is not None]


def filters(controls: Controls, sampling: Sampling) -> list[LogitsTransform]:
    """What runs where the source samples."""
    named: Sequence[tuple[str, bool, Any, Any]] = (
        ("temperature", sampling.temperature != 1, Temperature, sampling.temperature),
        ("top_h", controls.get("top_h") is not None, TopH, controls.get("top_h")),
        ("top_k", sampling.top_k is not None, TopK, sampling.top_k),
        ("top_p", sampling.top_p < 1, TopP, sampling.top_p),
        ("min_p", controls.get("min_p") is not None, MinP, sampling.min_p),
        ("typical_p", controls.get("typical_p", 1.0) < 1, Typical, controls.get("typical_p")),
        *(
            (name, 0 < controls.get(name, 0.0) < 1, make, controls.get(name))
            for name, make in (("epsilon_cutoff", EpsilonCutoff), ("eta_cutoff", EtaCutoff))
        ),
    )
    return [_made(name, make, value) for name, on, make, value in named if on]


def later_behind_a_forced_token(
    first: BeginSuppressTokens, second: BeginSuppressTokens, state: StepState, logits: jax.Array
) -> jax.Array:
    """`second` in rows of a one-token prompt, which a forced begin token follows; `first` in the others."""
    alone = state.total() - state.step == 1
    return jnp.where(alone[:, None], second(state, logits), first(state, logits))


def _made(name: str, make: Any, value: Any) -> LogitsTransform:
    try:
        return make(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the source's generation control {name}={value!r}: {error}") from error


def _decay(pair: Sequence[Any], ends: tuple[int, ...]) -> LogitsTransform:
    if not ends:
        raise ValueError("it raises the score of an end token, and the source has no eos_token_id")
    return ExponentialDecayLengthPenalty(pair[0], pair[1], ends)


def _at_the_beginning(ids: Any, controls: Controls) -> LogitsTransform:
    if controls.get("forced_bos_token_id") is None:
        return BeginSuppressTokens(ids)
    both = (BeginSuppressTokens(ids), BeginSuppressTokens(ids, 1))
    return jax.tree_util.Partial(later_behind_a_forced_token, *both)
