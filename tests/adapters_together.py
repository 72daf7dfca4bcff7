"""Train an adapter of a decoder with experts, one mesh going on where another stopped, and in a pool."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax

from dew.lora import LoRA, adapted
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe import Mixture
from dew.objectives.lm import LMObjective
from dew.telemetry.tracker import Tracker
from dew.testing import in_memory
from dew.training import Checkpoints, Layout, MeshSpec, Trainer, build_mesh
from dew.training.distributed import to_host

STEPS, ROWS, LENGTH = 6, 8, 8
MODEL = CausalTransformer(
    vocab_size=64,
    hidden_size=16,
    num_layers=2,
    num_heads=4,
    head_dim=4,
    max_seq_len=LENGTH,
    mixture=Mixture(num_experts=4, top_k=2, intermediate_size=16),
)
LEGS = (
    (2, MeshSpec(fsdp=2, tensor=2)),
    (4, MeshSpec(expert=4, fsdp=2)),
    (STEPS, MeshSpec(stage=2, sequence=2)),
)
"""Where each mesh of the tour stops."""

ADAPTER = LoRA(("self_attn/*", "mlp/gate", "lm_head"), rank=4, alpha=16.0)
TEXT = np.random.default_rng(0).integers(1, 64, (3 * ROWS, LENGTH + 1)).astype(np.int32)


class Losses(Tracker):
    """Keeps the losses, on the process that hears of them."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def log(self, values: Any, *, step: int) -> None:
        self.losses.append(values["train/loss"])


def trained(spec: MeshSpec, *, steps: int = STEPS, directory: str | None = None) -> dict[str, Any]:
    """Losses, factors and base of the run at `steps`, and which factors are split over devices."""
    tracker = Losses()
    trainer = Trainer(
        adapted(LMObjective(MODEL, LENGTH, ema_decay=None), ADAPTER),
        optax.sgd(0.1, momentum=0.9),
        key=jax.random.key(0),
        mesh=spec,
        layout=Layout(min_shard=1, tolerance=1.0),
        checkpoints=None if directory is None else Checkpoints(directory),
        tracker=tracker,
    )
    if spec == MeshSpec():
        trainer.__dict__["mesh"] = build_mesh(spec, jax.devices()[:1])
    state = trainer.fit(in_memory({"text": TEXT}, batch=ROWS, seed=1), steps=steps, log_every=1)
    factors = jax.tree.leaves_with_path(state.params["params"])
    return {
        "losses": tracker.losses,
        "factors": [to_host(leaf).tolist() for _, leaf in factors],
        "base": [to_host(leaf).tolist() for leaf in jax.tree.leaves(state.params["frozen"])],
        "split": [jax.tree_util.keystr(path) for path, leaf in factors if not leaf.is_fully_replicated],
    }


def tour(*, folder: str) -> dict[str, Any]:
    """The run on one device, and the one whose meshes follow each other."""
    whole = trained(MeshSpec())
    legs = [trained(spec, steps=steps, directory=folder) for steps, spec in LEGS]
    return {"whole": whole, "legs": legs}


def together() -> dict[str, Any]:
    """The run on all devices of a pool."""
    return trained(MeshSpec(fsdp=2))
