"""Mixtures of experts over meshes of eight devices, beside one; for `test_expert_meshes.py`.

Prints a JSON object: the largest deviations of parameters after updates, relative to the largest entry.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe import ClampedGate, ExpertGroups, Mixture, SharedExpert
from dew.objectives.base import Batch, Step, Variables
from dew.objectives.lm import LMObjective
from dew.objectives.lm.routing import counted
from dew.training import Layout, MeshSpec, Trainer, build_mesh
from dew.training.distributed import shard_batch

jax.config.update("jax_enable_x64", True)

ROWS, LENGTH, UPDATES, LAYERS = 16, 8, 2, 2
EVERYTHING = Mixture(
    num_experts=8,
    top_k=3,
    intermediate_size=16,
    scores="sigmoid",
    scale=1.7,
    bias=True,
    groups=ExpertGroups(count=4, keep=2, rank="best_two"),
    shared=SharedExpert(intermediate_size=8, gated=True),
    router_bias=True,
    expert_bias=True,
    gate=ClampedGate(limit=1.0),
)


class Replaying(LMObjective):
    """Replays the experts that a batch records, where it covers an id."""

    def loss(self, params: Variables, batch: Batch, step: Step) -> Any:
        routes = batch["experts"], batch["covered"]
        scores = self.token_scores(params, batch["text"], routing=True, routes=routes)
        stats, aux = self._statistics(scores)
        assert scores.routing is not None
        aux = dataclasses.replace(aux, effects=counted(scores.routing))
        return self.router_terms.statistics(stats, scores.routing, 3), aux


def batches(count: int) -> list[dict[str, np.ndarray]]:
    """Rows with a record of random experts that covers two ids of three."""
    draw = np.random.default_rng(0)
    shape = (count, ROWS, LENGTH + 1)
    order = np.argsort(draw.random((*shape, LAYERS, 8)), axis=-1)[..., :3]
    fields = {
        "text": draw.integers(0, 64, shape).astype(np.int32),
        "experts": order.astype(np.int32),
        "covered": draw.random(shape) < 0.67,
    }
    return [{name: value[index] for name, value in fields.items()} for index in range(count)]


def model_of(mixture: Mixture, *, remat: bool = False) -> CausalTransformer:
    return CausalTransformer(
        vocab_size=64,
        hidden_size=16,
        num_layers=LAYERS,
        num_heads=4,
        num_kv_heads=2,
        max_seq_len=LENGTH,
        mixture=mixture,
        remat=remat,
        attention_impl="reference",
        dtype=jnp.float64,
        param_dtype=jnp.float64,
    )


def trained(spec: MeshSpec, devices: int, *, accumulation: int = 1, remat: bool = False) -> Any:
    terms = {"aux_loss_alpha": 0.3, "router_z_loss": 0.2, "balance_rate": 0.1}
    objective = Replaying(model_of(EVERYTHING, remat=remat), LENGTH, ema_decay=None, **terms)
    layout = Layout(min_shard=16, tolerance=1.0)
    options: dict[str, Any] = {"mesh": spec, "layout": layout, "accumulation": accumulation}
    trainer = Trainer(objective, optax.sgd(0.3), key=jax.random.key(0), **options)
    trainer.__dict__["mesh"] = build_mesh(spec, jax.devices()[:devices])
    state, _, _ = trainer.place()
    step = None
    for fields in batches(UPDATES):
        for rows in np.split(np.arange(ROWS), accumulation):
            batch = shard_batch({name: value[rows] for name, value in fields.items()}, trainer.mesh)
            step = step or trainer.compile(state, batch)
            state = step(state, batch).state
    return jax.tree.map(np.asarray, state.params)


def gap(one: Any, other: Any) -> float:
    apart = jax.tree.map(lambda a, b: float(np.abs(a - b).max() / np.abs(a).max()), one, other)
    assert all(np.isfinite(each) for each in jax.tree.leaves(apart)), apart
    return max(jax.tree.leaves(apart))


def main() -> None:
    whole = trained(MeshSpec(), 1)
    over = {"sequence 2 x expert 2 x tensor 2": MeshSpec(sequence=2, expert=2, tensor=2)}
    over |= {"stage 2 x expert 2 x data 2": MeshSpec(stage=2, expert=2)}
    gaps = {name: gap(whole, trained(spec, 8)) for name, spec in over.items()}
    parts = trained(MeshSpec(expert=4, fsdp=2), 8, accumulation=2, remat=True)
    print(json.dumps({**gaps, "expert 4 x fsdp 2, recomputed, in parts": gap(whole, parts)}))


if __name__ == "__main__":
    main()
