"""A decoder whose positions a mesh splits trains and generates as on one device."""

from __future__ import annotations

from pathlib import Path

import pytest

from dew.testing.devices import result_on_devices

JOBS = Path(__file__).with_name("position_jobs.py")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> dict[str, dict]:
    return result_on_devices(str(JOBS))


@pytest.mark.parametrize("model", ["windows, norms, caps", "one key head, recomputed", "experts"])
def test_packed_rows_give_the_loss_and_gradient_of_one_device(found, model):
    gaps = found["gaps"][model]
    assert len(gaps) == (4 if model.startswith("windows") else 2)
    for name, gap in gaps.items():
        assert gap < (1e-6 if name.startswith("loss") else 5e-6), (name, gap)


def test_the_same_ids_are_drawn(found):
    assert found["generated"] == {"sequence 4": True, "sequence 2 x fsdp 2 x tensor 2": True}


def test_rows_that_the_axis_does_not_divide_are_refused_with_lengths_that_work(found):
    assert found["refused"].startswith("tokens.shape[1]=70 must be a multiple of mesh.sequence=4")
    assert found["refused"].endswith("use 68 or 72, or mesh.sequence=2")
