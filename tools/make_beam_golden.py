"""Beam searches of transformers over a tiny Llama with weights drawn from their names.

    uv run --group oracle python tools/make_beam_golden.py

writes packages/dew-lm/tests/golden/beam.json: the cases, and for each its sequences up to their ends and
their scores. Scores are rounded to six digits.
"""

from __future__ import annotations

import itertools
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).resolve().parent.parent / "packages/dew-lm/tests/golden/beam.json"
SIZES = {
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
}
PAD = 22
LENGTHS = (2, 5, 3)
"""Real tokens of the three prompts, which are padded on the left to five slots."""


def prompts() -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask of the prompts, [3, 5] each."""
    ids = np.random.default_rng(3).integers(1, 20, (3, 5))
    mask = np.arange(5) >= 5 - np.asarray(LENGTHS)[:, None]
    return np.where(mask, ids, PAD), mask


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The weight called `name` in Dew's tree, rounded to float32."""
    noise = np.random.default_rng(zlib.crc32(("beam " + name).encode())).standard_normal(shape)
    return (0.35 * noise + (len(shape) == 1)).astype(np.float32)


def cases() -> list[dict[str, Any]]:
    """What is searched for: every stopping rule with every penalty, and then options one by one."""
    plain = {"width": 3, "n": 3, "budget": 9, "penalty": 1.0, "early": False, "eos": [2]}
    found = [
        {**plain, "early": early, "penalty": penalty, "eos": eos}
        for early, penalty, eos in itertools.product(
            (False, True, "never"), (0.0, 1.0, 2.5, -0.7), ([2], [5, 7, 16])
        )
    ]
    options: tuple[dict[str, Any], ...] = (
        {"eos": []},
        {"eos": [], "early": True, "penalty": 2.0},
        {"width": 2, "n": 1},
        {"width": 5, "n": 2, "penalty": -1.0},
        {"width": 4, "n": 4, "budget": 1},
        {"width": 4, "n": 4, "budget": 2, "eos": [5, 6]},
        {"width": 6, "n": 6, "budget": 16, "early": "never", "penalty": 3.0},
        {"repeat": 2},
        {"repeat": 2, "eos": [2, 7], "penalty": 2.0, "early": "never"},
        {"ban": [0, 7, 14]},
    )
    return found + [{**plain, **option} for option in options]


def dew_name(name: str) -> str:
    """A name in the state dict as a path in Dew's tree."""
    parts = name.removeprefix("model.").removesuffix(".weight").split(".")
    if parts[0] == "layers":
        parts = [f"layers_{parts[1]}", *parts[2:]]
    leaf = "embedding" if parts[0] == "embed_tokens" else "scale" if "norm" in parts[-1] else "kernel"
    return "/".join([*parts, leaf])


def reference_model() -> Any:
    """The Llama of transformers with the drawn weights, in float32."""
    import torch
    import transformers

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            path = dew_name(name)
            turned = path.endswith("kernel")
            shape = tuple(parameter.shape[::-1] if turned else parameter.shape)
            value = draw(path, shape)
            parameter.copy_(torch.from_numpy((value.T if turned else value).copy()))
    return model


def reference(model: Any, case: dict[str, Any]) -> dict[str, Any]:
    """What `generate(num_beams=...)` finds for `case`: `tokens` up to their ends, and `scores`."""
    import torch

    ids, mask = prompts()
    options = {"bad_words_ids": [[each] for each in case["ban"]]} if "ban" in case else {}
    if "repeat" in case:
        # A processor of transformers counts padding as history; one prompt alone has none.
        ids, mask = ids[1:2], mask[1:2]
        options = {"no_repeat_ngram_size": case["repeat"]}
    drawn = model.generate(
        torch.from_numpy(ids),
        attention_mask=torch.from_numpy(mask.astype(np.int64)),
        num_beams=case["width"],
        num_return_sequences=case["n"],
        max_new_tokens=case["budget"],
        length_penalty=case["penalty"],
        early_stopping=case["early"],
        eos_token_id=case["eos"] or None,
        pad_token_id=PAD,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    rows = drawn.sequences[:, ids.shape[1] :].tolist()
    return {
        "tokens": [up_to_end(row, case["eos"]) for row in rows],
        "scores": [round(score, 6) for score in drawn.sequences_scores.tolist()],
    }


def up_to_end(row: list[int], eos: list[int]) -> list[int]:
    """The row with its first end token and without what follows."""
    ends = [place for place, token in enumerate(row) if token in eos]
    return row[: ends[0] + 1] if ends else row


def main() -> int:
    """Write the golden file."""
    import torch
    import transformers

    model = reference_model()
    made = {
        "command": "uv run --group oracle python tools/make_beam_golden.py",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    found = [{**case, **reference(model, case)} for case in cases()]
    lines = ",\n".join(json.dumps(each) for each in found)
    GOLDEN.write_text(f'{{"made": {json.dumps(made)},\n"cases": [\n{lines}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
