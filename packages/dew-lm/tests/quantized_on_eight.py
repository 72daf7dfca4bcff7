"""Train a mixture of experts in int8 on meshes of eight devices, and print how far they are from one.

In float64, where rounding noise moves no entry across a step of int8.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe import Mixture
from dew.objectives.lm import LMObjective
from dew.training import Layout, MeshSpec, Trainer
from dew.training.distributed import shard_batch
from dew.training.mesh import build_mesh
from dew.training.quantization import Quantization, quantized

jax.config.update("jax_enable_x64", True)

MODEL = CausalTransformer(
    vocab_size=64,
    hidden_size=32,
    num_layers=1,
    num_heads=4,
    max_seq_len=16,
    mixture=Mixture(num_experts=4, top_k=2),
    remat=True,
    attention_impl="reference",
    dtype=jnp.float64,
    param_dtype=jnp.float64,
)
TEXT = np.random.default_rng(0).integers(0, 64, (5, 8, 17)).astype(np.int32)


def trained(spec: MeshSpec, devices: int) -> Any:
    """The parameters after an update on each batch."""
    objective = quantized(LMObjective(MODEL, 16, ema_decay=None), Quantization())
    layout = Layout(min_shard=16, tolerance=1.0)
    trainer = Trainer(objective, optax.sgd(0.3), key=jax.random.key(0), mesh=spec, layout=layout)
    trainer.__dict__["mesh"] = build_mesh(spec, jax.devices()[:devices])
    state, _, _ = trainer.place()
    step = None
    for rows in TEXT:
        batch = shard_batch({"text": rows}, trainer.mesh)
        step = step or trainer.compile(state, batch)
        state = step(state, batch).state
    return jax.tree.map(np.asarray, state.params["params"])


def main() -> None:
    """Print the largest difference of any parameter on each mesh."""
    whole = trained(MeshSpec(), 1)
    gaps: list[float] = []
    for spec in (MeshSpec(fsdp=2, tensor=2), MeshSpec(expert=4, fsdp=2)):
        apart = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), whole, trained(spec, 8))
        gaps.append(max(jax.tree.leaves(apart)))
    print(json.dumps(gaps))


if __name__ == "__main__":
    main()
