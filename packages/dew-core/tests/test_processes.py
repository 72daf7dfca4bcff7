"""Pools of 1, 2 and 4 real processes train the same run."""

from itertools import chain
from pathlib import Path

import jax
import numpy as np
import pytest

from dew.testing.pool import run_pool
from dew.training import Checkpoints

pytestmark = pytest.mark.slow
JOBS = Path(__file__).with_name("pool_jobs.py")
STEPS = 7


def jobs_of(count, folder):
    """What a pool of so many processes does, by name: job and arguments. `report` wraps what others use."""
    run = {"steps": STEPS, "directory": str(folder / "run"), "mesh": {"fsdp": 2}, "checkpoint_every": 3}
    jobs = {"run": ("train", run), "validation": ("validate", {"records": 10})}
    if count < 4:
        jobs["streams"] = ("validate", {"records": 10, "streams": True})
    if count == 2:
        jobs["elsewhere"] = ("rest_elsewhere", {"steps": 4})
        jobs["replicas"] = ("train", {"steps": STEPS, "mesh": {"replicas": 2, "fsdp": 2}})
        jobs["groups"] = ("mesh_groups", {})
        jobs["report"] = ("report", {"folder": str(folder / "report")})
    return jobs


@pytest.fixture(scope="module")
def pools(tmp_path_factory):
    """Folder and, by job, every process's values, of pools of 1, 2 and 4 processes over 4 devices."""
    held = {}
    for count in (1, 2, 4):
        folder = tmp_path_factory.mktemp(f"pool{count}")
        jobs = jobs_of(count, folder)
        arguments = {"jobs": list(jobs.values())}
        done = run_pool(f"{JOBS}:several", processes=count, devices=4, arguments=arguments, timeout_s=240.0)
        for outcome in done:
            assert outcome.status == 0 and not outcome.late, outcome.output[-3000:]
        values = zip(*(outcome.value for outcome in done), strict=True)
        held[count] = folder, dict(zip(jobs, values, strict=True))
    return held


@pytest.fixture
def runs(pools):
    """Folder of the checkpoints and values of the same run, by the number of processes."""
    return {count: (folder / "run", found["run"]) for count, (folder, found) in pools.items()}


@pytest.mark.parametrize("count", [2, 4])
def test_every_process_count_reads_the_same_global_batches(runs, count):
    expected = runs[1][1][0]["ids"]
    assert sorted(chain(*expected[:5])) == list(range(20)), "five batches of four are one epoch"
    for value in runs[count][1]:
        assert value["processes"] == count and value["devices"] == 4
        assert value["ids"] == expected


@pytest.mark.parametrize("count", [2, 4])
def test_every_process_count_has_the_same_losses(runs, count):
    expected, found = runs[1][1][0]["losses"], runs[count][1][0]["losses"]
    assert list(found) == [str(step + 1) for step in range(STEPS)]
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [2, 4])
def test_every_process_count_writes_the_same_checkpoints(runs, count):
    one, other = (Checkpoints(runs[each][0]) for each in (1, count))
    assert one.steps() == other.steps() == (3, 6, 7)
    for step in one.steps():
        places = [{held["state"] for held in each.record(step)["positions"]} for each in (one, other)]
        assert places[0] == places[1] and len(places[0]) == 1
        expected, found = (each.restore(step=step)[0] for each in (one, other))
        assert jax.tree.structure(expected) == jax.tree.structure(found)
        jax.tree.map(assert_near, expected, found)


def assert_near(expected, found):
    assert expected.dtype == found.dtype
    if jax.dtypes.issubdtype(expected.dtype, jax.dtypes.prng_key):
        expected, found = jax.random.key_data(expected), jax.random.key_data(found)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_only_process_zero_hears_of_the_losses(runs):
    assert [bool(value["losses"]) for value in runs[4][1]] == [True, False, False, False]


@pytest.mark.parametrize("job", ["validation", "streams"])
def test_validation_with_uneven_shares_scores_every_row_once(pools, job):
    """Ten records in batches of four end with two rows for two or four processes."""
    scored = {count: found[job] for count, (_, found) in pools.items() if job in found}
    assert list(scored) == ([1, 2, 4] if job == "validation" else [1, 2])
    expected = scored[1][0]["heard"][0]["validation/error"]
    for count, found in scored.items():
        assert all(sorted(each["ids"]) == list(range(10)) for each in found), count
        assert found[0]["heard"][0]["validation/error"] == pytest.approx(expected, abs=1e-6)
        assert not any(each["heard"] for each in found[1:])


def test_what_process_zero_tells_its_trackers_needs_no_other_process(pools):
    folder, found = pools[2]
    zero, one = found["report"]
    assert zero["events"] == [
        "accounted",
        "checkpointed",
        "evaluated",
        "finished",
        "log",
        "preview",
        "started",
    ]
    assert zero["waits"] == [] and one["events"] == []
    assert (folder / "report/tracking/journal.jsonl").exists() and list((folder / "report").rglob("*.png"))


def test_states_that_rest_elsewhere_train_the_same_numbers(pools):
    for device, memory, others in pools[2][1]["elsewhere"]:
        assert device == memory == others


def test_replicas_of_one_process_each_train_what_one_process_does(pools, runs):
    found = pools[2][1]["replicas"]
    assert [value["ids"] for value in found] == 2 * [runs[1][1][0]["ids"]]
    expected = list(runs[1][1][0]["losses"].values())
    np.testing.assert_allclose(list(found[0]["losses"].values()), expected, rtol=0, atol=1e-6)
    for one, other in zip(found[0]["weights"], runs[1][1][0]["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_replicas_keep_every_other_axis_inside_a_process_and_positions_may_cross_them(pools):
    zero, one = pools[2][1]["groups"]
    assert zero["crossing"] == one["crossing"] == ["data"]
    # Each process reads its half; where positions are split over both, both read every row.
    assert [each["shares"] for each in (zero, one)] == [[[0, 2, 1], [0, 1, 2]], [[1, 2, 1], [0, 1, 2]]]
    assert max(zero["gaps"].values()) < 2e-6 and zero["gaps"].keys() == {"all-to-all", "gather"}
