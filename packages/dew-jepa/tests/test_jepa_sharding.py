"""The same losses on one device and on eight."""

from __future__ import annotations

import numpy as np
import pytest

from dew.testing.devices import result_on_devices

PROGRAM = """
import json, sys, jax, numpy as np, optax
from dew.inputs.spec import Field
from dew.nn.backbones.jepa import JepaEncoder, JepaPredictor
from dew.objectives.jepa import JepaObjective, MultiBlock
from dew.testing import in_memory
from dew.telemetry.tracker import Tracker
from dew.training import MeshSpec, Trainer

class Losses(Tracker):
    def __init__(self): self.seen = []
    def log(self, values, *, step): self.seen.append(float(values["train/loss"]))

encoder = JepaEncoder((12, 12), 1, patch_size=2, hidden_size=16, num_layers=1, num_heads=2)
predictor = JepaPredictor((6, 6), 16, hidden_size=8, num_layers=1, num_heads=2)
mask = MultiBlock(targets=2).build((6, 6))
objective = JepaObjective(encoder, predictor, mask, Field("image", (12, 12, 1)), momentum=(0.9, 1.0))
images = np.random.default_rng(0).integers(0, 256, (16, 12, 12, 1), np.uint8)
fsdp = int(sys.argv[1])
losses = Losses()
trainer = Trainer(
    objective, optax.sgd(0.1), key=jax.random.key(0), accumulation=2, mesh=MeshSpec(fsdp=fsdp), tracker=losses
)
trainer.fit(in_memory({"image": images}, batch=8), steps=4, log_every=1)
print(json.dumps({"devices": jax.device_count(), "losses": losses.seen}))
"""


def losses(devices: int, fsdp: int = 1) -> dict[str, list[float]]:
    return result_on_devices("-c", PROGRAM, str(fsdp), devices=devices)


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", [1, 2])
def test_eight_devices_train_with_the_losses_of_one(fsdp):
    one, eight = losses(1), losses(8, fsdp)
    assert (one["devices"], eight["devices"]) == (1, 8)
    assert len(one["losses"]) == 4
    np.testing.assert_allclose(eight["losses"], one["losses"], rtol=1e-6)
