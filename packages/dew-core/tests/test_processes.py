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


def pool(job, processes, *, devices=4, timeout_s=120.0, environment=None, **arguments):
    return run_pool(
        f"{JOBS}:{job}",
        processes=processes,
        devices=devices,
        arguments=arguments,
        environment=environment,
        timeout_s=timeout_s,
    )


def values(outcomes):
    for outcome in outcomes:
        assert outcome.status == 0 and not outcome.late, outcome.output[-3000:]
    return [outcome.value for outcome in outcomes]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder and outcomes of the same run in 1, 2 and 4 processes over 4 devices."""
    held = {}
    for count in (1, 2, 4):
        folder = tmp_path_factory.mktemp(f"run{count}")
        done = pool("train", count, steps=STEPS, directory=str(folder), mesh={"fsdp": 2}, checkpoint_every=3)
        held[count] = folder, values(done)
    return held


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


@pytest.mark.parametrize("streams", [False, True])
def test_validation_with_uneven_shares_scores_every_row_once(streams):
    """Ten records in batches of four end with two rows for two or four processes."""
    scored = {
        count: values(pool("validate", count, records=10, streams=streams))
        for count in ((1, 2) if streams else (1, 2, 4))
    }
    expected = scored[1][0]["heard"][0]["validation/error"]
    for count, found in scored.items():
        assert all(sorted(each["ids"]) == list(range(10)) for each in found), count
        assert found[0]["heard"][0]["validation/error"] == pytest.approx(expected, abs=1e-6)
        assert not any(each["heard"] for each in found[1:])


def test_what_process_zero_tells_its_trackers_needs_no_other_process(tmp_path):
    zero, one = values(pool("report", 2, folder=str(tmp_path)))
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
    assert (tmp_path / "tracking" / "journal.jsonl").exists() and list(tmp_path.rglob("*.png"))


def test_states_that_rest_elsewhere_train_the_same_numbers():
    for device, memory, others in values(pool("rest_elsewhere", 2, steps=4)):
        assert device == memory == others


def test_replicas_of_one_process_each_train_what_one_process_does(runs):
    found = values(pool("train", 2, steps=STEPS, mesh={"replicas": 2, "fsdp": 2}))
    assert [value["ids"] for value in found] == 2 * [runs[1][1][0]["ids"]]
    expected = list(runs[1][1][0]["losses"].values())
    np.testing.assert_allclose(list(found[0]["losses"].values()), expected, rtol=0, atol=1e-6)
    for one, other in zip(found[0]["weights"], runs[1][1][0]["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_replicas_keep_every_other_axis_inside_a_process_and_positions_may_cross_them():
    zero, one = values(pool("mesh_groups", 2))
    assert zero["crossing"] == one["crossing"] == ["data"]
    # Each process reads its half; where positions are split over both, both read every row.
    assert [each["shares"] for each in (zero, one)] == [[[0, 2, 1], [0, 1, 2]], [[1, 2, 1], [0, 1, 2]]]
    assert max(zero["gaps"].values()) < 2e-6 and zero["gaps"].keys() == {"all-to-all", "gather"}
