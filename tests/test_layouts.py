"""What a layout costs in exchanges and that it changes no number; in processes that have eight devices."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dew.testing.devices import on_devices, result_on_devices

ROOT = Path(__file__).resolve().parent.parent
COMPILE = """
import json, sys
import jax, numpy as np, optax
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.lm import LMObjective
from dew.testing.collectives import collectives
from dew.training import Layout, MeshSpec, Trainer
from dew.training.distributed import shard_batch

found = {}
for name, key_heads, mesh in (
    ("fsdp", 8, MeshSpec(fsdp=8)),
    ("tensor", 8, MeshSpec(tensor=8)),
    ("sequence", 8, MeshSpec(sequence=8)),
    ("sequence, gather", 2, MeshSpec(sequence=8)),
    ("sequence, fsdp, tensor", 8, MeshSpec(sequence=2, fsdp=2, tensor=2)),
):
    model = CausalTransformer(vocab_size=96, hidden_size=32, num_layers=2, num_heads=8,
                              num_kv_heads=key_heads, intermediate_size=64, max_seq_len=16)
    trainer = Trainer(LMObjective(model, 16, ema_decay=None), optax.sgd(0.1), key=jax.random.key(0),
                      mesh=mesh, layout=Layout(min_shard=64, tolerance=1.0 if mesh.sequence > 1 else 0.02))
    state, _, _ = trainer.place()
    batch = shard_batch({"text": np.zeros((8, 17), np.int32)}, trainer.mesh)
    text = trainer.compile(state, batch).lower(state, batch).compile().as_text()
    found[name] = [(each.kind, each.shape) for each in collectives(text) if each.elements > 1]
print(json.dumps(found))
"""
LAYERS, BATCH, WIDTH = 2, (8, 16), 32
WEIGHTS = sorted(
    LAYERS * [[32, 32]] * 4 + LAYERS * [[32, 64]] * 2 + LAYERS * [[64, 32]] + [[32, 96], [96, 32]]
)


@pytest.fixture(scope="module")
def exchanged() -> dict[str, list[tuple[str, list[int]]]]:
    return result_on_devices("-c", COMPILE)


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
def test_positions_stay_and_only_heads_are_traded(exchanged):
    found = exchanged["sequence"]
    of = {kind: [shape for each, shape in found if each == kind] for kind, _ in found}
    assert set(of) == {"all-to-all", "all-reduce", "collective-permute"}
    # Queries, keys and values of a layer there and the result back, and so in the gradient: of every head
    # two positions, in a piece for each device.
    assert of["all-to-all"] == LAYERS * 8 * 8 * [[8, 2, 1, 4]]
    # The gradient of every weight is summed once, whatever splits the tokens.
    layers = LAYERS * ([[32, 32]] * 4 + [[32, 64]] * 2 + [[32, 64]] + [[32]] * 2)
    assert sorted(map(sorted, of["all-reduce"])) == sorted(map(sorted, [*layers, [32, 96], [32, 96], [32]]))
    # The next token of a device's last position is its neighbour's first: ids.
    assert all(math.prod(shape) <= 8 * 3 for shape in of["collective-permute"])


@pytest.mark.slow
def test_few_key_heads_are_gathered_and_nothing_else_is(exchanged):
    found = exchanged["sequence, gather"]
    of = {kind: [shape for each, shape in found if each == kind] for kind, _ in found}
    assert of["all-gather"] == LAYERS * 2 * [[8, 16, 2, 4]]
    assert of["reduce-scatter"] == LAYERS * 2 * [[8, 2, 2, 4]]
    assert "all-to-all" not in of


@pytest.mark.slow
def test_no_device_is_sent_more_states_than_it_holds(exchanged):
    share = math.prod(BATCH) * WIDTH // 4
    weights = {tuple(sorted(shape)) for shape in [*WEIGHTS, [32, 16], [16, 64], [32, 48], [16, 96]]}
    found = exchanged["sequence, fsdp, tensor"]
    states = [shape for _, shape in found if tuple(sorted(shape)) not in weights]
    assert states and max(map(math.prod, states)) <= share, states


@pytest.mark.slow
def test_a_device_holds_its_share_of_the_activations():
    lines = on_devices("tools/activation_bytes.py", "--shards", "4", "--positions", "256", "--kernel", "xla")
    found = {line.split()[0]: line.split()[1:] for line in lines.splitlines()[1:]}
    assert found.keys() == {"all-to-all", "gather"}
    for shards, _, share, ideal in found.values():
        assert shards == "4" and float(ideal) == 0.25
        assert float(share) < 1.1 * float(ideal), found


@pytest.mark.slow
def test_layouts_train_what_one_device_does():
    chosen = ["--only", "lm", "lm-experts", "--accumulation", "1", "--orders", "1"]
    layouts = [
        "--layouts",
        "fsdp 2 x tensor 2 x data 2",
        "expert 4 x fsdp 2",
        "sequence 2 x fsdp 2 x tensor 2",
    ]
    layouts += ["replicas 2 x sequence 2 x fsdp 2"]
    lines = on_devices(str(ROOT / "tools/layout_parity.py"), *chosen, *layouts).splitlines()[1:]
    assert len(lines) == 8 and all(" equal " in line for line in lines), "\n".join(lines)


@pytest.mark.slow
def test_stages_positions_experts_clipping_accumulation_and_the_processor_together_change_no_number():
    gaps = result_on_devices(str(ROOT / "tests/layouts_together.py"))
    assert gaps["loss"] < 2e-6 and gaps["parameters"] < 5e-6
