"""Packed rows, a weighted mixture and a ramp go on upon other devices and processes with the next batches."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest

from dew.testing.pool import run_pool

pytestmark = pytest.mark.slow
JOBS = Path(__file__).with_name("token_pool_jobs.py")
spec = importlib.util.spec_from_file_location("token_pool_jobs", JOBS)
jobs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(jobs)
CUT, STEPS = 5, 7
"""Inside a window of four, and in the last stage of the ramp; both corpora have begun anew by then."""
RUNS = ["window", "ramp"]


def pool(job, *, processes=1, devices=8, **arguments):
    done = run_pool(f"{JOBS}:{job}", processes=processes, devices=devices, arguments=arguments, timeout_s=400)
    for outcome in done:
        assert outcome.status == 0 and not outcome.late, outcome.output[-3000:]
    return done[0].value


def assert_same_run(found, whole):
    assert found["ids"] == whole["ids"]
    steps = [str(step + 1) for step in range(len(whole["ids"]))]
    losses = [[run["losses"][step] for step in steps] for run in (found, whole)]
    np.testing.assert_allclose(*losses, rtol=0, atol=2e-6)
    for one, other in zip(found["weights"], whole["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-4)


@pytest.fixture(scope="module")
def over_devices(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    jobs.write_corpora(folder)
    return pool("over_devices", folder=str(folder), cut=CUT, steps=STEPS)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("devices", ["1", "2", "4"])
def test_eight_devices_go_on_as_fewer_and_back(over_devices, devices, run):
    assert_same_run(over_devices[devices][run], over_devices["whole"][run])


def test_the_runs_mix_both_corpora_two_to_one_in_the_sizes_of_their_stages(over_devices):
    whole = over_devices["whole"]
    assert [len(batch) for batch in whole["ramp"]["ids"]] == [8, 8, 8, 16, 24, 24, 24, 24, 24]
    split = 1 + sum(length - 1 for length in jobs.LENGTHS["a"])
    ids = np.concatenate(whole["window"]["ids"])
    assert (ids < split).sum() == 2 * len(ids) // 3


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The runs of two processes, cut inside the first stages of the ramp and the first window."""
    folder = tmp_path_factory.mktemp("processes")
    jobs.write_corpora(folder)
    cut = pool("over_processes", processes=2, devices=4, folder=str(folder), steps=2, place=f"{folder}/2")
    return folder, cut["runs"]


@pytest.fixture(scope="module")
def alone(begun):
    """The runs of two processes, continued by one, and the same runs whole."""
    folder, _ = begun
    shutil.copytree(folder / "2", folder / "1")
    return pool("over_processes", devices=4, folder=str(folder), steps=6, place=f"{folder}/1", whole=True)


@pytest.mark.parametrize("run", RUNS)
def test_two_processes_go_on_as_one(begun, alone, run):
    assert_same_run(jobs.joined(begun[1], alone["runs"])[run], alone["whole"][run])


@pytest.fixture(scope="module")
def four(begun):
    folder, _ = begun
    shutil.copytree(folder / "2", folder / "4")
    arguments = {"folder": str(folder), "steps": 6, "place": f"{folder}/4"}
    return pool("over_processes", processes=4, devices=4, **arguments)


@pytest.mark.parametrize("run", RUNS)
def test_two_processes_go_on_as_four(begun, alone, four, run):
    assert_same_run(jobs.joined(begun[1], four["runs"])[run], alone["whole"][run])
