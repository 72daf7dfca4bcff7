"""The torch side of train_rate.py: started by it, under an interpreter that has torch and transformers."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import torch
import transformers

mode, folder = sys.argv[1:]
torch.set_num_threads(os.cpu_count() or 1)
config = transformers.LlamaConfig(
    vocab_size=256,
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=8,
    intermediate_size=1024,
    max_position_embeddings=256,
    rms_norm_eps=1e-6,
    use_cache=False,
    tie_word_embeddings=False,
)
model = transformers.LlamaForCausalLM(config).float()
with np.load(f"{folder}/weights.npz") as held:
    model.load_state_dict({name: torch.from_numpy(held[name].copy()) for name in held.files})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
ids = torch.from_numpy(np.load(f"{folder}/ids.npy")).long()


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
