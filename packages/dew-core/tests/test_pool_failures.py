"""One process of a pool fails: all of them end, soon, and say which one was first and why."""

import re
from pathlib import Path

import pytest

from dew.testing.pool import run_pool

pytestmark = pytest.mark.slow
JOBS = Path(__file__).with_name("pool_jobs.py")
SILENCE, PATIENCE, SOON = 6, 20, 15
"""Seconds: the two settings of the pools here, and what ending takes besides, on a machine that is busy."""


def pool(job, *, processes=2, timeout_s=150.0, **arguments):
    limits = {"DEW_SILENCE_S": str(SILENCE), "DEW_PATIENCE_S": str(PATIENCE)}
    return run_pool(
        f"{JOBS}:{job}",
        processes=processes,
        devices=processes,
        arguments=arguments,
        environment=limits,
        timeout_s=timeout_s,
    )


def assert_all_end(outcomes, within, cause, *, unless=()):
    """All have ended in time after the trouble, in failure, and those not in `unless` name the cause."""
    began = float(re.search(r"trouble at ([\d.]+)", "".join(each.output for each in outcomes))[1])
    for index, outcome in enumerate(outcomes):
        assert not outcome.late and outcome.status != 0, outcome.output[-3000:]
        assert outcome.ended - began < within, (outcome.ended - began, outcome.output[-3000:])
        if index not in unless:
            assert re.search(cause, outcome.output), outcome.output[-3000:]


@pytest.mark.parametrize("who", [0, 1])
def test_a_process_that_raises_ends_all(who):
    done = pool("fail", how="raises", who=who)
    assert_all_end(done, SOON, f"process {who} of 2 failed: ValueError: record 13 is broken", unless=(who,))
    assert "ValueError: record 13 is broken" in done[who].output


def test_a_process_that_leaves_ends_all():
    assert_all_end(
        pool("fail", how="leaves", who=1), SOON, "process 1 of 2 failed: SystemExit: enough", unless=(1,)
    )


@pytest.mark.parametrize("how", ["killed", "exits"])
def test_a_process_that_dies_without_a_word_ends_all(how):
    done = pool("fail", how=how, who=1)
    assert_all_end(done, SILENCE + SOON, "process 1 of 2 failed: no sign of life for 6 s", unless=(1,))
    assert done[1].status == {"killed": -9, "exits": 3}[how]


def test_a_process_that_dies_before_its_first_batch_is_missed_too():
    done = pool("vanish", who=1)
    assert_all_end(done, SILENCE + SOON, "process 1 of 2 failed: no sign of life for 6 s", unless=(1,))


def test_the_death_of_the_process_that_holds_the_pool_ends_all():
    done = pool("fail", how="killed", who=0)
    assert_all_end(done, SILENCE + SOON, "process 0 of 2, which|leader task was preempted/died", unless=(0,))


def test_data_that_never_comes_ends_all():
    done = pool("fail", how="hangs", who=1)
    assert_all_end(
        done, PATIENCE + SOON, "process 1 of 2 failed: it waited 20 s for the training data after step"
    )


@pytest.mark.parametrize("how", ["short", "wide"])
def test_a_batch_of_other_shapes_on_one_process_ends_all(how):
    done = pool("fail", how=how, who=1)
    assert_all_end(done, SOON, r"process 1 of 2 failed: ValueError: batch 4 is|ValueError: batch 4 is")


def test_a_pool_of_four_ends_with_one():
    done = pool("fail", processes=4, how="raises", who=2)
    assert_all_end(done, SOON, "process 2 of 4 failed: ValueError: record 13 is broken", unless=(2,))


def test_processes_with_other_plans_are_refused_by_name():
    for outcome in pool("disagree", steps=3):
        assert outcome.status == 1 and not outcome.late
        assert "process 1 has steps=4 and process 0 has steps=3" in outcome.output, outcome.output[-3000:]
