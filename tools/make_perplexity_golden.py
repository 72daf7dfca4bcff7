"""Make the golden window losses of the strided perplexity that transformers' documentation publishes.

    UV_PROJECT_ENVIRONMENT=.venv-oracle uv run --group oracle python tools/make_perplexity_golden.py

Writes packages/dew-lm/tests/golden/perplexity.json: for some contexts and strides the mean loss and the
number of counted targets of every window of the recipe ("Perplexity of fixed-length models"), with the
weights of tools/make_llama_golden.py's `llama` in float64. The recipe takes one off each window's count
for the shift of the labels, which is right for the first window alone; what is kept is the count that the
mean was taken over.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
import transformers
from make_llama_golden import CASES, GOLDEN, SIZES, dew_leaves, draw, torch_value

IDS = np.random.default_rng(3).integers(0, 97, 61)
SETTINGS = ((16, 4), (16, 15), (10, 1), (61, 7), (100, 20))


def model() -> Any:
    config_class, fields = CASES["llama"]
    config = getattr(transformers, config_class)(**{**SIZES, **fields})
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            shapes = dew_leaves(name, np.empty(parameter.shape))
            drawn = {path: draw(path, empty.shape) for path, empty in shapes.items()}
            parameter.copy_(torch.from_numpy(torch_value(drawn).copy()))
    return made


def windows(scorer: Any, max_length: int, stride: int) -> list[tuple[float, int]]:
    """The recipe's loop."""
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
