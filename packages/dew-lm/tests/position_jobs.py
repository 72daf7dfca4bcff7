"""A decoder over meshes that split its positions, beside one device; for `test_split_positions.py`.

Prints a JSON object of the largest deviations, relative to the largest entry.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dew.nn.backbones.causal_transformer import Biases, CausalTransformer, Rotary, Temperature
from dew.nn.moe import Mixture
from dew.nn.sharding import unboxed
from dew.objectives.base import Step
from dew.objectives.lm import LMObjective
from dew.objectives.lm.batch import POSITIONS_KEY, SEGMENTS_KEY, TEXT_KEY
from dew.training import Layout, MeshSpec, build_mesh
from dew.training.distributed import shard_batch

ROWS, POSITIONS = 8, 72
MESHES = {
    "sequence 4": MeshSpec(sequence=4),
    "sequence 2 x fsdp 2 x tensor 2": MeshSpec(sequence=2, fsdp=2, tensor=2),
}
COMMON = {"vocab_size": 96, "hidden_size": 32, "num_layers": 2, "max_seq_len": 80, "precision": "highest"}
MODELS = {
    "windows, norms, caps": CausalTransformer(
        **COMMON,
        num_heads=8,
        num_kv_heads=4,
        qk_norm=True,
        sliding_window=20,
        sliding_layers=(True, False),
        attention_chunk_size=7,
        chunked_layers=(False, True),
        attn_logit_softcap=5.0,
        final_logit_softcap=9.0,
        tie_embeddings=True,
        rotary=Rotary(local_theta=100.0, fraction=0.5, pairs="neighbours"),
    ),
    "one key head, recomputed": CausalTransformer(
        **COMMON,
        num_heads=8,
        num_kv_heads=1,
        remat=True,
        position="learned",
        block="parallel",
        norm_kind="layer",
        activation="gelu",
        bias=Biases(qkv=True, output=True, mlp=True),
    ),
    "experts": CausalTransformer(
        **COMMON,
        num_heads=8,
        mixture=Mixture(num_experts=4, top_k=2, intermediate_size=16),
        rotary=Rotary(layers=(True, False)),
        qk_norm="l2",
        attention_temperature=Temperature(every=8),
    ),
}


def packed() -> dict[str, np.ndarray]:
    """Rows of documents of drawn lengths, whose positions start again."""
    draw = np.random.default_rng(0)
    starts = draw.random((ROWS, POSITIONS + 1)) < 0.05
    starts[:, 0] = True
    documents = np.cumsum(starts, axis=1, dtype=np.int32)
    index = np.arange(POSITIONS + 1, dtype=np.int32)
    return {
        TEXT_KEY: draw.integers(0, 96, (ROWS, POSITIONS + 1), dtype=np.int32),
        SEGMENTS_KEY: documents,
        POSITIONS_KEY: index - np.maximum.accumulate(np.where(starts, index, 0), axis=1).astype(np.int32),
    }


def gap(one: Any, other: Any) -> float:
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    scale = max(float(np.abs(first).max()) for first, _ in pairs)
    return max(float(np.abs(first - second).max()) for first, second in pairs) / scale


def trained(model: CausalTransformer, meshes: Sequence[str]) -> dict[str, float]:
    """The loss and its gradient on packed rows."""
    objective = LMObjective(model, POSITIONS, ema_decay=None, z_loss=1e-3)
    boxed = objective.init(jax.random.key(0))
    variables, batch = unboxed(boxed), packed()

    def loss(variables: Any, batch: Any) -> jax.Array:
        stats = objective.loss(variables, batch, Step(step=0, key=jax.random.key(1)))[0]
        return objective.reduce_loss(stats)[0]

    step = jax.value_and_grad(loss)
    whole = jax.device_get(jax.jit(step)(variables, batch))
    found: dict[str, float] = {}
    for name in meshes:
        mesh = build_mesh(MESHES[name])
        placed = jax.device_put(variables, Layout(min_shard=64).shardings(mesh, boxed))
        with jax.set_mesh(mesh):
            split = jax.device_get(jax.jit(step)(placed, shard_batch(batch, mesh)))
        found[f"loss, {name}"] = abs(float(whole[0]) - float(split[0])) / abs(float(whole[0]))
        found[f"gradient, {name}"] = gap(whole[1], split[1])
    return found


def generated() -> dict[str, bool]:
    """Whether the ids drawn over each mesh are those of one device; prompts of 8 and 3 ids."""
    model = MODELS["windows, norms, caps"]
    objective = LMObjective(model, POSITIONS, ema_decay=None)
    variables = unboxed(objective.init(jax.random.key(0)))

    def draw() -> np.ndarray:
        prompts = [[1, 2, 3, 4, 5, 6, 7, 8], [3, 4, 5]]
        return np.asarray(
            objective.policy(variables)(prompts, max_new_tokens=9, key=jax.random.key(5)).tokens
        )

    whole = draw()
    found: dict[str, bool] = {}
    for name, spec in MESHES.items():
        with jax.set_mesh(build_mesh(spec)):
            found[name] = bool(np.array_equal(whole, draw()))
    return found


def refused() -> str:
    """What is said about a length that the axis does not divide."""
    model = CausalTransformer(**COMMON, num_heads=8)
    objective = LMObjective(model, 70, ema_decay=None)
    variables = unboxed(objective.init(jax.random.key(0)))
    with jax.set_mesh(build_mesh(MeshSpec(sequence=4))):
        try:
            objective.per_token_log_probs(variables, np.zeros((2, 71), np.int32))
        except ValueError as error:
            return str(error)
    return ""


if __name__ == "__main__":
    one, other = MESHES
    over = {"windows, norms, caps": (one, other), "one key head, recomputed": (one,), "experts": (other,)}
    gaps = {name: trained(MODELS[name], meshes) for name, meshes in over.items()}
    print(json.dumps({"gaps": gaps, "generated": generated(), "refused": refused()}))
