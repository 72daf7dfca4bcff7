"""Which controls transformers knows, and which processors it makes of random generation configurations.

    uv run --group oracle python tools/make_controls_golden.py

writes packages/dew-lm/tests/golden/generation_controls.json: the names of a `GenerationConfig`, and for each
configuration the classes of `_get_logits_processor` in their order, after `generate()` has completed it.
"""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).resolve().parent.parent / "packages/dew-lm/tests/golden/generation_controls.json"
CONFIGS, PROMPT = 80, 5
CHOICES: dict[str, list[Any]] = {
    "do_sample": [True, True, False],
    "temperature": [0.7, 1.0],
    "top_k": [0, 5, 50],
    "top_p": [0.9, 1.0],
    "min_p": [0.05, 0.0],
    "top_h": [0.4],
    "typical_p": [0.9, 1.0],
    "epsilon_cutoff": [3e-4, 0.0],
    "eta_cutoff": [3e-4, 0.0],
    "repetition_penalty": [1.1, 1.0],
    "encoder_repetition_penalty": [1.2, 1.0],
    "no_repeat_ngram_size": [2, 0],
    "encoder_no_repeat_ngram_size": [3, 0],
    "sequence_bias": [[[[1, 2], -1.0]]],
    "bad_words_ids": [[[3], [1, 4]]],
    "min_length": [7, 0],
    "min_new_tokens": [3, 0],
    "forced_bos_token_id": [1],
    "forced_eos_token_id": [2],
    "remove_invalid_values": [True, False],
    "exponential_decay_length_penalty": [[3, 1.5]],
    "suppress_tokens": [[5, 6]],
    "begin_suppress_tokens": [[7]],
    "renormalize_logits": [True, False],
    "num_beams": [1, 3],
    "eos_token_id": [2, [2, 4]],
}


def configurations() -> list[dict[str, Any]]:
    """Random generation configurations, with end ids in all but every eighth."""
    draw = np.random.default_rng(8)
    found: list[dict[str, Any]] = []
    for number in range(CONFIGS):
        config = {
            name: values[int(draw.integers(len(values)))]
            for name, values in CHOICES.items()
            if draw.random() < 0.55
        }
        if number % 8:
            config.setdefault("eos_token_id", 2)
        elif "exponential_decay_length_penalty" in config:
            config["eos_token_id"] = 2
        if config.get("num_beams", 1) > 1:
            config.pop("do_sample", None)
        found.append(config)
    return found


def processors(config: dict[str, Any]) -> list[str]:
    """The classes that transformers runs, in order."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=12, eos_token_id=None, bos_token_id=None, **sizes))
    prompt = torch.ones((1, PROMPT), dtype=torch.long)
    whole, _ = model._prepare_generation_config(GenerationConfig(max_new_tokens=9, **config))
    model._prepare_special_tokens(whole, True, device="cpu")
    whole = model._prepare_generated_length(whole, False, False, "input_ids", PROMPT, prompt)
    made = model._get_logits_processor(whole, PROMPT, encoder_input_ids=prompt, device="cpu")
    return [type(each).__name__ for each in made]


def inventory() -> list[str]:
    """Every control of a `GenerationConfig`."""
    from transformers import GenerationConfig

    return sorted(vars(GenerationConfig()).keys() | GenerationConfig().to_dict().keys())


def golden() -> list[dict[str, Any]]:
    """The stored configurations with their processors."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    return [{"config": config, "processors": processors(config)} for config in configurations()]


def main() -> None:
    import transformers

    note = {
        "transformers": transformers.__version__,
        "command": "uv run --group oracle python tools/make_controls_golden.py",
    }
    record = {"note": note, "controls": inventory(), "chains": golden()}
    GOLDEN.write_text(json.dumps(record) + "\n")
    print(GOLDEN, GOLDEN.stat().st_size, len(record["controls"]))


if __name__ == "__main__":
    main()
