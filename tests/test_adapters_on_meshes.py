"""An adapter trains the same factors on every mesh and number of processes, and its base keeps every bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.testing.pool import run_pool

pytestmark = pytest.mark.slow
JOBS = Path(__file__).with_name("adapters_together.py")
NOISE = 2e-6
"""Largest difference that sums in another order make of values about 1 in six steps."""


def pool(job: str, processes: int, devices: int, **arguments: Any) -> Any:
    done = run_pool(f"{JOBS}:{job}", processes=processes, devices=devices, arguments=arguments, timeout_s=300)
    for outcome in done:
        assert outcome.status == 0 and not outcome.late, outcome.output[-3000:]
    return done[0].value


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return pool("tour", 1, 8, folder=str(tmp_path_factory.mktemp("tour")))


def assert_near(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=NOISE)


def test_factors_train_alike_on_tensor_expert_stage_and_sequence_meshes(toured: Any) -> None:
    whole, legs = toured["whole"], toured["legs"]
    assert_near([loss for leg in legs for loss in leg["losses"]], whole["losses"])
    assert_near(legs[-1]["factors"], whole["factors"])


def test_the_base_keeps_every_bit_on_every_mesh(toured: Any) -> None:
    assert all(leg["base"] == toured["whole"]["base"] for leg in toured["legs"])


def test_factors_are_split_as_their_kernels_are(toured: Any) -> None:
    split = [set(leg["split"]) for leg in toured["legs"]]
    # Tensor and fsdp split both factors of q, k, v, o and head; fsdp alone the one that has `embed`. The
    # router's A has it too, and its B nothing that these meshes split.
    assert len(split[0]) == 2 * (4 * 2 + 1) + 2 and len(split[1]) == 11 and not split[2], split


def test_a_pool_of_two_trains_what_one_process_does(toured: Any) -> None:
    found = pool("together", 2, 2)
    assert_near(found["losses"], toured["whole"]["losses"])
    assert_near(found["factors"], toured["whole"]["factors"])
    assert found["base"] == toured["whole"]["base"]
