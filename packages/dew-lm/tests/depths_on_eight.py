"""Three updates of a decoder with prediction depths on eight devices, cut in several ways, beside one device.

Prints, for each mesh, the largest difference of a parameter from those of one device.
"""

from __future__ import annotations

import json

import grain
import jax
import numpy as np
import optax

from dew.data import Loading
from dew.data.dataset import Dataset
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.lm import LMObjective
from dew.training import Layout, MeshSpec, Trainer, build_mesh
from dew.training.distributed import to_host

MESHES = {
    "fsdp and tensor": {"fsdp": 2, "tensor": 2},
    "sequence": {"sequence": 2, "fsdp": 2},
    "stage": {"stage": 2, "fsdp": 2},
}


def trained(mesh, devices=None):
    model = CausalTransformer(
        vocab_size=37,
        hidden_size=16,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=32,
        max_seq_len=16,
        num_nextn_predict_layers=2,
        precision="highest",
    )
    trainer = Trainer(
        LMObjective(model, 16, ema_decay=None, mtp_weight=0.3, token_accuracy=False),
        optax.sgd(0.5),
        key=jax.random.key(0),
        mesh=MeshSpec(**mesh),
        layout=Layout(min_shard=16, tolerance=1.0),
    )
    if devices is not None:
        trainer.__dict__["mesh"] = build_mesh(trainer.mesh_spec, jax.devices()[:devices])
    ids = np.random.default_rng(0).integers(1, 37, (64, 17)).astype(np.int32)
    rows = grain.MapDataset.source([{"text": row} for row in ids])
    state = trainer.fit(Dataset.from_grain(rows, batch=16, loading=Loading(workers=0)), steps=3)
    return to_host(state.params["params"])


if __name__ == "__main__":
    alone = trained({}, 1)
    apart = {}
    for name, mesh in MESHES.items():
        off = jax.tree.map(lambda one, other: float(np.abs(one - other).max()), alone, trained(mesh))
        apart[name] = max(jax.tree.leaves(off))
    print(json.dumps(apart))
