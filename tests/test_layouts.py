"""What a layout costs in exchanges and that it changes no number; in processes that have eight devices."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMPILE = """
import json, sys
import jax, numpy as np, optax
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.lm import LMObjective
from dew.testing.collectives import collectives
from dew.training import Layout, MeshSpec, Trainer
from dew.training.distributed import shard_batch

model = CausalTransformer(vocab_size=96, hidden_size=32, num_layers=2, num_heads=8, intermediate_size=64,
                          max_seq_len=16)
found = {}
for axis in ("fsdp", "tensor"):
    trainer = Trainer(LMObjective(model, 16, ema_decay=None), optax.sgd(0.1), key=jax.random.key(0),
                      mesh=MeshSpec(**{axis: 8}), layout=Layout(min_shard=64))
    state, _, _ = trainer.place()
    batch = shard_batch({"text": np.zeros((8, 17), np.int32)}, trainer.mesh)
    text = trainer.compile(state, batch).lower(state, batch).compile().as_text()
    found[axis] = [(each.kind, each.shape) for each in collectives(text) if each.elements > 1]
print(json.dumps(found))
"""
LAYERS, BATCH, WIDTH = 2, (8, 16), 32
WEIGHTS = sorted(
    LAYERS * [[32, 32]] * 4 + LAYERS * [[32, 64]] * 2 + LAYERS * [[64, 32]] + [[32, 96], [96, 32]]
)


def eight_devices(*command: str) -> str:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def exchanged() -> dict[str, list[tuple[str, list[int]]]]:
    return json.loads(eight_devices("-c", COMPILE).splitlines()[-1])


@pytest.mark.slow
def test_fully_sharded_weights_move_once_and_states_only_through_the_embedding(exchanged):
    found = exchanged["fsdp"]
    of = {kind: [shape for each, shape in found if each == kind] for kind, _ in found}
    assert set(of) == {"all-gather", "all-reduce", "all-to-all"}
    # The batch's ids go to every device's columns of the embedding; no weight goes twice but the head, which
    # the gradient reads transposed.
    assert sorted(of["all-gather"]) == sorted([*WEIGHTS, [*BATCH, 1]])
    # A device's looked-up columns become its rows' states, and back in the gradient.
    assert sum(math.prod(shape) for shape in of["all-to-all"]) == 2 * BATCH[1] * WIDTH
    # One sum for each gradient: the weights but the embedding, whose columns are whole, and the norms.
    layers = LAYERS * ([[32, 32]] * 4 + [[32, 64]] * 2 + [[64, 32]] + [[32]] * 2)
    assert sorted(map(sorted, of["all-reduce"])) == sorted(map(sorted, [*layers, [32, 96], [32]]))


@pytest.mark.slow
def test_tensor_split_weights_stay_and_states_are_summed(exchanged):
    found = exchanged["tensor"]
    assert {kind for kind, _ in found} == {"all-reduce"}
    # Forward o_proj and down_proj; backward the inputs of q, k, v, gate and up; once the head's input.
    assert sum(shape == [math.prod(BATCH), WIDTH] for _, shape in found) == LAYERS * (2 + 5) + 1
    assert not [shape for _, shape in found if shape in WEIGHTS]


@pytest.mark.slow
def test_layouts_train_what_one_device_does():
    chosen = ["--only", "lm", "lm-experts", "--accumulation", "1", "--orders", "1"]
    layouts = ["--layouts", "fsdp 2 x tensor 2 x data 2", "expert 4 x fsdp 2", "sequence 2 x data 4"]
    lines = eight_devices("tools/layout_parity.py", *chosen, *layouts).splitlines()[1:]
    outcomes = [line.split("  ")[-1].split()[0] for line in lines]
    assert len(lines) == 6 and "DIFFERS" not in " ".join(lines), "\n".join(lines)
    assert sum(" equal " in line for line in lines) == 4, outcomes
    assert sum("mesh.sequence=2" in line for line in lines) == 2
