"""Make the golden window losses of the strided perplexity that transformers' documentation publishes.

    UV_PROJECT_ENVIRONMENT=.venv-oracle uv run --group oracle python tools/make_perplexity_golden.py

Writes packages/dew-lm/tests/golden/perplexity.json: for some contexts and strides the mean loss and the
number of counted targets of every window of the recipe ("Perplexity of fixed-length models"), of a Llama in
float64. Its weights are not stored: `draw` makes them from their names in Dew's tree. The recipe takes one
off each window's count for the shift of the labels, which is right for the first window alone; what is kept
is the count that the mean was taken over.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).resolve().parent.parent / "packages/dew-lm/tests/golden"
SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-2,
    "tie_word_embeddings": False,
}
IDS = np.random.default_rng(3).integers(0, 97, 61)
SETTINGS = ((16, 4), (16, 15), (10, 1), (61, 7), (100, 20))


def draw(path: str, shape: tuple[int, ...]) -> np.ndarray:
    """The float64 weight at `path` of Dew's tree; one path and shape give one array."""
    noise = np.random.default_rng(zlib.crc32(path.encode())).standard_normal(shape)
    # Rounded, so that float32 and float64 evaluate the same function.
    return (0.3 * noise + (len(shape) == 1)).astype(np.float32).astype(np.float64)


def path_of(name: str) -> str:
    """A name in transformers' Llama as a path in Dew's tree."""
    parts = name.removeprefix("model.").split(".")
    if parts[0] == "layers":
        parts = [f"layers_{parts[1]}", *parts[2:]]
    leaf = "embedding" if parts[0] == "embed_tokens" else "scale" if "norm" in parts[-2] else "kernel"
    return "/".join([*parts[:-1], leaf])


def model() -> Any:
    import torch
    import transformers

    config = transformers.LlamaConfig(**SIZES)
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            path, shape = path_of(name), tuple(parameter.shape)
            value = draw(path, shape[::-1]).T if path.endswith("kernel") else draw(path, shape)
            parameter.copy_(torch.from_numpy(value.copy()))
    return made


def windows(scorer: Any, max_length: int, stride: int) -> list[tuple[float, int]]:
    """The recipe's loop."""
    import torch

    ids = torch.from_numpy(IDS)[None]
    found, previous = [], 0
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + max_length, ids.shape[1])
        taken = ids[:, begin:end]
        labels = taken.clone()
        labels[:, : -(end - previous)] = -100
        with torch.no_grad():
            loss = float(scorer(taken, labels=labels).loss)
        found.append((loss, int((labels[:, 1:] != -100).sum())))
        previous = end
        if end == ids.shape[1]:
            break
    return found


def main() -> None:
    import torch
    import transformers

    scorer = model()
    rows = [
        {"context": context, "stride": stride, "windows": windows(scorer, context, stride)}
        for context, stride in SETTINGS
    ]
    versions = {each.__name__: each.__version__ for each in (torch, transformers)}
    record = {"command": "python tools/make_perplexity_golden.py", "versions": versions}
    (GOLDEN / "perplexity.json").write_text(json.dumps({**record, "ids": IDS.tolist(), "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
