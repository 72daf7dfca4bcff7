"""Every control that transformers 5.16.1 writes to `generation_config.json`, and what becomes of it here.

A control is read by the policy, a transform, a criterion, a strategy or the task, says nothing about decoding
here, or is refused with a reason. At a neutral value `generate()` adds nothing for it, so nothing is read or
refused. Importing this imports no JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

type Consumer = Literal[
    "policy", "transform", "criterion", "strategy", "task", "distribution", "cache", "run", "nothing"
]
"""Who a control speaks to. `distribution`, `cache` and `run` have no reader here; `nothing` needs none."""
type Mode = Literal["always", "sampling", "search", "greedy", "drafting"]
"""When a control counts: with `do_sample`, with several beams, with neither, with `use_mtp`."""

UNSET = (None,)


@dataclass(frozen=True)
class Control:
    """One control.

    Attributes:
        consumer: who reads it.
        neutral: the values at which `generate()` does nothing for it.
        mode: when it counts.
        kind: what a value must be, a key of `KINDS`.
        refused: why another value than a neutral one is not done here; empty where it is.
    """

    consumer: Consumer
    neutral: tuple[Any, ...] = UNSET
    mode: Mode = "always"
    kind: str = "anything"
    refused: str = ""


def _policy(kind: str, *neutral: Any, mode: Mode = "sampling") -> Control:
    return Control("policy", (None, *neutral), mode, kind)


def _transform(kind: str, *neutral: Any, mode: Mode = "always") -> Control:
    return Control("transform", (None, *neutral), mode, kind)


def _task(kind: str) -> Control:
    return Control("task", kind=kind)


def _strategy(kind: str, mode: Mode, *neutral: Any) -> Control:
    return Control("strategy", (None, *neutral), mode, kind)


def _refused(consumer: Consumer, reason: str, *neutral: Any, mode: Mode = "always") -> Control:
    return Control(consumer, (None, *neutral), mode, refused=reason)


NO_OUTPUT = "a generation holds tokens, lengths, ends and both likelihoods, and none of these"
LOOKUP = "proposals looked up in the prompt are not implemented"
TOKEN_SPACES = "translating between the token spaces of two tokenizers is not implemented"
COMPILED = "decoding here is always compiled, and compiles by its own plan"
CONSTRAINED = "constrained beam search is not implemented"
GROUPED = "diverse beam search over groups is not implemented"
NOTHING = Control("nothing")

CONTROLS: Mapping[str, Control] = {
    "do_sample": _policy("flag", False, mode="always"),
    "temperature": _policy("number"),
    "top_k": _policy("integer"),
    "top_p": _policy("number"),
    "min_p": _policy("number"),
    "eos_token_id": _policy("ids", mode="always"),
    "pad_token_id": _policy("id", mode="always"),
    "max_length": _task("count"),
    "max_new_tokens": _task("count"),
    "num_return_sequences": _task("count"),
    "max_cache_len": _task("count"),
    "bos_token_id": NOTHING,
    "decoder_start_token_id": NOTHING,
    "return_dict_in_generate": NOTHING,
    "transformers_version": NOTHING,
    "_from_model_config": NOTHING,
    "_commit_hash": NOTHING,
    "tokenizer_name": NOTHING,
    "sequence_bias": _transform("biases"),
    "encoder_repetition_penalty": _transform("number", 1.0),
    "repetition_penalty": _transform("number", 1.0),
    "no_repeat_ngram_size": _transform("integer", 0),
    "encoder_no_repeat_ngram_size": _transform("integer", 0),
    "bad_words_ids": _transform("words"),
    "min_length": _transform("integer", 0),
    "min_new_tokens": _transform("integer"),
    "forced_bos_token_id": _transform("id"),
    "forced_eos_token_id": _transform("ids"),
    "remove_invalid_values": _transform("flag", False),
    "exponential_decay_length_penalty": _transform("pair"),
    "suppress_tokens": _transform("ids"),
    "begin_suppress_tokens": _transform("ids"),
    "renormalize_logits": _transform("flag", False),
    "top_h": _transform("number", mode="sampling"),
    "typical_p": _transform("number", 1.0, mode="sampling"),
    "epsilon_cutoff": _transform("number", 0.0, mode="sampling"),
    "eta_cutoff": _transform("number", 0.0, mode="sampling"),
    "stop_strings": Control("criterion", kind="texts"),
    "num_beams": _strategy("count", "always", 1),
    "early_stopping": _strategy("stopping", "search"),
    "length_penalty": _strategy("number", "search"),
    "use_mtp": _strategy("flag", "always", False),
    "num_assistant_tokens": _strategy("count", "drafting"),
    "assistant_confidence_threshold": _strategy("number", "drafting"),
    "speculation_type": _refused("strategy", "only a model's own prediction depths propose tokens", "mtp"),
    "num_assistant_tokens_schedule": _refused(
        "strategy", "a block of drafted tokens has one fixed size in a compiled loop", "constant"
    ),
    "assistant_ensemble_weight": _refused(
        "strategy", "verifying against a mixture accepts another distribution than the model's", 1.0
    ),
    "assistant_early_exit": _refused("strategy", "proposals from early layers are not implemented"),
    "assistant_lookbehind": _refused("strategy", TOKEN_SPACES, 10),
    "target_lookbehind": _refused("strategy", TOKEN_SPACES, 10),
    "prompt_lookup_num_tokens": _refused("strategy", LOOKUP),
    "max_matching_ngram_size": _refused("strategy", LOOKUP),
    "is_assistant": _refused("strategy", "a folder is read as a model of its own, not as another's", False),
    "num_beam_groups": _refused("strategy", GROUPED, 1, mode="search"),
    "diversity_penalty": _refused("strategy", GROUPED, 0.0, mode="search"),
    "low_memory": _refused("strategy", "beams are evaluated together, not in turn", False),
    "constraints": _refused("strategy", CONSTRAINED),
    "force_words_ids": _refused("strategy", CONSTRAINED),
    "penalty_alpha": _refused("strategy", "contrastive search is not implemented", 0.0, mode="greedy"),
    "dola_layers": _refused("strategy", "contrasting layers (DoLa) is not implemented"),
    "max_time": _refused("criterion", "a host's clock cannot stop a loop that devices run together"),
    "token_healing": _refused("task", "retokenizing belongs to writing the prompt, not to decoding", False),
    "guidance_scale": _refused("distribution", "guidance would run the model twice a step", 1.0),
    "watermarking_config": _refused("distribution", "no watermark is implemented"),
    "use_cache": _refused("cache", "decoding here always runs through its cache", True),
    # transformers itself unsets "hybrid" and takes the cache that the model's layers call for.
    "cache_implementation": _refused(
        "cache", "the cache is a static one of fixed capacity", "static", "hybrid"
    ),
    "cache_config": _refused("cache", "quantized and offloaded caches are not implemented"),
    "prefill_chunk_size": _refused("cache", "a prompt is read in one call"),
    "continuous_batching_config": _refused(
        "run", "a task draws its rows together; Server batches continuously"
    ),
    "compile_config": _refused("run", COMPILED),
    "disable_compile": _refused("run", COMPILED, False),
    "output_attentions": _refused("run", NO_OUTPUT, False),
    "output_hidden_states": _refused("run", NO_OUTPUT, False),
    "output_scores": _refused("run", NO_OUTPUT, False),
    "output_logits": _refused("run", NO_OUTPUT, False),
}
"""Control -> what becomes of it."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: Any, each: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(each(item) for item in cast("list[Any]", value))


def _is_bias(value: Any) -> bool:
    return _is_list(value, lambda _: True) and len(value) == 2 and _is_list(value[0], _is_integer)


KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "anything": ("anything", lambda value: True),
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "number": ("a number", _is_number),
    "integer": ("an integer", _is_integer),
    "count": ("an integer of at least 1", lambda value: _is_integer(value) and value >= 1),
    "id": ("a token id", _is_integer),
    "ids": ("a token id or a list of them", lambda value: _is_integer(value) or _is_list(value, _is_integer)),
    "words": (
        "a list of lists of token ids",
        lambda value: _is_list(value, lambda word: _is_list(word, _is_integer)),
    ),
    "biases": ("a list of [[token ids], number]", lambda value: _is_list(value, _is_bias)),
    "pair": ("[start, factor]", lambda value: _is_list(value, _is_number) and len(value) == 2),
    "texts": (
        "a text or a list of them",
        lambda value: isinstance(value, str) or _is_list(value, lambda text: isinstance(text, str)),
    ),
    "stopping": ('true, false or "never"', lambda value: isinstance(value, bool) or value == "never"),
}
"""Kind of value -> its name and its test."""
