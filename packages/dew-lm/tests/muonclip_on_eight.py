"""Train a decoder with muonclip on several meshes of eight devices, in float64, and print how they differ.

Beside it the exchanges of the optimizer's update alone, by its number of Newton-Schulz iterations.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.config import OptimConfig
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe import Mixture
from dew.objectives.lm import LMObjective
from dew.testing.collectives import collectives
from dew.training import Layout, MeshSpec, Trainer
from dew.training.distributed import shard_batch
from dew.training.mesh import build_mesh
from dew.training.optim import build_optimizer
from dew.training.optim.matrices import axis_names

jax.config.update("jax_enable_x64", True)

STEPS, ROWS, LENGTH = 20, 8, 16
MODEL = CausalTransformer(
    vocab_size=64,
    hidden_size=16,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    max_seq_len=LENGTH,
    remat=True,
    mixture=Mixture(num_experts=4, top_k=2, intermediate_size=24),
    attention_impl="reference",
    dtype=jnp.float64,
    param_dtype=jnp.float64,
)
MESHES = {
    "fsdp 2 x tensor 2 x data 2": MeshSpec(fsdp=2, tensor=2),
    "expert 4 x fsdp 2": MeshSpec(expert=4, fsdp=2),
}
TEXT = np.random.default_rng(0).integers(0, 64, (STEPS, ROWS, LENGTH + 1)).astype(np.int32)


def trainer_on(spec: MeshSpec, devices: int, **options: Any) -> Trainer:
    objective = LMObjective(MODEL, LENGTH, ema_decay=None, qk_stats=True)
    axes = axis_names(jax.eval_shape(objective.initializer, jax.random.key(0)))
    optim = OptimConfig(optimizer="muonclip", learning_rate=0.02, optimizer_opts={"tau": 1.5, **options})
    optimizer = build_optimizer(optim, total_updates=STEPS, axes=axes)
    layout = Layout(min_shard=16, tolerance=1.0)
    trainer = Trainer(objective, optimizer, key=jax.random.key(0), mesh=spec, layout=layout)
    trainer.__dict__["mesh"] = build_mesh(spec, jax.devices()[:devices])
    return trainer


def trained(spec: MeshSpec, devices: int) -> tuple[Any, list[float]]:
    trainer = trainer_on(spec, devices)
    state, _, _ = trainer.place()
    logits: list[float] = []
    step = None
    for rows in TEXT:
        batch = shard_batch({"text": rows}, trainer.mesh)
        step = step or trainer.compile(state, batch)
        result = step(state, batch)
        state = result.state
        logits.append(float(result.metrics["max_logit"]))
    return jax.tree.map(np.asarray, state.params["params"]), logits


def exchanged(**options: Any) -> list[tuple[str, tuple[int, ...]]]:
    """The exchanges of one update of placed parameters by gradients that lie as they do."""
    trainer = trainer_on(MeshSpec(fsdp=2, tensor=2), 8, **options)
    state, places, _ = trainer.place()
    params, lies = state.params["params"], places.params["params"]
    with jax.set_mesh(trainer.mesh):
        update = jax.jit(trainer.optimizer.update, out_shardings=(lies, places.opt_state))
        text = update.lower(params, state.opt_state, params).compile().as_text()
    return sorted((each.kind, each.shape) for each in collectives(text) if each.elements > 1)


def main() -> None:
    whole, logits = trained(MeshSpec(), 1)
    gaps: dict[str, float] = {}
    for name, spec in MESHES.items():
        split, _ = trained(spec, 8)
        apart = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), whole, split)
        gaps[name] = max(jax.tree.leaves(apart))
    print(
        json.dumps(
            {"gaps": gaps, "logits": logits, "one": exchanged(ns_steps=1), "five": exchanged(ns_steps=5)}
        )
    )


if __name__ == "__main__":
    main()
