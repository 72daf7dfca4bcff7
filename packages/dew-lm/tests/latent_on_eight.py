"""Sparse latent attention over meshes of eight devices, beside one; for `test_latent_meshes.py`.

Prints a JSON object: the largest deviations of parameters after updates, relative to the largest entry.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dew.nn.backbones.causal_transformer import MLA, CausalTransformer
from dew.objectives.lm import IndexerTraining, LMObjective
from dew.objectives.lm.batch import POSITIONS_KEY, SEGMENTS_KEY
from dew.training import Layout, MeshSpec, Trainer, build_mesh
from dew.training.distributed import shard_batch

jax.config.update("jax_enable_x64", True)

ROWS, LENGTH, UPDATES = 8, 16, 2
MIXER = MLA(
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=8,
    q_lora_rank=16,
    index_n_heads=8,
    index_head_dim=8,
    index_topk=3,
)
MESHES = {
    "fsdp 2 x tensor 2 x data 2": MeshSpec(fsdp=2, tensor=2),
    "sequence 2 x tensor 2 x data 2": MeshSpec(sequence=2, tensor=2),
    "sequence 8": MeshSpec(sequence=8),
    "stage 2 x fsdp 2 x data 2": MeshSpec(stage=2, fsdp=2),
}
DRAW = np.random.default_rng(0)
TEXT = DRAW.integers(0, 64, (UPDATES, ROWS, LENGTH + 1)).astype(np.int32)
SEGMENTS = np.sort(DRAW.integers(1, 4, (UPDATES, ROWS, LENGTH + 1)), axis=-1).astype(np.int32)
STARTS = np.where(np.diff(SEGMENTS, axis=-1, prepend=0), np.arange(LENGTH + 1), 0)
POSITIONS = (np.arange(LENGTH + 1) - np.maximum.accumulate(STARTS, axis=-1)).astype(np.int32)


def trained(spec: MeshSpec, devices: int) -> Any:
    model = CausalTransformer(
        vocab_size=64,
        hidden_size=16,
        num_layers=2,
        num_heads=4,
        max_seq_len=LENGTH,
        mixer=MIXER,
        attention_chunk_size=4,
        attention_impl="reference",
        dtype=jnp.float64,
        param_dtype=jnp.float64,
    )
    objective = LMObjective(model, LENGTH, ema_decay=None, qk_stats=True, indexer=IndexerTraining("sparse"))
    layout = Layout(min_shard=16, tolerance=1.0)
    trainer = Trainer(objective, optax.sgd(0.3), key=jax.random.key(0), mesh=spec, layout=layout)
    trainer.__dict__["mesh"] = build_mesh(spec, jax.devices()[:devices])
    state, _, _ = trainer.place()
    step = None
    for rows, segments, positions in zip(TEXT, SEGMENTS, POSITIONS, strict=True):
        fields = {"text": rows, SEGMENTS_KEY: segments, POSITIONS_KEY: positions}
        batch = shard_batch(fields, trainer.mesh)
        step = step or trainer.compile(state, batch)
        result = step(state, batch)
        state = result.state
    told = {name: float(result.metrics[name]) for name in ("indexer_kl", "max_logit")}
    return jax.tree.map(np.asarray, state.params), told


def main() -> None:
    whole, told = trained(MeshSpec(), 1)
    gaps: dict[str, float] = {}
    for name, spec in MESHES.items():
        split, also = trained(spec, 8)
        apart = jax.tree.map(lambda a, b: float(np.abs(a - b).max() / np.abs(a).max()), whole, split)
        metrics = [abs(told[key] - also[key]) / told[key] for key in told]
        gaps[name] = max(*jax.tree.leaves(apart), *metrics)
    print(json.dumps(gaps))


if __name__ == "__main__":
    main()
