"""A checkpoint goes on upon other devices and processes, with exactly the next global batches."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from dew.testing.pool import run_pool

pytestmark = pytest.mark.slow
JOBS = Path(__file__).with_name("pool_jobs.py")
CUT, STEPS = 5, 9
"""Windows of four microbatches end at 4 and 8, epochs of 20 records within batches 3, 5 and 8 of eight."""


def pool(job, *, processes=1, devices=8, **arguments):
    done = run_pool(f"{JOBS}:{job}", processes=processes, devices=devices, arguments=arguments, timeout_s=240)
    for outcome in done:
        assert outcome.status == 0 and not outcome.late, outcome.output[-3000:]
    return done[0].value


def assert_same_run(found, whole):
    assert found["ids"] == whole["ids"]
    steps = [str(step + 1) for step in range(len(whole["ids"]))]
    losses = [[run["losses"][step] for step in steps] for run in (found, whole)]
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-6)
    for one, other in zip(found["weights"], whole["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)


@pytest.fixture(scope="module")
def over_devices(tmp_path_factory):
    return pool("elastic", folder=str(tmp_path_factory.mktemp("devices")), cut=CUT, steps=STEPS)


@pytest.mark.parametrize("devices", ["1", "2", "4"])
def test_eight_devices_go_on_as_fewer_and_back(over_devices, devices):
    assert_same_run(over_devices[devices], over_devices["whole"])


@pytest.fixture(scope="module")
def over_processes(tmp_path_factory):
    """The run of two processes cut mid-window, and the same run whole."""
    folder = tmp_path_factory.mktemp("processes")
    options = {"batch": 8, "accumulation": 4, "mesh": {"fsdp": 2}}
    begun = pool("train", processes=2, devices=4, steps=CUT, directory=str(folder / "2"), **options)
    return folder, begun, pool("train", devices=4, steps=STEPS, **options)


@pytest.mark.parametrize("processes", [1, 4])
def test_two_processes_go_on_as_one_and_four(over_processes, processes):
    folder, begun, whole = over_processes
    place = str(folder / str(processes))
    shutil.copytree(folder / "2", place)
    options = {"batch": 8, "accumulation": 4, "mesh": {"fsdp": 2}}
    rest = pool("train", processes=processes, devices=4, steps=STEPS, directory=place, **options)
    assert rest["processes"] == processes
    joined = {"ids": begun["ids"] + rest["ids"], "losses": {**begun["losses"], **rest["losses"]}}
    assert_same_run({**joined, "weights": rest["weights"]}, whole)
