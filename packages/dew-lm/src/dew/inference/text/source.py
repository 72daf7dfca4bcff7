"""A published model as a text task: its weights, its tokenizer, and the controls its files set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.data.text import Tokenizer
from dew.inference.text.chain import chain_of
from dew.inference.text.processor import SourceProcessor
from dew.inference.text.published import Controls, read_controls, sampling_of
from dew.inference.text.task import TextGeneration
from dew.sampling.decoding import Stopping, stop_strings
from dew.sampling.text import Beam, Sampling, Speculative, Strategy


def source_task(
    model: Any,
    variables: Mapping[str, Any],
    *,
    tokenizer: Tokenizer | None,
    generation_config: Mapping[str, Any],
    config: Mapping[str, Any],
    sampling: Sampling | None = None,
) -> TextGeneration:
    """The task that a source's `generation_config.json` describes.

    Args:
        model: the decoder.
        variables: its complete tree.
        tokenizer: the source's; None serves token rows alone.
        generation_config: the file's controls; empty where there is none.
        config: of `config.json`, read where the file is silent.
        sampling: a policy in place of the source's and of every transform it sets. Its end ids are its own.
            The source's criteria, strategy and number of continuations stay.

    Raises:
        ValueError: controls that are not known or not done here, each with its reason.
    """
    controls = read_controls(generation_config, config, replaced=sampling is not None)
    policy = sampling_of(controls) if sampling is None else sampling
    check_capacity(controls, int(model.max_seq_len))
    return TextGeneration(
        model,
        variables,
        None if tokenizer is None else SourceProcessor(tokenizer),
        sampling=policy,
        max_new_tokens=controls.get("max_new_tokens"),
        max_length=controls.get("max_length"),
        n=controls.get("num_return_sequences", 1),
        logits=chain_of(controls, policy) if sampling is None else None,
        stopping=criteria_of(controls, tokenizer, int(model.vocab_size)),
        strategy=strategy_of(controls, policy, model),
    )


def check_capacity(controls: Controls, longest: int) -> None:
    """Refuse a cache longer than the model reads.

    Raises:
        ValueError: `max_cache_len` above it.
    """
    asked = controls.get("max_cache_len", 0)
    if asked > longest:
        raise ValueError(f"the source's max_cache_len={asked} is above the model's max_seq_len={longest}")


def criteria_of(controls: Controls, tokenizer: Tokenizer | None, vocab_size: int) -> tuple[Stopping, ...]:
    """The criteria beside the end ids.

    Raises:
        ValueError: strings without a tokenizer to spell them.
    """
    strings = controls.get("stop_strings")
    if strings is None:
        return ()
    if tokenizer is None:
        raise ValueError(
            f"the source's stop_strings={strings!r} need its tokenizer, and it has none: put tokenizer.json "
            "into its folder"
        )
    return (stop_strings(tokenizer, strings, vocab_size=vocab_size),)


def strategy_of(controls: Controls, sampling: Sampling, model: Any) -> Strategy | None:
    """The strategy, or None where the source draws token by token.

    Raises:
        ValueError: drafting without prediction depths.
    """
    if controls.searched:
        return Beam(
            width=controls.beams,
            length_penalty=float(controls.get("length_penalty", 1.0)),
            early_stopping=controls.get("early_stopping", False),
            stop_ids=max(1, len(sampling.eos_ids)),
        )
    if not controls.get("use_mtp"):
        return None
    # As many as the model has depths for, where the source does not say.
    drafted = controls.get("num_assistant_tokens", getattr(model, "num_nextn_predict_layers", 0) or 1)
    confidence = float(controls.get("assistant_confidence_threshold", 0.0))
    strategy = Speculative(block=drafted + 1, confidence=confidence)
    strategy.check(model, n=1, chain=(), criteria=())
    return strategy
