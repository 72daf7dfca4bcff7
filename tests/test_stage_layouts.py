"""Decoders over pipeline stages: the numbers of one device, and what each stage holds and sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dew.testing.devices import result_on_devices
from dew.testing.pool import run_pool

TOOLS = str(Path(__file__).resolve().parent.parent / "tools")
EIGHT = """
import json, sys
import jax, numpy as np, optax
sys.path.insert(0, sys.argv[1])
jax.config.update("jax_default_matmul_precision", "highest")
"""
TRAIN = (
    EIGHT
    + """
import layout_parity as parity
from dew.lora import LoRA, adapted
from dew.nn.backbones.causal_transformer import Biases, CausalTransformer, Rotary
from dew.nn.moe.config import Mixture
from dew.objectives.lm import LMObjective
from dew.training import MeshSpec

parity.CLIP = 1e-7
draw = np.random.default_rng(0)
ROWS, IDS = 160, 13
documents = {"segment_ids": np.repeat([[0] * 7 + [1] * 6], ROWS, 0).astype(np.int32),
             "positions": np.repeat([[*range(7), *range(6)]], ROWS, 0).astype(np.int32)}
texts = {"text": draw.integers(1, 64, (ROWS, IDS)).astype(np.int32)}

def model(**fields):
    return CausalTransformer(vocab_size=64, hidden_size=16, num_layers=4, num_heads=2, intermediate_size=32,
                             max_seq_len=IDS, **fields)

windowed = model(sliding_window=3, sliding_layers=(True, False), remat=True, block="sandwich",
                 norm_kind="rms_offset", bias=Biases(qkv=True, mlp=True), rotary=Rotary(local_theta=100.0))
mixed = model(mixture=Mixture(num_experts=4, top_k=2, intermediate_size=16, bias=True, layers=(False, True)))
terms = dict(aux_loss_alpha=0.01, router_z_loss=0.001, balance_rate=0.01)
lora = LoRA(("q_proj", "down_proj", "lm_head"), rank=2, alpha=4.0)
cases = {
    "documents, windows, parts and remat": (LMObjective(windowed, IDS - 1), {**texts, **documents},
                                     MeshSpec(stage=2), 1),
    "experts, accumulated": (LMObjective(mixed, IDS - 1, **terms), texts, MeshSpec(stage=2, expert=2), 4),
    "adapter": (adapted(LMObjective(model(), IDS - 1), lora), texts, MeshSpec(stage=2, fsdp=2, tensor=2), 1),
}
found = {}
for name, (objective, rows, mesh, window) in cases.items():
    batches = parity.batches_of(lambda count: {key: leaf[:count] for key, leaf in rows.items()}, window)
    one = parity.trained(objective, batches, window, devices=jax.devices()[:1])
    found[name] = parity.deviations(one, parity.trained(objective, batches, window, mesh=mesh))
print(json.dumps(found))
"""
)
FIT = (
    EIGHT
    + """
import tempfile
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.lm import LMObjective, Samples
from dew.objectives.lm.metrics import Perplexity
from dew.testing import in_memory
from dew.training import Checkpoints, Layout, MeshSpec, Trainer, build_mesh

model = CausalTransformer(vocab_size=64, hidden_size=16, num_layers=4, num_heads=2, intermediate_size=32,
                          max_seq_len=16)
texts = {"text": np.random.default_rng(0).integers(1, 64, (36, 13)).astype(np.int32)}

class Heard:
    # A tracker that remembers perplexities and previews.
    def __init__(self):
        self.said = {"scores": [], "texts": []}
    def __getattr__(self, name):
        return lambda *args, **options: [self.hear(each) for each in args] and None
    def hear(self, said):
        if isinstance(said, dict):
            self.said["scores"] += [float(value) for key, value in said.items() if "perplexity" in str(key)]
        if hasattr(said, "texts"):
            self.said["texts"].append(list(said.texts))

def fit(mesh, steps, directory, devices=None):
    heard = Heard()
    objective = LMObjective(model, 12, samples=Samples([[1, 2, 3], [4, 5, 6]], 5))
    trainer = Trainer(objective, optax.adamw(0.01, eps=1e-3), key=jax.random.key(1), mesh=mesh,
                      layout=Layout(min_shard=16), checkpoints=Checkpoints(directory), tracker=heard)
    trainer.__dict__["mesh"] = build_mesh(mesh, devices)
    # 36 rows: the last validation batch has 4, which 4 microbatches over 2 row shards do not fit.
    state = trainer.fit(in_memory(texts, batch=16, seed=0), steps=steps, eval_every=3, checkpoint_every=3,
                        metrics=(Perplexity(),), preview=True)
    return jax.device_get((state.params, state.ema)), heard.said

with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
    one, said = fit(MeshSpec(), 6, first, jax.devices()[:1])
    _, early = fit(MeshSpec(stage=4, microbatches=4), 3, second)
    other, late = fit(MeshSpec(fsdp=2, stage=2), 6, second)
gap = max(jax.tree.leaves(jax.tree.map(lambda a, b: float(np.abs(a - b).max()), one, other)))
print(json.dumps({"gap": gap, "one": said, "staged": {key: early[key] + late[key] for key in early}}))
"""
)
HELD = (
    EIGHT
    + """
import layout_memory as memory
from dew.testing.collectives import collectives
from dew.training import MeshSpec

whole = memory.measured(MeshSpec(), memory.MODEL, jax.devices()[:2])
staged = memory.measured(MeshSpec(stage=4, microbatches=16), memory.MODEL)
sent = collectives(staged.step.as_text())
print(json.dumps({"whole": vars(memory.held(whole)), "staged": vars(memory.held(staged)),
                  "sent": [(each.kind, each.shape) for each in sent if each.elements > 1]}))
"""
)


def trained(mesh: dict[str, int]) -> dict[str, Any]:
    """A short run of a small decoder, for a process of a pool: its losses and a digest of its parameters."""
    import jax
    import numpy as np
    import optax

    from dew.nn.backbones.causal_transformer import CausalTransformer
    from dew.objectives.lm import LMObjective
    from dew.telemetry.tracker import Tracker
    from dew.testing import in_memory
    from dew.training import Layout, MeshSpec, Trainer

    class Losses(Tracker):
        def __init__(self) -> None:
            self.held: list[float] = []

        def log(self, values: Any, *, step: int) -> None:
            self.held.append(float(values["train/loss"]))

    jax.config.update("jax_default_matmul_precision", "highest")
    model = CausalTransformer(
        vocab_size=64, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, max_seq_len=16
    )
    tracker = Losses()
    trainer = Trainer(
        LMObjective(model, 12),
        optax.adamw(0.01, eps=1e-3),
        key=jax.random.key(1),
        mesh=MeshSpec(**mesh),
        layout=Layout(min_shard=16),
        tracker=tracker,
    )
    texts = {"text": np.random.default_rng(0).integers(1, 64, (16, 13)).astype(np.int32)}
    state = trainer.fit(in_memory(texts, batch=8, seed=0), steps=3, log_every=1)
    return {"losses": tracker.held, "norm": float(optax.tree.norm(state.params))}


@pytest.mark.slow
def test_stages_train_what_one_device_does():
    """Packed documents, patterns of windows and of experts, recomputation, windows of four, an adapter."""
    for name, found in result_on_devices("-c", TRAIN, TOOLS).items():
        assert max(found["losses"], found["norms"], found["parameters"]) < 1e-6, (name, found)
        # The order of sums differs between processors too: up to 9.4e-6 was seen.
        assert found["clipped"] < 2e-5, (name, found)


@pytest.mark.slow
def test_a_run_over_stages_validates_shows_and_resumes_as_on_one_device():
    found = result_on_devices("-c", FIT, TOOLS)
    assert found["gap"] < 1e-6
    assert len(found["one"]["scores"]) == 2 and len(found["one"]["texts"]) == 2
    assert found["staged"]["scores"] == pytest.approx(found["one"]["scores"], rel=1e-6)
    assert found["staged"]["texts"] == found["one"]["texts"]


@pytest.fixture(scope="module")
def held() -> Any:
    return result_on_devices("-c", HELD, TOOLS)


@pytest.mark.slow
def test_a_stage_holds_its_own_layers_and_their_activations(held):
    """Of 16 microbatches a stage keeps 19 ticks: 19/64 of all the layers' activations, not 16/64."""
    whole, staged = held["whole"], held["staged"]
    assert staged["parameters"] == whole["parameters"]
    assert staged["bank"] == whole["bank"] / 4
    assert 0.25 < staged["activations"] / whole["activations"] < 0.38
    assert staged["step"] / whole["step"] < 0.38


@pytest.mark.slow
def test_stages_send_states_to_their_neighbours_and_gather_no_weight(held):
    found = held["sent"]
    microbatch = [4, 32, 32]
    permuted = [shape for kind, shape in found if kind == "collective-permute"]
    # To the next stage and, in the queue, to the one before; and the same of their gradients.
    assert permuted == [microbatch] * 4
    # The embedding's gradient is added over whole rows.
    assert [shape for kind, shape in found if kind == "all-gather"] == [[64, 32, 32]]
    assert {kind for kind, _ in found} == {"collective-permute", "all-gather", "all-reduce"}


@pytest.mark.slow
def test_each_process_can_be_a_stage():
    (alone,), pair = (
        run_pool(f"{__file__}:trained", processes=count, devices=4, arguments={"mesh": mesh})
        for count, mesh in ((1, {}), (2, {"stage": 2, "fsdp": 2}))
    )
    for outcome in (alone, *pair):
        assert outcome.status == 0, outcome.output[-3000:]
        assert outcome.value["norm"] == pytest.approx(alone.value["norm"], rel=1e-6)
    assert pair[0].value["losses"] == pytest.approx(alone.value["losses"], rel=1e-6)
