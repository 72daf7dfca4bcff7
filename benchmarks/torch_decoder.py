"""The torch side of train_rate.py: started by it, under an interpreter that has torch and transformers.

Arguments: `eager` or `compiled`; the published model's folder; a file of ids [rows, length + 1].
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import torch
import transformers

mode, folder, rows = sys.argv[1:]
torch.set_num_threads(os.cpu_count() or 1)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
model.config.use_cache = False
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
ids = torch.from_numpy(np.load(rows)).long()


def loss_of() -> torch.Tensor:
    logits = model(input_ids=ids[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


compute = torch.compile(loss_of) if mode == "compiled" else loss_of


def step() -> float:
    optimizer.zero_grad(set_to_none=True)
    loss = compute()
    loss.backward()
    optimizer.step()
    return loss.item()


print(f"torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
first = step()
step()
print(first, flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    for _ in range(int(line)):
        step()
    print((time.perf_counter() - start) / int(line), flush=True)
