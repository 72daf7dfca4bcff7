"""Generation over a mesh of eight devices and in pools of two processes: the draws of one device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dew.testing.pool import run_pool

pytestmark = pytest.mark.slow
JOBS = Path(__file__).with_name("generation_jobs.py")
NAMES = ["sample", "beam", "speculative"]


def run(function, *, processes, devices, **arguments):
    outcomes = run_pool(
        f"{JOBS}:{function}", processes=processes, devices=devices, arguments=arguments, timeout_s=600
    )
    for outcome in outcomes:
        assert outcome.status == 0, outcome.output
    return [outcome.value for outcome in outcomes]


@pytest.fixture(scope="module")
def alone():
    """Six prompts on one device."""
    return run("drawn", processes=1, devices=1, mesh=None, rows=6, names=NAMES)[0]


@pytest.fixture(scope="module")
def meshed():
    """The same on eight: rows over two data and two fsdp shards, heads over two."""
    return run("drawn", processes=1, devices=8, mesh={"fsdp": 2, "tensor": 2}, rows=6, names=NAMES)[0]


@pytest.fixture(scope="module")
def pooled():
    """The same in two processes with four devices each, three prompts each."""
    return run("in_a_pool", processes=2, devices=8, mesh={"fsdp": 2}, rows=6, names=NAMES)


def check_same(found, expected):
    for name in ("tokens", "lengths"):
        assert found[name] == expected[name], name
    for name in ("raw", "behavior"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_mesh_draws_what_one_device_draws(alone, meshed, name):
    check_same(meshed[name], alone[name])


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_filled_up_and_stay_split_over_the_batch_axes(meshed, name):
    n = len(meshed[name]["tokens"]) // 6
    assert meshed[name]["placed"] == 8 * n
    assert meshed[name]["split"] == 4
    assert "'data', 'fsdp'" in meshed[name]["spec"]


@pytest.mark.parametrize("name", NAMES)
def test_a_pool_draws_what_one_process_draws_for_the_same_rows(alone, pooled, name):
    rows = len(alone[name]["tokens"]) // 2
    for index, value in enumerate(pooled):
        share = slice(index * rows, (index + 1) * rows)
        keys = ("tokens", "lengths", "raw", "behavior")
        check_same(value["drawn"][name], {key: alone[name][key][share] for key in keys})


CASES = {
    "bad id": "row 0 holds the id 37",
    "count": "the number of rows differs between processes: process 1 has 2 and process 0 has 1",
    "width": "the prompts' padded width differs between processes",
    "n": "n differs between processes: process 1 has 2 and process 0 has 1",
    "budget": "max_new_tokens differs between processes",
    "seed": "key or seed differs between processes",
    "table": "logits differs between processes",
    "closure": "logits differs between processes",
    "no description": "logits[0].func holding floor holds <unlocked _thread.lock",
    "chain": "logits differs between processes",
    "end": "stopping differs between processes",
    "strategy": "strategy differs between processes",
    "refused strategy": "n=3 is above Beam",
}


@pytest.mark.parametrize("case", CASES)
def test_a_request_that_differs_is_refused_by_every_process_before_any_device_works(pooled, case):
    for value in pooled:
        kind, said = value["refused"]["said"][case]
        assert kind in ("ValueError", "PoolFailure")
        assert CASES[case] in said
        assert value["refused"]["read"] == 0


def test_the_process_with_the_bad_row_tells_its_own_error(pooled):
    kinds = [value["refused"]["said"]["bad id"][0] for value in pooled]
    assert kinds == ["PoolFailure", "ValueError"]
