"""The torch side of decode_rate.py: started by it, under an interpreter that has torch and transformers.

A line `greedy B` or `sampled B` on standard input is answered by the seconds of one call for B prompts,
`products B` by those of B rows' products with every weight of a step, and `check B` by the greedy tokens with
the margin of every decision.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np
import torch
import transformers

folder = sys.argv[1]
with open(f"{folder}/request.json") as held:
    request = json.load(held)
torch.set_num_threads(os.cpu_count() or 1)
model = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/model", dtype=torch.float32).eval()
prompts = torch.from_numpy(np.load(f"{folder}/prompts.npy")).long()
budget = request["new_tokens"]
FIXED = {"max_new_tokens": budget, "min_new_tokens": budget, "pad_token_id": 0, "eos_token_id": None}


def greedy(rows: int, **options: object) -> object:
    ids = prompts[:rows]
    return model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **FIXED, **options)


def sampled(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A draw with the log probability of every token before and after the filters."""
    ids = prompts[:rows]
    drawn = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        temperature=request["temperature"],
        top_k=request["top_k"],
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
        **FIXED,
    )
    tokens = drawn.sequences[:, ids.shape[1] :, None]

    def log_probs(steps: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.stack(steps, dim=1).log_softmax(-1).gather(-1, tokens)

    return log_probs(drawn.scores), log_probs(drawn.logits)


def products(rows: int) -> None:
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            torch.nn.functional.linear(torch.ones(rows, layer.in_features), layer.weight)


def checked(rows: int) -> str:
    drawn = greedy(rows, output_logits=True, return_dict_in_generate=True)
    best = torch.stack(drawn.logits, dim=1).topk(2, dim=-1).values
    tokens = drawn.sequences[:, prompts.shape[1] :]
    return json.dumps({"tokens": tokens.tolist(), "margins": (best[..., 0] - best[..., 1]).tolist()})


print(f"torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
with torch.inference_mode():
    for line in sys.stdin:
        what, rows = line.split()
        if what == "check":
            print(checked(int(rows)), flush=True)
            continue
        call, times = {"greedy": (greedy, 1), "sampled": (sampled, 1), "products": (products, 20)}[what]
        start = time.perf_counter()
        for _ in range(times):
            call(int(rows))
        print((time.perf_counter() - start) / times, flush=True)
