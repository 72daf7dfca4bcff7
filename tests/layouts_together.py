"""Train a decoder with experts, muonclip and a moving average on one device and over everything at once.

Prints the largest difference of a loss and of a parameter after four attempts, two updates, as JSON.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np

from dew.config import OptimConfig
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe import Mixture
from dew.objectives.lm import LMObjective
from dew.training import Layout, MeshSpec, Trainer, build_mesh
from dew.training.distributed import shard_batch
from dew.training.optim import build_optimizer
from dew.training.optim.matrices import axis_names

STEPS, ROWS, LENGTH = 4, 16, 16
MODEL = CausalTransformer(
    vocab_size=64,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_seq_len=LENGTH,
    mixture=Mixture(num_experts=4, top_k=2, intermediate_size=24),
)
TEXT = np.random.default_rng(0).integers(1, 64, (STEPS, ROWS, LENGTH + 1)).astype(np.int32)


def trained(spec: MeshSpec, devices: int, host: tuple[Any, ...]) -> tuple[list[float], list[np.ndarray]]:
    """Losses of every attempt and the parameters at the end."""
    objective = LMObjective(MODEL, LENGTH, ema_decay=0.9, qk_stats=True)
    axes = axis_names(jax.eval_shape(objective.initializer, jax.random.key(0)))
    optim = OptimConfig(optimizer="muonclip", learning_rate=0.02, optimizer_opts={"tau": 0.5})
    trainer = Trainer(
        objective,
        build_optimizer(optim, total_updates=STEPS, axes=axes),
        key=jax.random.key(0),
        mesh=spec,
        layout=Layout(min_shard=16, tolerance=1.0, host=host),
        accumulation=2,
    )
    trainer.__dict__["mesh"] = build_mesh(spec, jax.devices()[:devices])
    state, _, _ = trainer.place()
    losses, step = [], None
    for rows in TEXT:
        batch = shard_batch({"text": rows}, trainer.mesh)
        step = step or trainer.compile(state, batch)
        result = step(state, batch)
        state = result.state
        losses.append(float(result.loss))
    return losses, [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]


if __name__ == "__main__":
    one = trained(MeshSpec(), 1, ())
    every = trained(MeshSpec(stage=2, sequence=2, expert=2), 8, ("params",))
    print(
        json.dumps(
            {
                "loss": max(abs(a - b) for a, b in zip(one[0], every[0], strict=True)),
                "parameters": max(float(np.abs(a - b).max()) for a, b in zip(one[1], every[1], strict=True)),
            }
        )
    )
